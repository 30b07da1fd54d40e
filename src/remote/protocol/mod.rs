//! The conversation with the decision script: keys, arguments and replies.

mod codec;
mod departure;
mod keyspace;
pub(crate) mod reply;
mod request;
mod script;

pub(super) use self::codec::CALLER_TIME;
#[cfg(fuzzing)]
pub(super) use self::codec::reply_len;
pub(super) use self::departure::Departure;
pub(super) use self::keyspace::Keyspace;
pub(super) use self::reply::Reply;
pub(super) use self::request::Request;
pub use self::script::Script;
