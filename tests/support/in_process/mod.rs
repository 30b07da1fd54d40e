//! What tests without servers need as well. [`Client`] asks a web server over one connection. [`Folder`] holds the files of a
//! test. [`logged`] returns the events that a test logged. [`Random`] makes numbers from a seed.

pub(crate) mod folder;
#[cfg(all(feature = "redis", feature = "test-util"))]
mod full_store;
mod http;
pub(crate) mod log;
mod random;

pub(crate) use self::folder::Folder;
#[cfg(all(feature = "redis", feature = "test-util"))]
pub(crate) use self::full_store::over_a_full_store;
pub(crate) use self::http::{Client, Reply};
pub(crate) use self::log::logged;
pub(crate) use self::random::Random;
