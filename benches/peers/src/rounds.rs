//! Interleaved rounds, so that a disturbance of the machine affects every contender.

use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// A row to measure: its name, and a closure that takes one sample.
pub struct Contender<'a, S> {
    /// The name in the table.
    pub name: String,
    round: Box<dyn FnMut() -> S + 'a>,
}

impl<'a, S> Contender<'a, S> {
    /// Makes a contender. The closure runs the whole loop of a round, so that the compiler can optimise it.
    pub fn new(name: impl Into<String>, round: impl FnMut() -> S + 'a) -> Self {
        Self {
            name: name.into(),
            round: Box::new(round),
        }
    }
}

/// Runs all contenders in turn, `rounds` times; each round starts at another contender. Returns the samples per
/// contender, in the order of the rounds.
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

/// Nanoseconds per call and thread, while `threads` threads call as fast as they can for about `span`.
///
/// `make` makes the closure that one thread calls, from the number of the thread.
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
    // All ran for the same span, so the mean of their rates is the harmonic mean of their times.
    each.len() as f64 / each.iter().map(|nanos| 1.0 / nanos).sum::<f64>()
}

fn alone(span: Duration, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut calls = 0_u64;
    loop {
        for _ in 0..CALLS_PER_CLOCK_READ {
            call();
        }
        calls += CALLS_PER_CLOCK_READ;
        let elapsed = start.elapsed();
        if elapsed >= span {
            return black_box(elapsed).as_nanos() as f64 / calls as f64;
        }
    }
}

/// At 5 us a call a round overruns by 5 ms at most; at 20 ns a call reading the clock costs below 1 %.
const CALLS_PER_CLOCK_READ: u64 = 1_000;
