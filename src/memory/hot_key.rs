//! The key of a shard that is decided without the shard's lock.
//!
//! A bucket's state is one number, its TAT. So a shard lends the TAT of a key that is decided again and again: while it is
//! lent, any thread may read it and replace it in one atomic step. The next thread that locks the shard takes it back.
//!
//! ```text
//! shard locked   lends: writes the key and its TAT here                             takes it back: swaps in CLOSED
//! ---------------|                                                                  |--------------------------
//! hot key          thread A: load, decide, exchange -> admitted                       closed: threads lock
//!                  thread B: load, decide, load again: unchanged -> denied
//!                  thread C: load, decide, exchange fails, load, decide, exchange -> admitted
//! ```
//!
//! Code under the lock needs no change: taking the lock first moves the lent TAT back, so the table has the latest
//! state. A denial without the lock therefore writes no shared memory, and an admission writes one word.
//!
//! # Why a decision is that of the lent key
//!
//! Three conditions hold when an exchange succeeds, or when the second load returns the same word as the first:
//!
//! 1. The word has not changed, so neither has the TAT. It was at no time taken back and lent again, because each loan has
//!    a new number in the word's upper bits.
//! 2. Key, span and step were those of this loan. They change only between two loans, and a thread that reads a later value
//!    also reads a later word, by the fences.
//! 3. The key has no refunds, and the times have not stepped: both need the lock, which ends the loan.
//!
//! The number of a loan has 32 bits. A thread could only mistake it for an earlier one if it stood still between two
//! instructions while the shard lent a key another 4 billion times, each of them after several decisions under the lock.
//!
//! # Why is a hot key decided without a lock?
//!
//! Threads on one key would wait for each other's lock, and each denial would write memory that all cores share. Atomic words for
//! all keys would take more bytes, and rule out tables that move their slots. So each shard has one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::{
    algorithm::{BucketState, Counting, TokenBucket},
    clock::Reading,
};

use crate::charge::Fingerprint;

/// A lent state, or none. Alone on its cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct HotKey {
    /// The number of the loan in the upper half, and the TAT less `base` in the lower one, which is [`CLOSED`] without a loan.
    word: AtomicU64,
    /// In microseconds since the Unix epoch, not after the TAT.
    base: AtomicU64,
    /// The step of the clock that the TAT includes.
    step: AtomicU64,
    /// Identifies the key.
    low: AtomicU64,
    high: AtomicU32,
    /// Identifies the span under which the debt was made.
    quota_tag: AtomicU32,
}

impl HotKey {
    pub const fn new() -> Self {
        Self {
            word: AtomicU64::new(CLOSED),
            base: AtomicU64::new(0),
            step: AtomicU64::new(0),
            low: AtomicU64::new(0),
            high: AtomicU32::new(0),
            quota_tag: AtomicU32::new(0),
        }
    }

    /// Decides a charge of `cost`, and makes it if it fits. Returns the state after it, and whether it fits.
    ///
    /// Returns `None` when the key is not lent, or the lock is needed for another reason: the limit or the clock has changed,
    /// or other threads have been faster several times.
    #[inline]
    pub fn take(
        &self,
        bucket: &TokenBucket,
        fingerprint: Fingerprint,
        cost: u64,
        read: Reading,
    ) -> Option<(BucketState, bool)> {
        for _ in 0..ATTEMPTS {
            let word = self.word.load(Ordering::Acquire);
            let is_lent = word & CLOSED != CLOSED
                && self.low.load(Ordering::Relaxed) == fingerprint.low()
                && self.high.load(Ordering::Relaxed) == fingerprint.high()
                && self.quota_tag.load(Ordering::Relaxed) == bucket.quota_tag()
                && self.step.load(Ordering::Relaxed) == read.step;
            let base = self.base.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if !is_lent {
                return None;
            }
            let mut state = bucket.state(base + (word & CLOSED));
            let fits = bucket.take(&mut state, read.now, cost);
            let offset = state.tat() - base;
            if offset >= CLOSED {
                return None;
            }
            let next = (word & !CLOSED) | offset;
            let is_unchanged = if next == word {
                self.word.load(Ordering::Relaxed) == word
            } else {
                self.word
                    .compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            };
            if is_unchanged {
                return Some((state, fits));
            }
        }
        None
    }

    /// Lends a key's state under the next `number`. The shard must be locked, and nothing be lent.
    pub fn lend(&self, number: u32, fingerprint: Fingerprint, state: BucketState, step: u64) {
        // Keeps the stores below behind the one that ended the last loan.
        fence(Ordering::Release);
        self.base.store(state.tat(), Ordering::Relaxed);
        self.step.store(step, Ordering::Relaxed);
        self.low.store(fingerprint.low(), Ordering::Relaxed);
        self.high.store(fingerprint.high(), Ordering::Relaxed);
        self.quota_tag.store(state.quota_tag(), Ordering::Relaxed);
        self.word.store(u64::from(number) << 32, Ordering::Release);
    }

    /// Ends the loan, and returns the lent TAT. The shard must be locked, and something be lent.
    pub fn take_back(&self) -> u64 {
        let word = self.word.swap(CLOSED, Ordering::AcqRel);
        self.base.load(Ordering::Relaxed) + (word & CLOSED)
    }
}

/// The lower half of a word without a loan. A TAT that moves as far ends its loan.
const CLOSED: u64 = 0xFFFF_FFFF;
/// How often a thread tries to be faster than others.
const ATTEMPTS: usize = 16;
