//! An unrelated caller whose latency shows what the slots cost everybody else.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tollgate::{Key, Policy, Quota, RateLimiter, decision::CountedBy};

use crate::support::Histogram;

/// Makes a decision on another policy every millisecond, until it is dropped.
pub(crate) struct Bystander {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    waits: Mutex<Waits>,
    is_paused: AtomicBool,
    has_ended: AtomicBool,
}

/// Latencies, and the number of decisions that Redis did not make.
#[derive(Default)]
struct Waits {
    all: Histogram,
    without: u64,
}

impl Bystander {
    pub(crate) fn start(url: &str) -> Self {
        let (shared, url) = (Arc::new(Shared::default()), url.to_owned());
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || crate::runtime().block_on(ask(&url, &shared))
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Stops or resumes asking.
    pub(crate) fn pause(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// Returns p50, p99 and maximum since the last call, in milliseconds, and the share of decisions that Redis did not make.
    pub(crate) fn report(&self) -> String {
        let waits = mem::take(&mut *self.shared.waits());
        let millis = |share| waits.all.quantile(share).as_secs_f64() * 1e3;
        let without = 100.0 * waits.without as f64 / waits.all.count().max(1) as f64;
        format!(
            "{:.2}/{:.2}/{:.1}, {without:.1} %",
            millis(0.5),
            millis(0.99),
            millis(1.0)
        )
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // the panic has been printed
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn note(&self, waited: Duration, is_by_redis: bool) {
        let mut waits = self.waits();
        waits.all.record(waited);
        waits.without += u64::from(!is_by_redis);
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(url: &str, shared: &Shared) {
    let policy = Policy::new("bystander", Quota::per_second(1).burst(1_000_000));
    let limiter = RateLimiter::builder().redis(url).policy(policy.clone());
    let limiter = limiter.build().expect("a usable limiter");
    while !shared.has_ended.load(Ordering::Relaxed) {
        if shared.is_paused.load(Ordering::Relaxed) {
            tokio::time::sleep(INTERVAL).await;
            continue;
        }
        let asked = Instant::now();
        let decision = limiter.check(&[policy.charge(Key::GLOBAL)]).await;
        let waited = asked.elapsed();
        let is_by_redis = decision.is_ok_and(|found| found.counted_by() == CountedBy::Shared);
        shared.note(waited, is_by_redis);
        tokio::time::sleep(INTERVAL).await;
    }
}

const INTERVAL: Duration = Duration::from_millis(1);
