//! How decisions ended, counted while the window is open.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    support::{Histogram, cpu},
    way::Otherwise,
};

/// Counts decisions for all callers; clones share the counts.
#[derive(Clone, Default)]
pub(crate) struct Tally {
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
    /// Waits for decisions that Redis made.
    pub(crate) by_redis: Histogram,
    /// Waits for those that it did not make.
    pub(crate) without: Histogram,
    pub(crate) reasons: Vec<(Otherwise, u64)>,
    /// How long after its time an arrival was started.
    pub(crate) lateness: Histogram,
}

impl Tally {
    pub(crate) fn record(&self, waited: Duration, result: Result<(), Otherwise>) {
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

    /// Whether callers should stop.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.has_ended.load(Ordering::Relaxed)
    }

    /// Lets `warm_up` pass uncounted, counts for `span`, and tells the callers to stop.
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
        // counts of a caller that panicked are as good as others
        let counts = self.shared.counts.lock();
        counts.unwrap_or_else(PoisonError::into_inner)
    }
}

// === Usage ===

/// CPU time used until a moment.
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

/// One round of one way.
pub(crate) struct Measurement {
    pub(crate) counts: Counts,
    elapsed: Duration,
    client: Duration,
    server: Duration,
    proxy: Duration,
    /// Resident bytes over the round.
    pub(crate) memory: Vec<u64>,
}

impl Measurement {
    /// Decisions by Redis a second.
    pub(crate) fn rate(&self) -> f64 {
        self.per_second(self.counts.by_redis.count())
    }

    /// Decisions by Redis a second that took at most so long.
    pub(crate) fn rate_within(&self, wait: Duration) -> f64 {
        self.per_second(self.counts.by_redis.within(wait))
    }

    /// Decisions a second that Redis did not make.
    pub(crate) fn rate_without(&self) -> f64 {
        self.per_second(self.counts.without.count())
    }

    /// The share of decisions that Redis did not make.
    pub(crate) fn share_without(&self) -> f64 {
        let (by_redis, without) = (self.counts.by_redis.count(), self.counts.without.count());
        without as f64 / (by_redis + without).max(1) as f64
    }

    pub(crate) fn max_wait(&self) -> Duration {
        self.counts.by_redis.max().max(self.counts.without.max())
    }

    /// Microseconds of the client's CPU a decision, whoever made it.
    pub(crate) fn client_micros(&self) -> f64 {
        let decisions = self.counts.by_redis.count() + self.counts.without.count();
        micros_each(self.client, decisions)
    }

    /// Microseconds of the server's CPU a decision that it made.
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
