//! The environment of the suites: a real server and a faulty network.
//!
//! [`Server`] is a Redis or Valkey child process that can be paused, killed and
//! restarted. [`Proxy`] is between a client and that server and loses,
//! delays or cuts what passes through it. [`Client`] asks a web server over one
//! connection. [`logged`] returns the events that a test logged. [`unpack`] reads the reply of
//! the decision script.

mod http;
mod launch;
mod log;
mod proxy;
mod random;
mod script_reply;
mod server;

pub(crate) use self::http::{Client, Reply};
pub(crate) use self::log::{logged, on_each_line};
pub(crate) use self::proxy::{Mode, Proxy};
pub(crate) use self::random::Random;
pub(crate) use self::script_reply::unpack;
pub(crate) use self::server::Server;
