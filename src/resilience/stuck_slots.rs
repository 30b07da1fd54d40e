//! Hash slots of a cluster that no node decides on, while their nodes decide on others.
//!
//! ```text
//! replies                                   cause, for example
//! TRYAGAIN for the whole deadline           a slot that was left half moved: two keys of a caller are on two nodes
//! MOVED or ASK in a circle                  nodes that disagree about a slot, a node that announces another one's address
//! CLUSTERDOWN Hash slot not served          a slot without a node
//! MOVED without an address, or to a node    cluster-announce settings; a pool of the application
//!   that a pool cannot reach
//! ```
//!
//! Each of these is a reply, in time, from a healthy server. So the breaker of the server must not open for it, or the other
//! slots would lose their server. Each slot has a small breaker of its own:
//!
//! ```text
//!   ┌─────────┐  3 decisions failed, each within 10 s of the one before, over two deadlines  ┌───────┐
//!   │ decided │ ────────────────────────────────────────────────────────────────────────────▶ │ stuck │
//!   └─────────┘ ◀──────────────────────────────────────────────────────────────────────────── └───────┘
//!                            a peek at the keys of the decision that failed is decided
//! ```
//!
//! While a slot is stuck, its decisions take the outage choice at once. A background task repeats one that failed, as a peek:
//! other keys of the slot may be decided all the time. It waits as the probes of a server do, but 0.5 s at most, and probes up
//! to 64 slots at a time, those first that have waited longest. After a success the next ones follow at once. So the end of a
//! fault is noticed within about a second, and if more than 64 slots are mended one by one, each within `slots / 128` seconds.
//!
//! The memory is bounded, because a cluster has 16,384 slots. Each stuck slot takes 150 bytes, and the first 1,024 also
//! keep the charges of one request each. With two policies a request, this is 3 MB if all slots are stuck. Further
//! slots are probed with a key that nobody has: so many slots are stuck as a whole.
//!
//! # Why has a hash slot a breaker of its own?
//!
//! If the node's breaker opened, one slot of 16,384 would take all others of the node along. If nothing opened, every
//! decision on the slot would wait for its deadline, and the health would not show it. Failures are collected where
//! each decision ends, in the fallback, by the slot that the error names. A key would be a finer unit, but keys have no
//! bound, and a slot without a node fails for all of them. A node without an address that works is a case for the
//! node's breaker: the cluster gives that address for all of its slots.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    charge::{Charge, Charges, OwnedCharge},
    clock::Timestamp,
    decision::Decision,
    error::{Error, ErrorKind},
    key::{Key, SLOTS, slot::tag_of},
    store::{Outage, StoreFuture},
    task::{Mutex, SingleTask},
};

use super::probe_backoff::ProbeBackoff;

/// The stuck slots of all servers of a store.
#[derive(Debug)]
pub(super) struct StuckSlots {
    /// Number of stuck slots. Read by every decision; written under the lock.
    count: AtomicUsize,
    /// One bit per slot. Read by every decision while a slot is stuck; written under the lock.
    bits: Box<[AtomicU64]>,
    state: Mutex<SlotStates>,
    /// The task that probes.
    pub task: SingleTask,
}

#[derive(Debug, Default)]
struct SlotStates {
    /// The slots with a failure, also those that are not stuck.
    slots: HashMap<u16, FailingSlot>,
    /// Present while a slot is stuck.
    outage: Option<SlotOutage>,
    backoff: ProbeBackoff,
    /// Number of stuck slots with a sample.
    samples: usize,
}

/// The failures of a slot, each within [`FAILURE_SPAN`] of the one before.
#[derive(Debug, Default)]
struct FailingSlot {
    failures: u32,
    since: Timestamp,
    latest: Timestamp,
    stuck: Option<Stuck>,
}

/// What probes of a stuck slot need.
#[derive(Clone, Debug)]
pub(super) struct Stuck {
    /// The charges that failed, as peeks; `None` beyond [`MAX_SAMPLES`].
    sample: Option<Arc<[OwnedCharge]>>,
    /// The server that was asked, which may redirect by now.
    server: Weak<dyn SlotServer>,
    probed_at: Timestamp,
}

/// The server that decisions on a slot are sent to.
pub(super) trait SlotServer: Debug + Send + Sync {
    /// Decides these peeks; `None` while the server is unavailable, which has probes of its own.
    fn peek(&self, peeks: &[Charge<'_>]) -> Option<StoreFuture<Decision>>;

    /// Learns that a slot is decided again.
    fn slot_is_free(&self);
}

/// The time in which at least one slot is stuck.
#[derive(Clone, Debug)]
pub(super) struct SlotOutage {
    pub since: Timestamp,
    pub cause: Error,
    /// The most slots that were stuck at a time.
    pub slots: usize,
    /// How often the cause was another one.
    causes: u32,
}

/// A change of the outage, to be reported.
#[derive(Debug)]
pub(super) enum SlotChange {
    /// The first slot is stuck.
    Began,
    /// Another slot is stuck, for another reason.
    NewCause,
}

impl StuckSlots {
    /// Returns whether one of the charges is in a stuck slot.
    #[inline]
    pub fn has_any(&self, charges: &[Charge<'_>]) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && {
            let mut charges = charges.iter();
            charges.any(|charge| self.contains(charge.key().slot()))
        }
    }

    /// Returns whether this slot is stuck.
    pub fn contains(&self, slot: u16) -> bool {
        let bits = self.bits[usize::from(slot) / BITS].load(Ordering::Relaxed);
        bits >> (usize::from(slot) % BITS) & 1 == 1
    }

    /// Returns the present outage, with the number of slots that are stuck now.
    pub fn outage(&self) -> Option<Outage> {
        let outage = self.state.lock().outage.clone()?;
        Some(Outage {
            since: outage.since,
            cause: outage.cause,
            server: None,
            stuck_slots: Some(self.count.load(Ordering::Relaxed)),
        })
    }

    /// Notes that a decision on this slot failed. Failures must last for `span`.
    ///
    /// ## Decided => Stuck
    pub fn note_failure(
        &self,
        (slot, error): (u16, &Error),
        charges: &[Charge<'_>],
        (server, span): (&Weak<dyn SlotServer>, Duration),
        now: Timestamp,
    ) -> Option<SlotChange> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let entry = state.slots.entry(slot).or_default();
        if now.since(entry.latest) > FAILURE_SPAN {
            (entry.failures, entry.since) = (0, now);
        }
        entry.failures = entry.failures.saturating_add(1);
        entry.latest = now;
        let lasts = now.since(entry.since) >= span;
        if entry.stuck.is_some() || entry.failures < FAILURES || !lasts {
            return None;
        }
        let has_sample = state.samples < MAX_SAMPLES;
        state.samples += usize::from(has_sample);
        let charges = charges.iter().filter(|charge| charge.key().slot() == slot);
        let peeks = || charges.map(|charge| charge.cost(0).to_owned()).collect();
        entry.stuck = Some(Stuck {
            sample: has_sample.then(peeks),
            server: Weak::clone(server),
            probed_at: now,
        });
        let since = entry.since;
        self.bits[usize::from(slot) / BITS].fetch_or(bit_of(slot), Ordering::Relaxed);
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(outage) = &mut state.outage else {
            state.backoff.opened(now);
            state.outage = Some(SlotOutage {
                since,
                cause: error.clone(),
                slots: count,
                causes: 1,
            });
            return Some(SlotChange::Began);
        };
        outage.slots = outage.slots.max(count);
        let is_new = outage.cause.to_string() != error.to_string();
        outage.cause = error.clone();
        outage.causes += u32::from(is_new);
        (is_new && outage.causes <= MAX_CAUSES).then_some(SlotChange::NewCause)
    }

    /// Returns the slots to probe, those first that have waited longest.
    pub fn take_due(&self, now: Timestamp) -> Vec<(u16, Stuck)> {
        let mut state = self.state.lock();
        let stuck = state.slots.iter().filter_map(|(slot, entry)| {
            let stuck = entry.stuck.clone()?;
            Some((*slot, stuck))
        });
        let mut due: Vec<(u16, Stuck)> = stuck.collect();
        let policy = due.iter().find_map(|(_, stuck)| {
            let peek = stuck.sample.as_ref()?.first()?.borrow();
            Some(peek.policy().clone())
        });
        due.sort_unstable_by_key(|(_, stuck)| stuck.probed_at);
        due.truncate(PROBES);
        for (slot, stuck) in &mut due {
            stuck.sample.get_or_insert_with(|| {
                let key = Key::new(tag_of(*slot));
                let policy = policy.iter();
                policy
                    .map(|policy| policy.charge(key).cost(0).to_owned())
                    .collect()
            });
        }
        for (slot, _) in &due {
            if let Some(stuck) = state
                .slots
                .get_mut(slot)
                .and_then(|slot| slot.stuck.as_mut())
            {
                stuck.probed_at = now;
            }
        }
        due
    }

    /// ## Stuck => Decided
    ///
    /// The failures are kept, so one more within [`FAILURE_SPAN`] makes the slot stuck again. Returns the outage if it was the
    /// last one.
    pub fn free(&self, slot: u16, now: Timestamp) -> Option<SlotOutage> {
        let mut state = self.state.lock();
        let entry = state.slots.get_mut(&slot)?;
        let stuck = entry.stuck.take()?;
        entry.latest = now;
        self.bits[usize::from(slot) / BITS].fetch_and(!bit_of(slot), Ordering::Relaxed);
        state.samples -= usize::from(stuck.sample.is_some());
        let before = self.count.fetch_sub(1, Ordering::Relaxed);
        if before > 1 {
            return None;
        }
        state.backoff.closed(now);
        state.outage.take()
    }

    /// Returns the wait before the next probes.
    pub fn wait(&self) -> Duration {
        self.state.lock().backoff.wait().min(LONGEST_WAIT)
    }
}

impl Default for StuckSlots {
    fn default() -> Self {
        let bits = (0..usize::from(SLOTS) / BITS).map(|_| AtomicU64::new(0));
        Self {
            count: AtomicUsize::new(0),
            bits: bits.collect(),
            state: Mutex::default(),
            task: SingleTask::default(),
        }
    }
}

/// Returns the bit of a slot in its word.
fn bit_of(slot: u16) -> u64 {
    1 << (usize::from(slot) % BITS)
}

impl Stuck {
    /// Returns whether the slot is decided again, or its server has left the cluster.
    pub async fn probe(&self) -> bool {
        let Some(server) = self.server.upgrade() else {
            return true;
        };
        let deciding = {
            let peeks = self.sample.iter().flat_map(|sample| sample.iter());
            let peeks: Charges<'_> = peeks.map(OwnedCharge::borrow).collect();
            server.peek(&peeks)
        };
        let Some(deciding) = deciding else {
            return false;
        };
        let is_free = match deciding.await {
            Ok(_) => true,
            // The script ran, and found that another program has written one of the keys.
            Err(error) => error.kind() == ErrorKind::ForeignValue,
        };
        if is_free {
            server.slot_is_free();
        }
        is_free
    }
}

/// Slots in one word.
const BITS: usize = 64;
/// Failures after which a slot is stuck, and the longest time between two of them.
const FAILURES: u32 = 3;
const FAILURE_SPAN: Duration = Duration::from_secs(10);
/// Stuck slots whose probes repeat a decision that failed.
const MAX_SAMPLES: usize = 1_024;
/// Causes of one outage that are logged.
const MAX_CAUSES: u32 = 4;
/// The longest wait between probes: it ends after a second with a probe that finds its node without a connection.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// Slots that are probed together.
const PROBES: usize = 64;

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, mem::size_of};

    use super::*;

    /// A server that nobody asks.
    #[derive(Debug)]
    struct Silent;

    impl SlotServer for Silent {
        fn peek(&self, _: &[Charge<'_>]) -> Option<StoreFuture<Decision>> {
            None
        }

        fn slot_is_free(&self) {}
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000)
    }

    /// Notes a failure of a slot at each of these times. Returns whether one of them began an outage.
    fn fail(slots: &StuckSlots, slot: u16, times: &[u64]) -> bool {
        let server: Weak<dyn SlotServer> = Weak::<Silent>::new();
        let server = (&server, Duration::from_millis(100));
        let error = Error::new(ErrorKind::Unavailable, "TRYAGAIN").with_slot(slot);
        let began = times.iter().map(|millis| {
            let change = slots.note_failure((slot, &error), &[], server, at(*millis));
            matches!(change, Some(SlotChange::Began))
        });
        began.fold(false, |began, now| began | now)
    }

    #[test]
    fn slot_is_stuck_at_the_third_failure_over_two_deadlines() {
        for (times, is_stuck) in [
            (&[0, 60][..], false),
            (&[0, 30, 60, 99], false),
            (&[0, 60, 100], true),
            (&[0, 9_000, 18_000], true),
            (&[0, 60, 11_000], false),
        ] {
            let slots = StuckSlots::default();
            assert_eq!(fail(&slots, 7, times), is_stuck, "{times:?}");
            assert_eq!(slots.contains(7), is_stuck);
            assert!(!slots.contains(8));
        }
    }

    #[test]
    fn slot_that_fails_again_soon_is_stuck_at_once() {
        let slots = StuckSlots::default();
        assert!(fail(&slots, 7, &[0, 60, 120]));
        assert!(slots.free(7, at(500)).is_some());
        assert!(!slots.contains(7));
        assert!(fail(&slots, 7, &[600]));
    }

    #[test]
    fn whole_cluster_of_stuck_slots_is_reported_once_and_probed_in_turns() {
        let slots = StuckSlots::default();
        let began = (0..SLOTS).filter(|slot| fail(&slots, *slot, &[0, 60, 120]));
        assert_eq!(began.count(), 1);
        let outage = slots.outage().expect("an outage");
        assert_eq!(outage.stuck_slots, Some(usize::from(SLOTS)));
        let mut probed = HashSet::new();
        for round in 0..u64::from(SLOTS) / PROBES as u64 {
            let due = slots.take_due(at(1_000 + round));
            assert_eq!(due.len(), PROBES);
            probed.extend(due.into_iter().map(|(slot, _)| slot));
        }
        assert_eq!(probed.len(), usize::from(SLOTS), "none waits twice as long");
        let ends = (0..SLOTS).filter_map(|slot| slots.free(slot, at(2_000)));
        let ends: Vec<SlotOutage> = ends.collect();
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0].slots, usize::from(SLOTS));
        assert!(slots.outage().is_none());
        assert_eq!(slots.state.lock().samples, 0);
        // A table has room for twice as many at most.
        let each = 2 * (size_of::<FailingSlot>() + size_of::<u64>());
        assert!(each <= 150, "{each} bytes");
        let most = each * usize::from(SLOTS) + MAX_SAMPLES * 2 * size_of::<OwnedCharge>();
        assert!(most < 3_200_000, "{most} bytes");
    }

    /// A server that finds the value of another program at a key.
    #[derive(Debug)]
    struct Foreign;

    impl SlotServer for Foreign {
        fn peek(&self, _: &[Charge<'_>]) -> Option<StoreFuture<Decision>> {
            let error = Error::new(ErrorKind::ForeignValue, "a key holds a foreign value");
            Some(StoreFuture::ready(Err(error)))
        }

        fn slot_is_free(&self) {}
    }

    // Regression: a slot stayed stuck for good if the decision that was repeated had a key with a foreign value.
    #[tokio::test]
    async fn slot_is_free_once_its_node_reads_the_keys() {
        let server = Arc::new(Foreign);
        let weak: Weak<dyn SlotServer> = Arc::downgrade(&server) as _;
        let stuck = Stuck {
            sample: None,
            server: weak,
            probed_at: at(0),
        };
        assert!(stuck.probe().await);
    }
}
