//! Watches the primary: judges its calls, and probes it during an outage.
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
        Arc, OnceLock, Weak,
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
    store::{CallObserver, CallReport, Store, StoreFuture},
    task::timer::{sleep, timeout},
    telemetry::BreakerMetrics,
};

use super::{
    all_servers::AllServers,
    breaker::{Breaker, CallResult, is_permanent},
    prober::Prober,
    stuck_slots::SlotServer,
};

/// The primary and its breaker.
///
/// ```text
///   CallReport ─┐                        opens                  2 good probes
///               ├─▶ record ─▶ Breaker ──────────▶ ProbeTask ──────────────────▶ recover: closes
///   CallGuard ──┘
/// ```
///
/// A primary that [reports its calls](Store::observe_calls) is judged by the reports. Otherwise each decision counts as a
/// call, through a [`CallGuard`](super::call_guard::CallGuard).
pub(super) struct PrimaryMonitor {
    pub(super) primary: Arc<dyn Store>,
    /// Also keeps the deadline of a decision.
    pub(super) breaker: Breaker,
    pub(super) prober: Prober,
    /// Times outages and calls. Waits use the system clock, so probes go on while a test holds this one.
    pub(super) clock: Clock,
    /// The clock of local decisions, which follows the primary's while it replies.
    pub(super) server_clock: Clock,
    /// Whether the primary keeps the deadline itself. Then no second timer is needed.
    pub(super) primary_keeps_deadline: bool,
    /// Whether the primary reports its calls. Otherwise each decision is guarded as a call.
    pub(super) reports_calls: bool,
    /// What the monitors of all servers share.
    pub(super) all: Arc<AllServers>,
    pub(super) metrics: BreakerMetrics,
    /// Learns what happens to the primary.
    pub(super) events: OnceLock<Weak<dyn PrimaryEvents>>,
    /// When the breaker opened, or the latest probe failed, in microseconds since the Unix epoch.
    failed_at: AtomicU64,
    /// Longest call reported since the latest probe was sent, in microseconds; 0 without a report.
    probe_took: AtomicU64,
    /// Whether a foreign value was reported.
    foreign_value_reported: AtomicBool,
    /// Set by the first reply of the primary, or by the log event that there has been none.
    is_past_startup: AtomicBool,
    /// For tasks that outlive the call that starts them.
    this: Weak<Self>,
}

impl PrimaryMonitor {
    /// Creates the monitor, and observes the primary's calls if it reports them.
    pub(super) fn new(
        primary: Arc<dyn Store>,
        deadline: Duration,
        (clock, server_clock): (Clock, Clock),
        all: Arc<AllServers>,
        prober: Prober,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            reports_calls: primary.observe_calls(this.clone()),
            primary_keeps_deadline: primary.deadline().is_some_and(|own| own <= deadline),
            metrics: BreakerMetrics::new(|| primary.server()),
            primary,
            breaker: Breaker::new(deadline),
            prober,
            clock,
            server_clock,
            all,
            events: OnceLock::new(),
            failed_at: AtomicU64::new(0),
            probe_took: AtomicU64::new(0),
            foreign_value_reported: AtomicBool::new(false),
            is_past_startup: AtomicBool::new(false),
            this: this.clone(),
        })
    }

    /// Returns the monitor of another node, with the same settings.
    pub(super) fn for_node(&self, node: Arc<dyn Store>) -> Arc<Self> {
        Self::new(
            node,
            self.breaker.deadline(),
            (self.clock.clone(), self.server_clock.clone()),
            Arc::clone(&self.all),
            self.prober.for_node(),
        )
    }

    /// Awaits a reply of the primary, at most until the deadline.
    ///
    /// # Errors
    ///
    /// The primary's own, or [`ErrorKind::Timeout`].
    pub(super) async fn bounded<T>(&self, reply: StoreFuture<T>) -> Result<T, Error> {
        if self.primary_keeps_deadline {
            return reply.await;
        }
        let deadline = self.breaker.deadline();
        let result = timeout(deadline.saturating_add(GRACE), reply).await;
        result.unwrap_or_else(|| Err(self.late()))
    }

    /// Returns the error of a decision that the deadline ended.
    pub(super) fn late(&self) -> Error {
        let deadline = self.breaker.deadline();
        Error::new(
            ErrorKind::Timeout(Phase::Reply),
            format!("the shared store did not answer within the deadline of {deadline:?}"),
        )
    }

    /// Logs errors that the breaker does not log, or not yet: the first foreign value, and a primary that never
    /// replied.
    pub(super) fn warn_once(&self, error: &Error) {
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
        let mut backoff = self.prober.backoff.lock();
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
    pub(super) fn record_reply(&self, took: Duration, now: Timestamp) {
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
    pub(super) fn record_failure(&self, error: &Error) {
        if !matches!(
            error.kind(),
            ErrorKind::ForeignValue | ErrorKind::Overloaded
        ) {
            self.record(CallResult::Failed { error }, self.clock.now());
        }
    }

    // --- Probes ---

    /// Starts a task that probes, unless one is running.
    pub(super) fn ensure_probing(&self) {
        self.prober.task.start(|lease| {
            let monitor = self.this.clone();
            ProbeTask { monitor, lease }.run()
        });
    }

    /// Probes the primary once. Returns whether it succeeded, and took at most half of the deadline.
    async fn probe(&self) -> bool {
        self.probe_took.store(0, Ordering::Relaxed);
        self.prober.count();
        let started = self.clock.now();
        let result = self.bounded(self.primary.probe()).await;
        if let Err(error) = result {
            self.record_failed_probe(&error);
            return false;
        }
        if !self.breaker.is_slow(self.clock.now().since(started)) {
            return true;
        }
        // The report of the call shows whether the server was slow, or only this process.
        let reported = self.reported_time().await;
        reported.is_some_and(|took| !self.breaker.is_slow(took))
    }

    /// Returns how long the latest probe took according to the report of its call, which may come after the reply.
    async fn reported_time(&self) -> Option<Duration> {
        for _ in 0..REPORT_POLLS {
            let took = self.probe_took.load(Ordering::Relaxed);
            if took > 0 || !self.reports_calls {
                return (took > 0).then(|| Duration::from_micros(took));
            }
            sleep(REPORT_POLL_INTERVAL).await;
        }
        None
    }

    /// Keeps the error as the cause of the outage. Logs it if the server itself sent it and the text is new.
    fn record_failed_probe(&self, error: &Error) {
        if is_permanent(error) {
            self.prober.backoff.lock().prolong();
        }
        let is_new = self.breaker.replace_cause(error);
        let is_from_server = !matches!(error.kind(), ErrorKind::Connect | ErrorKind::Timeout(_));
        if is_new && is_from_server {
            log::event!(
                WARN,
                "the shared store is still unavailable, for another reason",
                mode = "degraded",
                server = self.server_name(),
                error = ErrorChain(error),
            );
        }
    }

    /// Returns the address of the server for log events.
    fn server_name(&self) -> String {
        self.primary
            .server()
            .unwrap_or_else(|| "unknown".to_owned())
    }

    /// Closes the breaker: the primary decides again.
    fn recover(&self) {
        let now = self.clock.now();
        // Before the breaker closes: the next decision must know that local charges are to be merged.
        if let Some(events) = self.events() {
            // The fault ended at some time after the latest failure.
            let failed_at = Timestamp::from_micros(self.failed_at.load(Ordering::Relaxed));
            events.recovering(now.since(failed_at) / 2);
        }
        // The server may have left the cluster meanwhile.
        let Some(outage) = self.breaker.close() else {
            return;
        };
        self.metrics.closed();
        self.all.forget_recent(now);
        self.all.modes.closed(now);
        self.prober.backoff.lock().closed(now);
        log::event!(
            INFO,
            "the shared store decides again",
            mode = "healthy",
            server = self.server_name(),
            outage = format_args!("{:?}", now.since(outage.since)),
        );
        if let Some(events) = self.events() {
            events.recovered();
        }
    }

    /// Ends the outage of a server that decides nothing any more. Its probes end too.
    fn retire(&self) {
        if self.breaker.close().is_some() {
            let now = self.clock.now();
            self.metrics.closed();
            self.all.forget_recent(now);
            self.all.modes.closed(now);
            log::event!(
                INFO,
                "an unavailable server has left the cluster",
                server = self.server_name(),
            );
        }
    }

    fn events(&self) -> Option<Arc<dyn PrimaryEvents>> {
        self.events.get().and_then(Weak::upgrade)
    }
}

impl Drop for PrimaryMonitor {
    fn drop(&mut self) {
        if self.breaker.is_open() {
            self.all.modes.closed(self.clock.now());
        }
    }
}

// By hand: a function has no debug output.
impl fmt::Debug for PrimaryMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrimaryMonitor")
            .field("primary", &self.primary)
            .field("breaker", &self.breaker)
            .finish_non_exhaustive()
    }
}

impl SlotServer for PrimaryMonitor {
    fn peek(&self, peeks: &[Charge<'_>]) -> Option<StoreFuture<Decision>> {
        if self.breaker.is_open() {
            return None;
        }
        let (this, deciding) = (self.this.upgrade()?, self.primary.decide(peeks));
        Some(StoreFuture::boxed(
            async move { this.bounded(deciding).await },
        ))
    }

    /// Merges what was admitted locally.
    fn slot_is_free(&self) {
        if let Some(events) = self.events() {
            events.recovered();
        }
    }
}

impl CallObserver for PrimaryMonitor {
    fn call_ended(&self, call: CallReport<'_>) {
        match call {
            CallReport::Replied {
                latency,
                decided_at,
            } => {
                if let Some(time) = decided_at {
                    self.server_clock.learn(time, latency);
                }
                self.record_reply(latency, self.clock.now());
            }
            CallReport::Failed { error } => self.record_failure(error),
            CallReport::Replaced => {
                log::event!(
                    WARN,
                    "the shared store was restarted or replaced: the usage that it returned before is restored",
                    server = self.server_name(),
                );
                if let Some(events) = self.events() {
                    events.replaced();
                }
            }
            CallReport::Retired => self.retire(),
        }
    }
}

// === PrimaryEvents ===

/// Learns what happens to the primary.
pub(super) trait PrimaryEvents: Send + Sync {
    /// The breaker is about to close. The primary has been able to decide for about this time.
    fn recovering(self: Arc<Self>, ago: Duration);

    /// The breaker has closed: the primary decides again.
    fn recovered(self: Arc<Self>);

    /// The primary may have lost its states.
    fn replaced(self: Arc<Self>);
}

// === ProbeTask ===

/// A task that probes until the primary decides again. Dropped early, by a panic or with its runtime, it releases its lease.
#[derive(Debug)]
struct ProbeTask {
    /// Weak: the task ends when every clone of the store is dropped.
    monitor: Weak<PrimaryMonitor>,
    lease: u64,
}

impl ProbeTask {
    /// Waits and probes, until [`GOOD_PROBES`] in a row are good or another task takes over.
    ///
    /// ```text
    /// opens ─ 50..100 ms ─▶ probe fails ─ backoff ─▶ probe good ─ 20 ms ─▶ probe good: closes
    /// ```
    async fn run(self) {
        let mut good_probes = 0;
        loop {
            let wait = match self.monitor.upgrade() {
                None => return,
                // Another task has closed the breaker.
                Some(monitor) if !monitor.breaker.is_open() => return,
                Some(_) if good_probes > 0 => GOOD_PROBE_INTERVAL,
                Some(monitor) => monitor.prober.backoff.lock().wait(),
            };
            if !self.renew(wait) {
                return;
            }
            sleep(wait).await;
            let Some(monitor) = self.monitor.upgrade() else {
                return;
            };
            if !monitor.probe().await {
                let now = monitor.clock.now().as_micros();
                monitor.failed_at.store(now, Ordering::Relaxed);
                good_probes = 0;
                continue;
            }
            good_probes += 1;
            if good_probes == GOOD_PROBES {
                // Before closing: a breaker that opens again at once must find the lease free.
                monitor.prober.task.release(self.lease);
                monitor.recover();
                return;
            }
        }
    }

    /// Extends the lease over the wait and the probe after it.
    fn renew(&self, wait: Duration) -> bool {
        let monitor = self.monitor.upgrade();
        monitor.is_some_and(|monitor| {
            let span = wait + monitor.breaker.deadline();
            monitor.prober.task.renew(self.lease, span)
        })
    }
}

impl Drop for ProbeTask {
    fn drop(&mut self) {
        if let Some(monitor) = self.monitor.upgrade() {
            monitor.prober.task.release(self.lease);
        }
    }
}

/// Number of consecutive good probes that close the breaker, and the wait between them.
const GOOD_PROBES: u32 = 2;
const GOOD_PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// How often a slow probe polls for the report of its call, and at which interval.
const REPORT_POLLS: u32 = 10;
const REPORT_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time beyond the deadline in which the primary's own timeout can still name the phase that was late.
const GRACE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use crate::{diagnosis::SilencedCodes, memory::MemoryStore, store::Mode, task::Mutex};

    use super::*;

    /// Notes whether the breaker was open at each recovery.
    struct Recoveries {
        monitor: Arc<PrimaryMonitor>,
        open: Mutex<Vec<bool>>,
    }

    impl PrimaryEvents for Recoveries {
        fn recovering(self: Arc<Self>, _: Duration) {
            self.open.lock().push(self.monitor.breaker.is_open());
        }

        fn recovered(self: Arc<Self>) {
            self.open.lock().push(self.monitor.breaker.is_open());
        }

        fn replaced(self: Arc<Self>) {}
    }

    // Regression: a decision just after the breaker closed merged as if no outage had ended.
    #[test]
    fn recovery_is_reported_before_and_after_the_breaker_closes() {
        let clock = Clock::system();
        let clocks = (clock.clone(), clock.clone());
        let deadline = Duration::from_millis(50);
        let store = Arc::new(MemoryStore::default());
        let all = Arc::new(AllServers::new(clock.clone(), SilencedCodes::default()));
        let monitor = PrimaryMonitor::new(store, deadline, clocks, all, Prober::default());
        let events = Arc::new(Recoveries {
            monitor: Arc::clone(&monitor),
            open: Mutex::default(),
        });
        let weak: Weak<dyn PrimaryEvents> = Arc::downgrade(&events) as _;
        assert!(monitor.events.set(weak).is_ok());
        let error = Error::new(ErrorKind::Script, "no permission");
        for _ in 0..3 {
            let failed = CallResult::Failed { error: &error };
            let _ = monitor.breaker.record(failed, clock.now());
        }
        assert!(monitor.breaker.is_open());
        monitor.recover();
        assert!(!monitor.breaker.is_open());
        assert_eq!(*events.open.lock(), [true, false]);
    }

    // Regression: decisions in the outage of a server that had left the cluster counted as recent for 10 s more.
    #[test]
    fn recent_decisions_begin_anew_once_an_unavailable_server_has_left() {
        let clock = Clock::system();
        let all = Arc::new(AllServers::new(clock.clone(), SilencedCodes::default()));
        let monitor = PrimaryMonitor::new(
            Arc::new(MemoryStore::default()),
            Duration::from_millis(50),
            (clock.clone(), clock.clone()),
            Arc::clone(&all),
            Prober::default(),
        );
        let error = Error::new(ErrorKind::Script, "no permission");
        for _ in 0..3 {
            monitor.record_failure(&error);
        }
        assert!(monitor.breaker.is_open());
        assert!(all.recent.note_in_outage(clock.now()).is_none());
        monitor.call_ended(CallReport::Retired);
        assert_eq!(all.recent.affected(clock.now()).0, 0.0);
        assert_eq!(all.modes.mode(), Mode::Healthy);
    }
}
