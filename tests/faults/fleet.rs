//! The instances of a row, and when each of them knows that Redis is unavailable.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::runtime::Builder;
use tollgate::{
    Consistency, Key, OnOutage, Policy, Quota, RateLimiter, clock::Clock, decision::CountedBy,
};

use crate::{
    load::{KEYS, Response, Subject},
    place::Place,
    rows::Row,
};

/// Limiters that share a quota.
pub(crate) struct Fleet {
    pub(crate) limiters: Vec<RateLimiter>,
    /// Moves the clock that is ahead.
    _clock: Option<RunningClock>,
}

impl Fleet {
    /// Starts the instances, and waits until they know each other.
    pub(crate) fn start(place: &Place, row: &Row, outage: OnOutage, instances: usize) -> Self {
        let ahead = row.is_one_ahead.then(RunningClock::start);
        let build = |instance| {
            let mut store = place.store(instance).connections(row.connections);
            if row.has_user {
                store = store.username("limiter").password("secret");
            }
            let mut builder = RateLimiter::builder()
                .redis(store)
                .deadline(DEADLINE)
                .policy(policy(outage));
            if let (Some(ahead), 0) = (&ahead, instance) {
                builder = builder.clock(ahead.clock.clone());
            }
            builder.build().expect("a usable limiter")
        };
        let fleet = Self {
            limiters: (0..instances).map(build).collect(),
            _clock: ahead,
        };
        fleet.wait_until_acquainted();
        fleet
    }

    fn wait_until_acquainted(&self) {
        let count = self.limiters.len() as u64;
        let idle = Policy::new("idle", Quota::per_second(1_000_000));
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let deadline = Instant::now() + HUNG;
            let knows_all = |one: &RateLimiter| one.health().instances() == Some(count);
            while !self.limiters.iter().all(knows_all) {
                assert!(Instant::now() < deadline, "{:?}", self.limiters[0].health());
                for one in &self.limiters {
                    let decision = one.check(&[idle.charge(Key::GLOBAL)]).await;
                    decision.expect("a decision");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }

    pub(crate) fn subjects(&self, outage: OnOutage) -> Vec<Arc<dyn Subject>> {
        let policy = policy(outage);
        let subject = |limiter: &RateLimiter| {
            let (limiter, policy) = (limiter.clone(), policy.clone());
            Arc::new(Instance { limiter, policy }) as Arc<dyn Subject>
        };
        self.limiters.iter().map(subject).collect()
    }

    pub(crate) fn probes(&self) -> Vec<u64> {
        let probes = |limiter: &RateLimiter| limiter.health().probes();
        self.limiters.iter().map(probes).collect()
    }
}

/// Returns one of the keys.
pub(crate) fn key(number: usize) -> Key {
    Key::new(format!("key{number}"))
}

fn policy(outage: OnOutage) -> Policy {
    let policy = Policy::new("faults", Quota::per_second(RATE).burst(RATE));
    let consistency = CONSISTENCY.get().copied().unwrap_or_default();
    policy.on_outage(outage).consistency(consistency)
}

/// That of the policy. Default: strict.
pub(crate) static CONSISTENCY: OnceLock<Consistency> = OnceLock::new();

/// Returns what all keys together admit in this time, if their quotas are used up at its start.
pub(crate) fn limit(span: Duration) -> f64 {
    KEYS as f64 * RATE as f64 * span.as_secs_f64()
}

struct Instance {
    limiter: RateLimiter,
    policy: Policy,
}

impl Subject for Instance {
    fn check(&self, number: usize) -> Pin<Box<dyn Future<Output = Response> + Send + '_>> {
        Box::pin(async move {
            match self.limiter.check(&[self.policy.charge(key(number))]).await {
                Err(_) => Response::Error,
                Ok(decision) => {
                    let allowed = decision.is_allowed();
                    match decision.counted_by() {
                        CountedBy::Shared => Response::Shared { allowed },
                        _ => Response::Local { allowed },
                    }
                }
            }
        })
    }
}

// === RunningClock ===

/// A clock that runs 10 s ahead of the machine's.
struct RunningClock {
    clock: Clock,
    has_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RunningClock {
    fn start() -> Self {
        let clock = Clock::manual(Clock::system().now() + Duration::from_secs(10));
        let has_ended = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (clock, has_ended) = (clock.clone(), Arc::clone(&has_ended));
            move || {
                let mut moved_at = Instant::now();
                while !has_ended.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                    let now = Instant::now();
                    clock.advance(now - moved_at);
                    moved_at = now;
                }
            }
        });
        Self {
            clock,
            has_ended,
            thread: Some(thread),
        }
    }
}

impl Drop for RunningClock {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

// === Watch ===

/// Looks at the breakers every 2 ms.
pub(crate) struct Watch {
    has_ended: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Outages>>,
}

/// The times in which an instance did not ask Redis.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outages {
    pub(crate) opened: Vec<Instant>,
    pub(crate) closed: Vec<Instant>,
}

impl Watch {
    pub(crate) fn start(fleet: &Fleet) -> Self {
        let (limiters, has_ended) = (fleet.limiters.clone(), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let has_ended = Arc::clone(&has_ended);
            move || {
                let mut outages = vec![Outages::default(); limiters.len()];
                while !has_ended.load(Ordering::Relaxed) {
                    for (limiter, outages) in limiters.iter().zip(&mut outages) {
                        outages.note(limiter.health().is_degraded());
                    }
                    thread::sleep(Duration::from_millis(2));
                }
                outages
            }
        });
        Self { has_ended, thread }
    }

    pub(crate) fn stop(self) -> Vec<Outages> {
        self.has_ended.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

impl Outages {
    fn note(&mut self, is_degraded: bool) {
        let was_degraded = self.opened.len() > self.closed.len();
        match (was_degraded, is_degraded) {
            (false, true) => self.opened.push(Instant::now()),
            (true, false) => self.closed.push(Instant::now()),
            (false, false) | (true, true) => {}
        }
    }
}

/// Units a second for each key, and its burst.
pub(crate) const RATE: u64 = 20;
pub(crate) const DEADLINE: Duration = Duration::from_millis(50);
const HUNG: Duration = Duration::from_secs(60);
