//! The head of a request, and how its path is spelled.

mod head;
mod readings;
mod spelling;

pub use self::head::RequestHead;
pub(crate) use self::readings::{Readings, is_dropped_at_end, may_equal};
pub(crate) use self::spelling::{MOST_SEGMENTS, Spelling, decode_once, hex_byte};
