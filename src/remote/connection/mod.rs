//! Connections to one server: dialled, held, checked and given up.

mod address;
pub(crate) mod classify;
mod credentials;
mod dial;
mod dial_backoff;
mod direct;
mod driver;
mod endpoint;
mod handshake;
mod lane;
mod listening;
mod mode;
mod multiplexed;
mod sentinel;
pub(crate) mod server_check;
mod server_run;
mod socket;
mod stream;
#[cfg(feature = "tls-rustls-no-provider")]
mod tls;
mod write_first;

pub use self::credentials::Credentials;
#[cfg(feature = "tls-rustls-no-provider")]
pub use self::tls::TlsConfig;

pub(super) use self::address::Address;
pub(super) use self::credentials::{Login, Provider};
pub(super) use self::direct::ConnectionSettings;
pub(super) use self::endpoint::Endpoint;
pub(super) use self::handshake::Session;
pub(super) use self::lane::{Lane, LaneConnection, SendError};
pub(super) use self::listening::Listening;
pub(super) use self::mode::ServerMode;
pub(super) use self::sentinel::Sentinels;
pub(super) use self::server_check::ServerCheck;
pub(super) use self::server_run::{LatestRuns, ServerRun};
pub(super) use self::stream::Security;
