//! The scripts as files, as commands, and as Redis sees them.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::task::JoinSet;
use tollgate::{
    Decision, Error, ErrorKind, Key, Policy, Quota, RateLimiter,
    clock::{Clock, Timestamp},
    remote::{RedisStore, Script},
};

use crate::support::Server;

fn store(server: &Server) -> RedisStore {
    let builder = RedisStore::builder(server.url()).deadline(Duration::from_secs(10));
    builder.build().expect("a usable store")
}

fn limiter(server: &Server, policy: &Policy) -> RateLimiter {
    RateLimiter::new(store(server), [policy.clone()]).expect("a usable policy")
}

fn run(server: &Server, arguments: &[&str]) -> redis::RedisResult<Vec<i64>> {
    let mut command = redis::cmd("EVAL");
    command.arg(Script::DECIDE.source());
    arguments
        .iter()
        .fold(&mut command, |command, argument| command.arg(argument));
    command.query(&mut server.connection())
}

fn milliseconds_to_live(server: &Server, key: &str) -> i64 {
    match server.command(&["PTTL", key]) {
        Value::Int(milliseconds) => milliseconds,
        other => panic!("PTTL answered {other:?}"),
    }
}

async fn error_of(server: &Server, policy: &Policy, key: &str) -> Error {
    let charge = policy.charge(Key::new(key));
    limiter(server, policy)
        .check(&[charge])
        .await
        .expect_err("a foreign value")
}

#[test]
fn hashes_are_the_ones_known() {
    // A changed script is a changed protocol between instances of two versions: change this line knowingly.
    assert_eq!(Script::DECIDE.hash(), DECIDE_HASH);
    assert_eq!(Script::ALL.len(), 1);
}

#[test]
fn every_script_file_says_what_it_takes_and_answers() {
    let source = Script::DECIDE.source();
    for needed in ["-- KEYS", "-- ARGV", "-- Reply", "-- Example", "assert("] {
        assert!(source.contains(needed), "{needed}");
    }
    assert!(!source.contains("#!lua"), "a shebang shuts out Redis 6.2");
    let code = source
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default());
    for (number, line) in code.enumerate() {
        let writes_badly = line.contains("tostring") || line.contains("..");
        assert!(!writes_badly, "line {number} would write 1.7e+15: {line}");
    }
}

#[test]
fn reply_is_what_the_header_says() {
    let server = Server::start();
    let key = "tollgate:{ada}:user";
    let reply = run(
        &server,
        &[
            "1",
            key,
            "@",
            "1700000000000000",
            "w",
            "6000000",
            "54000000",
        ],
    )
    .expect("a reply");
    assert_eq!(reply, [1_700_000_000_000_000, 1, 1, 1_700_000_006_000_000]);
    assert_eq!(
        server.command(&["GET", key]),
        Value::BulkString(b"1700000006000000".to_vec())
    );
}

#[test]
fn groups_in_one_call_are_decided_one_after_the_other() {
    let server = Server::start();
    let group = ["w", "6000000", "0"];
    let mut arguments = vec![
        "3",
        "k:{a}:p",
        "k:{a}:p",
        "k:{b}:p",
        "@",
        "1700000000000000",
    ];
    arguments.extend([group, group, group].concat());
    let reply = run(&server, &arguments).expect("a reply");
    let (start, spent) = (1_700_000_000_000_000, 1_700_000_006_000_000);
    assert_eq!(reply, [start, 1, 1, spent, 0, 0, spent, 1, 1, spent]);
}

#[test]
fn call_without_a_charge_is_refused() {
    let server = Server::start();
    run(&server, &["0", "w", "1", "1"]).expect_err("no charge");
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn every_key_expires_after_its_bucket_is_full_again_and_not_before() {
    let server = Server::start();
    for (increment, least) in [
        ("1", 0),
        ("1500", 1),
        ("6000000", 6_000),
        ("86400000000", 86_400_000),
    ] {
        let key = format!("k:{{{increment}}}:p");
        run(&server, &["1", &key, "w", increment, "86400000000"]).expect("a reply");
        let left = milliseconds_to_live(&server, &key);
        assert!(
            (least..=least + 1_001).contains(&left),
            "{increment} us: {left} ms"
        );
    }
}

#[tokio::test]
async fn decision_is_one_script_call_and_nothing_else() {
    let server = Server::start();
    let policy = Policy::new("counted", Quota::per_hour(1_000));
    let limiter = limiter(&server, &policy);
    for _ in 0..4 {
        limiter
            .check(&[policy.charge(Key::new("warm"))])
            .await
            .expect("a decision");
    }
    server.flush_stats();
    for number in 0..100_u64 {
        limiter
            .check(&[policy.charge(Key::from(number))])
            .await
            .expect("a decision");
    }
    let calls = server.command_calls();
    assert_eq!(calls.get("evalsha"), Some(&100));
    for never in ["ping", "eval", "script|load", "unwatch", "multi"] {
        assert_eq!(calls.get(never), None, "{never} in {calls:?}");
    }
}

#[tokio::test]
async fn many_charges_are_still_one_script_call() {
    let server = Server::start();
    let policies: Vec<Policy> = (0..8)
        .map(|number| Policy::new(format!("p{number}"), Quota::per_hour(1_000)))
        .collect();
    let limiter = RateLimiter::new(store(&server), policies.clone()).expect("usable policies");
    let charges: Vec<_> = policies
        .iter()
        .map(|policy| policy.charge(Key::new("ada")))
        .collect();
    limiter.check(&charges).await.expect("a decision");
    server.flush_stats();
    for _ in 0..10 {
        limiter.check(&charges).await.expect("a decision");
    }
    assert_eq!(server.command_calls().get("evalsha"), Some(&10));
}

#[tokio::test]
async fn flushed_script_cache_costs_one_more_call_and_no_decision() {
    let server = Server::start();
    let policy = Policy::new("flushed", Quota::per_hour(1_000));
    let limiter = limiter(&server, &policy);
    let charge = policy.charge(Key::new("ada"));
    limiter.check(&[charge]).await.expect("a decision");
    for left in [998, 997] {
        server.command(&["SCRIPT", "FLUSH"]);
        server.flush_stats();
        let decision = limiter.check(&[charge]).await.expect("a decision");
        assert_eq!(
            decision.states()[0].usage().expect("counted").remaining,
            left
        );
        let calls = server.command_calls();
        assert_eq!(
            (calls.get("evalsha"), calls.get("eval")),
            (Some(&1), Some(&1))
        );
    }
}

#[tokio::test]
async fn foreign_value_is_refused_and_left_alone() {
    let server = Server::start();
    let policy = Policy::new("foreign", Quota::per_hour(10));
    let values = [
        ("text", "hello"),
        ("counter", "57"),
        ("float", "1.7e+15"),
        ("hexadecimal", "0x60A24181E4000A"),
        ("negative", "-700000000000000"),
        ("long", "17000000000000000"),
        // Regression: times that no bucket reaches were believed, and froze their key for centuries.
        ("far-ahead", "8999999999999999"),
        ("beyond-doubles", "9999999999999999"),
    ];
    for (name, value) in values {
        let key = format!("tollgate:{{{name}}}:foreign");
        server.command(&["SET", &key, value]);
        let error = error_of(&server, &policy, name).await;
        assert_eq!(error.kind(), ErrorKind::ForeignValue, "{name}: {error:?}");
        assert!(!error.is_transient());
        assert_eq!(
            server.command(&["GET", &key]),
            Value::BulkString(value.into()),
            "{name}"
        );
    }
    server.command(&["HSET", "tollgate:{hash}:foreign", "field", "1"]);
    let error = error_of(&server, &policy, "hash").await;
    assert_eq!(error.kind(), ErrorKind::ForeignValue, "{error:?}");
}

// Regression: an error in one group failed the whole call, after earlier groups had been charged.
#[test]
fn foreign_value_in_one_group_leaves_the_others_decided() {
    let server = Server::start();
    server.command(&["SET", "k:{bad}:p", "hello"]);
    server.command(&["HSET", "k:{hash}:p", "field", "1"]);
    let group = ["w", "6000000", "0"];
    let mut arguments = vec![
        "5",
        "k:{a}:p",
        "k:{bad}:p",
        "k:{hash}:p",
        "k:{b}:p",
        "k:{bad}:p",
        "@",
        "1700000000000000",
    ];
    arguments.extend([group, group, group].concat());
    arguments.extend(["*", "2", "w", "6000000", "0", "w", "6000000", "0"]);
    let reply = run(&server, &arguments).expect("a reply");
    let (start, spent) = (1_700_000_000_000_000, 1_700_000_006_000_000);
    assert_eq!(reply, [start, 1, 1, spent, 2, 0, 0, 2, 0, 0, 2, 1, 0, 0, 0]);
    assert_eq!(
        server.keys(),
        ["k:{a}:p", "k:{bad}:p", "k:{hash}:p"],
        "the last group wrote nothing"
    );
}

#[tokio::test]
async fn decisions_that_arrive_together_travel_together() {
    let server = Server::start();
    let policy = Arc::new(Policy::new("batched", Quota::per_hour(1_000)));
    let limiter = limiter(&server, &policy);
    limiter
        .check(&[policy.charge(Key::new("warm"))])
        .await
        .expect("a decision");
    server.flush_stats();
    let callers: JoinSet<_> = (0..500_u64)
        .map(|number| {
            let (limiter, policy) = (limiter.clone(), Arc::clone(&policy));
            async move {
                limiter
                    .check(&[policy.charge(Key::from(number))])
                    .await
                    .expect("a decision")
            }
        })
        .collect();
    assert!(callers.join_all().await.iter().all(Decision::is_allowed));
    let calls = server.command_calls();
    assert_eq!(
        (calls.get("get"), calls.get("set")),
        (Some(&500), Some(&500))
    );
    assert!(calls["evalsha"] <= 12, "{calls:?}");
}

#[tokio::test]
async fn foreign_value_under_one_key_charges_none_of_the_others() {
    let server = Server::start();
    let (good, bad) = (
        Policy::new("good", Quota::per_hour(10)),
        Policy::new("bad", Quota::per_hour(10)),
    );
    let limiter =
        RateLimiter::new(store(&server), [good.clone(), bad.clone()]).expect("usable policies");
    server.command(&["SET", "tollgate:{ada}:bad", "hello"]);
    let charges = [good.charge(Key::new("ada")), bad.charge(Key::new("ada"))];
    limiter.check(&charges).await.expect_err("a foreign value");
    assert_eq!(server.keys(), ["tollgate:{ada}:bad"]);
}

#[tokio::test]
async fn prefix_keeps_two_applications_apart() {
    let server = Server::start();
    let policy = Policy::new("shared-name", Quota::per_hour(1));
    for prefix in ["shop", "blog"] {
        let store = RedisStore::builder(server.url())
            .prefix(prefix)
            .deadline(Duration::from_secs(10));
        let limiter = RateLimiter::new(store.build().expect("a usable store"), [policy.clone()]);
        let decision = limiter
            .expect("a usable policy")
            .check(&[policy.charge(Key::new("ada"))])
            .await;
        assert!(decision.expect("a decision").is_allowed());
    }
    assert_eq!(
        server.keys(),
        ["blog:{ada}:shared-name", "shop:{ada}:shared-name"]
    );
}

#[tokio::test]
async fn client_clock_that_cannot_be_stored_is_an_error() {
    let server = Server::start();
    let policy = Policy::new("early", Quota::per_day(1));
    let clock = Clock::manual(Timestamp::from_micros(999_999_999_999_999));
    let store = RedisStore::builder(server.url())
        .client_time(clock.clone())
        .deadline(Duration::from_secs(10));
    let limiter = RateLimiter::new(store.build().expect("a usable store"), [policy.clone()])
        .expect("a usable policy");
    let charge = policy.charge(Key::new("ada"));
    let error = limiter.check(&[charge]).await.expect_err("fifteen digits");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    clock.advance(Duration::from_micros(1));
    assert!(
        limiter
            .check(&[charge])
            .await
            .expect("a decision")
            .is_allowed()
    );
    assert!(
        !limiter
            .check(&[charge])
            .await
            .expect("a decision")
            .is_allowed()
    );
}

#[tokio::test]
async fn server_counts_by_its_own_time() {
    let server = Server::start();
    let policy = Policy::new("timed", Quota::per_day(1));
    let decision = limiter(&server, &policy)
        .check(&[policy.charge(Key::new("ada"))])
        .await
        .expect("a decision");
    let now: (u64, u64) = redis::cmd("TIME")
        .query(&mut server.connection())
        .expect("the time");
    let now = now.0 * 1_000_000 + now.1;
    let decided = decision.decided_at().as_micros();
    assert!(
        decided <= now && now - decided < 60_000_000,
        "{decided} against {now}"
    );
}

const DECIDE_HASH: &str = "0cf840e3786ba4565352a86fd8a40909031722a8";
