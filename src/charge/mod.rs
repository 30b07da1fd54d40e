//! What a store decides on: charges, and their later corrections.
//!
//! A custom [`Store`](crate::store::Store) receives these types.

mod as_charges;
pub(crate) mod charge;
mod fingerprint;
#[cfg(feature = "redis")]
mod merge;
mod settlement;
mod turn;

pub use self::as_charges::AsCharges;
#[cfg(feature = "redis")]
pub(crate) use self::charge::{Away, Site};
pub(crate) use self::charge::{Charge, Charges, MAX_CHARGES};
pub use self::charge::{Enforcement, OwnedCharge};
pub(crate) use self::fingerprint::{Fingerprint, place};
pub(crate) use self::fingerprint::{key_hash, mix};
#[cfg(feature = "redis")]
pub(crate) use self::merge::Merge;
pub(crate) use self::settlement::{Actual, KeyEffect};
pub use self::settlement::{Correction, Receipt, Settlement};
pub use self::turn::{Priority, TurnRequest, Turns};
pub(crate) use self::turn::{Turn, WaitingCaller};
pub use crate::key::KeyText;
