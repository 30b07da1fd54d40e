//! Connections to one server: dialled, held, checked and given up.

pub(crate) mod classify;
mod dial;
mod dial_backoff;
mod lane;
pub(crate) mod server_check;

pub(super) use self::lane::{Lane, LaneConnection, SendError};
pub(super) use self::server_check::ServerCheck;
