//! The environment of the suites: a real server and a faulty network.
//!
//! [`Server`] is a Redis or Valkey child process that can be paused, killed and
//! restarted. [`Cluster`] is several of them, and [`Sentinels`] watch two. An [`Authority`] signs certificates. [`Proxy`] is between a client and that server and loses,
//! delays or cuts what passes through it. [`Nginx`] is a real one in front of a web server. [`Client`] asks a web server over one
//! connection, and [`Browser`] shows a page as people see it. [`Folder`] holds the files of a test. [`logged`] returns the events that a test logged. [`unpack`] reads the reply of
//! the decision script.

mod browser;
mod cluster;
mod folder;
mod http;
mod launch;
mod log;
mod nginx;
mod proxy;
mod random;
mod script_reply;
mod sentinel;
mod server;
mod tls;

pub(crate) use self::browser::Browser;
pub(crate) use self::cluster::Cluster;
pub(crate) use self::folder::Folder;
pub(crate) use self::http::{Client, Reply};
pub(crate) use self::log::{logged, on_each_line};
pub(crate) use self::nginx::Nginx;
pub(crate) use self::proxy::{Mode, Proxy};
pub(crate) use self::random::Random;
pub(crate) use self::script_reply::unpack;
pub(crate) use self::sentinel::Sentinels;
pub(crate) use self::server::Server;
pub(crate) use self::tls::{Authority, Identity};
