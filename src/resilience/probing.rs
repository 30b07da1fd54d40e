//! Probes of a server during its outage, and the end of the outage.
//!
//! # Why does the breaker probe with a write?
//!
//! PING succeeds on a read-only replica, on a server that is out of memory, and for a user who may not run scripts. So a probe is
//! the decision script, with charges that are always made, once per algorithm in use, in a cluster in a slot of the node. It
//! succeeds only where decisions would. Two in a row, within half of the deadline, end the outage. If a store fails again within
//! 10 seconds, the intervals between probes go on growing, up to 1 s, so that a store that comes and goes does not affect the
//! callers each time.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use crate::{
    clock::Timestamp,
    diagnosis::{ErrorChain, log},
    error::{Error, ErrorKind},
    task::{Running, timer::sleep},
};

use super::{breaker::is_permanent, guard::Guard};

impl Guard {
    /// Starts a task that probes, unless one is running.
    pub fn ensure_probing(&self) {
        self.probe_task
            .start(|running| probe_until_recovered(self.this.clone(), running));
    }

    /// Probes the primary once. Returns whether it succeeded, and took at most half of the deadline.
    async fn probe(&self) -> bool {
        self.probe_took.store(0, Ordering::Relaxed);
        self.probes.fetch_add(1, Ordering::Relaxed);
        let started = self.clock.now();
        let result = self.bounded(Arc::clone(&self.primary).probe()).await;
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
            self.probe_backoff.lock().prolong();
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
    pub fn server_name(&self) -> String {
        self.primary
            .server()
            .unwrap_or_else(|| "unknown".to_owned())
    }

    /// Closes the breaker: the primary decides again.
    pub fn recover(self: &Arc<Self>) {
        let now = self.clock.now();
        // Before the breaker closes: the next decision must know that local charges are to be merged.
        // The fault ended at some time after the latest failure.
        let failed_at = Timestamp::from_micros(self.failed_at.load(Ordering::Relaxed));
        self.history.begin_grace(now.since(failed_at) / 2);
        // The server may have left the cluster meanwhile.
        let Some(outage) = self.breaker.close() else {
            return;
        };
        self.metrics.closed();
        self.all.forget_recent(now);
        self.all.modes.closed(now);
        self.probe_backoff.lock().closed(now);
        log::event!(
            INFO,
            "the shared store decides again",
            mode = "healthy",
            server = self.server_name(),
            outage = format_args!("{:?}", now.since(outage.since)),
        );
        self.start_merging();
    }

    /// Ends the outage, and the probes, of a server that has left the cluster.
    pub fn retire(&self) {
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

    /// Notes that the server was restarted or replaced: it may have lost its states.
    pub fn server_replaced(self: &Arc<Self>) {
        log::event!(
            WARN,
            "the shared store was restarted or replaced: the usage that it returned before is restored",
            server = self.server_name(),
        );
        self.local.mirror.doubt(&self.history.doubts);
        // The states of keys that were decided locally meanwhile are not in the mirror any more, but in the journal.
        self.history.begin_grace(Duration::ZERO);
        self.start_merging();
    }
}

/// The task that probes until the primary decides again, or every clone of the store is dropped: it waits and probes, until
/// [`GOOD_PROBES`] in a row are good.
///
/// ```text
/// opens ─ 50..100 ms ─▶ probe fails ─ backoff ─▶ probe good ─ 20 ms ─▶ probe good: closes
/// ```
async fn probe_until_recovered(guard: Weak<Guard>, running: Running) {
    let mut good_probes = 0;
    loop {
        let wait = match guard.upgrade() {
            None => return,
            // The server has left the cluster.
            Some(guard) if !guard.breaker.is_open() => return,
            Some(_) if good_probes > 0 => GOOD_PROBE_INTERVAL,
            Some(guard) => guard.probe_backoff.lock().wait(),
        };
        sleep(wait).await;
        let Some(guard) = guard.upgrade() else {
            return;
        };
        if !guard.probe().await {
            let now = guard.clock.now().as_micros();
            guard.failed_at.store(now, Ordering::Relaxed);
            good_probes = 0;
            continue;
        }
        good_probes += 1;
        if good_probes == GOOD_PROBES {
            // Before closing: the next task must start at once if the breaker opens again.
            drop(running);
            guard.recover();
            return;
        }
    }
}

/// Number of consecutive good probes that close the breaker, and the wait between them.
const GOOD_PROBES: u32 = 2;
const GOOD_PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// How often a slow probe polls for the report of its call, and at which interval.
const REPORT_POLLS: u32 = 10;
const REPORT_POLL_INTERVAL: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use crate::{clock::Clock, store::Mode};

    use super::{super::guard::tests::guard, *};

    // Regression: a decision just after the breaker closed merged as if no outage had ended.
    #[test]
    fn first_seconds_begin_before_the_breaker_closes() {
        let error = Error::new(ErrorKind::Script, "no permission");
        for _ in 0..500 {
            let guard = guard(Clock::system());
            for _ in 0..3 {
                guard.record_failure(&error);
            }
            assert!(guard.breaker.is_open() && !guard.history.is_grace());
            let barrier = Arc::new(Barrier::new(2));
            let watching = thread::spawn({
                let (guard, barrier) = (Arc::clone(&guard), Arc::clone(&barrier));
                move || {
                    barrier.wait();
                    while guard.breaker.is_open() {}
                    guard.history.is_grace()
                }
            });
            barrier.wait();
            guard.recover();
            assert!(watching.join().expect("no panic"));
        }
    }

    // Regression: decisions in the outage of a server that had left the cluster counted as recent for 10 s more.
    #[test]
    fn recent_decisions_begin_anew_once_an_unavailable_server_has_left() {
        let (clock, error) = (
            Clock::system(),
            Error::new(ErrorKind::Script, "no permission"),
        );
        let guard = guard(clock.clone());
        for _ in 0..3 {
            guard.record_failure(&error);
        }
        assert!(guard.breaker.is_open());
        assert!(guard.all.recent.note_in_outage(clock.now()).is_none());
        guard.retire();
        assert_eq!(guard.all.recent.affected(clock.now()).0, 0.0);
        assert_eq!(guard.all.modes.mode(), Mode::Healthy);
    }
}
