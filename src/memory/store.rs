//! The in-process store: selects the shard of a key, locks it, and turns its result into a decision.
//!
//! A charge that is alone in its decision takes the first way that fits:
//!
//! ```text
//! verdict          bucket, key is lent to an atomic word      no lock       HotKey::take
//! decide_locked    bucket                                     one lock      Shard::decide_bucket
//! decide_otherwise window, log or concurrency                 one lock      Shard::decide
//! decide_all       several charges                            one lock per shard, in the order of the shards
//!                  buckets of keys that have slots                      LockedShards::decide_buckets
//!                  any others                                           Shard::precheck, Shard::conclude
//! ```
//!
//! The first two return a [`Verdict`], of which `decide_one` makes the decision. Where the answer is enough, the verdict is asked for
//! alone.
//!
//! The clock is read before the lock is taken, so that a thread that waits does not prolong the wait of the others. Two
//! threads can therefore reach a shard with times in the wrong order. The algorithms allow that: a time in the past never
//! returns quota that was charged meanwhile.
//!
//! Everything that does not need the lock happens after it is released: the decision is built, and log lines are written.

use std::{
    fmt,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    algorithm::{Counting, MicroRate, RateReport},
    block::{BlockChange, BlockList},
    charge::{Charge, Correction, Fingerprint, Receipt, Settlement, TurnRequest, Turns},
    clock::{Clock, Reading, Timestamp},
    decision::{CountedBy, Decision, PolicyState},
    diagnosis::log,
    error::Error,
    key::Key,
    policy::{BanRecord, Policy},
    store::{Stats, Store, StoreFuture},
    task::Mutex,
};

use super::{
    buckets::Verdicts,
    capacity::{Capacity, shards_for},
    hot_key::HotKey,
    keyed::{KeyRef, Placement},
    line_book::LineBook,
    locked_shards::LockedShards,
    rates::AdaptiveRates,
    shard::Shard,
    verdict::{BucketCharge, Verdict},
};

/// Counts in this process. Clones share the counts.
///
/// The [module docs](super) describe its memory, its accuracy, and its behaviour when it is full.
#[derive(Clone)]
pub struct MemoryStore {
    pub(super) shared: Arc<Shared>,
}

/// The parts that clones share.
pub(super) struct Shared {
    /// A power of two of them, so that a mask selects the shard of a fingerprint.
    shards: Box<[ShardCell]>,
    pub(super) clock: Clock,
    blocks: Arc<BlockList>,
    /// The lines of callers that wait.
    pub(super) lines: Mutex<LineBook>,
    /// The rates of keys that are adaptive.
    rates: Mutex<AdaptiveRates>,
    /// Number of charges without memory of their own, as [`MemoryStore::overflowed`] returns it.
    overflowed: AtomicU64,
    /// Whether it was logged that new keys share a state.
    has_logged_overflow: AtomicBool,
    /// Whether it was logged that a request was denied for lack of memory.
    has_logged_denial: AtomicBool,
    /// Earliest time of the next search for ended leases in all shards, in microseconds since the Unix epoch.
    reclaim_at: AtomicU64,
}

/// A shard on its own cache lines, so that cores that work on neighbouring shards do not slow each other down.
///
/// 128 bytes, because processors fetch lines in pairs.
#[repr(align(128))]
pub(super) struct ShardCell {
    /// The key that is decided without the lock.
    hot_key: HotKey,
    shard: Mutex<Shard>,
}

impl ShardCell {
    fn new(capacity: &Capacity) -> Self {
        Self {
            hot_key: HotKey::new(),
            shard: Mutex::new(Shard::new(capacity)),
        }
    }

    /// Locks the shard, with nothing lent.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Shard> {
        let mut shard = self.shard.lock();
        shard.take_back(&self.hot_key);
        shard
    }
}

impl MemoryStore {
    /// Number of keys in memory, including keys that owe nothing any more and have not been evicted yet.
    #[must_use]
    pub fn keys(&self) -> usize {
        let shards = self.shared.shards.iter();
        shards.map(|shard| shard.lock().keys()).sum()
    }

    /// Allocated bytes of everything that grows with the number of keys.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let shards = self.shared.shards.iter();
        shards.map(|shard| shard.lock().bytes()).sum()
    }

    /// Number of charges that had no memory of their own.
    ///
    /// This includes charges counted in a state that new keys share because all slots held keys in debt, and requests
    /// denied because there was no memory for another one in flight.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.shared.overflowed.load(Ordering::Relaxed)
    }

    /// Returns a store for `max_keys` keys in debt, which must be at least one.
    pub(super) fn with(max_keys: usize, clock: Clock) -> Self {
        let shards = shards_for(max_keys);
        let capacity = Capacity::of(max_keys, shards);
        let shards = (0..shards).map(|_| ShardCell::new(&capacity));
        Self {
            shared: Arc::new(Shared {
                shards: shards.collect(),
                blocks: Arc::new(BlockList::new(clock.clone())),
                lines: Mutex::default(),
                rates: Mutex::default(),
                clock,
                overflowed: AtomicU64::new(0),
                has_logged_overflow: AtomicBool::new(false),
                has_logged_denial: AtomicBool::new(false),
                reclaim_at: AtomicU64::new(0),
            }),
        }
    }

    /// Decides a charge that is alone in its decision.
    #[inline]
    fn decide_one(&self, charge: &Charge<'_>) -> StoreFuture<Decision> {
        let Some(of_bucket) = BucketCharge::of(charge) else {
            return self.decide_otherwise(charge);
        };
        if charge.policy().ban_penalty().is_some() {
            return self.decide_all(std::slice::from_ref(charge));
        }
        let mut refunded = 0;
        let verdict = self.verdict(&of_bucket, &mut refunded);
        let state = verdict.state(&of_bucket, charge.is_shadow());
        self.decided(state.with_refunded_before(refunded), verdict.now())
    }

    /// Decides a charge of a bucket that is alone in its decision, and whose policy has no penalty. Without a lock if its key is
    /// lent. `refunded` gets the key's refunds before the charge, if there are any.
    #[inline(always)]
    pub(crate) fn verdict(&self, charge: &BucketCharge<'_>, refunded: &mut u64) -> Verdict {
        let read = self.shared.clock.read();
        let cell = self.cell(charge.fingerprint);
        let key = charge.fingerprint;
        // A denied charge that counts changes the state in a way that needs the lock.
        if !charge.policy.notes_denied()
            && let Some((state, fits)) = cell.hot_key.take(charge.bucket, key, charge.units, read)
        {
            return Verdict::new(charge.bucket, state, fits, read.now);
        }
        self.decide_locked(cell, charge, (read, refunded))
    }

    /// Decides a charge of a bucket under the lock of its shard, and lends its key if it is hot.
    ///
    /// Not inlined, so that the way without the lock stays small.
    #[inline(never)]
    fn decide_locked(
        &self,
        cell: &ShardCell,
        charge: &BucketCharge<'_>,
        (read, refunded): (Reading, &mut u64),
    ) -> Verdict {
        let (bucket, key) = (charge.bucket, charge.fingerprint);
        let mut shard = cell.lock();
        let now = shard.now(read, &self.shared.clock);
        let ((state, fits), placement) = shard.decide_bucket(charge, now);
        *refunded = shard.refunded_before(key, || bucket.usage(&state, now).reset_at.as_micros());
        if placement == Placement::Own && !charge.policy.counts_denied() {
            shard.lend_if_hot(&cell.hot_key, bucket, key);
        }
        drop(shard);
        if placement != Placement::Own {
            self.note(Unplaced::default().and(placement), read);
        }
        Verdict::new(bucket, state, fits, now)
    }

    /// Decides a charge under another algorithm than a bucket. Not inlined, so that the usual path stays small.
    #[inline(never)]
    fn decide_otherwise(&self, charge: &Charge<'_>) -> StoreFuture<Decision> {
        if charge.policy().ban_penalty().is_some() {
            return self.decide_all(std::slice::from_ref(charge));
        }
        let key = KeyRef::of(charge);
        let read = self.shared.clock.read();
        let mut shard = self.cell(key.fingerprint).lock();
        let now = shard.now(read, &self.shared.clock);
        let (result, placement) = shard.decide(charge, &key, now);
        drop(shard);
        if placement != Placement::Own {
            self.note(Unplaced::default().and(placement), read);
        }
        self.decided(result.into_state(charge), now)
    }

    /// Returns the decision on one charge, built where the caller needs it.
    #[inline]
    fn decided(&self, state: PolicyState, now: Timestamp) -> StoreFuture<Decision> {
        let decision = Decision::of_one(CountedBy::InProcess, now, state);
        StoreFuture::ready(Ok(decision.timed_by(&self.shared.clock)))
    }

    /// Changes the state of a charge's key, which may become one of its own.
    pub(super) fn amend(
        &self,
        charge: &Charge<'_>,
        amend: impl FnOnce(&mut Shard, &KeyRef, Timestamp),
    ) {
        let key = KeyRef::of(charge).adding(true);
        let read = self.shared.clock.read();
        let mut shard = self.cell(key.fingerprint).lock();
        let now = shard.now(read, &self.shared.clock);
        amend(&mut shard, &key, now);
    }

    /// Decides charges of several buckets together, if all keys have slots and none has refunds; otherwise `None`, with nothing
    /// charged.
    #[inline(never)]
    pub(crate) fn verdicts(&self, charges: &[BucketCharge<'_>]) -> Option<Verdicts> {
        let read = self.shared.clock.read();
        let mut shards = self.lock_all(charges.iter().map(|charge| charge.fingerprint));
        let now = shards.now(read, &self.shared.clock);
        shards.decide_buckets(charges, |key| self.index_of(key), now)
    }

    /// Returns the decision on charges of buckets, by the verdicts. `refunded` are the refunds of the only key before.
    #[inline]
    pub(crate) fn decision_of(
        &self,
        charges: &[BucketCharge<'_>],
        verdicts: &[Verdict],
        refunded: u64,
    ) -> Decision {
        let decision = match (charges, verdicts) {
            ([charge], [verdict]) => {
                let state = verdict.state(charge, false).with_refunded_before(refunded);
                Decision::of_one(CountedBy::InProcess, verdict.now(), state)
            }
            _ => {
                let states = charges.iter().zip(verdicts);
                let states = states.map(|(charge, verdict)| verdict.state(charge, false));
                let states: Vec<_> = states.collect();
                let now = verdicts
                    .first()
                    .map_or_else(|| self.shared.clock.now(), Verdict::now);
                Decision::of_states(CountedBy::InProcess, now, states)
            }
        };
        decision.timed_by(&self.shared.clock)
    }

    // === Locks ===

    /// Returns the index of a key's shard.
    #[inline]
    pub(super) fn index_of(&self, fingerprint: Fingerprint) -> usize {
        fingerprint.shard(self.shared.shards.len())
    }

    /// Returns the shard of a key, not yet locked.
    #[inline]
    pub(super) fn cell(&self, fingerprint: Fingerprint) -> &ShardCell {
        &self.shared.shards[self.index_of(fingerprint)]
    }

    /// Locks the shards of all keys, each once.
    ///
    /// All callers lock in the order of the shards, so no two decisions deadlock.
    pub(super) fn lock_all(&self, keys: impl Iterator<Item = Fingerprint>) -> LockedShards<'_> {
        let mut indices: SmallVec<[usize; 4]> = SmallVec::new();
        for key in keys {
            indices.push(self.index_of(key));
        }
        indices.sort_unstable();
        indices.dedup();
        let mut shards = LockedShards::default();
        for index in indices {
            shards.add(index, self.shared.shards[index].lock());
        }
        shards
    }

    // === Lack of memory ===

    /// Counts and logs charges without memory of their own. Called without a lock, because a log writer may use this store.
    #[cold]
    pub(super) fn note(&self, Unplaced { shared, denied }: Unplaced, read: Reading) {
        let store = &self.shared;
        store
            .overflowed
            .fetch_add(shared + denied, Ordering::Relaxed);
        if shared > 0 && !store.has_logged_overflow.swap(true, Ordering::Relaxed) {
            log::event!(
                WARN,
                "in-process store full: new keys share one count per policy; raise max_keys"
            );
        }
        if denied > 0 {
            self.reclaim(read);
            if !store.has_logged_denial.swap(true, Ordering::Relaxed) {
                log::event!(
                    WARN,
                    "in-process store out of memory for requests in flight: new ones are denied; raise max_keys"
                );
            }
        }
    }

    /// Releases slots whose lease has ended in all shards, because they share the memory. Runs at most once a second.
    fn reclaim(&self, read: Reading) {
        let (now, reclaim_at) = (read.now.as_micros(), &self.shared.reclaim_at);
        let (at, next) = (reclaim_at.load(Ordering::Relaxed), now + SECOND);
        let is_due = at <= now || at > next;
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if !is_due || reclaim_at.compare_exchange(at, next, set, fetch).is_err() {
            return;
        }
        for shard in &self.shared.shards {
            let mut shard = shard.lock();
            let now = shard.now(read, &self.shared.clock);
            shard.in_flight.reclaim(now);
        }
    }
}

impl Store for MemoryStore {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        match charges {
            [charge] => self.decide_one(charge),
            charges => self.decide_all(charges),
        }
    }

    fn take_turns(&self, request: TurnRequest) -> StoreFuture<Turns> {
        StoreFuture::ready(Ok(self.give_turns(&request)))
    }

    fn pause(&self, charge: &Charge<'_>, length: Duration) -> StoreFuture<()> {
        self.pause_key(charge, length);
        StoreFuture::ready(Ok(()))
    }

    fn paused_until(&self, charge: &Charge<'_>) -> StoreFuture<Option<Timestamp>> {
        StoreFuture::ready(Ok(self.pause_of(charge)))
    }

    fn lower(&self, charge: &Charge<'_>, remaining: u64) -> StoreFuture<()> {
        self.lower_key(charge, remaining);
        StoreFuture::ready(Ok(()))
    }

    fn adapt(&self, charge: &Charge<'_>, report: RateReport) -> StoreFuture<MicroRate> {
        let now = self.shared.clock.read().now;
        let key = KeyRef::of(charge).fingerprint;
        let rate = self.shared.rates.lock().report(key, &report, now);
        StoreFuture::ready(Ok(rate))
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        let read = self.shared.clock.read();
        let is_wrong = |one: &&Settlement| one.correction() != Correction::Keep;
        for settlement in receipt.settlements().iter().filter(is_wrong) {
            let key = KeyRef::of(&settlement.charge());
            let mut shard = self.cell(key.fingerprint).lock();
            let now = shard.now(read, &self.shared.clock);
            shard.settle(settlement, &key, now);
        }
        StoreFuture::ready(Ok(()))
    }

    fn hold(&self, receipt: &Receipt) {
        for settlement in receipt.settlements() {
            let charge = settlement.charge();
            if let Some(ticket) = charge.ticket() {
                let fingerprint = Fingerprint::of(charge.policy(), charge.key());
                let mut shard = self.cell(fingerprint).lock();
                shard.in_flight.hold(fingerprint, ticket, charge.units());
            }
        }
    }

    fn blocks(&self) -> Option<Arc<BlockList>> {
        Some(Arc::clone(&self.shared.blocks))
    }

    fn change_block(&self, change: BlockChange) -> StoreFuture<()> {
        StoreFuture::ready(self.shared.blocks.change(&change))
    }

    fn count_failure(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<Timestamp>> {
        let Some(penalty) = policy.failure_penalty() else {
            return StoreFuture::ready(Ok(None));
        };
        let fingerprint = Fingerprint::of(policy, key);
        let read = self.shared.clock.read();
        let mut shard = self.cell(fingerprint).lock();
        let now = shard.now(read, &self.shared.clock);
        StoreFuture::ready(Ok(shard.bans.count_failure(penalty, fingerprint, now)))
    }

    fn ban_record(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<BanRecord>> {
        let fingerprint = Fingerprint::of(policy, key);
        let read = self.shared.clock.read();
        let mut shard = self.cell(fingerprint).lock();
        let now = shard.now(read, &self.shared.clock);
        StoreFuture::ready(Ok(shard.bans.state(fingerprint, now)))
    }

    fn stats(&self) -> Stats {
        Stats::default().in_process(self.keys(), self.bytes())
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let fingerprint = Fingerprint::of(policy, key);
        self.cell(fingerprint).lock().reset(fingerprint);
        StoreFuture::ready(Ok::<(), Error>(()))
    }
}

// By hand: a derive would print all states.
impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("shards", &self.shared.shards.len())
            .field("clock", &self.shared.clock)
            .finish_non_exhaustive()
    }
}

/// Microseconds between two searches for ended leases in all shards.
const SECOND: u64 = 1_000_000;

// === Unplaced ===

/// Number of charges of one decision that had no memory of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unplaced {
    /// Charges counted in an overflow state.
    shared: u64,
    /// Charges denied for lack of memory.
    denied: u64,
}

impl Unplaced {
    /// Adds a charge that was counted at `placement`.
    #[inline]
    pub fn and(self, placement: Placement) -> Self {
        Self {
            shared: self.shared + u64::from(placement == Placement::Overflow),
            denied: self.denied + u64::from(placement == Placement::NoMemory),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{algorithm::Quota, decision::Usage};

    #[test]
    fn refund_of_one_key_does_not_keep_others_from_the_fast_path() {
        let store = MemoryStore::with(100, Clock::system());
        let policy = Policy::new("policy", Quota::per_hour(1_000));
        let decide = |key: &str| {
            let charges = [policy.charge(Key::new(key)).cost(5)];
            let decision = store.decide(&charges).take_ready();
            let decision = decision.expect("memory decides at once").expect("decided");
            Receipt::of(&charges, &decision).expect("admitted")
        };
        let is_lent = |key: &str| {
            let fingerprint = Fingerprint::of(&policy, &Key::new(key));
            let bucket = policy.counter().bucket().expect("the default");
            let read = store.shared.clock.read();
            let hot_key = &store.cell(fingerprint).hot_key;
            hot_key.take(bucket, fingerprint, 0, read).is_some()
        };
        let first = decide("refunded");
        let _ = decide("refunded");
        let settled = store.settle(first.actual_cost(|_, _| 4)).take_ready();
        settled.expect("memory settles at once").expect("settled");
        for (key, is_hot) in [("refunded", false), ("other", true)] {
            for _ in 0..16 {
                let _ = decide(key);
            }
            assert_eq!(is_lent(key), is_hot, "{key}");
        }
    }

    // Regression: the state of the one key became that of all keys without a slot.
    #[test]
    fn restored_state_of_a_key_without_a_slot_is_not_given_to_others() {
        let now = Clock::system().now();
        let store = MemoryStore::with(16, Clock::system());
        let policy = Policy::new("policy", Quota::per_hour(1_000));
        let used = |key: String, units| {
            let decision = store
                .decide(&[policy.charge(Key::new(key)).cost(units)])
                .take_ready();
            let decision = decision.expect("memory decides at once").expect("decided");
            decision.states()[0]
                .usage()
                .map(|usage| usage.limit - usage.remaining)
        };
        for number in 0..100 {
            let _ = used(format!("{number}"), 1);
        }
        let before = used("other".to_owned(), 1);
        assert!(before > Some(1), "it shares a state: {before:?}");
        let usage = Usage::new(1_000, 993, now + Duration::from_secs(25));
        store.seed(&policy.charge(Key::new("restored")), usage);
        assert_eq!(used("other".to_owned(), 0), before);
        store.seed(&policy.charge(Key::new("0")), usage);
        assert_eq!(used("0".to_owned(), 0), Some(7));
    }
}
