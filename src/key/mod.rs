//! Keys, and how a cluster and an IPv6 network group them.

pub(crate) mod address;
pub(crate) mod key;
pub(crate) mod slot;
mod text;

pub use self::key::HashSecret;
pub(crate) use self::key::Key;
#[cfg(feature = "redis")]
pub(crate) use self::slot::SLOTS;
pub use self::text::KeyText;
