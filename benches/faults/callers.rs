//! The callers of a row, and the results of their decisions.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};
use tollgate::{Key, Policy, RateLimiter, state::CountedBy};

use crate::{
    fault::{Fault, Keys},
    support::Histogram,
};

/// A part of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Waiting,
    Before,
    During,
    After,
    Ended,
}

impl Phase {
    const ALL: [Self; 5] = [
        Self::Waiting,
        Self::Before,
        Self::During,
        Self::After,
        Self::Ended,
    ];
}

/// The callers of a row, on their own thread and runtime.
pub(crate) struct Callers {
    phase: Arc<AtomicU8>,
    thread: JoinHandle<Samples>,
}

impl Callers {
    /// Starts the callers, which wait for their first phase. While `is_busy`, ten more tasks block the runtime for a
    /// millisecond per poll.
    pub(crate) fn start(fault: &Fault, limiter: &RateLimiter, is_busy: Arc<AtomicBool>) -> Self {
        let phase = Arc::new(AtomicU8::new(Phase::Waiting as u8));
        let caller = Caller {
            limiter: limiter.clone(),
            policy: fault.policy(),
            keys: fault.keys,
            number: 0,
            pause: fault.pause,
            phase: Arc::clone(&phase),
        };
        let runtime = runtime(fault.has_one_thread);
        let (is_cold, count) = (fault.is_cold, fault.callers);
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::spawn(move || {
            runtime.block_on(async move {
                if !is_cold {
                    // dial and script load are not part of the row
                    let peek = caller.limiter.peek(&[caller.policy.charge(Key::GLOBAL)]);
                    let _ = peek.await;
                }
                let _ = ready.send(());
                let mut tasks = JoinSet::new();
                for _ in 0..10 {
                    tokio::spawn(block(Arc::clone(&is_busy)));
                }
                for number in 0..count {
                    let caller = Caller {
                        number,
                        ..caller.clone()
                    };
                    tasks.spawn(caller.call());
                }
                let mut samples = Samples::default();
                while let Some(of_caller) = tasks.join_next().await {
                    samples.add(of_caller.expect("a caller does not panic"));
                }
                samples
            })
        });
        is_ready.recv().expect("the first decision is made");
        Self { phase, thread }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub(crate) fn stop(self) -> Samples {
        self.enter(Phase::Ended);
        self.thread.join().expect("the callers do not panic")
    }
}

#[derive(Clone)]
struct Caller {
    limiter: RateLimiter,
    policy: Policy,
    keys: Keys,
    number: usize,
    pause: Duration,
    phase: Arc<AtomicU8>,
}

impl Caller {
    async fn call(self) -> Samples {
        let mut samples = Samples::default();
        for turn in 0_u64.. {
            let phase = Phase::ALL[usize::from(self.phase.load(Ordering::Relaxed))];
            match phase {
                Phase::Ended => break,
                Phase::Waiting => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                }
                _ => {}
            }
            let key = self.keys.pick(self.number, turn);
            let asked = Instant::now();
            match self.limiter.check(&[self.policy.charge(key)]).await {
                Ok(decision) => {
                    let waits = samples.waits.entry(phase).or_default();
                    waits.record(asked.elapsed());
                    let (all, allowed) = samples.by.entry(decision.counted_by()).or_default();
                    *all += 1;
                    *allowed += u64::from(decision.is_allowed());
                }
                Err(_) => samples.failed += 1,
            }
            tokio::time::sleep(self.pause).await;
        }
        samples
    }
}

async fn block(is_busy: Arc<AtomicBool>) {
    loop {
        if !is_busy.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        tokio::task::yield_now().await;
    }
}

pub(crate) fn runtime(has_one_thread: bool) -> Runtime {
    let mut builder = match has_one_thread {
        true => Builder::new_current_thread(),
        false => Builder::new_multi_thread(),
    };
    builder.enable_all().build().expect("a runtime")
}

// === Samples ===

/// Results of decisions.
#[derive(Default)]
pub(crate) struct Samples {
    waits: HashMap<Phase, Histogram>,
    /// Number of decisions, and of allowed ones, by who counted.
    by: HashMap<CountedBy, (u64, u64)>,
    pub(crate) failed: u64,
}

impl Samples {
    pub(crate) fn count(&self) -> u64 {
        self.by.values().map(|(all, _)| all).sum()
    }

    pub(crate) fn allowed(&self) -> u64 {
        self.by.values().map(|(_, allowed)| allowed).sum()
    }

    /// Returns the number of decisions counted there, and of allowed ones.
    pub(crate) fn by(&self, counted_by: CountedBy) -> (u64, u64) {
        self.by.get(&counted_by).copied().unwrap_or_default()
    }

    pub(crate) fn waits(&self, phase: Phase) -> Histogram {
        self.waits.get(&phase).cloned().unwrap_or_default()
    }

    fn add(&mut self, other: Self) {
        for (phase, waits) in other.waits {
            self.waits.entry(phase).or_default().merge(&waits);
        }
        for (counted_by, (all, allowed)) in other.by {
            let sum = self.by.entry(counted_by).or_default();
            *sum = (sum.0 + all, sum.1 + allowed);
        }
        self.failed += other.failed;
    }
}
