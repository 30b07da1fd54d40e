//! The head of a request, how its path is spelled, and what was read of its body.

mod body;
mod head;
mod readings;
mod spelling;

#[cfg(feature = "body")]
pub(crate) use self::body::BufferedBody;
pub use self::body::{BodyFault, BodyLimits};
pub use self::head::RequestHead;
pub(crate) use self::readings::{Readings, is_dropped_at_end, may_equal};
pub(crate) use self::spelling::{MOST_SEGMENTS, Spelling, decode_once, hex_byte};
