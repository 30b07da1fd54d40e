//! The environment of the suites: real servers and a faulty network.
//!
//! [`Server`] is a Redis or Valkey child process that can be paused, killed and restarted. [`Cluster`] is several of them, and
//! [`Sentinels`] watch two. An [`Authority`] signs certificates. [`Proxy`] is between a client and a server and loses, delays
//! or cuts what passes through it. [`Nginx`] is a real one in front of a web server. [`Browser`] shows a page as people see it.
//! [`unpack`] reads the reply of the decision script. `in_process` has what tests without servers need as well.

mod browser;
mod cluster;
mod in_process;
mod launch;
mod nginx;
mod proxy;
mod script_reply;
mod sentinel;
mod server;
mod tls;

pub(crate) use self::browser::Browser;
pub(crate) use self::cluster::Cluster;
#[cfg(feature = "test-util")]
pub(crate) use self::in_process::over_a_full_store;
pub(crate) use self::in_process::{Client, Folder, Random, Reply, logged};
pub(crate) use self::nginx::Nginx;
pub(crate) use self::proxy::{Mode, Proxy};
pub(crate) use self::script_reply::unpack;
pub(crate) use self::sentinel::Sentinels;
pub(crate) use self::server::Server;
pub(crate) use self::tls::{Authority, Identity};
