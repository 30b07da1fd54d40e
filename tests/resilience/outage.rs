//! Redis that is down, slow, unresponsive, read-only or full, and Redis that is up again.

use std::{
    future::Future,
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};
use tollgate::{
    Charge, Decision, ErrorKind, Key, OnOutage, Policy, Quota, RateLimiter,
    builder::RateLimiterBuilder,
    decision::{CountedBy, Outcome},
    error::Phase,
    remote::{RedisStore, RedisStoreBuilder},
    store::{Mode as StoreMode, Store},
};

use crate::support::{Mode, Proxy, Server, logged};

/// Longer than the default, so that a loaded machine does not look like an outage; far shorter than [`HUNG`].
const DEADLINE: Duration = Duration::from_millis(250);
/// A wait that no bounded decision reaches, however loaded the machine is.
const HUNG: Duration = Duration::from_secs(5);

fn builder(server: impl Into<RedisStoreBuilder>) -> RateLimiterBuilder {
    RateLimiter::builder().redis(server).deadline(DEADLINE)
}

fn limiter(server: impl Into<RedisStoreBuilder>, policy: &Policy) -> RateLimiter {
    builder(server)
        .policy(policy.clone())
        .build()
        .expect("a usable limiter")
}

async fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    let started = Instant::now();
    let decision = limiter
        .check(charges)
        .await
        .expect("a decision, whatever breaks");
    assert!(started.elapsed() < HUNG, "waited {:?}", started.elapsed());
    decision
}

fn is_degraded(limiter: &RateLimiter) -> bool {
    limiter.health().is_degraded()
}

/// Requests decisions until the breaker opens.
async fn until_degraded(limiter: &RateLimiter, charges: &[Charge<'_>]) {
    let started = Instant::now();
    while !is_degraded(limiter) {
        check(limiter, charges).await;
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "never degraded"
        );
    }
}

/// Waits until the background probe closes the breaker. Nothing else is sent meanwhile.
async fn until_steady(limiter: &RateLimiter) {
    let started = Instant::now();
    while is_degraded(limiter) {
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "never recovered"
        );
    }
}

/// Takes Redis down, expects local counting without any wait, brings Redis up and expects it to count again.
async fn survives<T>(
    url: String,
    mut fault: T,
    strike: impl AsyncFnOnce(&mut T),
    mend: impl AsyncFnOnce(&mut T),
) {
    let policy = Policy::new("survivor", Quota::per_hour(1_000_000));
    let limiter = limiter(url, &policy);
    let charge = policy.charge(Key::new("ada"));
    for _ in 0..10 {
        assert_eq!(
            check(&limiter, &[charge]).await.counted_by(),
            CountedBy::Shared
        );
    }
    strike(&mut fault).await;
    until_degraded(&limiter, &[charge]).await;
    for _ in 0..100 {
        let answer = limiter.check(&[charge]).take_ready();
        let decision = answer
            .expect("no wait at all while degraded")
            .expect("a decision");
        assert!(decision.is_allowed());
        assert_eq!(decision.counted_by(), CountedBy::Fallback);
    }
    mend(&mut fault).await;
    until_steady(&limiter).await;
    for _ in 0..10 {
        assert_eq!(
            check(&limiter, &[charge]).await.counted_by(),
            CountedBy::Shared
        );
    }
}

#[tokio::test]
async fn killed_server_is_replaced_by_local_counting_until_it_is_back() {
    let server = Server::start();
    survives(
        server.url(),
        server,
        async |server| server.kill(),
        async |server| server.restart(),
    )
    .await;
}

#[tokio::test]
async fn hung_server_opens_the_breaker_until_it_replies() {
    let server = Server::start();
    survives(
        server.url(),
        server,
        async |server| server.pause(),
        async |server| server.resume(),
    )
    .await;
}

async fn survives_demotion(server: Server) {
    let strike = async |server: &mut Server| {
        server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    };
    let mend = async |server: &mut Server| {
        server.command(&["REPLICAOF", "NO", "ONE"]);
    };
    survives(server.url(), server, strike, mend).await;
}

// Regression: READONLY, for which the client library has its own error kind, counted as an error of the script.
#[tokio::test]
async fn server_turned_replica_opens_the_breaker_until_it_is_primary_again() {
    survives_demotion(Server::start()).await;
}

// A demoted primary keeps its connections and answers PING: only a new connection can lead to the new primary.
#[tokio::test]
async fn demoted_primary_is_left_for_a_new_connection() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy = Policy::new("demoted", Quota::per_hour(1_000_000));
    let limiter = limiter(RedisStore::builder(proxy.url()).connections(1), &policy);
    let charge = policy.charge(Key::new("ada"));
    check(&limiter, &[charge]).await;
    assert_eq!(proxy.connections(), 1);
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    until_degraded(&limiter, &[charge]).await;
    server.command(&["REPLICAOF", "NO", "ONE"]);
    until_steady(&limiter).await;
    assert_eq!(
        check(&limiter, &[charge]).await.counted_by(),
        CountedBy::Shared
    );
    assert!(
        proxy.connections() > 1,
        "the old connection is still in use"
    );
}

// Before Redis 7 only the text of an error inside a script contains its code.
#[tokio::test]
async fn redis_6_2_turned_replica_opens_the_breaker_until_it_is_primary_again() {
    let binary = std::env::var("TOLLGATE_REDIS62_SERVER").expect("set by `bash tests/run.sh`");
    survives_demotion(Server::start_binary(binary, &[])).await;
}

#[tokio::test]
async fn server_out_of_memory_opens_the_breaker_until_it_has_room() {
    let server = Server::start();
    let strike = async |server: &mut Server| {
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    };
    let mend = async |server: &mut Server| {
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    };
    survives(server.url(), server, strike, mend).await;
}

#[tokio::test]
async fn server_that_requires_replicas_opens_the_breaker_until_it_does_not() {
    let server = Server::start();
    let strike = async |server: &mut Server| {
        server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    };
    let mend = async |server: &mut Server| {
        server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    };
    survives(server.url(), server, strike, mend).await;
}

async fn survives_network(mode: Mode) {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let strike = async |faults: &mut (Proxy, Server)| faults.0.set(mode);
    let mend = async |faults: &mut (Proxy, Server)| faults.0.set(Mode::Pass);
    survives(proxy.url(), (proxy, server), strike, mend).await;
}

#[tokio::test]
async fn black_hole_on_open_connections_is_noticed_and_replaced() {
    survives_network(Mode::BlackHole).await;
}

#[tokio::test]
async fn refused_connections_are_survived() {
    survives_network(Mode::Refuse).await;
}

#[tokio::test]
async fn reset_connections_are_survived() {
    survives_network(Mode::Reset).await;
}

#[tokio::test]
async fn replies_that_break_off_are_survived() {
    survives_network(Mode::Truncate).await;
}

#[tokio::test]
async fn replies_past_the_deadline_are_survived() {
    survives_network(Mode::Delay(DEADLINE * 4)).await;
}

#[tokio::test]
async fn slow_replies_open_the_breaker_although_none_fails() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy = Policy::new("slow", Quota::per_hour(1_000_000));
    let limiter = builder(RedisStore::builder(proxy.url()))
        .deadline(Duration::from_secs(2))
        .policy(policy.clone())
        .build()
        .expect("a usable limiter");
    let all_at_once = || {
        let mut callers = JoinSet::new();
        for _ in 0..20 {
            let (limiter, policy) = (limiter.clone(), policy.clone());
            callers.spawn(async move {
                check(&limiter, &[policy.charge(Key::new("ada"))])
                    .await
                    .counted_by()
            });
        }
        callers.join_all()
    };
    all_at_once().await;
    // Above half the deadline, below the deadline.
    proxy.set(Mode::Delay(Duration::from_millis(1_100)));
    let answers = all_at_once().await;
    assert!(
        answers.iter().all(|counted| *counted == CountedBy::Shared),
        "{answers:?}"
    );
    // Until half of the calls in the last ten seconds are slow.
    let started = Instant::now();
    while !is_degraded(&limiter) {
        all_at_once().await;
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "never degraded"
        );
    }
}
#[tokio::test]
async fn server_that_was_never_there_is_no_error() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let policy = Policy::new("early", Quota::per_hour(3));
    let limiter = limiter(format!("redis://{address}"), &policy);
    let mut allowed = 0;
    for _ in 0..10 {
        let decision = check(&limiter, &[policy.charge(Key::new("ada"))]).await;
        assert_eq!(decision.counted_by(), CountedBy::Fallback);
        allowed += u32::from(decision.is_allowed());
    }
    assert_eq!(allowed, 3, "the local limiter keeps the quota");
}

// === What opens the breaker ===

/// Runs nine denials for each decision that writes. The server refuses only writes.
async fn survives_refused_writes(
    strike: impl Fn(&Server),
    mend: impl Fn(&Server),
    reason: &'static str,
) {
    let server = Server::start();
    let greedy = Policy::new("greedy", Quota::per_day(1));
    let modest = Policy::new("modest", Quota::per_hour(1_000_000));
    let limiter = builder(server.url())
        .policy(greedy.clone())
        .policy(modest.clone())
        .build()
        .expect("a usable limiter");
    let denied = greedy.charge(Key::new("ada"));
    let written = modest.charge(Key::new("ada"));
    check(&limiter, &[denied]).await;
    strike(&server);
    let started = Instant::now();
    while !is_degraded(&limiter) {
        for _ in 0..9 {
            check(&limiter, &[denied]).await;
        }
        check(&limiter, &[written]).await;
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "never degraded"
        );
    }
    let health = limiter.health();
    let cause = health.cause().expect("it is degraded").to_string();
    assert!(cause.contains(reason), "{cause}");
    mend(&server);
    until_steady(&limiter).await;
    let decision = check(&limiter, &[written]).await;
    assert_eq!(decision.counted_by(), CountedBy::Shared);
}

// Regression: denials write nothing and succeed, so a demoted primary was never left while most decisions were denials.
#[tokio::test]
async fn server_turned_replica_opens_the_breaker_however_many_denials_it_makes() {
    survives_refused_writes(
        |server| drop(server.command(&["REPLICAOF", "127.0.0.1", "1"])),
        |server| drop(server.command(&["REPLICAOF", "NO", "ONE"])),
        "read-only",
    )
    .await;
}

#[tokio::test]
async fn server_out_of_memory_opens_the_breaker_however_many_denials_it_makes() {
    survives_refused_writes(
        |server| drop(server.command(&["CONFIG", "SET", "maxmemory", "1"])),
        |server| drop(server.command(&["CONFIG", "SET", "maxmemory", "0"])),
        "out of memory",
    )
    .await;
}

/// Returns whether a stall opens the breaker, under 30 callers that ask again as soon as they have a decision.
async fn opens_by_stall(lasting: Duration) -> bool {
    let server = Server::start();
    let policy = Policy::new("stalled", Quota::per_hour(1_000_000));
    let limiter = limiter(server.url(), &policy);
    check(&limiter, &[policy.charge(Key::new("ada"))]).await;
    server.pause();
    let mut callers = JoinSet::new();
    for _ in 0..30 {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        callers.spawn(async move {
            loop {
                check(&limiter, &[policy.charge(Key::new("ada"))]).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
    let started = Instant::now();
    let mut was_degraded = false;
    // After its end, for as long again as it lasted.
    while started.elapsed() < lasting * 2 {
        if started.elapsed() >= lasting {
            server.resume();
        }
        was_degraded |= is_degraded(&limiter);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    callers.shutdown().await;
    until_steady(&limiter).await;
    was_degraded
}

// Regression: replies that one stall delayed for less than the deadline counted as a slow server.
#[tokio::test]
async fn stall_of_less_than_a_deadline_does_not_open_the_breaker() {
    assert!(!opens_by_stall(DEADLINE * 7 / 10).await);
}

#[tokio::test]
async fn stall_of_two_deadlines_does_not_open_the_breaker() {
    assert!(!opens_by_stall(DEADLINE * 2).await);
}

#[tokio::test]
async fn stall_of_ten_deadlines_opens_the_breaker_until_its_end() {
    assert!(opens_by_stall(DEADLINE * 10).await);
}

// Regression: to dial a distant server and to load the script counted as a slow server.
#[tokio::test]
async fn cold_start_at_a_distance_does_not_open_the_breaker() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    // In proportion to the deadline: 10 ms for the default one.
    proxy.set(Mode::Delay(DEADLINE / 5));
    let policy = Policy::new("distant", Quota::per_hour(1_000_000));
    let limiter = limiter(proxy.url(), &policy);
    let mut callers = JoinSet::new();
    for _ in 0..40 {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        callers.spawn(async move {
            let mut was_degraded = false;
            for _ in 0..10 {
                check(&limiter, &[policy.charge(Key::new("ada"))]).await;
                was_degraded |= is_degraded(&limiter);
            }
            was_degraded
        });
    }
    assert!(!callers.join_all().await.contains(&true));
}

// === Modes ===

#[tokio::test]
async fn change_of_the_mode_wakes_whoever_waits_for_it() {
    let mut server = Server::start();
    let policy = Policy::new("modes", Quota::per_hour(1_000_000));
    let limiter = limiter(server.url(), &policy);
    let charge = policy.charge(Key::new("ada"));
    check(&limiter, &[charge]).await;
    let mut changes = limiter.mode_changes();
    assert_eq!(*changes.borrow_and_update(), StoreMode::Healthy);
    server.kill();
    until_degraded(&limiter, &[charge]).await;
    changes.changed().await.expect("the limiter is there");
    assert_eq!(*changes.borrow_and_update(), StoreMode::Degraded);
    assert_eq!(limiter.health().mode(), StoreMode::Degraded);
    server.restart();
    // No decision is made meanwhile.
    let changed = tokio::time::timeout(HUNG * 6, changes.changed()).await;
    changed.expect("it recovers").expect("the limiter is there");
    assert_eq!(*changes.borrow_and_update(), StoreMode::Healthy);
    drop(limiter);
    assert!(changes.changed().await.is_err());
}

#[tokio::test]
async fn mode_of_a_store_in_process_never_changes() {
    let policy = Policy::new("modes", Quota::per_hour(10));
    let limiter = RateLimiter::builder()
        .policy(policy)
        .build()
        .expect("a usable limiter");
    let mut changes = limiter.mode_changes();
    assert_eq!(*changes.borrow_and_update(), StoreMode::Healthy);
    assert!(changes.changed().await.is_err());
}

// === Outage choices ===

/// Returns the number of requests that this many instances admit of a quota of 10 through two outages.
async fn admitted_through_outages(instances: usize) -> u64 {
    let server = Server::start();
    let policy = Policy::new("bounded", Quota::per_day(10));
    let limiters: Vec<_> = (0..instances)
        .map(|_| limiter(server.url(), &policy))
        .collect();
    let charge = policy.charge(Key::new("ada"));
    let mut admitted = 0;
    let mut ask_all = async || {
        for limiter in &limiters {
            for _ in 0..20 {
                admitted += u64::from(check(limiter, &[charge]).await.is_allowed());
            }
        }
    };
    ask_all().await;
    for _ in 0..2 {
        server.pause();
        ask_all().await;
        for limiter in &limiters {
            // Not with a charge of the quota: charges made during the outage would be missed.
            until_degraded(limiter, &[charge.cost(0)]).await;
        }
        ask_all().await;
        server.resume();
        for limiter in &limiters {
            until_steady(limiter).await;
        }
        ask_all().await;
    }
    admitted
}

#[tokio::test]
async fn outages_admit_the_quota_once() {
    assert_eq!(admitted_through_outages(1).await, 10);
    assert_eq!(admitted_through_outages(3).await, 10);
}

#[tokio::test]
async fn each_policy_follows_its_outage_choice() {
    let server = Server::start();
    let allow = Policy::new("allow", Quota::per_hour(1)).on_outage(OnOutage::Allow);
    let local = Policy::new("local", Quota::per_hour(2)).on_outage(OnOutage::Local);
    let refuse = Policy::new("refuse", Quota::per_hour(9)).on_outage(OnOutage::Deny);
    let policies = [&allow, &local, &refuse];
    let limiter = policies
        .iter()
        .fold(builder(server.url()), |builder, policy| {
            builder.policy((*policy).clone())
        });
    let limiter = limiter.build().expect("a usable limiter");
    drop(server);
    until_degraded(&limiter, &[allow.charge(Key::new("ada"))]).await;

    for _ in 0..5 {
        let decision = check(&limiter, &[allow.charge(Key::new("ada"))]).await;
        assert!(decision.is_allowed());
        assert_eq!(decision.counted_by(), CountedBy::Uncounted);
        assert_eq!(decision.states()[0].usage(), None, "no usage is invented");
        assert!(decision.narrowest().is_none());
    }
    let all = [
        allow.charge(Key::new("ada")),
        local.charge(Key::new("ada")),
        refuse.charge(Key::new("ada")),
    ];
    for _ in 0..5 {
        let decision = check(&limiter, &all).await;
        assert_eq!(decision.outcome(), Outcome::Unavailable);
        assert_eq!(decision.retry_after(), None);
    }
    let both = &all[..2];
    let outcomes = [
        check(&limiter, both).await.outcome(),
        check(&limiter, both).await.outcome(),
        check(&limiter, both).await.outcome(),
    ];
    assert_eq!(
        outcomes,
        [Outcome::Allowed, Outcome::Allowed, Outcome::Limited],
        "a refusal charged the local one nothing"
    );
    let states = check(&limiter, both).await;
    assert_eq!(states.counted_by(), CountedBy::Fallback);
    assert!(states.states()[0].usage().is_none() && states.states()[1].usage().is_some());
}

#[tokio::test]
async fn pool_that_others_have_used_up_bounds_the_wait() {
    let server = Server::start();
    let pool = deadpool_redis::Config::from_url(server.url())
        .builder()
        .expect("a usable url");
    let pool = pool
        .max_size(1)
        .runtime(deadpool_redis::Runtime::Tokio1)
        .build()
        .expect("a pool");
    let taken = pool.get().await.expect("the only connection");
    let store = RedisStoreBuilder::over_pool(pool)
        .deadline(DEADLINE)
        .build()
        .expect("a usable store");
    let policy = Policy::new("pooled", Quota::per_hour(10));
    let alone = RateLimiter::new(store.clone(), [policy.clone()]).expect("a usable policy");
    let error = alone
        .check(&[policy.charge(Key::new("ada"))])
        .await
        .expect_err("no connection");
    assert_eq!(
        error.kind(),
        ErrorKind::Timeout(Phase::Connect),
        "{error:?}"
    );
    assert!(error.is_transient());
    drop(taken);
    let started = Instant::now();
    while store.probe().await.is_err() {
        assert!(started.elapsed() < HUNG, "the connection came free");
    }
}

// Regression: lanes took turns whether they had a connection or not, so every second decision timed out.
#[tokio::test]
async fn lane_without_a_connection_is_passed_over() {
    let server = Server::start();
    let pool = deadpool_redis::Config::from_url(server.url())
        .builder()
        .expect("a usable url");
    let pool = pool
        .max_size(2)
        .runtime(deadpool_redis::Runtime::Tokio1)
        .build()
        .expect("a pool");
    let taken = pool.get().await.expect("one of two connections");
    let store = RedisStoreBuilder::over_pool(pool)
        .connections(2)
        .deadline(DEADLINE)
        .build()
        .expect("a usable store");
    let policy = Policy::new("pooled", Quota::per_hour(1_000));
    let limiter = RateLimiter::new(store, [policy.clone()]).expect("a usable policy");
    for _ in 0..50 {
        limiter
            .check(&[policy.charge(Key::new("ada"))])
            .await
            .expect("a decision on the other lane");
    }
    drop(taken);
}

// Regression: if probes were as slow as decisions, the breaker closed at once and opened at once.
#[tokio::test]
async fn server_that_is_still_slow_does_not_close_the_breaker() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy = Policy::new("slow", Quota::per_hour(1_000_000));
    let limiter = limiter(RedisStore::builder(proxy.url()).connections(1), &policy);
    let charge = policy.charge(Key::new("ada"));
    check(&limiter, &[charge]).await;
    proxy.set(Mode::Delay(DEADLINE * 4 / 5));
    until_degraded(&limiter, &[charge]).await;
    // The third probe is sent after the first two were judged.
    server.flush_stats();
    let started = Instant::now();
    while server.command_calls().get("evalsha").copied().unwrap_or(0) < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let health = limiter.health();
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "nobody probes: {health:?}"
        );
    }
    assert!(is_degraded(&limiter), "every answer is still slow");
    proxy.set(Mode::Pass);
    until_steady(&limiter).await;
}

#[tokio::test]
async fn one_connection_serves_512_callers() {
    let server = Server::start();
    let policy = Arc::new(Policy::new("crowd", Quota::per_hour(100)));
    let limiter = limiter(RedisStore::builder(server.url()).connections(1), &policy);
    let mut callers = JoinSet::new();
    for _ in 0..512 {
        let (limiter, policy) = (limiter.clone(), Arc::clone(&policy));
        callers.spawn(async move { check(&limiter, &[policy.charge(Key::new("ada"))]).await });
    }
    let decisions = callers.join_all().await;
    assert!(
        decisions
            .iter()
            .all(|decision| decision.counted_by() == CountedBy::Shared),
        "{:?}",
        limiter.health()
    );
    assert_eq!(
        decisions
            .iter()
            .filter(|decision| decision.is_allowed())
            .count(),
        100
    );
    let clients = server.info("clients");
    let connected: u64 = clients["connected_clients"].parse().expect("a number");
    assert!(
        connected <= 3,
        "one for the limiter, the rest are the test's: {connected}"
    );
}

#[tokio::test]
async fn abandoned_decisions_leave_nothing_behind() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy = Policy::new("abandoned", Quota::per_hour(1_000_000));
    let limiter = limiter(proxy.url(), &policy);
    let charge = policy.charge(Key::new("ada"));
    // Dropped before the first poll, while dialling, and while waiting for the reply.
    drop(limiter.check(&[charge]));
    for patience in [0, 1, 5, 20] {
        let patience = Duration::from_millis(patience);
        proxy.set(if patience.is_zero() {
            Mode::Pass
        } else {
            Mode::Delay(DEADLINE / 4)
        });
        let _ = tokio::time::timeout(patience, limiter.check(&[charge])).await;
    }
    proxy.set(Mode::Pass);
    for _ in 0..200 {
        let _ = tokio::time::timeout(Duration::ZERO, limiter.check(&[charge])).await;
    }
    assert_eq!(
        check(&limiter, &[charge]).await.counted_by(),
        CountedBy::Shared
    );
    assert!(!is_degraded(&limiter));
    assert!(
        proxy.connections() <= 2,
        "no decision opened a connection of its own: {}",
        proxy.connections()
    );
}

// Regression: only a call that reached its own deadline was counted, so a timeout around the limiter hid the outage.
#[tokio::test]
async fn callers_that_leave_early_do_not_hide_a_hung_server() {
    let server = Server::start();
    let policy = Policy::new("impatient", Quota::per_hour(1_000_000));
    let limiter = limiter(server.url(), &policy);
    let charge = policy.charge(Key::new("ada"));
    check(&limiter, &[charge]).await;
    server.pause();
    let started = Instant::now();
    while !is_degraded(&limiter) {
        let _ = tokio::time::timeout(DEADLINE / 10, limiter.check(&[charge])).await;
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "nobody notices"
        );
    }
    let decision = limiter
        .check(&[charge])
        .take_ready()
        .expect("no wait")
        .expect("a decision");
    assert_eq!(decision.counted_by(), CountedBy::Fallback);
    server.resume();
    until_steady(&limiter).await;
}

// A caller that finds a lane idle makes its own call. Callers that come meanwhile wait for its end.
#[tokio::test]
async fn callers_behind_one_that_leaves_are_still_decided() {
    let server = Server::start();
    let policy = Policy::new("left-behind", Quota::per_hour(10));
    let store = RedisStore::builder(server.url())
        .connections(1)
        .deadline(HUNG);
    let limiter = RateLimiter::new(store.build().expect("a usable store"), [policy.clone()])
        .expect("a usable policy");
    let decide = |key: &str| limiter.check(&[policy.charge(Key::new(key))]);
    decide("warm").await.expect("a decision");
    // On a runtime of one thread no reply arrives between two polls.
    let mut first = decide("first");
    let mut second = decide("second");
    let both = std::future::poll_fn(|context| {
        assert!(std::pin::Pin::new(&mut first).poll(context).is_pending());
        assert!(std::pin::Pin::new(&mut second).poll(context).is_pending());
        std::task::Poll::Ready(())
    });
    both.await;
    drop(first);
    let started = Instant::now();
    let decision = second.await.expect("a decision");
    assert!(decision.is_allowed());
    assert!(
        started.elapsed() < HUNG / 2,
        "it waited for a call that nobody was making"
    );
}

#[tokio::test]
async fn more_decisions_than_may_wait_fail_at_once() {
    let server = Server::start();
    let policy = Arc::new(Policy::new("overload", Quota::per_hour(1_000_000)));
    let store = RedisStore::builder(server.url())
        .connections(1)
        .deadline(Duration::from_secs(60));
    let store = store.build().expect("a usable store");
    let limiter = RateLimiter::new(store, [(*policy).clone()]).expect("a usable policy");
    limiter
        .check(&[policy.charge(Key::new("warm"))])
        .await
        .expect("a decision");
    server.pause();
    let mut callers = JoinSet::new();
    for _ in 0..17_000 {
        let (limiter, policy) = (limiter.clone(), Arc::clone(&policy));
        callers.spawn(async move { limiter.check(&[policy.charge(Key::new("ada"))]).await });
    }
    // The first one and two full calls of 64 are in flight, as the window is 128. 16,384 wait, and the others fail before the server
    // has sent anything.
    let kept = 1 + 2 * 64 + 16_384;
    let mut refused = 0;
    while refused < 17_000 - kept {
        let error = callers
            .join_next()
            .await
            .expect("a caller")
            .expect("no panic")
            .expect_err("no room");
        assert_eq!(error.kind(), ErrorKind::Overloaded, "{error:?}");
        refused += 1;
    }
    server.resume();
    let rest = callers.join_all().await;
    assert_eq!(rest.len(), kept);
    assert!(
        rest.iter().all(Result::is_ok),
        "{:?}",
        rest.iter().find(|result| result.is_err())
    );
}

/// Returns a runtime that runs only while a thread blocks on it.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

// Regression: a dial whose task was dropped before its first poll left its lane dialling forever.
#[test]
fn dial_that_ended_with_its_runtime_is_made_again() {
    let server = Server::start();
    let policy = Policy::new("restarted", Quota::per_hour(10));
    let store = RedisStore::builder(server.url())
        .deadline(HUNG)
        .build()
        .expect("a usable store");
    let limiter = RateLimiter::new(store, [policy.clone()]).expect("a usable policy");
    let first = runtime();
    first.block_on(async {
        let mut answer = limiter.check(&[policy.charge(Key::new("ada"))]);
        let once = std::future::poll_fn(|context| {
            let _ = std::pin::Pin::new(&mut answer).poll(context);
            std::task::Poll::Ready(())
        });
        once.await;
    });
    drop(first);
    let decision = runtime().block_on(limiter.check(&[policy.charge(Key::new("ada"))]));
    assert!(decision.expect("a decision").is_allowed());
}

// Regression: a prober on a runtime that is not driven kept all others from probing.
#[test]
fn prober_that_is_not_driven_is_replaced() {
    let mut server = Server::start();
    let policy = Policy::new("undriven", Quota::per_hour(1_000_000));
    let limiter = limiter(server.url(), &policy);
    let charge = policy.charge(Key::new("ada"));
    let idle = runtime();
    server.kill();
    idle.block_on(until_degraded(&limiter, &[charge]));
    server.restart();
    runtime().block_on(async {
        let started = Instant::now();
        while is_degraded(&limiter) {
            check(&limiter, &[charge]).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "never recovered"
            );
        }
        assert_eq!(
            check(&limiter, &[charge]).await.counted_by(),
            CountedBy::Shared
        );
    });
    drop(idle);
}

// Regression: a permanent error never opened the breaker, so each decision dialled.
#[tokio::test]
async fn server_that_refuses_every_connection_opens_the_breaker() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy = Policy::new("no-such-database", Quota::per_hour(1_000_000));
    let limiter = limiter(format!("{}/99", proxy.url()), &policy);
    let charge = policy.charge(Key::new("ada"));
    until_degraded(&limiter, &[charge]).await;
    let before = proxy.connections();
    for _ in 0..2_000 {
        check(&limiter, &[charge]).await;
    }
    assert!(
        proxy.connections() - before <= 4,
        "{} connections",
        proxy.connections() - before
    );
}

#[tokio::test]
async fn outage_opens_no_storm_of_connections() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy = Policy::new("calm", Quota::per_hour(1_000_000));
    let limiter = limiter(proxy.url(), &policy);
    let charge = policy.charge(Key::new("ada"));
    check(&limiter, &[charge]).await;
    proxy.set(Mode::Refuse);
    until_degraded(&limiter, &[charge]).await;
    let before = proxy.connections();
    for _ in 0..10_000 {
        check(&limiter, &[charge]).await;
    }
    assert!(
        proxy.connections() - before <= 4,
        "only the probe dials: {}",
        proxy.connections() - before
    );
}

#[tokio::test]
async fn foreign_value_falls_back_without_opening_the_breaker() {
    let server = Server::start();
    let policy = Policy::new("foreign", Quota::per_hour(2));
    let limiter = limiter(server.url(), &policy);
    server.command(&["SET", "tollgate:{bad}:foreign", "hello"]);
    for _ in 0..20 {
        let decision = check(&limiter, &[policy.charge(Key::new("bad"))]).await;
        assert_eq!(decision.counted_by(), CountedBy::Fallback);
    }
    assert!(
        !is_degraded(&limiter),
        "one bad key says nothing about the server"
    );
    let good = check(&limiter, &[policy.charge(Key::new("good"))]).await;
    assert_eq!(good.counted_by(), CountedBy::Shared);
}

#[tokio::test]
async fn missing_password_is_named_as_the_reason() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    let store = RedisStore::builder(server.url().replace("secret@", "").replace(":secret", ""));
    let store = store.deadline(DEADLINE).build().expect("a usable store");
    let error = store.probe().await.expect_err("no password");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let said = error.to_string();
    assert!(said.contains("redis://:password@host"), "{said}");
}

// Before Redis 6.2.3 and in its descendants the limits on a client without a password come before NOAUTH.
#[tokio::test]
async fn missing_password_is_the_reason_under_every_error_of_the_server() {
    for reply in [
        &b"-ERR Protocol error: unauthenticated multibulk length\r\n"[..],
        b"-ERR Protocol error: unauthenticated bulk length\r\n",
        b"-NOAUTH Authentication required.\r\n",
    ] {
        let error = refusal(&fixed_reply_server(reply).await).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        let said = error.to_string();
        assert!(said.contains("redis://:password@host"), "{said}");
    }
}

#[tokio::test]
async fn database_that_the_server_does_not_have_is_not_an_error_of_the_script() {
    let server = Server::start();
    let error = refusal(&format!("{}/99", server.url().trim_end_matches('/'))).await;
    let said = error.to_string();
    assert!(said.contains("database"), "{said}");
    assert!(!said.contains("script"), "{said}");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error:?}");
}

/// Returns the error of a store that cannot work.
async fn refusal(url: &str) -> tollgate::Error {
    let store = RedisStore::builder(url).deadline(DEADLINE);
    let store = store.build().expect("a usable store");
    store.probe().await.expect_err("it cannot work")
}

/// Returns the integers of a reply as the script packs them.
fn packed(numbers: &[u64]) -> Vec<u8> {
    let bytes = numbers.iter().flat_map(|number| number.to_be_bytes());
    bulk(&bytes.collect::<Vec<_>>())
}

/// Returns a bulk string as the server sends it.
fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Starts a server that replies to every command with one fixed text.
async fn fixed_reply_server(reply: impl Into<Vec<u8>>) -> String {
    let reply: Vec<u8> = reply.into();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let reply = reply.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 65_536];
                while let Ok(read) = stream.read(&mut buffer).await {
                    // One reply per command: each begins with an array header at the start of a line.
                    let starts = buffer[..read]
                        .split(|byte| *byte == b'\n')
                        .filter(|line| line.first() == Some(&b'*'));
                    if read == 0
                        || stream
                            .write_all(&reply.repeat(starts.count()))
                            .await
                            .is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    format!("redis://{address}")
}

#[tokio::test]
async fn malformed_replies_are_errors_and_never_panics() {
    let replies: [Vec<u8>; 13] = [
        b"+OK\r\n".to_vec(),
        b"$-1\r\n".to_vec(),
        b":7\r\n".to_vec(),
        b"*0\r\n".to_vec(),
        b"*4\r\n:1\r\n:1\r\n:1\r\n:5\r\n".to_vec(),
        bulk(b""),
        bulk(b"12345678901"),
        packed(&[1, 0, 1, 5]),
        packed(&[1, 1, 1, 5, 5]),
        packed(&[1, 0, 7, 5]),
        packed(&[u64::MAX, 1, 1, 5]),
        packed(&[1, 1, 1, 1 << 53]),
        b"\x00\xff garbage\r\n".to_vec(),
    ];
    for reply in replies {
        let store = RedisStore::builder(fixed_reply_server(reply.clone()).await)
            .deadline(DEADLINE)
            .build()
            .expect("a usable store");
        let policy = Policy::new("parrot", Quota::per_hour(2));
        let limiter = RateLimiter::new(store, [policy.clone()]).expect("a usable policy");
        let answer = tokio::time::timeout(HUNG, limiter.check(&[policy.charge(Key::new("ada"))]));
        let error = answer
            .await
            .expect("bounded")
            .expect_err("no decision can be read from it");
        assert!(
            matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Connect),
            "{:?}: {error:?}",
            String::from_utf8_lossy(&reply)
        );
    }
}

// Numbers that the script can return, and no clock: nothing that is computed from them may overflow.
#[tokio::test]
async fn replies_with_extreme_numbers_never_panic() {
    let replies: [[u64; 4]; 4] = [
        [0, 1, 1, 9_007_199_254_740_991],
        [0, 0, 0, 9_007_199_254_740_991],
        [9_007_199_254_740_991, 0, 0, 0],
        [9_007_199_254_740_991, 0, 0, 9_007_199_254_740_991],
    ];
    let quotas = [
        Quota::per_hour(2),
        Quota::per_second(3),
        Quota::new(1, Duration::from_secs(366 * 86_400)),
        Quota::new(1_000_000, Duration::from_secs(1)),
        Quota::new(999_983, Duration::from_secs(1)).burst(1_000_003),
    ];
    for reply in replies {
        let store = RedisStore::builder(fixed_reply_server(packed(&reply)).await).deadline(HUNG);
        let store = store.build().expect("a usable store");
        for (number, quota) in quotas.into_iter().enumerate() {
            let policy = Policy::new(format!("extreme-{number}"), quota);
            let limiter = RateLimiter::new(store.clone(), [policy.clone()]);
            let limiter = limiter.expect("a usable policy");
            let decision = check(&limiter, &[policy.charge(Key::new("ada"))]).await;
            let _ = decision.retry_after();
        }
    }
}

#[tokio::test]
async fn slot_that_never_ends_to_move_is_named_as_the_reason_at_the_deadline() {
    let url = fixed_reply_server(b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n");
    let store = RedisStore::builder(url.await).deadline(Duration::from_millis(100));
    let store = store.build().expect("a usable store");
    let started = Instant::now();
    let error = store.probe().await.expect_err("it is not decided");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("moves the slot"), "{error}");
    assert!(started.elapsed() < HUNG, "tried for ever");
}

// Regression: with few requests, a wrong address was not logged until the breaker opened.
#[tokio::test]
async fn server_that_was_never_there_is_logged_at_the_first_decision() {
    logged();
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let policy = Policy::new("wrong", Quota::per_hour(1_000));
    let limiter = limiter(format!("redis://{address}/"), &policy);
    for _ in 0..2 {
        check(&limiter, &[policy.charge(Key::new("ada"))]).await;
        assert!(!is_degraded(&limiter), "the breaker is not that quick");
    }
    let lines = logged();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("has not decided yet"), "{lines:#?}");
    assert!(lines[0].contains("refused"), "{lines:#?}");
}

// Regression: the reason for the first 503 was unknown until the breaker opened.
#[tokio::test]
async fn reason_for_a_503_is_known_while_the_breaker_is_closed() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let policy = Policy::new("strict", Quota::per_hour(9)).on_outage(OnOutage::Deny);
    let limiter = limiter(format!("redis://{address}/"), &policy);
    assert!(limiter.health().cause().is_none());
    let decision = check(&limiter, &[policy.charge(Key::new("ada"))]).await;
    assert_eq!(decision.outcome(), Outcome::Unavailable);
    let health = limiter.health();
    assert!(!health.is_degraded(), "the breaker is not that quick");
    let cause = health.cause().expect("the latest failure");
    assert_eq!(cause.kind(), ErrorKind::Connect);
    assert_eq!(health.affected_share(), 1.0);
}

#[tokio::test]
async fn each_transition_is_logged_once_and_requests_never() {
    logged();
    let mut server = Server::start();
    let policy = Policy::new("logged", Quota::per_hour(3));
    let limiter = limiter(server.url(), &policy);
    let charge = policy.charge(Key::new("ada"));
    for _ in 0..50 {
        check(&limiter, &[charge]).await;
    }
    server.kill();
    until_degraded(&limiter, &[charge]).await;
    for _ in 0..500 {
        check(&limiter, &[charge]).await;
    }
    let health = limiter.health();
    assert!(health.is_degraded());
    assert!(health.fallback_decisions() >= 500, "{health:?}");
    server.restart();
    until_steady(&limiter).await;
    for _ in 0..50 {
        check(&limiter, &[charge]).await;
    }
    let lines = logged();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert!(lines[0].contains("mode=degraded"), "{lines:#?}");
    assert!(lines[1].contains("was restarted or replaced"), "{lines:#?}");
    assert!(lines[2].contains("mode=healthy"), "{lines:#?}");
}
