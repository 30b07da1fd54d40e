//! Merges: units that were admitted without the shared store, to be charged to it afterwards.

use super::charge::{Charge, OwnedCharge};
use crate::algorithm::Admitted;

/// Units of one policy and key that an instance admitted while the shared store was unavailable.
///
/// The charge's own cost does not count. A store makes a merge once, however often it gets the same one.
#[derive(Clone, Debug)]
pub(crate) struct Merge {
    charge: OwnedCharge,
    admitted: Admitted,
    id: u64,
}

impl Merge {
    /// Creates a merge of units under the charge's policy and key. `id` is random: no two merges have the same one.
    pub fn new(charge: OwnedCharge, admitted: Admitted, id: u64) -> Self {
        Self {
            charge,
            admitted,
            id,
        }
    }

    /// Returns a charge with the policy and the key.
    pub fn charge(&self) -> Charge<'_> {
        self.charge.borrow()
    }

    /// Returns the units.
    pub fn admitted(&self) -> Admitted {
        self.admitted
    }

    /// Returns the number that identifies the merge.
    pub fn id(&self) -> u64 {
        self.id
    }
}
