//! Redis Cluster: routing, redirects, failovers and decisions on keys in several slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, yield_now};
use tollgate::{
    Charge, Decision, ErrorKind, Key, Policy, Quota, RateLimiter,
    algorithm::Algorithm,
    decision::CountedBy,
    diagnosis::{Code, Warning},
    memory::MemoryStore,
    remote::{RedisStore, RedisStoreBuilder},
    resilience::ResilientStore,
    store::Mode,
};

use crate::support::{Cluster, Server, logged};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_millis(500);
/// Longer than anything here takes on a loaded machine.
const HUNG: Duration = Duration::from_secs(30);

/// Returns a limiter that returns the errors of Redis.
fn bare(url: &str) -> RateLimiter {
    // While a slot moves, and on a loaded machine, a decision takes most of a second.
    let store = RedisStore::builder(url).deadline(HUNG).build();
    RateLimiter::new(store.expect("a usable store"), []).expect("a limiter")
}

/// Returns a limiter with a breaker per node, and a fallback.
fn resilient(url: &str, deadline: Duration) -> RateLimiter {
    let builder = RateLimiter::builder().redis(url).deadline(deadline);
    builder.build().expect("a usable limiter")
}

fn per_hour(name: &str, count: u64) -> Policy {
    Policy::new(name, Quota::per_hour(count))
}

async fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    let decision = limiter.check(charges).await;
    decision.unwrap_or_else(|error| panic!("{error:?}"))
}

/// Decides on each identity at the same time, and returns how many were allowed.
async fn allowed_together(
    limiter: &RateLimiter,
    policy: &Policy,
    identities: impl Iterator<Item = String>,
) -> usize {
    let mut callers = JoinSet::new();
    for identity in identities {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        callers.spawn(async move {
            let decision = check(&limiter, &[policy.charge(Key::new(identity))]).await;
            assert_eq!(decision.counted_by(), CountedBy::Shared);
            decision.is_allowed()
        });
    }
    let results = callers.join_all().await;
    results.into_iter().filter(|allowed| *allowed).count()
}

/// Returns how often a node has redirected a command.
fn redirects(node: &Server) -> u64 {
    let stats = node.info("errorstats");
    let moved = stats.get("errorstat_MOVED");
    let moved = moved.and_then(|moved| moved.strip_prefix("count="));
    moved.map_or(0, |moved| moved.parse().expect("a number"))
}

/// Waits until a condition holds.
#[track_caller]
fn until(started: Instant, message: &str) {
    assert!(started.elapsed() < HUNG, "{message}");
}

// Regression: a cluster of one node decided 1,000 of 1,000 one after the other, and 9 of 1,000 together.
#[tokio::test]
async fn cluster_of_one_node_needs_no_setting() {
    let server = Server::start_cluster();
    let policy = per_hour("user", 3);
    let limiters = [bare(&server.url()), bare(&server.url())];
    for limiter in &limiters {
        let identities = (0..1_000).map(|number| number.to_string());
        assert_eq!(allowed_together(limiter, &policy, identities).await, 1_000);
    }
    let same = (0..100).map(|_| "7".to_owned());
    assert_eq!(
        allowed_together(&limiters[0], &policy, same).await,
        1,
        "3 less the 2 before"
    );
}

// Regression: each search for the slots left a dial to each replica behind, for ever.
#[tokio::test]
async fn cluster_that_hangs_costs_a_bounded_number_of_tasks_and_they_end_with_the_limiter() {
    let cluster = Cluster::start(1, 2);
    let limiter = resilient(&cluster.nodes[0].url(), Duration::from_millis(50));
    let policy = per_hour("user", 1_000_000);
    let key = Key::new("ada");
    until_shared(&limiter, &policy, key).await;
    let alive = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    for node in &cluster.nodes {
        node.pause();
    }
    let (started, mut most) = (Instant::now(), 0);
    while limiter.health().probes() < 8 {
        until(started, "no probes");
        check(&limiter, &[policy.charge(key)]).await;
        most = most.max(alive());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(limiter);
    while alive() > 0 {
        until(started, "tasks are left");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(most < 40, "{most} tasks");
}

#[tokio::test]
async fn each_key_is_decided_by_the_node_of_its_slot() {
    let cluster = Cluster::start(3, 0);
    let policy = per_hour("user", 2);
    // Each node may be the one that the application names.
    for (index, node) in cluster.nodes.iter().enumerate() {
        let limiter = bare(&node.url());
        let identities = (0..300).map(|number| format!("{index}-{number}"));
        assert_eq!(
            allowed_together(&limiter, &policy, identities.clone()).await,
            300
        );
        assert_eq!(
            allowed_together(&limiter, &policy, identities.clone()).await,
            300
        );
        assert_eq!(allowed_together(&limiter, &policy, identities).await, 0);
    }
    let stored: Vec<usize> = cluster.nodes.iter().map(|node| node.keys().len()).collect();
    assert_eq!(stored.iter().sum::<usize>(), 900, "{stored:?}");
    assert!(stored.iter().all(|keys| *keys > 200), "{stored:?}");
}

#[tokio::test]
async fn redirects_stop_once_the_slots_are_known() {
    let cluster = Cluster::start(3, 0);
    let policy = per_hour("user", 1_000_000);
    let limiter = bare(&cluster.nodes[0].url());
    let errors = || cluster.nodes.iter().map(redirects).sum::<u64>();
    let identities = || (0..100).map(|number| number.to_string());
    let started = Instant::now();
    loop {
        let before = errors();
        assert_eq!(allowed_together(&limiter, &policy, identities()).await, 100);
        if errors() == before && before > 0 {
            break;
        }
        until(started, "redirected for ever");
    }
}

/// Decides on one key in a loop until it is stopped. Returns the number of allowed requests.
async fn hammer(
    limiter: RateLimiter,
    policies: Vec<Policy>,
    identity: String,
    stop: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
) -> u64 {
    let mut allowed = 0;
    let key = Key::new(identity);
    let charges: Vec<_> = policies.iter().map(|policy| policy.charge(key)).collect();
    while !stop.load(Ordering::Relaxed) {
        let decision = check(&limiter, &charges).await;
        allowed += u64::from(decision.is_allowed());
        decided.fetch_add(1, Ordering::Relaxed);
        yield_now().await;
    }
    allowed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_lose_no_decision_and_no_charge() {
    let cluster = Cluster::start(3, 0);
    let limit = 2_000;
    // Two keys in one slot: one command may find one of them here and the other one there.
    // No unit comes back before the end.
    let day = Policy::new("day", Quota::per_day(limit));
    let policies = vec![per_hour("hour", 1_000_000), day];
    let identity = cluster.identity_at(0, "k");
    let (stop, decided) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
    let mut callers = JoinSet::new();
    for node in &cluster.nodes {
        let limiter = bare(&node.url());
        for _ in 0..8 {
            let (stop, decided) = (Arc::clone(&stop), Arc::clone(&decided));
            callers.spawn(hammer(
                limiter.clone(),
                policies.clone(),
                identity.clone(),
                stop,
                decided,
            ));
        }
    }
    let slot = cluster.slot_of(&identity);
    let moving = tokio::task::spawn_blocking({
        let decided = Arc::clone(&decided);
        move || {
            for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 2)] {
                cluster.move_slot(slot, from, to, || {
                    let (before, started) = (decided.load(Ordering::Relaxed), Instant::now());
                    // The callers go on while the slot is open, but for those that need both keys.
                    while decided.load(Ordering::Relaxed) < before + 20
                        && started.elapsed() < Duration::from_millis(100)
                    {
                        std::thread::yield_now();
                    }
                });
            }
            cluster
        }
    });
    let cluster = moving.await.expect("the slot moves");
    let (at_the_end, started) = (decided.load(Ordering::Relaxed), Instant::now());
    while decided.load(Ordering::Relaxed) < at_the_end + 3 * limit {
        until(started, "no decisions after the move");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let allowed: u64 = callers.join_all().await.into_iter().sum();
    assert_eq!(allowed, limit, "each charge was made once");
    assert_eq!(
        cluster.nodes[2].keys().len(),
        2,
        "{:?}",
        cluster.nodes[2].keys()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_keys_are_decided_while_others_of_their_slot_are_on_another_node() {
    let cluster = Cluster::start(2, 0);
    let identity = cluster.identity_at(0, "k");
    let (stop, decided) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
    let limiter = bare(&cluster.nodes[0].url());
    let mut callers = JoinSet::new();
    // Keys of one slot, which share a command as long as they are on one node.
    for caller in 0..32 {
        let policies = vec![per_hour(&format!("policy-{}", caller % 4), 1_000_000)];
        let (stop, decided) = (Arc::clone(&stop), Arc::clone(&decided));
        callers.spawn(hammer(
            limiter.clone(),
            policies,
            identity.clone(),
            stop,
            decided,
        ));
    }
    let started = Instant::now();
    while cluster.nodes[0].keys().len() < 4 {
        until(started, "no decisions");
        yield_now().await;
    }
    let slot = cluster.slot_of(&identity);
    let moving = tokio::task::spawn_blocking(move || {
        cluster.move_slot(slot, 0, 1, || {
            let before = decided.load(Ordering::Relaxed);
            while decided.load(Ordering::Relaxed) < before + 2_000 {
                until(started, "no decisions while the slot is open");
                std::thread::yield_now();
            }
        });
        cluster
    });
    let _cluster = moving.await.expect("the slot moves");
    stop.store(true, Ordering::Relaxed);
    callers.join_all().await;
}

// Regression: each reset waited for its deadline, and failed with TRYAGAIN, as long as the slot was being moved.
#[tokio::test]
async fn key_is_reset_while_its_slot_moves() {
    let cluster = Cluster::start(2, 0);
    let identity = cluster.identity_at(0, "k");
    let (key, slot) = (Key::new(&identity), cluster.slot_of(&identity).to_string());
    let [moved, stays] = ["moved", "stays"].map(|name| per_hour(name, 10));
    // The second one does not know yet that its server is a node of a cluster.
    let limiters = [0, 1].map(|_| bare(&cluster.nodes[0].url()));
    for policy in [&moved, &stays] {
        check(&limiters[0], &[policy.charge(key).cost(3)]).await;
    }
    let [first, second] = [0, 1].map(|node| cluster.id(node));
    let set_slot = |node: usize, state: &str, other: &str| {
        cluster.nodes[node].command(&["CLUSTER", "SETSLOT", &slot, state, other]);
    };
    set_slot(1, "IMPORTING", &first);
    set_slot(0, "MIGRATING", &second);
    let (port, name) = (
        cluster.nodes[1].port().to_string(),
        format!("tollgate:{{{identity}}}:moved"),
    );
    cluster.nodes[0].command(&["MIGRATE", "127.0.0.1", &port, &name, "0", "5000"]);
    for (limiter, policy) in limiters.iter().zip([&moved, &stays]) {
        let left = async || {
            let decision = check(&limiters[0], &[policy.charge(key).cost(0)]).await;
            decision.states()[0].usage().map(|usage| usage.remaining)
        };
        assert_eq!(left().await, Some(7), "{}", policy.name());
        limiter
            .reset(policy, &key)
            .await
            .expect("the slot has nodes");
        assert_eq!(left().await, Some(10), "{}", policy.name());
    }
}

#[tokio::test]
async fn dead_primary_degrades_its_own_keys_until_its_replica_takes_over() {
    let mut cluster = Cluster::start_with(3, 1, &["--cluster-require-full-coverage", "no"]);
    let policy = per_hour("user", 1_000_000);
    let limiter = resilient(&cluster.nodes[0].url(), Duration::from_millis(100));
    let keys = [0, 1, 2].map(|primary| Key::new(cluster.identity_at(primary, "k")));
    let counted_by = async |primary: usize| {
        let decision = check(&limiter, &[policy.charge(keys[primary])]).await;
        assert!(decision.is_allowed());
        decision.counted_by()
    };
    let started = Instant::now();
    for primary in [0, 1, 2] {
        while counted_by(primary).await != CountedBy::Shared {
            until(started, "never counted by Redis");
        }
    }
    // The node that the application named: the others must find its successor.
    cluster.nodes[0].kill();
    let (started, mut by_fallback) = (Instant::now(), 0);
    let mut dead = None;
    while counted_by(0).await != CountedBy::Shared || by_fallback == 0 {
        by_fallback += 1;
        let health = limiter.health();
        assert!(health.outages().len() <= 1, "{health:?}");
        dead = dead.or_else(|| Some(health.outages().first()?.server()?.to_owned()));
        assert_eq!(counted_by(1).await, CountedBy::Shared);
        assert_eq!(counted_by(2).await, CountedBy::Shared);
        until(started, "the replica never decides");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Regression: the dead node has no slots any more, and the channel reported its outage for ever.
    let mut changes = limiter.mode_changes();
    let healthy = changes.wait_for(|mode| *mode == Mode::Healthy);
    let healthy = tokio::time::timeout(HUNG, healthy).await;
    healthy
        .expect("it is healthy in the end")
        .expect("there is a channel");
    assert_eq!(dead, Some(format!("127.0.0.1:{}", cluster.nodes[0].port())));
    assert!(!limiter.health().is_degraded(), "{:?}", limiter.health());
    let keys = cluster.nodes[3].keys();
    assert!(keys.iter().any(|key| key.ends_with("}:user")), "{keys:?}");
}

// Regression: each node was sent the merges of all nodes, again and again while one of them was down.
#[tokio::test]
async fn merges_of_a_dead_node_are_not_sent_to_others() {
    let cluster = Cluster::start_with(3, 0, &["--cluster-node-timeout", "600000"]);
    let limiter = resilient(&cluster.nodes[2].url(), Duration::from_millis(100));
    let policy = per_hour("user", 1_000_000).algorithm(Algorithm::SlidingWindow);
    let keys = [0, 1].map(|primary| {
        let identities = (0..20).map(|number| format!("{number}-"));
        let keys = identities.map(|start| Key::new(cluster.identity_at(primary, &start)));
        keys.collect::<Vec<_>>()
    });
    let counted_by = async |key: &Key| {
        let decision = check(&limiter, &[policy.charge(*key)]).await;
        decision.counted_by()
    };
    let started = Instant::now();
    for keys in &keys {
        while counted_by(&keys[0]).await != CountedBy::Shared {
            until(started, "never counted by Redis");
        }
    }
    for (node, keys) in cluster.nodes.iter().zip(&keys) {
        node.pause();
        while limiter.health().outages().iter().all(|outage| {
            let address = format!("127.0.0.1:{}", node.port());
            outage.server() != Some(&address)
        }) {
            counted_by(&keys[0]).await;
            until(started, "no outage");
            yield_now().await;
        }
        for key in keys {
            assert_eq!(counted_by(key).await, CountedBy::Fallback);
        }
    }
    assert_eq!(limiter.health().pending_merges(), 40);
    let before = redirects(&cluster.nodes[2]);
    cluster.nodes[1].resume();
    while limiter.health().pending_merges() > 20 {
        counted_by(&keys[1][0]).await;
        until(started, "the merges are not made");
        yield_now().await;
    }
    assert_eq!(redirects(&cluster.nodes[1]), 0);
    assert_eq!(redirects(&cluster.nodes[2]), before);
    cluster.nodes[0].resume();
    while limiter.health().pending_merges() > 0 {
        counted_by(&keys[0][0]).await;
        until(started, "the merges are not made");
        yield_now().await;
    }
}

/// Peeks until Redis decides on this key.
async fn until_shared(limiter: &RateLimiter, policy: &Policy, key: Key) {
    let started = Instant::now();
    loop {
        let decision = limiter.peek(&[policy.charge(key)]).await;
        if decision.expect("a decision").counted_by() == CountedBy::Shared {
            return;
        }
        until(started, "never counted by Redis");
    }
}

/// Kills the first primary, and decides until its replica does.
async fn replace_first_primary(cluster: &mut Cluster, limiter: &RateLimiter) {
    let (idle, key) = (
        per_hour("idle", 1_000_000),
        Key::new(cluster.identity_at(0, "other")),
    );
    until_shared(limiter, &idle, key).await;
    let is_shared = async || {
        let decision = check(limiter, &[idle.charge(key)]).await;
        decision.counted_by() == CountedBy::Shared
    };
    let started = Instant::now();
    cluster.nodes[0].kill();
    while is_shared().await {
        until(started, "the primary is still there");
    }
    let mut probes = 0;
    while !is_shared().await {
        until(started, "the replica never decides");
        probes = limiter.health().probes();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Regression: those of the node that left were not counted any more.
    assert!(
        probes > 0 && limiter.health().probes() >= probes,
        "{probes}"
    );
}

/// Makes this many requests, which Redis decides or has denied before. Returns how many were allowed.
async fn allowed_by_redis(limiter: &RateLimiter, charge: Charge<'_>, requests: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..requests {
        let decision = check(limiter, &[charge]).await;
        let by_redis = [CountedBy::Shared, CountedBy::DenialCache];
        assert!(by_redis.contains(&decision.counted_by()), "{decision:?}");
        allowed += usize::from(decision.is_allowed());
    }
    allowed
}

// Regression: a replica that lacked the latest charges granted the whole quota again.
#[tokio::test]
async fn usage_that_a_promoted_replica_lacks_is_restored() {
    let mut cluster = Cluster::start_with(3, 1, &["--replica-read-only", "no"]);
    let limiter = resilient(&cluster.nodes[1].url(), DEADLINE);
    let policy = per_hour("user", 40).algorithm(Algorithm::SlidingLog);
    let key = Key::new(cluster.identity_at(0, "k"));
    until_shared(&limiter, &policy, key).await;
    assert_eq!(allowed_by_redis(&limiter, policy.charge(key), 27).await, 27);
    cluster.nodes[3].command(&["FLUSHALL"]);
    replace_first_primary(&mut cluster, &limiter).await;
    assert_eq!(allowed_by_redis(&limiter, policy.charge(key), 20).await, 13);
}

/// Makes the other of two nodes the primary, without any data. Returns how many of 20 requests are then allowed.
async fn allowed_after_takeover(
    cluster: &Cluster,
    [from, to]: [usize; 2],
    limiter: &RateLimiter,
    charge: Charge<'_>,
) -> usize {
    take_over(cluster, from, to);
    let mut allowed = 0;
    for _ in 0..20 {
        let decision = check(limiter, &[charge]).await;
        allowed += usize::from(decision.is_allowed());
    }
    allowed
}

// Regression: until the slots were looked up, a promoted replica that a redirect led to granted the whole quota again; and
// always if it had been the primary before.
#[tokio::test]
async fn usage_that_a_promoted_replica_lacks_is_restored_before_a_redirect_to_it_is_followed() {
    let cluster = Cluster::start(3, 1);
    let limiter = resilient(&cluster.nodes[1].url(), DEADLINE);
    let policy = per_hour("user", 40).algorithm(Algorithm::SlidingLog);
    let key = Key::new(cluster.identity_at(0, "k"));
    let charge = policy.charge(key);
    until_shared(&limiter, &policy, key).await;
    assert_eq!(allowed_by_redis(&limiter, charge, 27).await, 27);
    for (nodes, left) in [([0, 3], 13), ([3, 0], 0)] {
        let allowed = allowed_after_takeover(&cluster, nodes, &limiter, charge).await;
        assert_eq!(allowed, left, "{nodes:?}");
    }
}

// One that starts later learns the number of instances from another node; the shares of the earlier ones stay as they were.
#[tokio::test]
async fn instance_that_starts_while_one_node_is_down_grants_one_share_more_of_its_keys() {
    // Of two primaries, the one that is left would be a minority, and refuse a second later.
    let mut cluster = primaries(3);
    let members = cluster.primary_of("{!}");
    let down = (members + 1) % 3;
    let [key, idle] = [down, members].map(|node| Key::new(cluster.identity_at(node, "k")));
    let policy = per_hour("user", 40).algorithm(Algorithm::SlidingLog);
    let url = cluster.nodes[members].url();
    let one = resilient(&url, DEADLINE);
    until_shared(&one, &policy, key).await;
    let started = Instant::now();
    while one.health().instances() != Some(1) {
        until(started, "never registered");
        check(&one, &[policy.charge(key).cost(0)]).await;
    }
    cluster.nodes[down].kill();
    while !one.health().is_degraded() {
        until(started, "never degraded");
        check(&one, &[policy.charge(key).cost(0)]).await;
    }
    let mut allowed = allowed_at_once(&one, &policy, key, 50).await;
    let other = resilient(&url, DEADLINE);
    let idle_policy = per_hour("idle", 1_000_000);
    while other.health().instances() != Some(2) {
        until(started, "never registered");
        check(&other, &[idle_policy.charge(idle)]).await;
        // Its registration ends some seconds after its last decision.
        check(&one, &[idle_policy.charge(idle)]).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    allowed += allowed_at_once(&other, &policy, key, 50).await;
    assert_eq!(allowed, 40 + 20);
}

/// Uses a quota up at the second primary, kills this one, gives its slots to the node at `taker`, and returns how many
/// of at least 50 more requests are allowed.
async fn allowed_after_the_slots_of_a_lost_node_went_to(
    taker: usize,
    cluster: &mut Cluster,
    limiter: &RateLimiter,
) -> usize {
    let policy = per_hour("user", 40).algorithm(Algorithm::SlidingLog);
    let key = Key::new(cluster.identity_at(1, "k"));
    let (slots, lost) = (cluster.slots(1), cluster.id(1));
    until_shared(limiter, &policy, key).await;
    assert_eq!(allowed_by_redis(limiter, policy.charge(key), 40).await, 40);
    cluster.nodes[1].kill();
    let started = Instant::now();
    while !limiter.health().is_degraded() {
        until(started, "never degraded");
        check(limiter, &[policy.charge(key)]).await;
    }
    for node in (0..cluster.nodes.len()).filter(|node| *node != 1) {
        cluster.nodes[node].command(&["CLUSTER", "FORGET", &lost]);
    }
    let (first, last) = (slots.start().to_string(), slots.end().to_string());
    cluster.nodes[taker].command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
    let (mut allowed, mut shared) = (0, 0);
    while shared < 50 {
        until(started, "the slots are not found at the other primary");
        let decision = check(limiter, &[policy.charge(key)]).await;
        allowed += usize::from(decision.is_allowed());
        let by_redis = [CountedBy::Shared, CountedBy::DenialCache];
        shared += usize::from(by_redis.contains(&decision.counted_by()));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    allowed
}

/// Starts primaries that serve their slots although others are down.
fn primaries(count: usize) -> Cluster {
    Cluster::start_with(count, 0, &["--cluster-require-full-coverage", "no"])
}

// Regression: where a node without a replica died, and another primary got its slots, as by `redis-cli --cluster fix`, the
// whole quota was granted again.
#[tokio::test]
async fn usage_of_a_lost_node_whose_slots_another_primary_gets_is_restored() {
    let mut cluster = primaries(2);
    let limiter = resilient(&cluster.nodes[0].url(), DEADLINE);
    let allowed = allowed_after_the_slots_of_a_lost_node_went_to(0, &mut cluster, &limiter);
    assert_eq!(allowed.await, 0);
}

// Regression: the same, where a redirect leads to that primary, as the user may not look the slots up.
#[tokio::test]
async fn user_that_may_not_look_the_slots_up_has_the_usage_of_a_lost_node_restored() {
    let mut cluster = primaries(3);
    let limiter = resilient(&url_without_rights(&cluster, 2), DEADLINE);
    // A redirect shows that it is a primary.
    let of_taker = Key::new(cluster.identity_at(0, "k"));
    until_shared(&limiter, &per_hour("user", 40), of_taker).await;
    let allowed = allowed_after_the_slots_of_a_lost_node_went_to(0, &mut cluster, &limiter);
    assert_eq!(allowed.await, 0);
}

/// Returns two identities in different slots of the first primary.
fn two_slots_of_the_first(cluster: &Cluster) -> [Key; 2] {
    let one = cluster.identity_at(0, "k");
    let slot = cluster.slot_of(&one);
    let others = (0..).map(|number| cluster.identity_at(0, &format!("other{number}-")));
    let other = others
        .into_iter()
        .find(|other| cluster.slot_of(other) != slot);
    [one, other.expect("there are many")].map(Key::new)
}

/// Makes this many requests at the same time. Returns how many were allowed.
async fn allowed_at_once(
    limiter: &RateLimiter,
    policy: &Policy,
    key: Key,
    requests: usize,
) -> usize {
    let checks = (0..requests).map(async |_| check(limiter, &[policy.charge(key)]).await);
    let decisions = futures_util::future::join_all(checks).await;
    decisions.iter().filter(|one| one.is_allowed()).count()
}

/// Makes one node a primary in place of another one, without any data, and waits until this one redirects to it.
fn take_over(cluster: &Cluster, from: usize, to: usize) {
    // In one write: what the limiter restores meanwhile in the background would be flushed.
    let mut commands = redis::pipe();
    commands.cmd("CLUSTER").arg("FAILOVER").arg("TAKEOVER");
    commands.cmd("FLUSHALL");
    let replies = commands.query::<[String; 2]>(&mut cluster.nodes[to].connection());
    assert_eq!(replies.expect("it is promoted"), ["OK", "OK"]);
    let started = Instant::now();
    while cluster.nodes[from].info("replication")["role"] != "slave" {
        until(started, "the old primary does not step down");
    }
}

// Regression: only the slot of the first redirect was restored, until the slots were looked up.
#[tokio::test]
async fn usage_in_all_slots_of_a_promoted_replica_is_restored_before_redirects_to_it_are_followed()
{
    let cluster = Cluster::start(3, 1);
    let limiter = resilient(&cluster.nodes[1].url(), DEADLINE);
    let policy = per_hour("user", 40).algorithm(Algorithm::SlidingLog);
    let keys = two_slots_of_the_first(&cluster);
    for key in keys {
        until_shared(&limiter, &policy, key).await;
        assert_eq!(allowed_by_redis(&limiter, policy.charge(key), 40).await, 40);
    }
    take_over(&cluster, 0, 3);
    let mut allowed = Vec::new();
    for key in keys {
        allowed.push(allowed_at_once(&limiter, &policy, key, 40).await);
    }
    assert_eq!(allowed, [0, 0]);
}

/// Returns the url of a node for a user who may not look the slots up.
fn url_without_rights(cluster: &Cluster, node: usize) -> String {
    for node in &cluster.nodes {
        let rights = ["+@all", "-cluster", "+cluster|info"];
        let user = ["ACL", "SETUSER", "ada", "on", ">secret", "~*"];
        node.command(&[user.as_slice(), &rights].concat());
    }
    format!(
        "redis://ada:secret@127.0.0.1:{}",
        cluster.nodes[node].port()
    )
}

// Regression: the usage in slots that had not been redirected was never restored.
#[tokio::test]
async fn user_that_may_not_look_the_slots_up_has_the_usage_in_all_slots_restored() {
    let cluster = Cluster::start(3, 1);
    let limiter = resilient(&url_without_rights(&cluster, 1), DEADLINE);
    let policy = per_hour("user", 40).algorithm(Algorithm::SlidingLog);
    let keys = two_slots_of_the_first(&cluster);
    for key in keys {
        until_shared(&limiter, &policy, key).await;
        assert_eq!(allowed_by_redis(&limiter, policy.charge(key), 40).await, 40);
    }
    take_over(&cluster, 0, 3);
    assert_eq!(allowed_at_once(&limiter, &policy, keys[0], 40).await, 0);
    // Longer than any look-up of the slots could take.
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        assert_eq!(allowed_at_once(&limiter, &policy, keys[0], 1).await, 0);
    }
    assert_eq!(allowed_at_once(&limiter, &policy, keys[1], 40).await, 0);
}

// Regression: a node that was promoted counted as a primary after it had stepped down, so its next promotion was missed.
#[tokio::test]
async fn user_that_may_not_look_the_slots_up_notices_each_failover() {
    let cluster = Cluster::start(3, 1);
    let limiter = resilient(&url_without_rights(&cluster, 1), DEADLINE);
    let policy = per_hour("user", 40).algorithm(Algorithm::SlidingLog);
    let key = Key::new(cluster.identity_at(0, "k"));
    until_shared(&limiter, &policy, key).await;
    assert_eq!(allowed_by_redis(&limiter, policy.charge(key), 40).await, 40);
    let mut allowed = Vec::new();
    for [from, to] in [[0, 3], [3, 0], [0, 3]] {
        take_over(&cluster, from, to);
        let (started, mut sum) = (Instant::now(), 0);
        // For 2.5 s, the share of the key denies it.
        while started.elapsed() < Duration::from_secs(3) {
            sum += allowed_at_once(&limiter, &policy, key, 1).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        allowed.push(sum);
    }
    assert_eq!(allowed, [0, 0, 0]);
}

// Regression: a look-up that failed before the promoted node had a connection took it for lost. What other nodes then redirected
// to it found the whole quota again.
#[tokio::test(flavor = "multi_thread")]
async fn promoted_node_that_counts_as_lost_has_the_usage_restored() {
    let cluster = Cluster::start(3, 1);
    let limiter = resilient(&url_without_rights(&cluster, 1), DEADLINE);
    let policy = per_hour("user", 40).algorithm(Algorithm::SlidingLog);
    let [key, elsewhere] = [0, 2].map(|node| Key::new(cluster.identity_at(node, "k")));
    until_shared(&limiter, &policy, key).await;
    assert_eq!(allowed_by_redis(&limiter, policy.charge(key), 40).await, 40);
    // This request fails, and starts a look-up that waits for the same node.
    cluster.nodes[1].pause();
    check(&limiter, &[policy.charge(elsewhere)]).await;
    take_over(&cluster, 0, 3);
    assert!(!check(&limiter, &[policy.charge(key)]).await.is_allowed());
    cluster.nodes[1].resume();
    let started = Instant::now();
    loop {
        let decision = check(&limiter, &[policy.charge(key)]).await;
        assert!(!decision.is_allowed(), "{decision:?}");
        if decision.counted_by() == CountedBy::Shared {
            break;
        }
        until(started, "never counted by Redis");
    }
}

// Regression: a slot that moved to a primary that was known by redirects only was taken for a failover.
#[tokio::test]
async fn user_that_may_not_look_the_slots_up_does_not_take_a_moved_slot_for_a_failover() {
    logged();
    let cluster = Cluster::start(3, 0);
    let limiter = resilient(&url_without_rights(&cluster, 2), DEADLINE);
    let policy = per_hour("user", 40);
    let [one, other] = [0, 1].map(|node| cluster.identity_at(node, "k"));
    for identity in [&one, &other] {
        until_shared(&limiter, &policy, Key::new(identity)).await;
    }
    cluster.move_slot(cluster.slot_of(&one), 0, 1, || {});
    let decision = check(&limiter, &[policy.charge(Key::new(&one))]).await;
    let log = logged().join("\n");
    assert!(!log.contains("replaced"), "{log}");
    assert_eq!(decision.counted_by(), CountedBy::Shared);
}

// Regression: slots that moved to another primary were taken for those of a replica that was promoted.
#[tokio::test]
async fn node_that_gives_its_slots_away_restores_nothing_on_the_others() {
    logged();
    // Otherwise the empty primary becomes a replica by itself.
    let cluster = Cluster::start_with(3, 0, &["--cluster-allow-replica-migration", "no"]);
    let limiter = resilient(&cluster.nodes[2].url(), DEADLINE);
    let policy = per_hour("user", 1_000_000);
    // The redirects show that both are primaries, before the slots are looked up.
    for identity in [0, 1].map(|node| cluster.identity_at(node, "k")) {
        until_shared(&limiter, &policy, Key::new(&identity)).await;
    }
    // They have no keys, so nothing is left behind.
    for node in &cluster.nodes[1..] {
        node.command(&["FLUSHALL"]);
    }
    let taker = cluster.id(0);
    // The giver first, and with a higher epoch than its own: otherwise its next message takes the slots back.
    cluster.nodes[0].command(&["CLUSTER", "BUMPEPOCH"]);
    let assign = |slots: std::ops::RangeInclusive<usize>, giver: usize| {
        for node in [giver, 0, 3 - giver] {
            let mut connection = cluster.nodes[node].connection();
            for slot in slots.clone() {
                let mut command = redis::cmd("CLUSTER");
                let command = command.arg("SETSLOT").arg(slot).arg("NODE").arg(&taker);
                command.query::<()>(&mut connection).expect("it is moved");
            }
        }
    };
    let lookups = || {
        let calls = cluster.nodes.iter().map(Server::command_calls);
        let calls = calls.filter_map(|calls| calls.get("cluster|slots").copied());
        calls.sum::<u64>()
    };
    let started = Instant::now();
    assign(cluster.slots(1), 1);
    for giver in [1, 2] {
        let before = lookups();
        // Each time another slot: a redirect during a look-up starts none, and the next one may never come.
        for number in 0.. {
            let identity = cluster.identity_at(giver, &format!("k{number}"));
            if giver == 2 {
                let slot = cluster.slot_of(&identity);
                assign(slot..=slot, giver);
            }
            check(&limiter, &[policy.charge(Key::new(&identity))]).await;
            if lookups() != before {
                break;
            }
            until(started, "the slots are not looked up");
        }
    }
    let log = logged().join("\n");
    assert!(!log.contains("replaced"), "{log}");
}

// Regression: half of all keys were decided by the fallback for ever, without a word.
#[tokio::test]
async fn unreachable_slots_are_reported() {
    let cluster = Cluster::start_with(2, 0, &["--cluster-require-full-coverage", "no"]);
    let policy = per_hour("user", 1_000_000);
    let key = Key::new(cluster.identity_at(1, "k"));
    let pool = deadpool_redis::Config::from_url(cluster.nodes[0].url());
    let pool = pool.create_pool(Some(deadpool_redis::Runtime::Tokio1));
    let store = RedisStoreBuilder::over_pool(pool.expect("a pool")).deadline(HUNG);
    let store = store.build().expect("a usable store");
    let pooled = RateLimiter::new(store, []).expect("a limiter");
    let error = pooled.check(&[policy.charge(key)]).await;
    let error = error.expect_err("at a node that is not in the pool");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error:?}");
    assert!(
        error.to_string().contains("in place of the pool"),
        "{error}"
    );
    let limiter = resilient(&cluster.nodes[0].url(), DEADLINE);
    until_shared(&limiter, &policy, key).await;
    assert_eq!(limiter.warnings(), []);
    for node in &cluster.nodes {
        let slots = cluster.slots(1);
        let (first, last) = (slots.start().to_string(), slots.end().to_string());
        node.command(&["CLUSTER", "DELSLOTSRANGE", &first, &last]);
    }
    let started = Instant::now();
    while limiter.warnings().is_empty() {
        until(started, "never told");
        check(&limiter, &[policy.charge(key)]).await;
    }
    for limiter in [&pooled, &limiter] {
        let warnings = limiter.warnings();
        let codes: Vec<Code> = warnings.iter().map(Warning::code).collect();
        assert_eq!(codes, [Code::UnreachableSlots], "{warnings:?}");
    }
}

// Regression: each look-up of the slots closed the breaker of a store around all nodes, if the url had a name.
#[tokio::test]
async fn outage_of_one_node_is_one_of_a_breaker_around_the_whole_cluster() {
    let cluster = Cluster::start(2, 0);
    let store = RedisStore::builder(format!("redis://localhost:{}", cluster.nodes[0].port()));
    let store = store.build().expect("a usable store");
    let store = ResilientStore::builder(store, MemoryStore::new()).build();
    let limiter = RateLimiter::new(store.expect("a usable store"), []).expect("a limiter");
    let policy = per_hour("user", 1_000_000);
    let key = Key::new(cluster.identity_at(1, "k"));
    until_shared(&limiter, &policy, key).await;
    cluster.nodes[1].pause();
    let started = Instant::now();
    while !limiter.health().is_degraded() {
        until(started, "never degraded");
        check(&limiter, &[policy.charge(key)]).await;
    }
    // Each failed probe looks the slots up.
    while limiter.health().probes() < 5 {
        until(started, "no probes");
        check(&limiter, &[policy.charge(key)]).await;
        assert!(limiter.health().is_degraded(), "the node is still down");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.nodes[1].resume();
    while limiter.health().is_degraded() {
        until(started, "it decides again");
        check(&limiter, &[policy.charge(key)]).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// Regression: the usage on all nodes was restored, so what others had reset or refunded since came back.
#[tokio::test]
async fn failover_of_one_node_restores_nothing_on_the_others() {
    let mut cluster = Cluster::start(3, 1);
    let limiters = [0, 1].map(|_| resilient(&cluster.nodes[1].url(), DEADLINE));
    let policy = per_hour("user", 40).algorithm(Algorithm::SlidingLog);
    let key = Key::new(cluster.identity_at(2, "k"));
    for limiter in &limiters {
        until_shared(limiter, &policy, key).await;
    }
    assert_eq!(
        allowed_by_redis(&limiters[0], policy.charge(key), 30).await,
        30
    );
    limiters[1].reset(&policy, &key).await.expect("it is reset");
    replace_first_primary(&mut cluster, &limiters[0]).await;
    assert_eq!(
        allowed_by_redis(&limiters[0], policy.charge(key), 50).await,
        40
    );
}

// A command that its first node redirects is a call of the node that it is redirected to, as a decision is.
#[tokio::test]
async fn redirected_commands_that_fail_are_an_outage_of_the_node_that_they_reach() {
    let cluster = Cluster::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let limiter = resilient(&cluster.nodes[0].url(), DEADLINE);
    let policy = per_hour("user", 1_000_000);
    let [moving, other, at_second] =
        [(0, "k"), (0, "other"), (1, "k")].map(|(node, start)| cluster.identity_at(node, start));
    for identity in [&other, &at_second] {
        until_shared(&limiter, &policy, Key::new(identity)).await;
    }
    let slot = cluster.slot_of(&moving).to_string();
    let [first, second] = [0, 1].map(|node| cluster.id(node));
    cluster.nodes[1].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &first]);
    cluster.nodes[0].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &second]);
    cluster.nodes[1].pause();
    let started = Instant::now();
    while limiter.health().outages().is_empty() {
        let reset = limiter.reset(&policy, &Key::new(&moving)).await;
        reset.expect_err("its node is stopped");
        until(started, "commands that fail open no breaker");
    }
    let health = limiter.health();
    let [outage] = health.outages() else {
        panic!("{health:?}");
    };
    let address = cluster.nodes[1].address().to_string();
    assert_eq!(outage.server(), Some(address.as_str()), "{health:?}");
    for (identity, counted_by) in [
        (&other, CountedBy::Shared),
        (&at_second, CountedBy::Fallback),
    ] {
        let decision = check(&limiter, &[policy.charge(Key::new(identity))]).await;
        assert_eq!(decision.counted_by(), counted_by, "{identity}");
    }
    cluster.nodes[1].resume();
}
