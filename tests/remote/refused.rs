//! Commands of the decision script that the server refuses: nothing of that request is charged, and the others are
//! decided.

use std::{collections::BTreeMap, env, time::Duration};

use redis::Value;
use tokio::task::JoinSet;
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimiter,
    algorithm::Algorithm,
    decision::CountedBy,
    diagnosis::Code,
    remote::{RedisStore, Script},
};

use crate::support::{Server, logged, unpack};

const NOW: &str = "1700000000000000";

/// Charges of one unit, and the commands that each needs on a new key and on a charged one.
const CHARGES: [(&[&str], &[&str], &[&str]); 9] = [
    (&["wAAAA", "6000000", "60000000"], STRING, STRING),
    (&["lAAAA", "1", "60000001", "7", "60000000"], STRING, STRING),
    (&["fAA", "1", "10", "60000"], STRING, STRING),
    (&["oAA", "1", "10", "60000"], STRING, STRING),
    (&["mAA", "1", "10", "2678400000"], STRING, STRING),
    (&["s", "1", "10", "60000", "1"], STRING, STRING),
    (
        &["g", "1", "10", "60000"],
        &["GETRANGE", "GET", "SET"],
        &["GETRANGE", "SET"],
    ),
    (LONG_LOG, &["GETRANGE", "GET", "SET"], RING),
    (
        &["c", "1", "10", "30000"],
        &["ZRANGE", "PEXPIRE", "ZADD"],
        &["ZRANGE", "ZMSCORE", "ZADD", "PEXPIRE"],
    ),
];
const STRING: &[&str] = &["GET", "SET"];
const LONG_LOG: &[&str] = &["g", "1", "10000", "6000000"];
const RING: &[&str] = &["GETRANGE", "STRLEN", "PEXPIRE", "SETRANGE"];

/// Every command that decisions need.
const COMMANDS: [&str; 9] = [
    "GET", "GETRANGE", "PEXPIRE", "SET", "SETRANGE", "STRLEN", "ZADD", "ZMSCORE", "ZRANGE",
];

fn every_server() -> Vec<Server> {
    let named = ["TOLLGATE_REDIS62_SERVER", "TOLLGATE_VALKEY_SERVER"].map(|variable| {
        let binary = env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: run `bash tests/run.sh`, which installs this server")
        });
        Server::start_binary(binary, &[])
    });
    [Server::start()].into_iter().chain(named).collect()
}

/// One request of a call.
#[derive(Clone, Debug)]
struct Request {
    /// Each with the index of its charge in [`CHARGES`].
    keys: Vec<(String, usize)>,
    arguments: Vec<String>,
    /// The commands that it needs.
    needs: Vec<&'static str>,
}

impl Request {
    /// Returns a group of these charges, each to its own key. Slots are taken under a ticket that no other round has.
    fn group(name: &str, charges: &[usize], round: Round) -> Self {
        let mut arguments = Vec::new();
        if charges.len() > 1 {
            arguments.extend(["*".to_owned(), charges.len().to_string()]);
        }
        let (mut keys, mut needs) = (Vec::new(), Vec::new());
        for (place, index) in charges.iter().enumerate() {
            let (charge, new, old) = CHARGES[*index];
            arguments.extend(charge.iter().map(|argument| (*argument).to_owned()));
            if charge[0] == "c" {
                arguments.push(format!("{name:0>6}{place}{}", round as u8));
            }
            keys.push((format!("k:{{a}}:{name}:{place}"), *index));
            needs.extend(match round {
                Round::First => new,
                Round::Second => old,
            });
        }
        Self {
            keys,
            arguments,
            needs,
        }
    }

    /// Returns another charge to the only key of a request of one charge.
    fn of(number: usize, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        Self {
            keys: vec![(format!("k:{{a}}:{number}:0"), number % CHARGES.len())],
            arguments: arguments.collect(),
            needs: Vec::new(),
        }
    }
}

/// Whether keys are new, or were charged before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    First,
    Second,
}

/// Returns 63 requests of one charge each, and among them one of these charges.
fn crowd(together: &[usize], round: Round) -> Vec<Request> {
    let single = |number: usize| {
        let charge = number % CHARGES.len();
        Request::group(&format!("{number}"), &[charge], round)
    };
    let mut requests: Vec<Request> = (0..63).map(single).collect();
    requests.insert(31, Request::group("all", together, round));
    requests
}

/// Runs all requests in one call.
fn call(connection: &mut redis::Connection, requests: &[Request]) -> (Vec<i64>, Vec<String>) {
    let mut command = redis::cmd("EVAL");
    let keys = requests.iter().flat_map(|request| &request.keys);
    let keys: Vec<&String> = keys.map(|(key, _)| key).collect();
    command.arg(Script::DECIDE.source()).arg(keys.len());
    command.arg(keys).arg("@").arg(NOW);
    for request in requests {
        command.arg(&request.arguments);
    }
    let reply: Value = command.query(connection).expect("a reply to all of them");
    let (packed, texts) = match reply {
        Value::Array(mut parts) => (parts.remove(0), parts),
        packed => (packed, Vec::new()),
    };
    let texts = texts.into_iter();
    let texts = texts.map(|text| redis::from_redis_value(text).expect("text"));
    (outcomes(&unpack(&packed), requests), texts.collect())
}

/// Returns the outcome of each request.
fn outcomes(numbers: &[i64], requests: &[Request]) -> Vec<i64> {
    let mut rest = &numbers[1..];
    let mut outcomes = Vec::new();
    for request in requests {
        outcomes.push(rest[0]);
        let reply_len = |(_, charge): &(String, usize)| match CHARGES[*charge].0[0] {
            "wAAAA" | "lAAAA" | "c" => 2,
            "s" | "g" => 4,
            _ => 3,
        };
        rest = &rest[1 + request.keys.iter().map(reply_len).sum::<usize>()..];
    }
    assert!(rest.is_empty());
    outcomes
}

/// Returns every key with its serialized value, or with the slots in flight.
fn values(server: &Server) -> BTreeMap<String, Value> {
    let now = &NOW[..NOW.len() - 3];
    let value = |key: &str| match server.command(&["TYPE", key]) {
        Value::SimpleString(kind) if kind == "zset" => {
            server.command(&["ZRANGEBYSCORE", key, now, "+inf", "WITHSCORES"])
        }
        _ => server.command(&["DUMP", key]),
    };
    let keys = server.keys().into_iter();
    keys.map(|key| {
        let value = value(&key);
        (key, value)
    })
    .collect()
}

/// Returns a connection of a user with all permissions except this one.
fn user_without(server: &Server, command: &str) -> redis::Connection {
    let name = format!("without-{}", command.to_lowercase());
    let refused = format!("-{}", command.to_lowercase());
    server.command(&[
        "ACL", "SETUSER", &name, "on", ">secret", "~*", "+@all", &refused,
    ]);
    let url = format!("redis://{name}:secret@{}", server.address());
    let client = redis::Client::open(url).expect("a usable url");
    client.get_connection().expect("a connection")
}

/// Asserts that failed requests changed no key, and that all others changed all of their keys.
#[track_caller]
fn assert_whole(
    requests: &[Request],
    outcomes: &[i64],
    before: &BTreeMap<String, Value>,
    after: &BTreeMap<String, Value>,
) {
    for (request, outcome) in requests.iter().zip(outcomes) {
        for (key, _) in &request.keys {
            let is_same = before.get(key) == after.get(key);
            assert_eq!(
                is_same,
                *outcome != 1,
                "{key}, outcome {outcome}: {request:?}"
            );
        }
    }
}

/// Empties the server, or charges every key once and fills the logs that are to be long.
fn prepare(server: &Server, together: &[usize], round: Round) {
    server.command(&["FLUSHALL"]);
    if round == Round::First {
        return;
    }
    let (mut connection, source) = (server.connection(), "k:{a}:source");
    let requests = crowd(together, Round::First);
    call(&mut connection, &requests);
    let mut pipeline = redis::pipe();
    for entry in 0..200_u64 {
        let now = 1_699_999_000_000_000 + entry * 1_000_000;
        let command = pipeline.cmd("EVAL").arg(Script::DECIDE.source());
        command.arg(1).arg(source).arg("@").arg(now).arg(LONG_LOG);
    }
    let _: Vec<Value> = pipeline.query(&mut connection).expect("a log");
    for (key, charge) in requests.iter().flat_map(|request| &request.keys) {
        if CHARGES[*charge].0 == LONG_LOG {
            server.command(&["COPY", source, key, "REPLACE"]);
        }
    }
    server.command(&["DEL", source]);
}

// Regression: a refused command failed the whole call, after earlier charges of its group and of others had been made.
#[test]
fn request_with_a_refused_command_charges_nothing_and_fails_alone() {
    let forwards: Vec<usize> = (0..CHARGES.len()).collect();
    let backwards: Vec<usize> = (0..CHARGES.len()).rev().collect();
    let trials = [
        (&forwards, Round::First),
        (&forwards, Round::Second),
        (&backwards, Round::Second),
    ];
    for server in every_server() {
        for (together, round) in trials {
            for refused in COMMANDS {
                prepare(&server, together, round);
                let (requests, before) = (crowd(together, round), values(&server));
                let (outcomes, texts) = call(&mut user_without(&server, refused), &requests);
                let expected = requests.iter().map(|request| {
                    let fails = request.needs.contains(&refused);
                    if fails { 3 } else { 1 }
                });
                assert_eq!(
                    outcomes,
                    expected.collect::<Vec<_>>(),
                    "{refused}, {round:?}"
                );
                let failed = outcomes.iter().filter(|outcome| **outcome == 3);
                assert_eq!(texts.len(), failed.count());
                assert_whole(&requests, &outcomes, &before, &values(&server));
            }
        }
    }
}

#[test]
fn slots_whose_removal_is_refused_stay_as_they_are() {
    for server in every_server() {
        for refused in ["ZCOUNT", "ZREM"] {
            server.command(&["FLUSHALL"]);
            let mut connection = server.connection();
            // More leases that have ended than are removed at a time.
            for ticket in 0..40 {
                let mut command = redis::cmd("EVAL");
                command.arg(Script::DECIDE.source()).arg(1).arg("k:{a}:8:0");
                command.arg("@").arg(1_699_999_000_000_000_u64);
                command.arg(&["c", "1", "100", "30000"]);
                command.arg(format!("{ticket:0>8}"));
                let _: Value = command.query(&mut connection).expect("a reply");
            }
            let slots = || server.command(&["ZRANGE", "k:{a}:8:0", "0", "-1", "WITHSCORES"]);
            let before = slots();
            let requests = [
                Request::of(8, &["c", "1", "100", "30000", "a-ticket"]),
                Request::of(0, &["wAAAA", "6000000", "60000000"]),
            ];
            let (outcomes, texts) = call(&mut user_without(&server, refused), &requests);
            assert_eq!((outcomes, texts.len()), (vec![3, 1], 1), "{refused}");
            assert_eq!(slots(), before, "{refused}");
        }
    }
}

// Regression: what was written before the refused command stayed, in keys without an expiry or without an announcement.
#[test]
fn scripts_that_a_user_may_not_run_wholly_write_nothing() {
    let server = Server::start();
    let scripts: [(&str, &Script, &[&str]); 4] = [
        (
            "PEXPIRE",
            Script::BLOCKS,
            &[
                "3", "b{!}", "b{!}#e", "b{!}#v", NOW, "B", ":ada", "60000000", "", "9",
            ],
        ),
        (
            "PEXPIRE",
            Script::MEMBERS,
            &["1", "m", "instance", "10000", "0"],
        ),
        (
            "PEXPIRE",
            Script::TOP_KEYS,
            &["1", "t", "instance", "10000", "2", "first"],
        ),
        (
            "HKEYS",
            Script::RULES,
            &["1", "r", "0", "0", "yaml", "rules: []", "ada", ""],
        ),
    ];
    for (refused, script, arguments) in scripts {
        let mut command = redis::cmd("EVAL");
        command.arg(script.source()).arg(arguments);
        let reply = command.query::<Value>(&mut user_without(&server, refused));
        reply.expect_err(refused);
        assert_eq!(server.keys(), Vec::<String>::new());
    }
}

/// Returns peeks, and charges that are denied.
fn readers() -> Vec<Request> {
    vec![
        Request::of(0, &["wAAAA", "0", "60000000"]),
        Request::of(0, &["wAAAA", "-1", "60000000"]),
        Request::of(8, &["c", "0", "10", "30000", "a-ticket"]),
        Request::of(8, &["c", "11", "10", "30000", "a-ticket"]),
    ]
}

#[test]
fn server_that_refuses_to_write_charges_nothing_and_decides_what_needs_no_write() {
    let all: Vec<usize> = (0..CHARGES.len()).collect();
    // A ring is changed in place, which needs no memory.
    let without_rings: Vec<usize> = all.iter().copied().filter(|charge| *charge != 7).collect();
    let states: [(&str, &[&str], &[usize]); 2] = [
        ("READONLY", &["REPLICAOF", "127.0.0.1", "1"], &all),
        ("OOM", &["CONFIG", "SET", "maxmemory", "1"], &without_rings),
    ];
    for (word, command, together) in states {
        for server in every_server() {
            prepare(&server, together, Round::Second);
            let mut requests = crowd(together, Round::Second);
            requests.retain(|request| word != "OOM" || !request.needs.contains(&"SETRANGE"));
            let writers = requests.len();
            requests.extend(readers());
            let before = values(&server);
            server.command(command);
            let (outcomes, texts) = call(&mut server.connection(), &requests);
            let expected = [vec![3; writers], vec![1, 0, 1, 0]].concat();
            assert_eq!(outcomes, expected, "{word}");
            assert!(texts.iter().all(|text| text.contains(word)), "{texts:?}");
            assert_eq!(values(&server), before, "{word}");
        }
    }
}

/// The first write that needs no memory makes the server accept all later ones. Each request is still whole.
#[test]
fn server_that_runs_out_of_memory_charges_each_request_wholly_or_not_at_all() {
    let all: Vec<usize> = (0..CHARGES.len()).collect();
    for server in every_server() {
        prepare(&server, &all, Round::Second);
        let (mut requests, before) = (crowd(&all, Round::Second), values(&server));
        // Requests before the first ring are refused. In the last request, the ring comes first.
        let backwards: Vec<usize> = all.iter().rev().copied().collect();
        requests.retain(|request| request.keys.len() > 1 || !request.needs.contains(&"SETRANGE"));
        requests.push(Request::group("back", &backwards, Round::First));
        let release = Request::of(8, &["e", "30000", "0", "00000800\0\0\u{1}"]);
        requests.insert(50, release);
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let (outcomes, _) = call(&mut server.connection(), &requests);
        let refused = outcomes.iter().take_while(|outcome| **outcome == 3).count();
        assert_eq!(refused, 50, "{outcomes:?}");
        assert!(
            outcomes[50..].iter().all(|outcome| *outcome == 1),
            "{outcomes:?}"
        );
        let (requests, outcomes) = (&requests[..50], &outcomes[..50]);
        let others = |(request, outcome): (&Request, &i64)| (request.clone(), *outcome);
        let others = requests.iter().zip(outcomes).map(others);
        let others = others.filter(|(request, _)| request.keys[0].1 != 8);
        let (requests, outcomes): (Vec<_>, Vec<_>) = others.unzip();
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_whole(&requests, &outcomes, &before, &values(&server));
    }
}

// === Through the store ===

fn limiter(server: &Server, user: Option<&str>, policies: &[&Policy]) -> RateLimiter {
    let url = match user {
        Some(user) => format!("redis://{user}:secret@{}", server.address()),
        None => server.url(),
    };
    let store = RedisStore::builder(url)
        .connections(1)
        .deadline(Duration::from_secs(10))
        .build()
        .expect("a usable store");
    RateLimiter::new(store, policies.iter().copied().cloned()).expect("usable policies")
}

/// Returns a policy whose log of this key is long, and one with a bucket.
async fn log_and_bucket(server: &Server) -> (Policy, Policy) {
    let log = Policy::new("log", Quota::per_hour(1_000)).algorithm(Algorithm::SlidingLog);
    let bucket = Policy::new("bucket", Quota::per_hour(100));
    let limiter = limiter(server, None, &[&log]);
    for _ in 0..200 {
        let decision = limiter.check(&[log.charge(Key::new("ada"))]).await;
        assert!(decision.expect("a decision").is_allowed());
    }
    (log, bucket)
}

// Regression: the bucket was charged, and the caller got an error.
#[tokio::test]
async fn decision_with_a_refused_command_charges_no_policy() {
    let server = Server::start();
    let (log, bucket) = log_and_bucket(&server).await;
    drop(user_without(&server, "SETRANGE"));
    let ada = Key::new("ada");
    let refused = limiter(&server, Some("without-setrange"), &[&log, &bucket]);
    let error = refused.check(&[bucket.charge(ada), log.charge(ada)]).await;
    let error = error.expect_err("it may not write the log");
    assert_eq!(error.kind(), ErrorKind::Script, "{error:?}");
    let allowed = limiter(&server, None, &[&log, &bucket]);
    let peek = allowed.peek(&[bucket.charge(ada), log.charge(ada)]).await;
    let left = peek.expect("a decision");
    let left = left
        .states()
        .iter()
        .map(|state| state.usage().expect("counted").remaining);
    assert_eq!(left.collect::<Vec<_>>(), [100, 800]);
}

// Regression: one refused decision failed all others in the same call.
#[tokio::test]
async fn decisions_in_a_call_with_a_refused_one_are_made() {
    let server = Server::start();
    let (log, bucket) = log_and_bucket(&server).await;
    drop(user_without(&server, "SETRANGE"));
    let limiter = limiter(&server, Some("without-setrange"), &[&log, &bucket]);
    let warm = limiter.check(&[bucket.charge(Key::new("warm"))]).await;
    assert!(warm.expect("a decision").is_allowed());
    let callers: JoinSet<_> = (0..64_u64)
        .map(|number| {
            let (limiter, log, bucket) = (limiter.clone(), log.clone(), bucket.clone());
            async move {
                let decided = match number {
                    32 => limiter.check(&[log.charge(Key::new("ada"))]).await,
                    number => limiter.check(&[bucket.charge(Key::from(number))]).await,
                };
                (number, decided.map(|decision| decision.is_allowed()))
            }
        })
        .collect();
    for (number, decided) in callers.join_all().await {
        match number {
            32 => drop(decided.expect_err("it may not write the log")),
            number => assert!(decided.expect("a decision"), "{number}"),
        }
    }
}

// Regression: it counted as a value that tollgate did not write.
#[tokio::test]
async fn refused_read_is_not_a_foreign_value() {
    let server = Server::start();
    let (log, _) = log_and_bucket(&server).await;
    drop(user_without(&server, "GETRANGE"));
    let limiter = limiter(&server, Some("without-getrange"), &[&log]);
    let refused = limiter.check(&[log.charge(Key::new("ada"))]).await;
    let error = refused.expect_err("it may not read the log");
    assert_eq!(error.kind(), ErrorKind::Script, "{error:?}");
}

// Regression: it counted as a foreign value, which shows nothing about the server.
#[tokio::test]
async fn refused_reads_open_the_breaker() {
    let server = Server::start();
    let (log, _) = log_and_bucket(&server).await;
    drop(user_without(&server, "GETRANGE"));
    let url = format!("redis://without-getrange:secret@{}", server.address());
    let limiter = RateLimiter::builder().redis(url).policy(log.clone());
    let limiter = limiter.build().expect("a usable limiter");
    let opened = tokio::time::timeout(Duration::from_secs(20), async {
        while !limiter.health().is_degraded() {
            let decision = limiter.check(&[log.charge(Key::new("ada"))]).await;
            let decision = decision.expect("a decision by the outage choice");
            assert_eq!(decision.counted_by(), CountedBy::Fallback);
        }
    });
    opened.await.expect("the breaker opens");
}

// Regression: the first reason was "invalid utf-8", and nothing warned that each instance counted for itself.
#[tokio::test]
async fn server_without_evalsha_is_named_and_warned_of() {
    logged();
    let server = Server::start_with(&["--rename-command", "EVALSHA", ""]);
    let policy = Policy::new("api", Quota::per_hour(1_000));
    let store = RedisStore::builder(server.url()).build();
    let bare = RateLimiter::new(store.expect("a usable store"), []).expect("a limiter");
    let charge = policy.charge(Key::new("ada"));
    // The first call on a connection carries the text of the script.
    bare.check(&[charge]).await.expect("a decision by EVAL");
    let error = bare
        .check(&[charge])
        .await
        .expect_err("there is no EVALSHA");
    assert_eq!(error.kind(), ErrorKind::Script, "{error:?}");
    assert!(error.to_string().contains("EVALSHA"), "{error}");
    let limiter = RateLimiter::builder().redis(server.url()).build();
    let limiter = limiter.expect("a usable limiter");
    let started = std::time::Instant::now();
    let refusal = || {
        let warnings = limiter.warnings().into_iter();
        let mut refusals = warnings.filter(|warning| warning.code() == Code::RefusingServer);
        refusals.next()
    };
    while refusal().is_none() {
        assert!(started.elapsed() < Duration::from_secs(30), "never told");
        limiter
            .check(&[charge])
            .await
            .expect("a decision, whatever breaks");
    }
    let refusal = refusal().expect("it was told");
    assert!(refusal.detail().contains("EVALSHA"), "{refusal}");
    assert!(!refusal.detail().contains("ada"), "{refusal}");
    assert!(limiter.health().is_degraded());
    let log = logged().join("\n");
    assert!(log.contains("code=TG020"), "{log}");
}
