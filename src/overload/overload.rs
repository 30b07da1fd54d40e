//! The limit that users build, and the place that a request takes.

use std::{fmt, sync::Arc};

use crate::{
    clock::{Clock, Timestamp},
    key::Key,
    priority::priority::Priority,
    rules::RuleMode,
    task::lane::thread_number,
    telemetry::OverloadOutcome,
};

use super::{
    adaptive::{AdaptiveLimit, End, Entry},
    lag::ExecutorLag,
    setup::{Current, Setup},
    shares::{KeyHash, Shares},
    shed::Shed,
};

/// Sheds requests of a process that has more of them than it can serve in time. Clones share one limit.
///
/// A Tower layer for HTTP. Without HTTP, call [`enter`](Self::enter). See the [module docs](super).
#[derive(Clone)]
pub struct Overload {
    /// One is enough for all. But each request holds one of them, and threads that count the holders of one wait for each other.
    lanes: Arc<[Arc<Lane>]>,
}

/// Where the requests of some threads are counted.
#[repr(align(128))]
pub(super) struct Lane {
    core: Arc<Core>,
    number: usize,
}

/// The state that all lanes share.
pub(super) struct Core {
    pub setup: Current,
    pub limit: AdaptiveLimit,
    pub shares: Shares,
    pub lag: ExecutorLag,
    pub clock: Clock,
}

impl Overload {
    pub(super) fn new(core: Arc<Core>, lanes: usize) -> Self {
        let lane = |number| {
            Arc::new(Lane {
                core: Arc::clone(&core),
                number,
            })
        };
        Self {
            lanes: (0..lanes).map(lane).collect(),
        }
    }

    /// Returns the lane of this thread.
    #[inline]
    pub(super) fn lane(&self) -> &Arc<Lane> {
        // The number of lanes is a power of two.
        &self.lanes[thread_number() & (self.lanes.len() - 1)]
    }

    pub(super) fn core(&self) -> &Core {
        &self.lanes[0].core
    }

    /// Takes a place for a request, or sheds it.
    ///
    /// Requests of one key share the places of their class fairly with those of other keys. Without a key, only the class counts.
    /// In shadow no request is shed, and off none is counted.
    ///
    /// # Errors
    ///
    /// [`Shed`], if the service is full for this class or this key.
    pub fn enter(&self, priority: Priority, key: Option<&Key>) -> Result<InFlight, Shed> {
        let lane = self.lane();
        let setup = lane.core.setup.load();
        lane.enter(
            &setup,
            setup.classes.place(priority),
            key.map(|key| (key, 1)),
        )
    }

    /// Returns how many requests may be in flight now; those of higher classes may be more.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.present().limit()
    }

    /// Returns how many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.core().limit.in_flight()
    }

    /// Returns whether there are more requests than the service can serve in time.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        self.present().is_overloaded()
    }

    /// Returns the limit, of which the last window has ended also if no request has come since.
    fn present(&self) -> &AdaptiveLimit {
        let core = self.core();
        core.limit.end_window_if_due(core.clock.now());
        &core.limit
    }

    /// Returns the classes in order, each with the number of its requests that were shed: in shadow, of those that would have been.
    #[must_use]
    pub fn shed(&self) -> Vec<(Priority, u64)> {
        self.core().setup.load().classes.shed()
    }

    /// Returns the mode.
    #[must_use]
    pub fn mode(&self) -> RuleMode {
        self.core().setup.load().mode.get().mode()
    }

    /// Changes what is done with requests, from the next one on: a kill switch. All clones change.
    pub fn set_mode(&self, mode: RuleMode) {
        self.core().setup.change(|setup| setup.mode.set_mode(mode));
    }

    /// Sets the gauges of this limit, with its [name](super::OverloadBuilder::name) as their label. Call it before each export.
    ///
    /// [`telemetry`](crate::telemetry) lists them.
    #[cfg(feature = "metrics")]
    pub fn record_gauges(&self) {
        let (limit, in_flight) = (self.limit(), self.in_flight());
        let setup = self.core().setup.load();
        setup
            .metrics
            .record_gauges(limit, in_flight, self.is_overloaded());
    }
}

impl Lane {
    #[inline]
    pub fn core(&self) -> &Core {
        &self.core
    }

    #[inline]
    pub fn enter(
        self: &Arc<Self>,
        setup: &Setup,
        class: usize,
        key: Option<(&Key, u32)>,
    ) -> Result<InFlight, Shed> {
        let (core, lane) = (&*self.core, self.number);
        let now = core.clock.now();
        let mode = setup.mode.get();
        let place = |key, has_ended| InFlight {
            lane: Arc::clone(self),
            class,
            key,
            since: now,
            has_ended,
        };
        if mode.is_off() {
            return Ok(place(None, true));
        }
        let key = key.map(|(key, weight)| (KeyHash::of(key, class), weight));
        let cap = core.limit.cap();
        let passes = key.is_none_or(|key| {
            let half_is_free = || core.limit.counted_up_to(class).1 < cap / 2;
            core.shares.passes((lane, class), key, now, half_is_free)
        });
        let ceiling = core.limit.ceiling((class, setup.classes.below(class)), cap);
        let is_shadow = mode.mode() == RuleMode::Shadow;
        let entry = core.limit.enter((lane, class), now, is_shadow, |others| {
            let free = ceiling.saturating_sub(others);
            let may = |(key, weight)| core.shares.held(key) < most_places(free, weight);
            passes && free > 0 && key.is_none_or(may)
        });
        if entry != Entry::Fits {
            if passes && key.is_some() {
                core.shares.note_full((lane, class));
            }
            setup.note_shed(class, is_shadow);
            if entry == Entry::Full {
                return Err(Shed {
                    priority: setup.classes.priority(class),
                });
            }
        } else {
            setup.metrics.count(class, OverloadOutcome::Served);
        }
        let key = key.map(|(key, _)| key);
        if let Some(key) = key {
            core.shares.take(key);
        }
        Ok(place(key, false))
    }
}

impl fmt::Debug for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overload")
            .field("mode", &self.mode())
            .field("limit", &self.limit())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

// === InFlight ===

/// The place of a request that is served. Say how the request ended, or drop it if the client has gone away.
#[must_use = "the place is given back when it is dropped"]
pub struct InFlight {
    lane: Arc<Lane>,
    /// The place of its class.
    class: usize,
    key: Option<KeyHash>,
    since: Timestamp,
    /// Also if it was never counted.
    has_ended: bool,
}

impl InFlight {
    /// Gives the place back: the response has begun.
    pub fn answered(self) {
        self.end(End::Answered);
    }

    /// Gives the place back: the request was not run after all, for example since a rate limit denied it.
    pub fn not_run(self) {
        self.end(End::NotRun);
    }

    /// Gives the place back: the service gave the request up, for example by a time-out.
    pub fn timed_out(self) {
        self.end(End::TimedOut);
    }

    /// Returns whether the request goes to the end of the run queue before it runs.
    #[inline]
    pub(super) fn gives_way(&self) -> bool {
        self.lane.core.lag.gives_way(self.since)
    }

    /// Notes that a request that gave way then is polled again.
    pub(super) fn note_lag(&self, since: Timestamp) {
        let now = self.now();
        self.lane.core.lag.note(now, now.since(since));
    }

    pub(super) fn now(&self) -> Timestamp {
        self.lane.core.clock.now()
    }

    pub(super) fn end(mut self, end: End) {
        self.release(end);
    }

    fn release(&mut self, end: End) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let core = &*self.lane.core;
        let now = core.clock.now();
        if let Some(key) = self.key {
            core.shares.give_back(key);
        }
        let took = now.since(self.since);
        let counted = (self.lane.number, self.class);
        core.limit.leave(counted, now, took, end);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.release(End::Left);
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

/// Returns how many places a key may have so that it gets another one: fewer than this. The last free place is for a key that has
/// none, whatever the weights are.
pub(super) fn most_places(free: u32, weight: u32) -> u32 {
    match free {
        0 | 1 => free,
        _ => free.saturating_mul(SHARE * weight),
    }
}

/// A key of weight 1 has fewer than this many times the free places.
const SHARE: u32 = 16;
