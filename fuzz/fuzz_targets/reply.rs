//! Replies to the decision script, from whatever sits at the other end: an answer or an error, never a panic.

#![no_main]

use std::{sync::LazyLock, time::Duration};

use libfuzzer_sys::fuzz_target;
use redis::Value;
use tollgate::{Decision, Key, Policy, Quota, algorithm::{Algorithm, WindowStart, QueueLimits}, remote::fuzzing, decision::Outcome, charge::OwnedCharge};

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let groups = groups(&mut bytes);
    // A third of the inputs is what the wire may carry, the others are numbers, which come further.
    let reply = match bytes.next() % 3 {
        0 => match redis::parse_redis_value(bytes.0) {
            Ok(reply) => reply,
            Err(_) => return,
        },
        _ => numbers(&mut bytes),
    };
    let Ok(decisions) = fuzzing::decisions(&reply, &groups) else {
        return;
    };
    assert_eq!(decisions.len(), groups.len());
    for (decision, charges) in decisions.iter().zip(&groups) {
        if let Ok(decision) = decision {
            check(decision, charges);
        }
    }
});

/// What all that is told to clients is made of.
fn check(decision: &Decision, charges: &[OwnedCharge]) {
    assert_eq!(decision.states().len(), charges.len());
    assert_ne!(decision.outcome(), Outcome::Unavailable);
    assert!(decision.retry_after().is_none() || !decision.is_allowed());
    assert!(decision.delay().is_none() || decision.is_allowed());
    assert!(decision.narrowest().is_some() || charges.is_empty());
    for (state, charge) in decision.states().iter().zip(charges) {
        let usage = state.usage().expect("it was counted");
        assert!(usage.remaining <= usage.limit);
        assert_eq!(usage.limit, charge.borrow().policy().counter().limit());
        assert!(usage.reset_at >= decision.decided_at());
    }
}

fn groups(bytes: &mut Bytes<'_>) -> Vec<Vec<OwnedCharge>> {
    let count = 1 + bytes.next() % 3;
    (0..count)
        .map(|_| {
            let charges = bytes.next() % 4;
            (0..charges)
                .map(|_| CHARGES[usize::from(bytes.next()) % CHARGES.len()].clone())
                .collect()
        })
        .collect()
}

fn numbers(bytes: &mut Bytes<'_>) -> Value {
    let mut packed = Vec::new();
    while !bytes.0.is_empty() {
        let number = match bytes.next() {
            small @ 0..128 => i64::from(small % 8),
            128..200 => bytes.number(),
            // Now, and about now.
            200..220 => 1_700_000_000_000_000,
            220..240 => 1_700_000_000_000_000 + (bytes.number() >> 24),
            240..250 => (1 << 53) - i64::from(bytes.next()),
            250 => {
                packed.push(bytes.next());
                continue;
            }
            251 => return Value::Array(vec![Value::BulkString(packed)]),
            252 => return Value::Int(1),
            253 => return Value::Nil,
            _ => return Value::Okay,
        };
        packed.extend(number.to_be_bytes());
    }
    Value::BulkString(packed)
}

// === Bytes ===

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    /// The next byte, and zeros after the last.
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> i64 {
        i64::from_le_bytes(std::array::from_fn(|_| self.next()))
    }
}

/// One of every way to count, with costs of nothing, one, the limit and more than that.
static CHARGES: LazyLock<Vec<OwnedCharge>> = LazyLock::new(|| {
    let quota = Quota::per_minute(100);
    let policies = [
        Policy::new("bucket", quota.burst(20)),
        Policy::new(
            "fast",
            Quota::per_second(1_000_000).burst(1_000_000_000_000),
        ),
        Policy::new("slow", Quota::per_day(1)),
        Policy::new("leaky", quota).algorithm(Algorithm::LeakyBucket),
        Policy::new("queue", quota).algorithm(Algorithm::LeakyQueue(QueueLimits::new(10, Duration::MAX))),
        Policy::new("clock", quota).algorithm(Algorithm::FixedWindow(WindowStart::Clock)),
        Policy::new("hit", quota).algorithm(Algorithm::FixedWindow(WindowStart::FirstHit)),
        Policy::new("sliding", quota).algorithm(Algorithm::SlidingWindow),
        Policy::new("log", quota).algorithm(Algorithm::SlidingLog),
        Policy::new("slots", Quota::in_flight(10)).algorithm(Algorithm::Concurrency {
            lease: Duration::from_secs(30),
        }),
    ];
    let mut charges = Vec::new();
    for policy in &policies {
        assert!(policy.validate().is_ok(), "{policy:?}");
        let limit = policy.counter().limit();
        for units in [0, 1, limit, limit.saturating_add(1), u64::MAX] {
            charges.push(policy.charge(Key::GLOBAL).cost(units).to_owned());
        }
    }
    charges
});
