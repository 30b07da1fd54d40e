//! The limit that users build, and the place that a request takes.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};

use crate::{
    clock::{Clock, Timestamp},
    key::Key,
    middleware::{ResponseBody, respond::respond_plainly},
    priority::priority::Priority,
    rejection::{MakeRejection, Rejection},
    rules::{ModeSwitch, RuleMode},
    task::{backoff::random, lane::thread_number},
    telemetry::{OverloadMetrics, OverloadOutcome},
};

use super::{
    adaptive::{AdaptiveLimit, End, Entry},
    lag::ExecutorLag,
    request_rules::RequestRules,
    shares::{KeyHash, Shares},
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

pub(super) struct Core {
    /// In order, those that are shed last first.
    pub classes: Box<[Priority]>,
    pub rules: RequestRules,
    pub mode: ModeSwitch,
    pub format: Arc<dyn MakeRejection>,
    pub max_retry_after: Duration,
    pub limit: AdaptiveLimit,
    pub shares: Shares,
    pub lag: ExecutorLag,
    pub clock: Clock,
    /// Requests that were shed, by class.
    pub shed: Box<[AtomicU64]>,
    pub metrics: OverloadMetrics,
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
        self.lane().enter(priority, key)
    }

    /// Returns how many requests may be in flight now; those of higher classes may be more.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.core().limit.cap()
    }

    /// Returns how many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.core().limit.in_flight()
    }

    /// Returns whether there are more requests than the service can serve in time.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        self.core().limit.is_overloaded()
    }

    /// Returns the classes in order, each with the number of its requests that were shed: in shadow, of those that would have been.
    pub fn shed(&self) -> impl Iterator<Item = (Priority, u64)> {
        let counts = self.core().classes.iter().zip(&self.core().shed);
        counts.map(|(class, count)| (*class, count.load(Relaxed)))
    }

    /// Returns the mode.
    #[must_use]
    pub fn mode(&self) -> RuleMode {
        self.core().mode.get().mode()
    }

    /// Changes what is done with requests, from the next one on: a kill switch. All clones change.
    pub fn set_mode(&self, mode: RuleMode) {
        self.core().mode.set_mode(mode);
    }

    /// Sets the gauges of this limit, with `overload` as their label. Call it before each export.
    ///
    /// [`telemetry`](crate::telemetry) lists them.
    #[cfg(feature = "metrics")]
    pub fn record_gauges(&self, overload: &str) {
        OverloadMetrics::record_gauges(
            overload,
            self.limit(),
            self.in_flight(),
            self.is_overloaded(),
        );
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
        priority: Priority,
        key: Option<&Key>,
    ) -> Result<InFlight, Shed> {
        let (core, lane) = (&*self.core, self.number);
        let now = core.clock.now();
        let mode = core.mode.get();
        let place = |key, has_ended| InFlight {
            lane: Arc::clone(self),
            key,
            since: now,
            has_ended,
        };
        if mode.is_off() {
            return Ok(place(None, true));
        }
        let class = core.class_of(priority);
        let key = key.map(|key| KeyHash::of(key, class));
        let cap = core.limit.cap();
        let passes = key.is_none_or(|key| {
            let half_is_free = core.limit.in_flight() < cap / 2;
            core.shares.passes((lane, class), key, now, half_is_free)
        });
        let ceiling = core.ceiling(class, cap);
        let is_shadow = mode.mode() == RuleMode::Shadow;
        let entry = core.limit.enter(lane, now, is_shadow, |others| {
            let free = ceiling.saturating_sub(others);
            passes && free > 0 && key.is_none_or(|key| core.shares.held(key) < SHARE * free)
        });
        if entry != Entry::Fits {
            if passes && key.is_some() {
                core.shares.note_full((lane, class));
            }
            core.note_shed(class, is_shadow);
            if entry == Entry::Full {
                return Err(Shed {
                    priority: core.classes[class],
                });
            }
        } else {
            core.metrics.count(class, OverloadOutcome::Served);
        }
        if let Some(key) = key {
            core.shares.take(key);
        }
        Ok(place(key, false))
    }
}

impl Core {
    #[cold]
    fn note_shed(&self, class: usize, is_shadow: bool) {
        self.shed[class].fetch_add(1, Relaxed);
        let outcome = match is_shadow {
            true => OverloadOutcome::WouldShed,
            false => OverloadOutcome::Shed,
        };
        self.metrics.count(class, outcome);
    }

    /// Returns the place of a priority in the order of the classes. One that is not among them is `Normal`.
    fn class_of(&self, priority: Priority) -> usize {
        let place = |wanted| self.classes.iter().position(|class| *class == wanted);
        place(priority)
            .or_else(|| place(Priority::Normal))
            .unwrap_or_default()
    }

    /// Returns up to how many in flight a class gets places: the lowest up to the limit, each one above it a margin more.
    fn ceiling(&self, class: usize, cap: u32) -> u32 {
        let above = u32::try_from(self.classes.len() - 1 - class).unwrap_or_default();
        cap.saturating_add(above.saturating_mul(self.limit.margin()))
    }

    /// Returns the rejection of a request that is shed. Its client waits for 1 s to the longest time, at random: the clients of an
    /// overload would come back together.
    #[cold]
    pub fn rejection(&self, shed: Shed) -> Rejection {
        let most = self.max_retry_after.as_secs().max(1);
        Rejection::overloaded(shed.priority, Duration::from_secs(1 + random() % most))
    }

    #[cold]
    pub fn respond<A, B>(
        &self,
        rejection: Rejection,
        request: Request<A>,
    ) -> Response<ResponseBody<B>> {
        let (parts, text): (_, Bytes) = respond_plainly(rejection, &*self.format, request);
        Response::from_parts(parts, ResponseBody::rejection(text))
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
        core.limit.leave(self.lane.number, now, took, end);
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

// === Shed ===

/// A request that is not served, since the service is overloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shed {
    /// Its class.
    pub priority: Priority,
}

impl fmt::Display for Shed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "overloaded: a request of class {} is shed",
            self.priority
        )
    }
}

impl std::error::Error for Shed {}

/// A key has fewer than this many times the free places.
const SHARE: u32 = 16;
