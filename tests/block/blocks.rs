//! Blocks in Redis: restarts, outages, many of them, and a layer that denies them.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use axum::body::Body;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode, request::Parts};
use tokio::task::JoinSet;
use tollgate::{
    Charge, Decision, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    algorithm::Algorithm,
    block::{Block, BlockList, BlockTarget},
    charge::Receipt,
    clock::{Clock, Timestamp},
    decision::{CountedBy, DeniedBy, Outcome},
    extract::Header,
    policy::Penalty,
    remote::{RedisStore, RedisStoreBuilder, Script},
    rules::RuleMode,
    store::{Store, StoreFuture},
    testing::{AskedCharge, ScriptedStore},
    tiers::Tier,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{Mode, Proxy, Server, logged};

const MINUTE: Duration = Duration::from_secs(60);
/// A wait that no bounded decision reaches, however loaded the machine is.
const HUNG: Duration = Duration::from_secs(30);

fn api() -> Policy {
    Policy::new("api", Quota::per_hour(1_000_000))
}

fn settings(url: String) -> RedisStoreBuilder {
    RedisStore::builder(url).shared_blocks(true)
}

/// Returns one instance of a service, with a breaker.
fn instance(url: String) -> RateLimiter {
    let builder = RateLimiter::builder().redis(settings(url)).policy(api());
    let builder = builder.deadline(Duration::from_millis(500));
    builder.build().expect("a usable limiter")
}

async fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    limiter.check(charges).await.expect("a decision")
}

/// Decides until this is so.
async fn until(limiter: &RateLimiter, key: Key, mut is_so: impl FnMut(&Decision) -> bool) {
    let started = Instant::now();
    while !is_so(&check(limiter, &[api().charge(key)]).await) {
        assert!(started.elapsed() < HUNG, "it never was");
        tokio::task::yield_now().await;
    }
}

fn parts_of(user: &str) -> Parts {
    let request = Request::get("/").header("x-user", user).body(());
    request.expect("a request").into_parts().0
}

#[tokio::test]
async fn blocks_survive_a_flush_of_the_scripts_and_a_restart_with_data() {
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (ada, bob) = (Key::new("ada"), Key::new("bob"));
    let limiter = instance(server.url());
    limiter
        .block(Block::new(ada, MINUTE))
        .await
        .expect("blocked");
    server.command(&["SCRIPT", "FLUSH"]);
    limiter
        .block(Block::new(bob, MINUTE))
        .await
        .expect("blocked");
    server.command(&["SCRIPT", "FLUSH"]);
    limiter.refresh_blocks().await.expect("the blocks");
    server.kill();
    server.restart();
    let other = instance(server.url());
    until(&other, ada, |decision| !decision.is_allowed()).await;
    assert_eq!(other.blocks().len(), 2);
    assert!(!check(&other, &[api().charge(bob)]).await.is_allowed());
}

#[tokio::test]
async fn known_blocks_hold_during_an_outage_and_others_are_not_known() {
    let mut server = Server::start();
    let (ada, bob) = (Key::new("ada"), Key::new("bob"));
    let (limiter, other) = (instance(server.url()), instance(server.url()));
    limiter
        .block(Block::new(ada, MINUTE))
        .await
        .expect("blocked");
    until(&other, ada, |decision| !decision.is_allowed()).await;
    server.kill();
    for limiter in [&limiter, &other] {
        until(limiter, bob, |_| limiter.health().is_degraded()).await;
        for _ in 0..100 {
            let decided = limiter.check(&[api().charge(ada)]).await;
            let decision = decided.expect("a decision");
            assert_eq!(decision.states()[0].denied_by(), Some(DeniedBy::Block));
            let decision = check(limiter, &[api().charge(bob)]).await;
            assert!(decision.is_allowed());
            assert_eq!(decision.counted_by(), CountedBy::Fallback);
        }
        let error = limiter.block(Block::new(bob, MINUTE)).await;
        let error = error.expect_err("nobody can store it");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(check(limiter, &[api().charge(bob)]).await.is_allowed());
    }
    // An instance that starts during the outage has seen no block.
    let new = instance(server.url());
    assert!(check(&new, &[api().charge(ada)]).await.is_allowed());
    server.restart();
    until(&limiter, bob, |decision| {
        decision.counted_by() == CountedBy::Shared
    })
    .await;
    // The server lost its data. The instances that know the block still deny.
    assert!(!check(&limiter, &[api().charge(ada)]).await.is_allowed());
    let target = BlockTarget::new(ada, None);
    limiter.unblock(target).await.expect("unblocked");
    until(&other, ada, Decision::is_allowed).await;
}

#[tokio::test]
async fn ten_thousand_blocks_are_seen_by_a_new_instance_and_expire() {
    let server = Server::start();
    let limiter = RateLimiter::new(
        settings(server.url())
            .deadline(HUNG)
            .build()
            .expect("a store"),
        [api()],
    );
    let limiter = limiter.expect("a limiter");
    let key = |number: u32| Key::new(format!("user{number}"));
    let mut blocking = JoinSet::new();
    for task in 0..8 {
        let limiter = limiter.clone();
        blocking.spawn(async move {
            for number in (task..10_000).step_by(8) {
                let block = Block::new(key(number), MINUTE).reason("a test of many blocks");
                limiter.block(block).await.expect("blocked");
            }
        });
    }
    blocking.join_all().await;
    let other = RateLimiter::new(
        settings(server.url())
            .deadline(HUNG)
            .build()
            .expect("a store"),
        [api()],
    );
    let other = other.expect("a limiter");
    for number in [0, 1, 4_999, 9_999] {
        let decision = check(&other, &[api().charge(key(number))]).await;
        assert!(!decision.is_allowed(), "{number}");
    }
    assert!(
        check(&other, &[api().charge(key(10_000))])
            .await
            .is_allowed()
    );
    assert_eq!(other.blocks().len(), 10_000);
    assert_eq!(limiter.blocks().len(), 10_000);
    for suffix in ["", "#e", "#v"] {
        let ttl = server.command(&["PTTL", &format!("tollgate:{{!}}:blocks{suffix}")]);
        let redis::Value::Int(ttl) = ttl else {
            panic!("no lifetime: {ttl:?}")
        };
        assert!((3_600_000..=3_660_000).contains(&ttl), "{ttl}");
    }
}

/// Blocks this many keys, as fast as the server takes them.
fn block_users(server: &Server, count: u32) {
    let mut connection = server.connection();
    for first in (0..count).step_by(1_000) {
        let mut commands = redis::pipe();
        for number in first..count.min(first + 1_000) {
            let mut command = redis::cmd("EVAL");
            command.arg(Script::BLOCKS.source()).arg(3);
            for suffix in ["", "#e", "#v"] {
                command.arg(format!("tollgate:{{!}}:blocks{suffix}"));
            }
            let target = format!(":user{number}");
            command.arg("").arg("B").arg(target).arg(600_000_000_u64);
            commands.add_command(command.arg("many").arg(100_000).clone());
        }
        let replies: Vec<u8> = commands.query(&mut connection).expect("blocked");
        assert!(replies.iter().all(|reply| *reply == 1));
    }
}

// Regression: the list had to arrive within the deadline of one decision, so a new instance never got a long one.
#[tokio::test]
async fn long_list_reaches_a_new_instance_far_from_redis_within_the_default_deadline() {
    let server = Server::start();
    block_users(&server, 30_000);
    let proxy = Proxy::start(server.address()).await;
    proxy.set(Mode::RoundTrip(Duration::from_millis(5)));
    let builder = RateLimiter::builder().redis(settings(proxy.url()));
    let limiter = builder.policy(api()).build().expect("a limiter");
    let started = Instant::now();
    for number in [0, 15_000, 29_999] {
        let key = Key::new(format!("user{number}"));
        until(&limiter, key, |decision| !decision.is_allowed()).await;
    }
    println!("30,000 blocks were known after {:?}", started.elapsed());
    assert_eq!(limiter.blocks().len(), 30_000);
}

// Regression: a key that was unblocked while the list arrived in pages stayed blocked in that instance.
#[tokio::test]
async fn key_that_is_unblocked_while_a_long_list_arrives_is_not_blocked() {
    let server = Server::start();
    block_users(&server, 10_000);
    let proxy = Proxy::start(server.address()).await;
    let store = settings(proxy.url()).deadline(HUNG).build();
    let limiter = RateLimiter::new(store.expect("a store"), [api()]).expect("a limiter");
    proxy.set(Mode::RoundTrip(Duration::from_millis(400)));
    let other = instance(server.url());
    let key = Key::new("user7");
    let unblocking = async {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        other.unblock(BlockTarget::new(key, None)).await
    };
    let (known, unblocked) = tokio::join!(limiter.refresh_blocks(), unblocking);
    known.expect("the blocks");
    unblocked.expect("unblocked");
    proxy.set(Mode::Pass);
    limiter.refresh_blocks().await.expect("the blocks");
    assert!(check(&limiter, &[api().charge(key)]).await.is_allowed());
    assert_eq!(limiter.blocks().len(), 9_999);
}

/// Writes this many blocks to Redis as another program does, which knows no bound.
fn write_blocks(server: &Server, count: u64) {
    let now = Clock::system().now().as_micros();
    write_blocks_until(server, count, now + 600_000_000);
}

/// Writes this many blocks that end at this time.
fn write_blocks_until(server: &Server, count: u64, end: u64) {
    let mut connection = server.connection();
    let now = Clock::system().now().as_micros();
    for first in (0..count).step_by(10_000) {
        let mut commands = redis::pipe();
        for number in first..(first + 10_000).min(count) {
            let target = format!(":user{number}");
            let block = [&now.to_be_bytes()[..], &end.to_be_bytes(), b"many\r\nlines"].concat();
            let keys = ["", "#e", "#v"].map(|suffix| format!("tollgate:{{!}}:blocks{suffix}"));
            commands
                .cmd("HSET")
                .arg(&keys[0])
                .arg(&target)
                .arg(block)
                .ignore();
            commands
                .cmd("ZADD")
                .arg(&keys[1])
                .arg(end / 1_000)
                .arg(&target)
                .ignore();
            commands
                .cmd("ZADD")
                .arg(&keys[2])
                .arg(now + number)
                .arg(&target)
                .ignore();
        }
        let () = commands.query(&mut connection).expect("written");
    }
}

// Regression: each block above the bound was taken, after a look at all others: a minute of work.
#[tokio::test]
async fn more_blocks_than_a_list_holds_are_left_out_with_a_warning() {
    let server = Server::start();
    write_blocks(&server, 200_000);
    let store = settings(server.url()).deadline(HUNG).build();
    let limiter = RateLimiter::new(store.expect("a store"), [api()]).expect("a limiter");
    let started = Instant::now();
    limiter.refresh_blocks().await.expect("the blocks");
    println!("200,000 blocks were read in {:?}", started.elapsed());
    let blocks = limiter.blocks();
    assert!(
        (100_000..=101_000).contains(&blocks.len()),
        "{}",
        blocks.len()
    );
    assert_eq!(blocks[0].reason(), "many\\r\\nlines");
    let codes: Vec<_> = limiter
        .warnings()
        .iter()
        .map(|warning| warning.code().as_str())
        .collect();
    assert_eq!(codes, ["TG019"]);
    assert!(
        !check(&limiter, &[api().charge(blocks[0].target().key)])
            .await
            .is_allowed()
    );
}

// An instance never reads more than twice as many targets as there may be blocks: the latest ones.
#[tokio::test]
async fn oldest_changes_are_left_out_of_very_many() {
    let server = Server::start();
    write_blocks(&server, 205_000);
    let reply = run_on(&server, "tollgate:{!}:blocks", &["C", "0", "100000", "200"]);
    let redis::Value::Array(parts) = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(parts[3], redis::Value::Int(5_000));
    assert_eq!(parts[4], redis::Value::BulkString(b":user5000".to_vec()));
}

// The server leaves out the oldest changes, so a block may be missing although this instance has room for it.
#[tokio::test]
async fn changes_that_the_server_leaves_out_are_warned_of() {
    let server = Server::start();
    let now = Clock::system().now().as_micros();
    write_blocks_until(&server, 200_001, now - 1_000_000);
    let store = settings(server.url()).deadline(HUNG).build();
    let limiter = RateLimiter::new(store.expect("a store"), [api()]).expect("a limiter");
    limiter.refresh_blocks().await.expect("the blocks");
    assert!(limiter.blocks().is_empty(), "all have ended");
    let codes = limiter.warnings();
    let codes: Vec<_> = codes
        .iter()
        .map(|warning| warning.code().as_str())
        .collect();
    assert_eq!(codes, ["TG019"]);
}

/// Runs the script of blocks on these keys.
fn run_on(server: &Server, key: &str, arguments: &[&str]) -> redis::Value {
    let keys = ["", "#e", "#v"].map(|suffix| format!("{key}{suffix}"));
    let keys = keys.each_ref().map(String::as_str);
    let start = ["EVAL", Script::BLOCKS.source(), "3"];
    server.command(&[&start[..], &keys, &[""], arguments].concat())
}

// Regression: one target that could not be read kept every instance from seeing any block.
#[tokio::test]
async fn blocks_that_another_version_made_are_left_out_and_the_others_hold() {
    let server = Server::start();
    block_users(&server, 3);
    let last = START.as_micros().to_string();
    for target in ["no colon", "a policy!:ada", ":{ada}", ":ada"] {
        server.command(&["HSET", "tollgate:{!}:blocks", target, "short"]);
        server.command(&["ZADD", "tollgate:{!}:blocks#v", &last, target]);
    }
    logged();
    let store = settings(server.url()).deadline(HUNG).build();
    let limiter = RateLimiter::new(store.expect("a store"), [api()]).expect("a limiter");
    for (name, is_allowed) in [("user0", false), ("user2", false), ("ada", true)] {
        let decision = check(&limiter, &[api().charge(Key::new(name))]).await;
        assert_eq!(decision.is_allowed(), is_allowed, "{name}");
    }
    limiter.refresh_blocks().await.expect("the blocks");
    assert_eq!(limiter.blocks().len(), 3);
    let lines = logged();
    let unread = |line: &&String| line.contains("cannot be read and do not hold here");
    assert_eq!(lines.iter().filter(unread).count(), 1, "{lines:?}");
}

// Regression: versions of the blocks began anew behind those that instances knew, and they never saw these blocks.
#[tokio::test]
async fn block_is_seen_after_redis_lost_its_data_and_its_clock_was_set_back() {
    let server = Server::start();
    let clocks = [(); 2].map(|()| Clock::manual(START));
    let [one, other] = clocks.each_ref().map(|clock| {
        let store = settings(server.url())
            .client_time(clock.clone())
            .deadline(HUNG);
        RateLimiter::new(store.build().expect("a store"), [api()]).expect("a limiter")
    });
    let [ada, bob] = ["ada", "bob"].map(Key::new);
    one.block(Block::new(ada, MINUTE)).await.expect("blocked");
    other.refresh_blocks().await.expect("the blocks");
    server.command(&["FLUSHALL"]);
    for clock in &clocks {
        clock.set(Timestamp::from_micros(START.as_micros() - 5_000_000));
    }
    one.block(Block::new(bob, MINUTE)).await.expect("blocked");
    other.refresh_blocks().await.expect("the blocks");
    assert!(!check(&other, &[api().charge(bob)]).await.is_allowed());
}

/// Runs the script of blocks at a time in microseconds after the start.
fn run(server: &Server, micros: u64, arguments: &[&str]) -> redis::Value {
    let now = (START.as_micros() + micros).to_string();
    let keys = ["b{!}", "b{!}#e", "b{!}#v"];
    let words = [
        &["EVAL", Script::BLOCKS.source(), "3"],
        keys.as_slice(),
        &[&now],
        arguments,
    ];
    server.command(&words.concat())
}

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

#[test]
fn example_in_the_header_of_the_script_is_true_and_a_full_list_refuses() {
    let server = Server::start();
    let ok = redis::Value::Int(1);
    let block = ["B", ":ada", "60000000", "scraping", "1"];
    assert_eq!(run(&server, 0, &block), ok);
    let start = START.as_micros();
    let changes = |micros: u64, version: u64, block: Option<&[u8]>, at: u64| {
        let reply = run(
            &server,
            micros,
            &["C", &version.to_string(), "100000", "200"],
        );
        let (now, more, next, excess, changes): (u64, u8, u64, u8, Vec<Vec<u8>>) = match reply {
            redis::Value::Array(mut parts) => {
                let changes = redis::Value::Array(parts.split_off(4));
                let numbers = redis::Value::Array(parts);
                let (now, more, next, excess) = redis::from_redis_value(numbers).expect("numbers");
                (
                    now,
                    more,
                    next,
                    excess,
                    redis::from_redis_value(changes).expect("texts"),
                )
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((now, more, next, excess), (start + micros, 0, at, 0));
        match block {
            Some(block) => assert_eq!(changes, [b":ada".as_slice(), block]),
            None => assert_eq!(changes, Vec::<Vec<u8>>::new()),
        }
    };
    let stored = [
        &start.to_be_bytes()[..],
        &(start + 60_000_000).to_be_bytes(),
        b"scraping",
    ];
    changes(1_000_000, 0, Some(&stored.concat()), start);
    changes(1_500_000, start, None, start);
    let bob = ["B", ":bob", "60000000", "", "1"];
    assert_eq!(run(&server, 1_500_000, &bob), redis::Value::Int(0));
    assert_eq!(run(&server, 2_000_000, &["U", ":ada", "1"]), ok);
    changes(3_000_000, start, Some(b""), start + 2_000_000);
    // A target is forgotten an hour after its block.
    let kept = || server.command(&["ZCARD", "b{!}#v"]);
    assert_eq!(run(&server, 3_602_000_000 - 1, &bob), ok);
    assert_eq!(kept(), redis::Value::Int(2));
    assert_eq!(run(&server, 3_602_000_000, &bob), ok);
    assert_eq!(kept(), redis::Value::Int(1));
    // A clock that steps back does not reorder versions.
    assert_eq!(run(&server, 0, &["U", ":bob", "1"]), ok);
    let reply = run(
        &server,
        0,
        &["C", &(start + 3_602_000_000).to_string(), "100000", "200"],
    );
    let redis::Value::Array(parts) = reply else {
        panic!("{reply:?}")
    };
    let next = i64::try_from(start + 3_602_000_001).expect("it fits");
    assert_eq!(parts[2], redis::Value::Int(next));
}

// Regression: unblocked keys and ended blocks counted for an hour, so that nothing could be blocked.
#[test]
fn unblocked_and_ended_blocks_leave_room_for_others() {
    let server = Server::start();
    let (full, ok) = (redis::Value::Int(0), redis::Value::Int(1));
    let block = |micros: u64, target: &str, duration: &str| {
        run(&server, micros, &["B", target, duration, "", "3"])
    };
    for target in [":one", ":two", ":three"] {
        assert_eq!(block(0, target, "60000000"), ok);
    }
    assert_eq!(block(1, ":four", "1000000"), full);
    assert_eq!(block(1, ":one", "60000000"), ok, "it replaces one");
    assert_eq!(run(&server, 2, &["U", ":one", "3"]), ok);
    assert_eq!(block(3_000, ":four", "1000000"), ok, "in place of :one");
    assert_eq!(block(3_001, ":five", "1000000"), full);
    assert_eq!(block(1_003_000, ":five", "60000000"), ok, ":four has ended");
    assert_eq!(
        block(1_003_001, ":one", "60000000"),
        full,
        "unblocked before"
    );
}

// Regression: each unblock of a target that nobody had blocked was kept for an hour, without limit.
#[test]
fn targets_that_are_kept_after_their_block_are_limited() {
    let server = Server::start();
    let ok = redis::Value::Int(1);
    let kept = || server.command(&["ZCARD", "b{!}#v"]);
    for number in 0..20 {
        let target = format!(":unknown{number}");
        assert_eq!(run(&server, number, &["U", &target, "3"]), ok);
    }
    assert_eq!(kept(), redis::Value::Int(3));
    for number in 0..3 {
        let target = format!(":user{number}");
        let block = ["B", &target, "60000000", "", "3"];
        assert_eq!(run(&server, 20, &block), ok, "there is room for blocks");
        assert_eq!(run(&server, 21, &["U", &target, "3"]), ok);
    }
    let block = ["B", ":user3", "60000000", "", "3"];
    assert_eq!(run(&server, 22, &block), redis::Value::Int(2));
    assert_eq!(kept(), redis::Value::Int(6));
    assert_eq!(run(&server, 3_600_001_000, &block), ok, "an hour later");
}

#[tokio::test]
async fn redis_store_without_shared_blocks_refuses_to_block() {
    let server = Server::start();
    let limiter = RateLimiter::builder().redis(server.url()).policy(api());
    let limiter = limiter.build().expect("a limiter");
    let block = Block::new(Key::new("ada"), MINUTE);
    let error = limiter.block(block).await.expect_err("it is off");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("shared_blocks(true)"), "{error}");
    check(&limiter, &[api().charge(Key::new("ada"))]).await;
    assert!(!server.keys().iter().any(|key| key.contains("blocks")));
}

/// Sends a request of `user` through the layer.
async fn send(layer: &RateLimitLayer, user: &str) -> Response<()> {
    let handler =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let request = Request::get("/").header("x-user", user);
    let request = request.body(Body::empty()).expect("a request");
    let response = layer.layer(handler).oneshot(request).await;
    response.expect("a response").map(drop)
}

#[tokio::test]
async fn layer_denies_a_blocked_key_with_the_end_of_the_block() {
    let clock = Clock::manual(START);
    let policy = Policy::new("api", Quota::per_hour(10));
    let layer = RateLimitLayer::builder()
        .clock(clock.clone())
        .policy(policy.clone().key(Header::new("x-user")))
        .build()
        .expect("a layer");
    let limiter = layer.limiter();
    assert_eq!(send(&layer, "ada").await.status(), StatusCode::OK);
    let ada = Key::new("ada");
    let block = Block::new(ada, Duration::from_millis(59_001)).reason("internal words");
    limiter.block(block).await.expect("blocked");
    let response = send(&layer, "ada").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
    assert_eq!(header("retry-after"), "60", "rounded up");
    assert_eq!(header("x-ratelimit-limit"), "10");
    assert_eq!(header("x-ratelimit-remaining"), "0");
    for (name, value) in response.headers() {
        let value = String::from_utf8_lossy(value.as_bytes());
        assert!(!value.contains("internal"), "{name}: {value}");
    }
    assert_eq!(send(&layer, "bob").await.status(), StatusCode::OK);
    clock.advance(Duration::from_secs(60));
    assert_eq!(send(&layer, "ada").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn layer_with_a_rule_in_shadow_admits_a_blocked_key() {
    let policy = Policy::new("api", Quota::per_hour(10));
    let rule = policy.key(Header::new("x-user")).mode(RuleMode::Shadow);
    let layer = RateLimitLayer::builder()
        .policy(rule)
        .build()
        .expect("a layer");
    let block = Block::new(Key::new("ada"), MINUTE);
    layer.limiter().block(block).await.expect("blocked");
    assert_eq!(send(&layer, "ada").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn thousand_callers_far_from_redis_find_a_block_at_once() {
    for round_trip in [1, 5].map(Duration::from_millis) {
        let server = Server::start();
        let proxy = Proxy::start(server.address()).await;
        proxy.set(Mode::RoundTrip(round_trip));
        let limiter = instance(proxy.url());
        let block = Block::new(Key::new("user7"), MINUTE);
        instance(server.url()).block(block).await.expect("blocked");
        let policy = api();
        let checks = (0..1_000).map(async |number| {
            let key = Key::new(format!("user{number}"));
            check(&limiter, &[policy.charge(key)]).await
        });
        let decisions = join_all(checks).await;
        let denied = decisions.iter().filter(|decision| !decision.is_allowed());
        assert_eq!(denied.count(), 1);
        let counted = |decision: &&Decision| decision.counted_by() == CountedBy::Shared;
        assert_eq!(decisions.iter().filter(counted).count(), 1_000);
    }
}

// Regression: a tier without a limit charges nothing, and so its callers were never blocked.
#[tokio::test]
async fn key_of_an_unlimited_tier_can_be_blocked() {
    let policy = Policy::new("api", Quota::per_hour(10));
    let rule = policy.key(Header::new("x-user"));
    let layer = RateLimitLayer::builder()
        .policy(rule.tier_by(|_: &RequestHead, _: &Key| Some(Tier::unlimited())))
        .build()
        .expect("a layer");
    let limiter = layer.limiter();
    for user in ["ada", "bob"] {
        assert_eq!(send(&layer, user).await.status(), StatusCode::OK);
    }
    let block = Block::new(Key::new("ada"), MINUTE);
    limiter.block(block).await.expect("blocked");
    assert_eq!(
        send(&layer, "ada").await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(send(&layer, "bob").await.status(), StatusCode::OK);
    let explained = layer.explain(&parts_of("ada")).await.expect("explained");
    assert!(explained.is_denied(), "{explained}");
    let target = BlockTarget::new(Key::new("ada"), None);
    limiter.unblock(target).await.expect("unblocked");
    assert_eq!(send(&layer, "ada").await.status(), StatusCode::OK);
}

// Regression: an instance whose list of blocks was old let the first callers pass.
#[tokio::test]
async fn first_request_under_an_unlimited_tier_waits_for_the_list_of_blocks() {
    let server = Server::start();
    let ada = Key::new("ada");
    let other = instance(server.url());
    other.block(Block::new(ada, MINUTE)).await.expect("blocked");
    let layer = || {
        let rule = api().key(Header::new("x-user"));
        RateLimitLayer::builder()
            .limiter(&instance(server.url()))
            .policy(rule.tier_by(|_: &RequestHead, _: &Key| Some(Tier::unlimited())))
            .build()
            .expect("a layer")
    };
    let first = layer();
    for response in join_all((0..10).map(|_| send(&first, "ada"))).await {
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(send(&first, "bob").await.status(), StatusCode::OK);
    let explained = layer().explain(&parts_of("ada")).await.expect("explained");
    assert!(explained.is_denied(), "{explained}");
}

// Regression: an explanation left blocks out, and called the next request allowed.
#[tokio::test]
async fn block_is_explained_as_it_is_decided() {
    let server = Server::start();
    let [limiter, other] = [(); 2].map(|()| instance(server.url()));
    let (policy, ada) = (api(), Key::new("ada"));
    let block = Block::new(ada, MINUTE).reason("scraping");
    limiter.block(block).await.expect("blocked");
    for limiter in [limiter, other] {
        let explained = limiter.explain(&ada).await.expect("explained");
        let state = explained
            .policy(policy.name().as_str())
            .expect("the policy");
        assert_eq!(state.outcome(), Outcome::Limited);
        assert_eq!(state.block().expect("a block").reason(), "scraping");
        let text = explained.to_string();
        assert!(text.contains("limited by a block, "), "{text}");
        assert!(
            text.contains("by unblocking the key, reason: scraping"),
            "{text}"
        );
        assert!(!check(&limiter, &[policy.charge(ada)]).await.is_allowed());
        let bob = limiter.explain(&Key::new("bob")).await.expect("explained");
        assert!(!bob.to_string().contains("block"), "{bob}");
    }
}

// Regression: a blocked key waited for a refresh, a decision and one answer for each penalty, each up to the deadline.
#[tokio::test]
async fn request_with_a_blocked_key_waits_for_one_deadline() {
    let deadline = Duration::from_millis(400);
    let penalty = Penalty::after(3, MINUTE).ban(60 * MINUTE);
    let policies = ["one", "two", "three", "four"]
        .map(|name| Policy::new(name, Quota::per_day(100)).penalty(penalty));
    let charges = policies
        .each_ref()
        .map(|policy| policy.charge(Key::new("ada")));
    let server = Server::start();
    let limiter = RateLimiter::builder().redis(settings(server.url()));
    let limiter = limiter.deadline(deadline).build().expect("a limiter");
    // The list has the block, but has not been refreshed.
    let block = Block::new(Key::new("ada"), MINUTE);
    limiter.block(block).await.expect("it is blocked");
    server.pause();
    let started = Instant::now();
    let decision = check(&limiter, &charges).await;
    let waited = started.elapsed();
    server.resume();
    assert_eq!(decision.states()[0].denied_by(), Some(DeniedBy::Block));
    assert!(waited >= deadline / 2, "it asks the server: {waited:?}");
    assert!(waited < deadline * 2, "{waited:?}");
}

// Regression: nobody refreshed the list any more, and a decision waited for the deadline every 400 ms.
#[tokio::test]
async fn blocks_are_seen_although_a_task_that_refreshes_them_is_not_polled() {
    let server = Server::start();
    let [one, other] = [(); 2].map(|()| instance(server.url()));
    let (key, policy) = (Key::new("ada"), api());
    assert!(check(&other, &[policy.charge(key)]).await.is_allowed());
    let mut refreshing = one.check(&[policy.charge(key)]);
    // Like a task of a runtime that nobody drives.
    let context = &mut Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut refreshing).poll(context).is_pending());
    other
        .block(Block::new(key, MINUTE))
        .await
        .expect("it is blocked");
    until(&one, key, |decision| !decision.is_allowed()).await;
    drop(refreshing);
}

/// A Redis store whose list of blocks never arrives.
#[derive(Debug)]
struct WithoutList(RedisStore);

impl Store for WithoutList {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.0.decide(charges)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.0.reset(policy, key)
    }

    fn blocks(&self) -> Option<Arc<BlockList>> {
        self.0.blocks()
    }

    fn refresh_blocks(&self) -> StoreFuture<()> {
        StoreFuture::boxed(std::future::pending())
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        self.0.settle(receipt)
    }

    fn deadline(&self) -> Option<Duration> {
        Some(HUNG)
    }
}

// Regression: a request that ended while it waited for the list kept its slots until their lease ended.
#[tokio::test]
async fn slots_of_a_request_that_ends_while_it_waits_for_the_list_are_released() {
    let server = Server::start();
    let store = settings(server.url()).build().expect("a usable store");
    let limiter = RateLimiter::new(WithoutList(store), []).expect("a usable limiter");
    let other = instance(server.url());
    let lease = 60 * MINUTE;
    let uploads = Policy::concurrency("uploads", 1).algorithm(Algorithm::Concurrency { lease });
    let charges = [uploads.charge(Key::new("ada"))];
    let mut checking = limiter.check(&charges);
    for is_taken in [true, false] {
        let started = Instant::now();
        let mut agreeing = 0;
        // The reply comes soon after the slot is taken.
        while agreeing < 10 {
            assert!(started.elapsed() < HUNG, "is it taken: {is_taken}");
            if is_taken {
                let context = &mut Context::from_waker(Waker::noop());
                assert!(Pin::new(&mut checking).poll(context).is_pending());
            }
            let peeked = other.peek(&charges).await.expect("a decision");
            let usage = peeked.states()[0].usage().expect("it is counted");
            agreeing += u32::from((usage.remaining == 0) == is_taken);
        }
        checking = StoreFuture::boxed(std::future::pending());
    }
}

// Regression: a store was asked for u64::MAX units, and one that adds them to those in use overflowed.
#[tokio::test]
async fn wait_of_a_blocked_key_is_asked_for_by_one_unit_above_the_limit() {
    let store = ScriptedStore::counting();
    let limiter = RateLimiter::new(store.clone(), []).expect("a usable limiter");
    let (policy, key) = (
        Policy::new("api", Quota::per_minute(60)),
        Key::new("mallory"),
    );
    let block = Block::new(key, Duration::from_secs(1));
    limiter.block(block).await.expect("the store keeps blocks");
    let decision = limiter.check(&[policy.charge(key)]).await;
    assert!(!decision.expect("a decision").is_allowed());
    let asked = store.asked().concat();
    let largest = asked.iter().map(AskedCharge::units).max();
    assert_eq!(largest, Some(61));
}
