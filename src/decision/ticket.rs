//! Tickets: identities of concurrency slots.

use std::{
    hash::{BuildHasher, RandomState},
    num::NonZeroU64,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// Identifies the slots of one decision among all slots of a key, across the fleet.
///
/// Random: two decisions have the same ticket with a probability of 2^-64. Only charges to
/// [`Policy::concurrency`](crate::Policy::concurrency) have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(NonZeroU64);

impl Ticket {
    pub(crate) fn random() -> Self {
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = SEED.hash_one(NEXT.fetch_add(1, Ordering::Relaxed));
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
    }

    /// Returns the ticket as a number, for a custom [`Store`](crate::store::Store) to keep.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0.get()
    }
}
