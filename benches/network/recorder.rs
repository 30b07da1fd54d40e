//! Records results and CPU time while the measuring window is open.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    subject::NotByRedis,
    support::{Histogram, cpu},
};

/// Counts the decisions of all callers. Clones share the counts.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_open: AtomicBool,
    has_ended: AtomicBool,
    counts: Mutex<Counts>,
}

#[derive(Clone, Default)]
pub(crate) struct Counts {
    /// Latencies of decisions that Redis made.
    pub(crate) by_redis: Histogram,
    /// Latencies of decisions that Redis did not make.
    pub(crate) without: Histogram,
    pub(crate) reasons: Vec<(NotByRedis, u64)>,
    /// Delay between the scheduled time of an arrival and its call.
    pub(crate) lateness: Histogram,
}

impl Recorder {
    pub(crate) fn record(&self, waited: Duration, result: Result<(), NotByRedis>) {
        if !self.shared.is_open.load(Ordering::Relaxed) {
            return;
        }
        let mut counts = self.counts();
        let Err(reason) = result else {
            return counts.by_redis.record(waited);
        };
        counts.without.record(waited);
        let found = counts.reasons.iter_mut().find(|(of, _)| *of == reason);
        match found {
            Some((_, count)) => *count += 1,
            None => counts.reasons.push((reason, 1)),
        }
    }

    pub(crate) fn record_lateness(&self, late: Duration) {
        if self.shared.is_open.load(Ordering::Relaxed) {
            self.counts().lateness.record(late);
        }
    }

    /// Returns whether the round is over.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.has_ended.load(Ordering::Relaxed)
    }

    /// Waits for `warm_up`, counts for `span`, and ends the round.
    pub(crate) async fn measure(
        &self,
        server: u32,
        warm_up: Duration,
        span: Duration,
    ) -> Measurement {
        tokio::time::sleep(warm_up).await;
        let before = Usage::now(server);
        self.shared.is_open.store(true, Ordering::Relaxed);
        let mut memory = vec![cpu::resident_bytes()];
        let end = Instant::now() + span;
        while Instant::now() < end {
            let rest = end.saturating_duration_since(Instant::now());
            tokio::time::sleep(rest.min(SAMPLE_INTERVAL)).await;
            memory.push(cpu::resident_bytes());
        }
        self.shared.is_open.store(false, Ordering::Relaxed);
        let after = Usage::now(server);
        self.shared.has_ended.store(true, Ordering::Relaxed);
        Measurement {
            counts: self.counts().clone(),
            elapsed: after.at - before.at,
            client: after.client.saturating_sub(before.client),
            server: after.server.saturating_sub(before.server),
            proxy: after.proxy.saturating_sub(before.proxy),
            memory,
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // the counts are valid at every point where a caller can panic
        let counts = self.shared.counts.lock();
        counts.unwrap_or_else(PoisonError::into_inner)
    }
}

// === Usage ===

/// CPU times read at one moment.
struct Usage {
    at: Instant,
    client: Duration,
    server: Duration,
    proxy: Duration,
}

impl Usage {
    fn now(server: u32) -> Self {
        Self {
            at: Instant::now(),
            client: cpu::of_this_process_without(&["proxy", ARRIVALS_THREAD]),
            server: cpu::of_main_thread(server),
            proxy: cpu::of_threads_named("proxy"),
        }
    }
}

// === Measurement ===

/// Results of one round of one subject.
pub(crate) struct Measurement {
    pub(crate) counts: Counts,
    elapsed: Duration,
    client: Duration,
    server: Duration,
    proxy: Duration,
    /// Resident bytes of this process, sampled every 100 ms.
    pub(crate) memory: Vec<u64>,
}

impl Measurement {
    /// Returns the decisions per second that Redis made.
    pub(crate) fn rate(&self) -> f64 {
        self.per_second(self.counts.by_redis.count())
    }

    /// Returns the decisions per second that Redis made within `wait`.
    pub(crate) fn rate_within(&self, wait: Duration) -> f64 {
        self.per_second(self.counts.by_redis.within(wait))
    }

    /// Returns the decisions per second that Redis did not make.
    pub(crate) fn rate_without(&self) -> f64 {
        self.per_second(self.counts.without.count())
    }

    /// Returns the share of decisions that Redis did not make.
    pub(crate) fn share_without(&self) -> f64 {
        let (by_redis, without) = (self.counts.by_redis.count(), self.counts.without.count());
        without as f64 / (by_redis + without).max(1) as f64
    }

    pub(crate) fn max_wait(&self) -> Duration {
        self.counts.by_redis.max().max(self.counts.without.max())
    }

    /// Returns the client's CPU time per decision, in microseconds, over all decisions.
    pub(crate) fn client_micros(&self) -> f64 {
        let decisions = self.counts.by_redis.count() + self.counts.without.count();
        micros_each(self.client, decisions)
    }

    /// Returns the server's CPU time per decision that it made, in microseconds.
    pub(crate) fn server_micros(&self) -> f64 {
        micros_each(self.server, self.counts.by_redis.count())
    }

    pub(crate) fn proxy_micros(&self) -> f64 {
        micros_each(self.proxy, self.counts.by_redis.count())
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.elapsed.as_secs_f64()
    }
}

fn micros_each(time: Duration, count: u64) -> f64 {
    match count {
        0 => f64::NAN,
        _ => time.as_secs_f64() * 1e6 / count as f64,
    }
}

pub(crate) const ARRIVALS_THREAD: &str = "arrivals";
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
