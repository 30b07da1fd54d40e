//! Top keys of the whole fleet: instances share theirs through Redis, and any of them returns the sum.

use std::time::{Duration, Instant};

use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter,
    clock::Clock,
    decision::CountedBy,
    extract::{Global, HashSecret},
    remote::{RedisStore, RedisStoreBuilder, Script},
    top_keys::{ShownKeys, Snapshot, TopKey, TopKeys},
};

use crate::{
    fleet::shares::{HUNG, idle, until_degraded, until_shared},
    support::{Cluster, Random, Server},
    top_keys::exact::{Exact, START, assert_bounds, policy, record},
};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_millis(250);

/// An instance, with its clock and its top keys.
struct Instance {
    limiter: RateLimiter,
    top_keys: TopKeys,
}

impl Instance {
    fn start(store: impl Into<RedisStoreBuilder>, clock: &Clock, capacity: usize) -> Self {
        Self::with_keys(store, clock, capacity, ShownKeys::plain())
    }

    fn with_keys(
        store: impl Into<RedisStoreBuilder>,
        clock: &Clock,
        capacity: usize,
        shown_keys: ShownKeys,
    ) -> Self {
        let top_keys = TopKeys::builder().shown_keys(shown_keys);
        let top_keys = top_keys.clock(clock.clone()).capacity(capacity);
        let top_keys = top_keys.build().expect("usable settings");
        let limiter = RateLimiter::builder().redis(store).deadline(DEADLINE);
        let limiter = limiter.top_keys(top_keys.clone()).share_top_keys();
        let limiter = limiter.build().expect("a usable limiter");
        Self { limiter, top_keys }
    }

    async fn decide(&self) {
        let decision = self.limiter.check(&[idle().charge(Key::GLOBAL)]).await;
        decision.expect("a decision");
    }

    /// Records this many denied requests of a key.
    fn deny(&self, key: &str, units: u32) {
        self.top_keys.record(&policy(), &Key::new(key), units);
    }
}

fn fleet<const N: usize>(server: &Server, capacity: usize) -> [Instance; N] {
    let clock = Clock::manual(START);
    [(); N].map(|()| Instance::start(server.url(), &clock, capacity))
}

fn total(snapshot: Option<&Snapshot>) -> u64 {
    let list = snapshot.and_then(|snapshot| snapshot.policy("per-ip"));
    list.map_or(0, tollgate::top_keys::PolicyTopKeys::total)
}

/// Decides on all instances until the first one knows this many denied requests of all.
async fn until_total(fleet: &[&Instance], expected: u64) -> Option<Snapshot> {
    let started = Instant::now();
    loop {
        for one in fleet {
            one.decide().await;
        }
        let found = fleet[0].limiter.fleet_top_keys().await;
        if let Ok(snapshot) = &found
            && total(snapshot.as_ref()) == expected
        {
            return found.expect("checked above");
        }
        assert!(started.elapsed() < HUNG, "{expected} expected: {found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn counts(snapshot: &Snapshot) -> Vec<(&str, u64, u64)> {
    let list = snapshot.policy("per-ip").expect("denied requests");
    let keys = list.keys().iter();
    keys.map(|top| (top.key(), top.count(), top.error()))
        .collect()
}

#[tokio::test]
async fn any_instance_returns_the_denied_requests_of_all() {
    let server = Server::start();
    let fleet: [Instance; 3] = fleet(&server, 256);
    let daily = Policy::new("per-ip", Quota::per_day(1));
    let mut denied = 0;
    for one in &fleet {
        until_shared(&one.limiter).await;
        for _ in 0..5 {
            let charges = [daily.charge(Key::new("203.0.113.7"))];
            let decision = one.limiter.check(&charges).await.expect("a decision");
            denied += u64::from(!decision.is_allowed());
        }
    }
    assert_eq!(denied, 14, "one request was admitted in the fleet");
    fleet[1].deny("203.0.113.8", 2);
    let all: Vec<&Instance> = fleet.iter().collect();
    for first in 0..fleet.len() {
        let mut order = all.clone();
        order.swap(0, first);
        let snapshot = until_total(&order, denied + 2)
            .await
            .expect("denied requests");
        assert_eq!(
            counts(&snapshot),
            [("203.0.113.7", 14, 0), ("203.0.113.8", 2, 0)]
        );
    }
    let own = fleet[2].limiter.top_keys().expect("recorded");
    assert_eq!(total(Some(&own)), 5);
}

#[tokio::test]
async fn error_over_the_fleet_is_within_the_bound_of_the_smallest_list() {
    let server = Server::start();
    let mut random = Random(20);
    // The list of an instance is cut to 100 keys when it is shared.
    for (capacity, bound) in [(8, 8), (300, 100)] {
        let prefix = format!("bound{capacity}");
        let clock = Clock::manual(START);
        let fleet: Vec<Instance> = (0..4)
            .map(|_| {
                let store = RedisStore::builder(server.url()).prefix(&prefix);
                Instance::start(store, &clock, capacity)
            })
            .collect();
        let mut exact = Exact::new();
        for one in &fleet {
            let mut stream = Vec::new();
            for _ in 0..4_000 {
                // Few keys are frequent, and the rest rotates.
                let any = random.below(2_000);
                let key = if any < 1_200 { any % 5 } else { any };
                stream.push((u32::try_from(key).expect("small"), 1));
            }
            record(&one.top_keys, &mut exact, &stream);
        }
        let all: Vec<&Instance> = fleet.iter().collect();
        let snapshot = until_total(&all, 16_000).await.expect("denied requests");
        assert_eq!(snapshot.capacity(), bound);
        assert_bounds(&snapshot, bound, &exact);
        let list = snapshot.policy("per-ip").expect("a list");
        let first: Vec<&str> = list.keys()[..5].iter().map(TopKey::key).collect();
        for key in 0..5 {
            assert!(first.contains(&&*format!("user:{key}")), "{first:?}");
        }
        assert!(list.unlisted() > 0, "the lists were too small for all keys");
    }
}

#[tokio::test]
async fn counts_of_both_halves_of_the_window_are_added_and_older_ones_end() {
    let server = Server::start();
    let clock = Clock::manual(START);
    let [one, other] = [(); 2].map(|()| Instance::start(server.url(), &clock, 256));
    let half = Duration::from_secs(300);
    one.deny("ada", 3);
    other.deny("bob", 5);
    until_total(&[&one, &other], 8).await;
    // Recorded after the last write of this half, which is made up for in the next one.
    one.deny("ada", 1);
    clock.advance(half);
    one.deny("ada", 10);
    let snapshot = until_total(&[&one, &other], 19)
        .await
        .expect("denied requests");
    assert_eq!(counts(&snapshot), [("ada", 14, 0), ("bob", 5, 0)]);
    assert_eq!(snapshot.since(), START);
    clock.advance(half);
    let snapshot = until_total(&[&one, &other], 10)
        .await
        .expect("denied requests");
    assert_eq!(counts(&snapshot), [("ada", 10, 0)]);
    assert_eq!(snapshot.since(), START + half);
    clock.advance(half);
    assert_eq!(until_total(&[&one, &other], 0).await, None);
}

#[tokio::test]
async fn instance_that_has_ended_counts_until_the_window_is_over() {
    let server = Server::start();
    let [one, other] = fleet(&server, 256);
    one.deny("ada", 3);
    other.deny("ada", 4);
    until_total(&[&one, &other], 7).await;
    drop(other);
    one.deny("ada", 1);
    let snapshot = until_total(&[&one], 8).await.expect("denied requests");
    assert_eq!(counts(&snapshot), [("ada", 8, 0)]);
    let mut shared = server.keys();
    shared.retain(|key| key.starts_with("tollgate:{!}:top:"));
    assert_eq!(
        shared,
        [format!(
            "tollgate:{{!}}:top:{}",
            START.as_micros() / 300_000_000
        )]
    );
    let left: i64 = server.query(&["PTTL", &shared[0]]);
    assert!((1..=600_000).contains(&left), "{left} ms");
}

#[tokio::test]
async fn nodes_of_a_cluster_share_in_one_of_them() {
    let cluster = Cluster::shared(3);
    let clock = Clock::manual(START);
    let start = |node: usize| {
        let store = RedisStore::builder(cluster.nodes[node].url()).prefix("top-shared");
        Instance::start(store, &clock, 256)
    };
    let fleet = [start(0), start(1), start(2)];
    for (one, units) in fleet.iter().zip(1..) {
        one.deny("ada", units);
    }
    for order in [[0, 1, 2], [1, 2, 0], [2, 0, 1]] {
        let snapshot = until_total(&order.map(|one| &fleet[one]), 6).await;
        assert_eq!(counts(&snapshot.expect("denied requests")), [("ada", 6, 0)]);
    }
}

#[tokio::test]
async fn layer_shares_with_a_fixed_number_of_instances_too() {
    let server = Server::start();
    let top_keys = TopKeys::builder().shown_keys(ShownKeys::plain());
    let top_keys = top_keys.build().expect("usable settings");
    let layer = RateLimitLayer::builder()
        .policy(policy().key(Global))
        .redis(server.url())
        .deadline(DEADLINE)
        .instances(2)
        .top_keys(top_keys.clone())
        .share_top_keys();
    let layer = layer.build().expect("a usable layer");
    let one = Instance {
        limiter: layer.limiter().clone(),
        top_keys,
    };
    one.deny("ada", 2);
    until_total(&[&one], 2).await;
}

#[tokio::test]
async fn many_instances_are_read_in_pages() {
    let server = Server::start();
    let clock = Clock::manual(START);
    let one = Instance::start(server.url(), &clock, 256);
    one.deny("ada", 1);
    let value = one.limiter.top_keys().expect("recorded").encode();
    until_total(&[&one], 1).await;
    let half = START.as_micros() / 300_000_000;
    let key = format!("tollgate:{{!}}:top:{half}");
    for id in 1..1_000 {
        assert_eq!(
            share(&server, &key, &format!("id{id:06}"), 600_000, 1_000, &value),
            1
        );
    }
    assert_eq!(share(&server, &key, "one more", 600_000, 1_000, &value), 0);
    let snapshot = until_total(&[&one], 1_000).await.expect("denied requests");
    assert_eq!(counts(&snapshot), [("ada", 1_000, 0)]);
}

// === Faults ===

#[test]
fn what_cannot_be_shared_fails_at_build() {
    let plain = || {
        let top_keys = TopKeys::builder().shown_keys(ShownKeys::plain());
        top_keys.build().expect("usable settings")
    };
    let url = "redis://127.0.0.1:1/";
    for (builder, word) in [
        (RateLimiter::builder().redis(url), "add top_keys"),
        (RateLimiter::builder().top_keys(plain()), "without redis"),
        (
            RateLimiter::builder().redis(url).top_keys(TopKeys::new()),
            "give all instances ShownKeys::hashed",
        ),
    ] {
        let error = builder.share_top_keys().build().expect_err(word);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(word), "{error}");
    }
    let usable = RateLimiter::builder().redis(url).top_keys(plain());
    assert!(usable.share_top_keys().build().is_ok());
}

#[tokio::test]
async fn instances_with_different_secrets_are_reported() {
    let server = Server::start();
    let clock = Clock::manual(START);
    let [one, other] = ["a secret", "another"].map(|secret| {
        let secret = HashSecret::from_passphrase(secret);
        Instance::with_keys(server.url(), &clock, 256, ShownKeys::hashed(secret))
    });
    one.deny("203.0.113.7", 1);
    until_total(&[&one], 1).await;
    let hash = one.top_keys.shown(&Key::new("203.0.113.7"));
    let snapshot = until_total(&[&one], 1).await.expect("denied requests");
    assert_eq!(counts(&snapshot), [(&*hash, 1, 0)]);
    other.deny("203.0.113.7", 1);
    let error = until_error(&[&other, &one]).await;
    assert_eq!(error, ErrorKind::InvalidConfig);
}

/// The key of the current half of the window.
fn current_key() -> String {
    format!("tollgate:{{!}}:top:{}", START.as_micros() / 300_000_000)
}

// Regression: one instance of another version hid the top keys of all.
#[tokio::test]
async fn snapshots_of_another_version_are_left_out_and_counted() {
    let server = Server::start();
    let [one] = fleet(&server, 256);
    one.deny("ada", 1);
    let snapshot = until_total(&[&one], 1).await.expect("denied requests");
    assert_eq!(snapshot.unread(), 0);
    let key = current_key();
    server.command(&["HSET", &key, "instance", "foreign"]);
    server.command(&["HSET", &key, "another1", ""]);
    let snapshot = one.limiter.fleet_top_keys().await.expect("a sum");
    let snapshot = snapshot.expect("denied requests");
    assert_eq!(
        (counts(&snapshot), snapshot.unread()),
        (vec![("ada", 1, 0)], 2)
    );
    server.command(&["HDEL", &key, "instance", "another1"]);
    let snapshot = until_total(&[&one], 1).await.expect("denied requests");
    assert_eq!(snapshot.unread(), 0);
}

#[tokio::test]
async fn sum_without_a_snapshot_that_can_be_read_is_an_error() {
    let server = Server::start();
    let [one] = fleet(&server, 256);
    one.decide().await;
    server.command(&["HSET", &current_key(), "instance", "foreign"]);
    assert_eq!(until_error(&[&one]).await, ErrorKind::ForeignValue);
    server.command(&["DEL", &current_key()]);
    server.command(&["SET", &current_key(), "no hash"]);
    assert!(one.limiter.fleet_top_keys().await.is_err());
}

/// Decides until the first instance cannot return the sum, and returns the kind of its error.
async fn until_error(fleet: &[&Instance]) -> ErrorKind {
    let started = Instant::now();
    loop {
        for one in fleet {
            one.decide().await;
        }
        if let Err(error) = fleet[0].limiter.fleet_top_keys().await {
            return error.kind();
        }
        assert!(started.elapsed() < HUNG, "no error");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn outage_leaves_those_of_this_instance() {
    let mut server = Server::start();
    let [one] = fleet(&server, 256);
    one.deny("ada", 3);
    until_total(&[&one], 3).await;
    server.kill();
    until_degraded(std::slice::from_ref(&one.limiter)).await;
    let error = one.limiter.fleet_top_keys().await.expect_err("an outage");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(total(one.limiter.top_keys().as_ref()), 3);
    server.restart();
    until_shared(&one.limiter).await;
    until_total(&[&one], 3).await;
}

#[tokio::test]
async fn user_without_the_rights_still_limits() {
    let server = Server::start();
    let user = [
        "ACL", "SETUSER", "ada", "on", ">secret", "~*", "+@all", "-hset",
    ];
    server.command(&user);
    let store = RedisStore::builder(server.url());
    let store = store.username("ada").password("secret");
    let one = Instance::start(store, &Clock::manual(START), 256);
    one.deny("ada", 3);
    let started = Instant::now();
    let refused = || {
        let log: redis::Value = server.query(&["ACL", "LOG"]);
        format!("{log:?}").contains("hset")
    };
    while !refused() {
        one.decide().await;
        assert!(started.elapsed() < HUNG, "nothing was shared");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let decision = one.limiter.check(&[idle().charge(Key::GLOBAL)]).await;
    assert_eq!(
        decision.expect("a decision").counted_by(),
        CountedBy::Shared
    );
    assert!(!one.limiter.health().is_degraded());
    assert_eq!(
        one.limiter.fleet_top_keys().await.expect("an empty hash"),
        None
    );
}

// === The script ===

/// Runs the script, and returns its reply.
fn share(server: &Server, key: &str, id: &str, lifetime: u64, most: u64, value: &[u8]) -> i64 {
    let mut command = redis::cmd("EVAL");
    command
        .arg(Script::TOP_KEYS.source())
        .arg(1)
        .arg(key)
        .arg(id);
    command.arg(lifetime).arg(most).arg(value);
    command.query(&mut server.connection()).expect("a reply")
}

#[test]
fn script_stores_one_value_for_each_of_so_many_instances() {
    let server = Server::start();
    // The example in the file.
    let share = |id: &str, value: &str| share(&server, "top", id, 10_000, 2, value.as_bytes());
    assert_eq!(share("instance", "first"), 1);
    assert_eq!(share("another1", "second"), 1);
    assert_eq!(share("another2", "third"), 0);
    assert_eq!(share("instance", "fourth"), 1);
    let values: Vec<String> = server.query(&["HMGET", "top", "instance", "another1"]);
    assert_eq!(values, ["fourth", "second"]);
    let left: i64 = server.query(&["PTTL", "top"]);
    assert!((9_000..=10_000).contains(&left), "{left} ms");
}
