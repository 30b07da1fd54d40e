//! State that all clones of a resilient store share: the breaker and the counts.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    charge::{Charge, Charges},
    clock::{Clock, Timestamp},
    decision::Decision,
    error::{Error, ErrorKind, Phase},
    error_chain::ErrorChain,
    log,
    store::{CallObserver, CallReport, Fallback, Health, Store, StoreFuture},
    timer::{sleep, timeout},
};

use super::{
    breaker::{Breaker, Call, is_curable},
    outage,
    probe::{self, Prober},
    shedding::{CALM, Shedding},
};

/// The stores, the breaker between them, and the counts.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) prober: Prober,
    pub(super) clock: Clock,
    pub(super) deadline: Duration,
    pub(super) primary: Arc<dyn Store>,
    pub(super) local: Arc<dyn Store>,
    pub(super) breaker: Breaker,
    /// Whether a second timer would only cost time.
    pub(super) primary_keeps_deadline: bool,
    /// Whether the primary reports its calls; otherwise each decision counts as a call.
    pub(super) reports_calls: bool,
    shedding: Shedding,
    /// Decisions made without the primary because it failed.
    fallback_decisions: AtomicU64,
    /// The longest call reported since the latest probe was sent, in microseconds; 0 without a report.
    probe_took: AtomicU64,
    /// Whether a foreign value was reported.
    warned: AtomicBool,
    /// Whether the primary ever decided, or it was reported that it does not.
    was_heard: AtomicBool,
    /// For tasks that outlive the call that starts them.
    this: Weak<Self>,
}

impl Shared {
    pub(super) fn new(
        primary: Arc<dyn Store>,
        local: Arc<dyn Store>,
        deadline: Duration,
        primary_keeps_deadline: bool,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            prober: Prober::default(),
            clock,
            deadline,
            reports_calls: primary.observe_calls(this.clone()),
            primary,
            local,
            breaker: Breaker::new(deadline),
            primary_keeps_deadline,
            shedding: Shedding::default(),
            fallback_decisions: AtomicU64::new(0),
            probe_took: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            was_heard: AtomicBool::new(false),
            this: this.clone(),
        })
    }

    /// Starts probing if nobody does.
    pub(super) fn see_to_prober(&self) {
        if !self.prober.is_running()
            && let Some(this) = self.this.upgrade()
        {
            probe::start(&this);
        }
    }

    /// Returns whether a probe succeeds, and as quickly as decisions must.
    pub(super) async fn probe(&self) -> bool {
        self.probe_took.store(0, Ordering::Relaxed);
        let asked = self.clock.now();
        let result = self.bounded(self.primary.probe()).await;
        if let Err(error) = result {
            self.note_failed_probe(&error);
            return false;
        }
        if !self.breaker.is_slow(self.clock.now().since(asked)) {
            return true;
        }
        // This process may have been slow, or the server.
        let reported = self.reported().await;
        reported.is_some_and(|took| !self.breaker.is_slow(took))
    }

    /// Returns the time that the latest probe took by the report of its call, which may come after the answer.
    async fn reported(&self) -> Option<Duration> {
        for _ in 0..REPORT_LOOKS {
            let took = self.probe_took.load(Ordering::Relaxed);
            if took > 0 || !self.reports_calls {
                return (took > 0).then(|| Duration::from_micros(took));
            }
            sleep(REPORT_LOOK).await;
        }
        None
    }

    /// Ends an answer that does not keep the deadline.
    pub(super) async fn bounded<T>(&self, answer: StoreFuture<T>) -> Result<T, Error> {
        if self.primary_keeps_deadline {
            return answer.await;
        }
        let result = timeout(self.deadline.saturating_add(GRACE), answer).await;
        result.unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::Timeout(Phase::Reply),
                format!(
                    "no answer from the shared store within the deadline of {:?}",
                    self.deadline
                ),
            ))
        })
    }

    /// Closes the breaker: the primary decides again.
    pub(super) fn recover(&self) {
        let outage = self.breaker.outage();
        self.breaker.close();
        let now = self.clock.now();
        self.prober.backoff.lock().recovered(now);
        if let Some(outage) = outage {
            let outage = format_args!("{:?}", now.since(outage.since));
            log::event!(
                INFO,
                "the shared store decides again",
                mode = "healthy",
                outage = outage
            );
        }
    }

    /// Decides by what each policy chose for an outage, because the primary is in one.
    pub(super) fn decide_in_outage(&self, charges: &[Charge<'_>]) -> Decision {
        self.fallback_decisions.fetch_add(1, Ordering::Relaxed);
        outage::decide(&*self.local, charges, self.clock.now())
    }

    /// Decides by what each policy chose for an outage, because the primary returned this error.
    #[cold]
    fn decide_instead(&self, error: &Error, charges: &[Charge<'_>]) -> Decision {
        if error.kind() != ErrorKind::Overloaded {
            return self.decide_in_outage(charges);
        }
        let now = self.clock.now();
        if self.shedding.shed(now) {
            log::event!(
                WARN,
                "some decisions are not sent, because they would come too late: their policies apply `on_outage`",
                mode = "shedding",
                error = ErrorChain(error),
            );
        }
        outage::decide(&*self.local, charges, now)
    }

    #[cold]
    fn end_shedding(&self) {
        if self.shedding.end(self.clock.now()) {
            log::event!(
                INFO,
                "no decision was shed for some time",
                mode = "healthy",
                calm = format_args!("{CALM:?}"),
                shed_decisions = self.shedding.decisions(),
            );
        }
    }

    pub(super) fn health(&self) -> Health {
        let fallback_decisions = self.fallback_decisions.load(Ordering::Relaxed);
        let health = Health::counted(fallback_decisions, self.shedding.decisions());
        match self.breaker.outage() {
            Some(outage) => health.degraded(outage.since, outage.cause),
            None => health,
        }
    }

    fn record(&self, call: Call<'_>, now: Timestamp) {
        let Some(cause) = self.breaker.record(call, now) else {
            return;
        };
        log::event!(
            WARN,
            "the shared store is unavailable: policies apply `on_outage`",
            mode = "degraded",
            error = ErrorChain(&cause),
        );
        let mut backoff = self.prober.backoff.lock();
        backoff.gave_up(now);
        if !is_curable(&cause) {
            backoff.prolong();
        }
        drop(backoff);
        self.see_to_prober();
    }

    /// Counts an answer.
    fn note_answer(&self, took: Duration, now: Timestamp) {
        if !self.was_heard.load(Ordering::Relaxed) {
            self.was_heard.store(true, Ordering::Relaxed);
        }
        if self.breaker.is_open() {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.probe_took.fetch_max(micros.max(1), Ordering::Relaxed);
        }
        self.record(Call::Answered { took }, now);
    }

    /// Counts a failure, unless the error has a cause other than the store.
    fn note_failure(&self, error: &Error) {
        if !matches!(
            error.kind(),
            ErrorKind::ForeignValue | ErrorKind::Overloaded
        ) {
            self.record(Call::Failed { error }, self.clock.now());
        }
    }

    /// Logs an error that the breaker does not, or not yet: the first foreign value, and a store that never decided.
    fn warn_once(&self, error: &Error) {
        match error.kind() {
            ErrorKind::Overloaded => {}
            ErrorKind::ForeignValue => {
                if !self.warned.swap(true, Ordering::Relaxed) {
                    log::event!(
                        WARN,
                        "a key holds a foreign value: its policies apply `on_outage`",
                        error = ErrorChain(error),
                    );
                }
            }
            // A wrong address is not to stay hidden until the breaker opens, which with few requests takes long.
            _ => {
                if !self.was_heard.swap(true, Ordering::Relaxed) {
                    log::event!(
                        WARN,
                        "the shared store has not decided yet: policies apply `on_outage`",
                        error = ErrorChain(error),
                    );
                }
            }
        }
    }

    /// Keeps the reason why the store is still given up; logs it if the server itself gives another than before.
    fn note_failed_probe(&self, error: &Error) {
        if !is_curable(error) {
            self.prober.backoff.lock().prolong();
        }
        let is_new = self.breaker.replace_cause(error);
        let is_of_server = !matches!(error.kind(), ErrorKind::Connect | ErrorKind::Timeout(_));
        if is_new && is_of_server {
            log::event!(
                WARN,
                "the shared store is still unavailable, for another reason",
                mode = "degraded",
                error = ErrorChain(error),
            );
        }
    }
}

impl Fallback for Shared {
    fn complete(
        &self,
        result: Result<Decision, Error>,
        charges: &mut dyn Iterator<Item = Charge<'_>>,
    ) -> Result<Decision, Error> {
        match result {
            Ok(decision) => {
                if self.breaker.is_refused()
                    && decision.is_allowed()
                    && charges.map(|charge| charge.units()).max() > Some(0)
                {
                    self.breaker.wrote();
                }
                if self.shedding.is_on() {
                    self.end_shedding();
                }
                Ok(decision)
            }
            Err(error) => {
                self.warn_once(&error);
                let charges: Charges<'_> = charges.collect();
                Ok(self.decide_instead(&error, &charges))
            }
        }
    }
}

impl CallObserver for Shared {
    fn call_ended(&self, call: CallReport<'_>) {
        match call {
            CallReport::Replied { latency } => self.note_answer(latency, self.clock.now()),
            CallReport::Failed { error } => self.note_failure(error),
        }
    }
}

// === Asked ===

/// A decision that the primary was asked for.
///
/// If the primary does not report its calls, the decision counts as a call. Dropped before the answer, it counts as abandoned.
pub(super) struct Asked<'a> {
    shared: &'a Shared,
    /// When the primary was asked; `None` if the decision is not counted, or not any more.
    at: Option<Timestamp>,
}

impl<'a> Asked<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        let is_counted = !shared.reports_calls;
        Self {
            shared,
            at: is_counted.then(|| shared.clock.now()),
        }
    }

    /// Counts how it ended.
    pub(super) fn ended(mut self, result: &Result<Decision, Error>) {
        let Some(at) = self.at.take() else {
            return;
        };
        match result {
            Ok(_) => {
                let now = self.shared.clock.now();
                self.shared.note_answer(now.since(at), now);
            }
            Err(error) => self.shared.note_failure(error),
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            let now = self.shared.clock.now();
            let after = now.since(at);
            self.shared.record(Call::Abandoned { after }, now);
        }
    }
}

/// How often, and after how long each time, a probe that was slow looks for the report of its call.
const REPORT_LOOKS: u32 = 10;
const REPORT_LOOK: Duration = Duration::from_millis(5);
/// So that a store's own deadline can report which phase was late.
const GRACE: Duration = Duration::from_millis(2);
