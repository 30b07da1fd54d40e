//! Several instances or processes on the same keys.

mod hammer;
mod hammer_mixed;
mod random;
pub(crate) mod shares;
