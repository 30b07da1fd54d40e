//! Several instances or processes on the same keys.

mod hammer;
mod hammer_mixed;
mod random;
mod reserve;
pub(crate) mod shares;
mod workers;
