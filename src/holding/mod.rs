//! What is in flight: slots that are held until they are released, and renewed meanwhile.

mod by_key;
mod held;
mod hold;
mod join;
mod keeper;
mod schedule;
mod unsettled;

pub use self::hold::Hold;
pub(crate) use self::keeper::Keeper;
