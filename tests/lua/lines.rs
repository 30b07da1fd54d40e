//! The line of callers in Redis and its twin in process give equal turns, in random histories.

use std::time::Duration;

use tollgate::{
    Charge, Key, Policy, Quota,
    algorithm::{Algorithm, WindowStart},
    charge::{Priority, Receipt, TurnRequest, Turns},
    clock::{Clock, Timestamp},
    memory::MemoryStore,
    remote::RedisStore,
    store::Store,
};

use crate::support::{Random, Server};

const HISTORIES: u64 = 300;
const STEPS: u64 = 60;

/// A queue of one instance: who waits, since when.
struct Queue {
    id: u64,
    priority: Priority,
    /// Indexes of its policies.
    policies: Vec<usize>,
    cost: u64,
    came: Vec<Timestamp>,
}

#[tokio::test]
async fn turns_in_redis_are_those_in_process() {
    let server = Server::start();
    let (mut given, mut waits, mut ahead_of_now) = (0, 0, 0);
    for seed in 0..HISTORIES {
        let mut random = Random(seed);
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000 + seed * 777));
        let memory = MemoryStore::builder().clock(clock.clone()).build();
        let memory = memory.expect("a usable store");
        let redis = RedisStore::builder(server.url())
            .prefix(format!("lines{seed}"))
            .client_time(clock.clone())
            .build()
            .expect("a usable store");
        let policies = policies();
        let key = Key::new("ada");
        let mut queues = queues(&mut random, policies.len());
        let mut held: Vec<(Receipt, Receipt)> = Vec::new();
        for step in 0..STEPS {
            clock.advance(Duration::from_micros(random.below(25_000)));
            let now = clock.now();
            let index = random.below(queues.len() as u64) as usize;
            let queue = &mut queues[index];
            match random.below(8) {
                // Somebody comes, and somebody leaves.
                0..=2 => queue.came.push(now),
                3 if !queue.came.is_empty() => {
                    let place = random.below(queue.came.len() as u64) as usize;
                    queue.came.remove(place);
                }
                4 if !held.is_empty() => {
                    let (mine, theirs) = held.swap_remove(random.below(held.len() as u64) as usize);
                    memory.settle(mine).await.expect("released");
                    redis.settle(theirs).await.expect("released");
                    continue;
                }
                5 if step % 9 == 0 => {
                    let policy = &policies[queue.policies[0]];
                    let length = Duration::from_millis(random.below(40));
                    memory
                        .pause(&policy.charge(key), length)
                        .await
                        .expect("paused");
                    redis
                        .pause(&policy.charge(key), length)
                        .await
                        .expect("paused");
                    continue;
                }
                _ => {}
            }
            let charges: Vec<Charge<'_>> = queue
                .policies
                .iter()
                .map(|index| policies[*index].charge(key).cost(queue.cost))
                .collect();
            let is_of_buckets = queue.policies.iter().all(|index| *index < BUCKETS);
            let ahead = Duration::from_millis(if is_of_buckets { 10 } else { 0 });
            let ages: Vec<Duration> = queue.came.iter().map(|came| now.since(*came)).collect();
            let request = TurnRequest::for_test((queue.id, queue.priority), &charges, &ages, ahead);
            let mine = memory.take_turns(request.clone()).await.expect("turns");
            let theirs = redis.take_turns(request.clone()).await.expect("turns");
            let shown = |turns: &Turns| (turns.starts(), turns.due());
            assert_eq!(
                shown(&mine),
                shown(&theirs),
                "history {seed}, step {step}, queue {index}: {:?}, cost {}, {:?} at {now:?}",
                queue.policies,
                queue.cost,
                queue.priority,
            );
            given += mine.starts().len();
            waits += usize::from(mine.due().is_some());
            ahead_of_now += mine.starts().iter().filter(|start| **start > now).count();
            queue.came.drain(..mine.starts().len());
            let decisions = mine.decisions().into_iter().zip(theirs.decisions());
            for (caller, (mine, theirs)) in decisions.enumerate() {
                let charges = request.charges(caller);
                if queue.policies.contains(&SLOTS)
                    && let Some(mine) = Receipt::of(&charges, mine)
                    && let Some(theirs) = Receipt::of(&charges, theirs)
                {
                    memory.hold(&mine);
                    held.push((mine, theirs));
                }
            }
        }
    }
    assert!(
        given > 1_000 && waits > 1_000 && ahead_of_now > 100,
        "{given} turns, {ahead_of_now} ahead, {waits} waits"
    );
}

/// The first ones are buckets.
fn policies() -> Vec<Policy> {
    let hundred = Quota::per_second(100);
    vec![
        Policy::new("strict", hundred.burst(1)),
        Policy::new("burst", Quota::per_second(50).burst(4)),
        Policy::new("uneven", Quota::per_second(70).burst(2)),
        Policy::new("window", Quota::new(4, Duration::from_millis(100)))
            .algorithm(Algorithm::FixedWindow(WindowStart::Clock)),
        Policy::new("first", Quota::new(4, Duration::from_millis(90)))
            .algorithm(Algorithm::FixedWindow(WindowStart::FirstHit)),
        Policy::new("sliding", Quota::new(5, Duration::from_millis(120)))
            .algorithm(Algorithm::SlidingWindow),
        Policy::new("log", Quota::new(5, Duration::from_millis(110)))
            .algorithm(Algorithm::SlidingLog),
        Policy::concurrency("slots", 4),
    ]
}

const BUCKETS: usize = 3;
const SLOTS: usize = 7;

fn queues(random: &mut Random, policies: usize) -> Vec<Queue> {
    let first = random.below(policies as u64) as usize;
    let second = random.below(policies as u64) as usize;
    (1..=5)
        .map(|id| {
            let mut own = match random.below(3) {
                0 => vec![first],
                1 => vec![second],
                _ => vec![first, second],
            };
            own.dedup();
            Queue {
                id,
                priority: match random.below(6) {
                    0 => Priority::High,
                    1 => Priority::Low,
                    _ => Priority::Normal,
                },
                // A bucket without a burst never has two units.
                cost: if own.contains(&0) {
                    1
                } else {
                    1 + random.below(8) / 7
                },
                policies: own,
                came: Vec::new(),
            }
        })
        .collect()
}
