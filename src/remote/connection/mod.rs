//! Connections to one server: how they are made, held, judged and given up.

pub(crate) mod classify;
mod dial;
mod dial_backoff;
mod lane;
pub(crate) mod server_check;

pub(super) use self::lane::{Held, Lane};
pub(super) use self::server_check::ServerCheck;
