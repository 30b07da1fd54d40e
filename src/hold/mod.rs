//! What is in flight: slots that are held until they are released, and renewed meanwhile.

mod by_key;
mod guard;
mod held;
mod join;
mod keeper;
mod schedule;
mod unsettled;

pub use self::guard::Hold;
pub(crate) use self::keeper::Keeper;
