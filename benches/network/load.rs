//! Who asks: callers who wait for their answers, or arrivals that nothing slows down.

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
    support::Random,
    tally::{ARRIVALS_THREAD, Tally},
    way::Way,
};

/// The keys that are asked about, each as likely as the others.
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

/// Starts callers, each of which asks again as soon as it has its answer.
///
/// After an answer that was not Redis's a caller waits for `pause`, or lets the others run if that is zero.
pub(crate) fn start_callers(
    way: &Way,
    keys: &Keys,
    tally: &Tally,
    callers: usize,
    pause: Duration,
) {
    for seed in 0..callers {
        let (way, keys, tally) = (way.clone(), keys.clone(), tally.clone());
        tokio::spawn(async move {
            let mut random = Random(seed as u64);
            let mut asked = Instant::now();
            while !tally.has_ended() {
                let result = way.decide(keys.pick(&mut random)).await;
                let answered = Instant::now();
                tally.record(answered - asked, result);
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

/// Starts single arrivals at random (Poisson), `rate` of them a second.
///
/// The times are made on a thread of their own, which sleeps in nanoseconds and wakes the runtime as a socket would. A wait
/// counts from the call; how long after its time the call was made is counted apart, since that is the client's doing.
pub(crate) fn start_arrivals(way: &Way, keys: &Keys, tally: &Tally, rate: f64) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let clock = tally.clone();
    let made = thread::Builder::new()
        .name(ARRIVALS_THREAD.to_owned())
        .spawn(move || make_arrivals(rate, &clock, &sender));
    drop(made.expect("a thread can be started"));
    let (way, keys, tally) = (way.clone(), keys.clone(), tally.clone());
    tokio::spawn(async move {
        let mut random = Random(1);
        let in_flight = Arc::new(AtomicUsize::new(0));
        while let Some(batch) = receiver.recv().await {
            for arrived in batch {
                let before = in_flight.fetch_add(1, Ordering::Relaxed);
                assert!(before < MOST_IN_FLIGHT, "nobody answers any more");
                let key = keys.pick(&mut random).to_owned();
                let (way, tally) = (way.clone(), tally.clone());
                let in_flight = Arc::clone(&in_flight);
                tokio::spawn(async move {
                    let asked = Instant::now();
                    tally.record_lateness(asked - arrived);
                    let result = way.decide(&key).await;
                    tally.record(asked.elapsed(), result);
                    in_flight.fetch_sub(1, Ordering::Relaxed);
                });
            }
        }
    });
}

fn make_arrivals(rate: f64, tally: &Tally, sender: &mpsc::UnboundedSender<Vec<Instant>>) {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
    let mut random = Random(2);
    let mut next = Instant::now();
    while !tally.has_ended() {
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
/// At hundreds of thousands a second, waking for each arrival would leave no time for the rest.
const LEAST_SLEEP: Duration = Duration::from_micros(20);
const MOST_IN_FLIGHT: usize = 1_000_000;
