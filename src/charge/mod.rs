//! What a store decides on: charges, and their later corrections.
//!
//! A custom [`Store`](crate::store::Store) receives these types.

mod charge;
mod fingerprint;
#[cfg(feature = "redis")]
mod merge;
mod settlement;
mod turn;

#[cfg(feature = "redis")]
pub(crate) use self::charge::{Away, Site};
pub use self::charge::{Charge, Enforcement, OwnedCharge};
pub(crate) use self::charge::{Charges, MAX_CHARGES};
#[cfg(feature = "redis")]
pub(crate) use self::fingerprint::mix;
pub(crate) use self::fingerprint::{Fingerprint, place};
#[cfg(feature = "redis")]
pub(crate) use self::merge::Merge;
pub(crate) use self::settlement::{Actual, KeyEffect};
pub use self::settlement::{Correction, Receipt, Settlement};
pub use self::turn::{Priority, TurnRequest, Turns};
pub(crate) use self::turn::{Turn, WaitingCaller};
pub use crate::key::KeyText;
