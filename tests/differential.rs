//! The Lua script against its Rust twin: equal answers, step by step.

use std::{cell::Cell, collections::HashMap, time::Duration};

use proptest::{
    prelude::*,
    test_runner::{Config, FileFailurePersistence, TestRunner},
};
use redis::Value;
use tollgate::{
    Quota,
    algorithm::{Form, TokenBucket},
    clock::Timestamp,
    remote::Script,
};

use crate::support::Server;

const START: u64 = 1_700_000_000_000_000;

/// Steps of one run: how far the time jumps, and which charges are decided together (bucket, key, cost).
type Steps = Vec<(i64, Vec<(usize, usize, u64)>)>;

fn any_quota() -> impl Strategy<Value = Quota> {
    let odd = [
        Quota::per_day(1),
        Quota::per_day(999_983),
        Quota::per_minute(7),
        Quota::per_second(3),
        Quota::per_second(70_000),
        Quota::per_second(999_983),
        Quota::per_second(1_000_000),
        Quota::new(5, Duration::from_nanos(7_777_777)),
    ];
    let any = (
        prop::sample::select(vec![
            1_000_u64,
            1_000_000,
            60_000_000,
            3_600_000_000,
            86_400_000_000,
        ]),
        0.0_f64..1.0,
    )
        .prop_map(|(period, portion)| {
            let count = (period as f64).powf(portion) as u64;
            Quota::new(count.clamp(1, period), Duration::from_micros(period))
        });
    (
        prop_oneof![prop::sample::select(odd.to_vec()), any],
        1_u64..500,
    )
        .prop_map(|(quota, burst)| quota.burst(burst))
}

/// Mostly small steps forward, sometimes back, sometimes far; in units that matter to the quota as well.
fn any_jump() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => Just(0_i64),
        8 => 0_i64..2_000,
        8 => 0_i64..2_000_000,
        4 => 0_i64..3_600_000_000,
        2 => -2_000_000_i64..0,
        1 => -90_000_000_000_i64..0,
        1 => 0_i64..200_000_000_000,
    ]
}

fn any_cost() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(1_u64), 3 => 0_u64..20, 1 => 0_u64..1_000, 1 => Just(u64::MAX)]
}

fn any_run(groups: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = (Vec<Quota>, Steps)> {
    let charge = (0_usize..4, 0_usize..2, any_cost());
    let step = (any_jump(), prop::collection::vec(charge, groups));
    (
        prop::collection::vec(any_quota(), 4),
        prop::collection::vec(step, 300),
    )
}

/// The twin's world: a TAT per bucket and key.
#[derive(Default)]
struct Twin {
    tats: HashMap<(usize, usize), u64>,
}

impl Twin {
    /// What the script is to reply.
    fn decide(
        &mut self,
        buckets: &[TokenBucket],
        now: u64,
        charges: &[(usize, usize, u64)],
    ) -> Vec<i64> {
        let judged: Vec<_> = charges
            .iter()
            .map(|(bucket, key, cost)| {
                let before = self.tats.get(&(*bucket, *key)).copied().unwrap_or(0);
                (
                    before,
                    buckets[*bucket].judge(before, Timestamp::from_micros(now), *cost),
                )
            })
            .collect();
        let all = judged.iter().all(|(_, judgement)| judgement.admitted);
        let mut reply = vec![now, u64::from(all)];
        for ((bucket, key, _), (before, judgement)) in charges.iter().zip(&judged) {
            let tat = if all { judgement.tat } else { *before };
            reply.extend([u64::from(judgement.admitted), tat]);
            if tat != *before {
                self.tats.insert((*bucket, *key), tat);
            }
        }
        reply
            .into_iter()
            .map(|number| i64::try_from(number).expect("below 2^53"))
            .collect()
    }
}

fn form_arguments(command: &mut redis::Cmd, form: Form) {
    let limit = |micros: Option<u64>| micros.map_or("-1".to_owned(), |micros| micros.to_string());
    match form {
        Form::Whole {
            increment,
            tolerance,
        } => {
            command.arg("w").arg(increment).arg(limit(tolerance));
        }
        Form::Lattice {
            cost,
            units,
            micros,
            span,
        } => {
            command
                .arg("l")
                .arg(cost)
                .arg(units)
                .arg(micros)
                .arg(limit(span));
        }
        other => panic!("a form that this test does not know: {other:?}"),
    }
}

fn command(
    run: usize,
    buckets: &[TokenBucket],
    now: u64,
    charges: &[(usize, usize, u64)],
) -> redis::Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(Script::DECIDE.hash()).arg(charges.len());
    for (bucket, key, _) in charges {
        command.arg(format!("run:{{{run}}}:{bucket}:{key}"));
    }
    command.arg("@").arg(now);
    if charges.len() > 1 {
        command.arg("*").arg(charges.len());
    }
    for (bucket, _, cost) in charges {
        form_arguments(&mut command, buckets[*bucket].form(*cost));
    }
    command
}

/// Runs as many cases as make `steps` steps, each case on keys of its own and in one pipeline: shorter than the second
/// that a key outlives its bucket, so that no key expires by the real clock while the run's clock stands.
fn compare(name: &'static str, steps: u32, groups: std::ops::RangeInclusive<usize>) {
    let server = Server::start();
    let mut connection = server.connection();
    let loaded: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(Script::DECIDE.source())
        .query(&mut connection)
        .expect("the script compiles");
    assert_eq!(loaded, Script::DECIDE.hash());
    let config = Config {
        cases: steps.div_ceil(300),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(name))),
        ..Config::default()
    };
    let (run, total) = (Cell::new(0), Cell::new(0));
    let result = TestRunner::new(config).run(&any_run(groups), |(quotas, steps)| {
        run.set(run.get() + 1);
        total.set(total.get() + steps.len());
        compare_run(run.get(), &mut server.connection(), &quotas, &steps)
    });
    println!("{name}: {} steps in {} runs", total.get(), run.get());
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(total.get() >= steps as usize);
}

fn compare_run(
    run: usize,
    connection: &mut redis::Connection,
    quotas: &[Quota],
    steps: &Steps,
) -> Result<(), TestCaseError> {
    let buckets: Vec<TokenBucket> = quotas
        .iter()
        .map(|quota| TokenBucket::new(*quota).expect("a usable quota"))
        .collect();
    let (mut twin, mut now) = (Twin::default(), START);
    let mut pipeline = redis::pipe();
    let mut expected = Vec::new();
    for (jump, charges) in steps {
        now = now.saturating_add_signed(*jump).max(START / 2);
        let mut distinct = charges.clone();
        distinct.sort_unstable();
        distinct.dedup_by_key(|(bucket, key, _)| (*bucket, *key));
        pipeline.add_command(command(run, &buckets, now, &distinct));
        expected.push(twin.decide(&buckets, now, &distinct));
    }
    let replies: Vec<Value> = pipeline.query(connection).expect("the script runs");
    for (step, (reply, expected)) in replies.into_iter().zip(expected).enumerate() {
        let reply: Vec<i64> = redis::from_redis_value(reply).expect("an array of integers");
        prop_assert_eq!(reply, expected, "at step {} of {:?}", step, quotas);
    }
    Ok(())
}

#[test]
fn script_and_twin_agree_on_single_charges() {
    compare("tests/seeds/single.txt", 100_000, 1..=1);
}

#[test]
fn script_and_twin_agree_on_charges_decided_together() {
    compare("tests/seeds/together.txt", 60_000, 1..=6);
}
