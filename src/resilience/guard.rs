//! The guard in front of one server: it judges the calls to the server, and decides without it during an outage.
//!
//! ```text
//!           before                                          conclude
//! decide ──▶ is the breaker open? ── no ──▶ server ── Ok ──▶ notes the states in its decision
//!                 │ yes                        └── Err ──▶ fallback
//!                 └──────────────────────────────────────▶ fallback: each policy's OnOutage setting
//!
//!   Calls ──────┐                        opens                  2 good probes
//!               ├─▶ record ─▶ Breaker ──────────▶ probes ─────────────────────▶ recover: closes
//!   CallGuard ──┘
//! ```
//!
//! A server whose client reports its [calls](super::Calls) is judged by the reports. Otherwise each decision counts as a call,
//! through a [`CallGuard`](super::call_guard::CallGuard).
//!
//! # Log events
//!
//! | level | message | `mode` | when |
//! |---|---|---|---|
//! | WARN | the shared store has not decided yet | | at most once: the first call fails |
//! | WARN | the shared store is unavailable | `degraded` | the breaker opens |
//! | WARN | the shared store is still unavailable, for another reason | `degraded` | a probe fails with a new error of the server |
//! | INFO | the shared store decides again | `healthy` | the breaker closes |
//! | INFO | an unavailable server has left the cluster | | each time |
//! | WARN | the shared store was restarted or replaced | | each time |
//! | WARN | possible misconfiguration | | at most once each: a key holds a foreign value (TG021), the server refuses all decisions (TG020) |

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    charge::Charge,
    clock::{Clock, Timestamp},
    decision::Decision,
    diagnosis::{Code, ErrorChain, Warning, log},
    error::{Error, ErrorKind, Phase},
    store::StoreFuture,
    task::{Mutex, SingleTask, timer::timeout},
    telemetry::BreakerMetrics,
};

use super::{
    all_servers::AllServers,
    breaker::{Breaker, CallResult, is_permanent},
    history::ServerHistory,
    local::LocalCounts,
    primary::Primary,
    probe_backoff::ProbeBackoff,
    stuck_slots::SlotServer,
};

/// What stands in front of one server.
pub(crate) struct Guard {
    pub primary: Arc<dyn Primary>,
    /// Also keeps the deadline of a decision.
    pub(super) breaker: Breaker,
    pub(super) probe_backoff: Mutex<ProbeBackoff>,
    pub probe_task: SingleTask,
    /// Number of probes of all servers of a cluster.
    pub probes: Arc<AtomicU64>,
    /// Charges what was admitted here to the server.
    pub merge_task: SingleTask,
    pub(super) history: ServerHistory,
    /// The counts of this process, which the guards of all servers share.
    pub(super) local: Arc<LocalCounts>,
    /// What the guards of all servers share besides.
    pub(super) all: Arc<AllServers>,
    /// Times outages and calls. Waits use the system clock, so probes go on while a test holds this one.
    pub clock: Clock,
    /// The clock of local decisions, which follows the server's while it replies.
    pub server_clock: Clock,
    /// Whether the primary keeps the deadline itself. Then no second timer is needed.
    pub primary_keeps_deadline: bool,
    /// Whether calls are reported. Otherwise each decision is guarded as a call.
    pub reports_calls: bool,
    pub metrics: BreakerMetrics,
    /// When the breaker opened, or the latest probe failed, in microseconds since the Unix epoch.
    pub failed_at: AtomicU64,
    /// Longest call reported since the latest probe was sent, in microseconds; 0 without a report.
    pub probe_took: AtomicU64,
    /// Whether a foreign value was reported.
    foreign_value_reported: AtomicBool,
    /// Set by the first reply of the primary, or by the log event that there has been none.
    is_past_startup: AtomicBool,
    /// For tasks that outlive the call that starts them.
    pub this: Weak<Self>,
}

impl Guard {
    /// Creates the guard of a server.
    pub fn new(primary: Arc<dyn Primary>, guards: &Guards, reports_calls: bool) -> Arc<Self> {
        let deadline = guards.deadline;
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            reports_calls,
            primary_keeps_deadline: primary.deadline().is_some_and(|own| own <= deadline),
            metrics: BreakerMetrics::new(|| primary.server()),
            primary,
            breaker: Breaker::new(deadline),
            probe_backoff: Mutex::default(),
            probe_task: SingleTask::default(),
            probes: Arc::clone(&guards.probes),
            merge_task: SingleTask::default(),
            history: ServerHistory::new(guards.local.clock.clone()),
            local: Arc::clone(&guards.local),
            all: Arc::clone(&guards.all),
            clock: guards.clock.clone(),
            server_clock: guards.server_clock.clone(),
            failed_at: AtomicU64::new(0),
            probe_took: AtomicU64::new(0),
            foreign_value_reported: AtomicBool::new(false),
            is_past_startup: AtomicBool::new(false),
            this: this.clone(),
        })
    }

    /// Awaits a reply of the primary, at most until the deadline.
    ///
    /// # Errors
    ///
    /// The primary's own, or [`ErrorKind::Timeout`].
    pub async fn bounded<T>(&self, reply: StoreFuture<T>) -> Result<T, Error> {
        if self.primary_keeps_deadline {
            return reply.await;
        }
        let deadline = self.breaker.deadline();
        let result = timeout(deadline.saturating_add(GRACE), reply).await;
        result.unwrap_or_else(|| Err(self.late()))
    }

    /// Returns the error of a decision that the deadline ended.
    pub fn late(&self) -> Error {
        let deadline = self.breaker.deadline();
        Error::new(
            ErrorKind::Timeout(Phase::Reply),
            format!("the shared store did not reply within the deadline of {deadline:?}"),
        )
    }

    /// Logs errors that the breaker does not log, or not yet: the first foreign value, and a primary that never
    /// replied.
    pub fn warn_once(&self, error: &Error) {
        match error.kind() {
            ErrorKind::Overloaded => {}
            ErrorKind::ForeignValue => {
                if !self.foreign_value_reported.swap(true, Ordering::Relaxed) {
                    let finding =
                        "a redis key of tollgate holds a value that tollgate did not write";
                    self.all
                        .warnings
                        .report(Warning::new(Code::ForeignValue, finding));
                }
            }
            // With few requests the breaker opens late. A wrong address must show before that.
            _ => {
                if !self.is_past_startup.swap(true, Ordering::Relaxed) {
                    log::event!(
                        WARN,
                        "the shared store has not decided yet: policies apply `on_outage`",
                        error = ErrorChain(error),
                    );
                }
            }
        }
    }

    // --- Calls ---

    /// Records how a call ended. If it opens the breaker, logs the cause and starts probing.
    pub(super) fn record(&self, result: CallResult<'_>, now: Timestamp) {
        let Some(cause) = self.breaker.record(result, now) else {
            return;
        };
        log::event!(
            WARN,
            "the shared store is unavailable: policies apply `on_outage`",
            mode = "degraded",
            server = self.server_name(),
            error = ErrorChain(&cause),
        );
        self.metrics.opened();
        self.all.modes.opened(now);
        self.all.forget_recent(now);
        self.failed_at.store(now.as_micros(), Ordering::Relaxed);
        let mut backoff = self.probe_backoff.lock();
        backoff.opened(now);
        if is_permanent(&cause) {
            backoff.prolong();
        }
        drop(backoff);
        self.warn_of_refusal(&cause);
        self.ensure_probing();
    }

    /// Warns about an error that waiting does not cure. Its text has no key, and the innermost one no address.
    fn warn_of_refusal(&self, cause: &Error) {
        if !is_permanent(cause) {
            return;
        }
        let mut innermost = cause;
        while let Some(source) = std::error::Error::source(innermost)
            && let Some(source) = source.downcast_ref()
        {
            innermost = source;
        }
        let finding = format!("the redis server refuses every decision: {innermost}");
        self.all
            .warnings
            .report(Warning::new(Code::RefusingServer, finding));
    }

    /// Returns the server as one whose hash slots may be stuck.
    pub(super) fn slot_server(&self) -> Weak<dyn SlotServer> {
        self.this.clone()
    }

    /// Records a reply. While the breaker is open, it may be that of a probe, so its time is kept for
    /// [`probe`](Self::probe).
    pub fn record_reply(&self, took: Duration, now: Timestamp) {
        if !self.is_past_startup.load(Ordering::Relaxed) {
            self.is_past_startup.store(true, Ordering::Relaxed);
        }
        if self.breaker.is_open() {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.probe_took.fetch_max(micros.max(1), Ordering::Relaxed);
        }
        self.record(CallResult::Answered { took }, now);
        self.all.look_at_recent(now);
    }

    /// Records a failure, unless the primary did not cause it.
    pub fn record_failure(&self, error: &Error) {
        if !matches!(
            error.kind(),
            ErrorKind::ForeignValue | ErrorKind::Overloaded
        ) {
            self.record(CallResult::Failed { error }, self.clock.now());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.breaker.is_open() {
            self.all.modes.closed(self.clock.now());
        }
    }
}

// By hand: a function has no debug output.
impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("is_open", &self.breaker.is_open())
            .finish_non_exhaustive()
    }
}

impl SlotServer for Guard {
    fn peek(&self, peeks: &[Charge<'_>]) -> Option<StoreFuture<Decision>> {
        if self.breaker.is_open() {
            return None;
        }
        let (this, deciding) = (
            self.this.upgrade()?,
            Arc::clone(&self.primary).decide(peeks, self.primary.run_number()),
        );
        Some(StoreFuture::boxed(
            async move { this.bounded(deciding).await },
        ))
    }

    /// Merges what was admitted locally.
    fn slot_is_free(&self) {
        if let Some(this) = self.this.upgrade() {
            this.start_merging();
        }
    }
}

// === Guards ===

/// Makes the guards of the servers of one store.
#[derive(Debug)]
pub(crate) struct Guards {
    pub deadline: Duration,
    pub clock: Clock,
    pub server_clock: Clock,
    pub(super) all: Arc<AllServers>,
    /// The counts of this process, which the guards of all servers share.
    pub(super) local: Arc<LocalCounts>,
    /// Number of probes of all servers.
    pub probes: Arc<AtomicU64>,
}

/// Time beyond the deadline in which the primary's own timeout can still name the phase that was late.
const GRACE: Duration = Duration::from_millis(2);

#[cfg(test)]
pub(super) mod tests {
    use crate::{
        charge::Merge,
        diagnosis::Warning,
        key::Key,
        memory::MemoryStore,
        store::{Store, StoreFuture},
    };

    use super::{super::settings::GuardSettings, *};

    impl Primary for MemoryStore {
        fn run_number(&self) -> u64 {
            0
        }

        fn decide(self: Arc<Self>, charges: &[Charge<'_>], _: u64) -> StoreFuture<Decision> {
            Store::decide(&*self, charges)
        }

        fn merge(self: Arc<Self>, _: &Merge, _: u64) -> StoreFuture<()> {
            StoreFuture::ready(Ok(()))
        }

        fn probe(self: Arc<Self>) -> StoreFuture<()> {
            StoreFuture::ready(Ok(()))
        }

        fn serves(&self, _: &Key) -> bool {
            true
        }

        fn deadline(&self) -> Option<Duration> {
            None
        }

        fn server(&self) -> Option<String> {
            None
        }

        fn warnings(&self) -> Vec<Warning> {
            Vec::new()
        }
    }

    /// Returns a guard in front of a store in process.
    pub(in crate::resilience) fn guard(clock: Clock) -> Arc<Guard> {
        let settings = GuardSettings {
            clock,
            ..GuardSettings::new(MemoryStore::new())
        };
        let guards = settings.build(|| None).expect("usable settings");
        guards.guard(Arc::new(MemoryStore::new()), None)
    }
}
