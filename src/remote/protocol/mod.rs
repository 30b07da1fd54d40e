//! The protocol of the decision script: keys, arguments and replies. No I/O.
//!
//! ```text
//! charges -- keyspace --> keys       --+
//!         -- codec -----> arguments  --+--> request --> EVALSHA ... --> reply -- codec --> decision
//! ```

mod codec;
mod keyspace;
pub(crate) mod reply;
mod request;
mod script;

#[cfg(fuzzing)]
pub(super) use self::codec::reply_len;
pub(super) use self::keyspace::Keyspace;
pub(super) use self::reply::{Reply, RequestResult};
pub(super) use self::request::{CancelHandle, Request, takes_slots};
pub use self::script::Script;
