//! Load: callers that wait for their decisions, or arrivals at random times.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use crate::{
    recorder::{ARRIVALS_THREAD, Recorder},
    subject::Decider,
    support::{Random, cpu},
};

/// The keys of the requests, picked uniformly at random.
#[derive(Clone)]
pub(crate) struct Keys(Arc<[String]>);

impl Keys {
    pub(crate) fn new() -> Self {
        Self(
            (0..KEYS)
                .map(|number| format!("user:{number:06}"))
                .collect(),
        )
    }

    fn pick(&self, random: &mut Random) -> &str {
        let index = random.below(self.0.len() as u64);
        &self.0[index as usize]
    }
}

/// Starts callers that ask for the next decision as soon as they have the last one.
///
/// After a decision that Redis did not make, a caller sleeps for `pause`, or yields if that is zero.
pub(crate) fn start_callers(
    decider: &Decider,
    keys: &Keys,
    recorder: &Recorder,
    callers: usize,
    pause: Duration,
) {
    for seed in 0..callers {
        let (decider, keys, recorder) = (decider.clone(), keys.clone(), recorder.clone());
        tokio::spawn(async move {
            let mut random = Random(seed as u64);
            let mut asked = Instant::now();
            while !recorder.has_ended() {
                let result = decider.decide(keys.pick(&mut random)).await;
                let answered = Instant::now();
                recorder.record(answered - asked, result);
                asked = answered;
                if result.is_err() {
                    match pause.is_zero() {
                        true => tokio::task::yield_now().await,
                        false => tokio::time::sleep(pause).await,
                    }
                    asked = Instant::now();
                }
            }
        });
    }
}

/// Starts Poisson arrivals: single requests at random times, `rate` per second.
///
/// A separate thread generates them with sleeps in nanoseconds, and wakes the runtime as a socket would. Latency counts
/// from the call; the delay between the scheduled time and the call is recorded apart, since it is the client's own.
pub(crate) fn start_arrivals(decider: &Decider, keys: &Keys, recorder: &Recorder, rate: f64) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let clock = recorder.clone();
    let made = thread::Builder::new()
        .name(ARRIVALS_THREAD.to_owned())
        .spawn(move || make_arrivals(rate, &clock, &sender));
    drop(made.expect("a thread can be started"));
    let (decider, keys, recorder) = (decider.clone(), keys.clone(), recorder.clone());
    tokio::spawn(async move {
        let mut random = Random(1);
        let in_flight = Arc::new(AtomicUsize::new(0));
        while let Some(batch) = receiver.recv().await {
            for arrived in batch {
                let before = in_flight.fetch_add(1, Ordering::Relaxed);
                assert!(before < MOST_IN_FLIGHT, "nobody answers any more");
                let key = keys.pick(&mut random).to_owned();
                let (decider, recorder) = (decider.clone(), recorder.clone());
                let in_flight = Arc::clone(&in_flight);
                tokio::spawn(async move {
                    let asked = Instant::now();
                    recorder.record_lateness(asked - arrived);
                    let result = decider.decide(&key).await;
                    recorder.record(asked.elapsed(), result);
                    in_flight.fetch_sub(1, Ordering::Relaxed);
                });
            }
        }
    });
}

fn make_arrivals(rate: f64, recorder: &Recorder, sender: &mpsc::UnboundedSender<Vec<Instant>>) {
    cpu::sleep_precisely();
    let mut random = Random(2);
    let mut next = Instant::now();
    while !recorder.has_ended() {
        let now = Instant::now();
        let mut batch = Vec::new();
        while next <= now {
            batch.push(next);
            let uniform = (random.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64;
            next += Duration::from_secs_f64(-uniform.ln() / rate);
        }
        if !batch.is_empty() && sender.send(batch).is_err() {
            return;
        }
        thread::sleep((next - now).max(LEAST_SLEEP));
    }
}

const KEYS: usize = 10_000;
/// At hundreds of thousands per second, one wake-up per arrival would take the whole core.
const LEAST_SLEEP: Duration = Duration::from_micros(20);
const MOST_IN_FLIGHT: usize = 1_000_000;
