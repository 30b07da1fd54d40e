//! Connections to one server: how they are made, held, judged and given up.

mod backoff;
pub(crate) mod classify;
mod dial;
mod lane;
pub(crate) mod server_check;

pub(super) use self::lane::{Held, Lane};
pub(super) use self::server_check::ServerCheck;
