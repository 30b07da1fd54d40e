//! Observes the breaker through the limiter's health.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tollgate::RateLimiter;

/// Reads a limiter's health every millisecond, on its own thread.
pub(crate) struct BreakerWatch {
    has_ended: Arc<AtomicBool>,
    limiter: RateLimiter,
    thread: JoinHandle<Breaker>,
}

impl BreakerWatch {
    pub(crate) fn start(limiter: &RateLimiter) -> Self {
        let (limiter, has_ended) = (limiter.clone(), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (limiter, has_ended) = (limiter.clone(), Arc::clone(&has_ended));
            move || {
                let mut breaker = Breaker::default();
                while !has_ended.load(Ordering::Relaxed) {
                    breaker.note(is_open(&limiter));
                    thread::sleep(INTERVAL);
                }
                breaker.note(false);
                breaker
            }
        });
        Self {
            has_ended,
            limiter,
            thread,
        }
    }

    /// Waits until the breaker has stayed closed for a second, or for 20 seconds if it keeps opening.
    pub(crate) fn until_steady(&self) {
        let (start, mut closed) = (Instant::now(), Instant::now());
        while closed.elapsed() < STEADY && start.elapsed() < PATIENCE {
            if is_open(&self.limiter) {
                closed = Instant::now();
            }
            thread::sleep(INTERVAL);
        }
    }

    pub(crate) fn stop(self) -> Breaker {
        self.has_ended.store(true, Ordering::Relaxed);
        self.thread.join().expect("the watch does not panic")
    }
}

fn is_open(limiter: &RateLimiter) -> bool {
    limiter.health().is_degraded()
}

// === Breaker ===

/// The periods in which the breaker was open.
#[derive(Default)]
pub(crate) struct Breaker {
    spans: Vec<(Instant, Instant)>,
    open_since: Option<Instant>,
}

impl Breaker {
    pub(crate) fn opened_at(&self) -> Option<Instant> {
        self.spans.first().map(|(from, _)| *from)
    }

    /// Returns the time of its last closing.
    pub(crate) fn closed_at(&self) -> Option<Instant> {
        self.spans.last().map(|(_, to)| *to)
    }

    /// Returns the number of times it opened.
    pub(crate) fn times(&self) -> usize {
        self.spans.len()
    }

    pub(crate) fn degraded_for(&self) -> Duration {
        self.spans.iter().map(|(from, to)| *to - *from).sum()
    }

    fn note(&mut self, is_open: bool) {
        match (self.open_since, is_open) {
            (None, true) => self.open_since = Some(Instant::now()),
            (Some(since), false) => {
                self.spans.push((since, Instant::now()));
                self.open_since = None;
            }
            _ => {}
        }
    }
}

const INTERVAL: Duration = Duration::from_millis(1);
/// A breaker that closed too early opens again within this time.
const STEADY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);
