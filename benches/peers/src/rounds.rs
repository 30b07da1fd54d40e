//! Interleaved rounds: what disturbs the machine disturbs every contender.

use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// One thing to measure: its name, and a round of it that returns a sample.
pub struct Contender<'a, S> {
    /// The name in the table.
    pub name: String,
    round: Box<dyn FnMut() -> S + 'a>,
}

impl<'a, S> Contender<'a, S> {
    /// A contender whose rounds are made by this closure; loop inside it, so that the compiler sees the whole loop.
    pub fn new(name: impl Into<String>, round: impl FnMut() -> S + 'a) -> Self {
        Self {
            name: name.into(),
            round: Box::new(round),
        }
    }
}

/// Runs all contenders in turn, `rounds` times, each round beginning with another one. Samples by contender.
pub fn interleave<S>(contenders: &mut [Contender<'_, S>], rounds: usize) -> Vec<Vec<S>> {
    let count = contenders.len();
    let mut samples: Vec<Vec<S>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..count {
            let index = (round + turn) % count;
            samples[index].push((contenders[index].round)());
        }
    }
    samples
}

/// Nanoseconds per call and thread: `threads` threads call as often as they can for about `span`.
///
/// `make` makes each thread its own call, with a place in a walk for instance.
pub fn nanos_per_call<C>(threads: u64, span: Duration, make: impl Fn(u64) -> C + Sync) -> f64
where
    C: FnMut(),
{
    if threads == 1 {
        return alone(span, make(0));
    }
    let barrier = Barrier::new(threads as usize);
    let each = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (barrier, make) = (&barrier, &make);
                scope.spawn(move || {
                    let call = make(thread);
                    barrier.wait();
                    alone(span, call)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .collect::<Vec<f64>>()
    });
    // Both ran for the same span: the mean of their rates is the harmonic mean of their times.
    each.len() as f64 / each.iter().map(|nanos| 1.0 / nanos).sum::<f64>()
}

fn alone(span: Duration, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut calls = 0_u64;
    loop {
        for _ in 0..CALLS_BETWEEN_LOOKS {
            call();
        }
        calls += CALLS_BETWEEN_LOOKS;
        let elapsed = start.elapsed();
        if elapsed >= span {
            return black_box(elapsed).as_nanos() as f64 / calls as f64;
        }
    }
}

/// Often enough to stop in time at 5 us a call, seldom enough that the clock does not show at 20 ns.
const CALLS_BETWEEN_LOOKS: u64 = 1_000;
