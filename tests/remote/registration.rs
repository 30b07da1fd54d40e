//! Instances that register, and restarts that they notice, where the user or the server gives little away.

use std::time::{Duration, Instant};

use redis::Value;
use tollgate::{
    Key, Policy, Quota, RateLimiter,
    algorithm::Algorithm,
    decision::CountedBy,
    remote::{RedisStore, RedisStoreBuilder},
};

use crate::{
    fleet::shares::{until_acquainted, until_degraded, until_shared},
    support::{Cluster, Server},
};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_millis(250);
const HUNG: Duration = Duration::from_secs(30);

fn limiter(store: RedisStoreBuilder) -> RateLimiter {
    let limiter = RateLimiter::builder().redis(store).deadline(DEADLINE);
    limiter.build().expect("a usable limiter")
}

fn daily() -> Policy {
    Policy::new("daily", Quota::per_day(40)).algorithm(Algorithm::SlidingLog)
}

/// Makes this many requests, and returns how many were allowed.
async fn allowed(limiter: &RateLimiter, key: Key, requests: usize) -> usize {
    let (policy, mut allowed) = (daily(), 0);
    for _ in 0..requests {
        let decision = limiter.check(&[policy.charge(key)]).await;
        allowed += usize::from(decision.expect("a decision").is_allowed());
    }
    allowed
}

/// Returns a limiter over a pool of the application.
fn pooled(server: &Server) -> RateLimiter {
    let pool = deadpool_redis::Config::from_url(server.url());
    let pool = pool.create_pool(Some(deadpool_redis::Runtime::Tokio1));
    limiter(RedisStoreBuilder::over_pool(pool.expect("a pool")))
}

// Regression: an instance whose user may not look the slots up was never registered, and granted the whole quota in an
// outage.
#[tokio::test]
async fn user_that_may_not_look_the_slots_up_is_registered() {
    let cluster = Cluster::start(3, 0);
    for node in &cluster.nodes {
        let rights = ["+@all", "-cluster", "+cluster|info"];
        let user = ["ACL", "SETUSER", "ada", "on", ">secret", "~*"];
        node.command(&[user.as_slice(), &rights].concat());
    }
    let instances = cluster.nodes.iter().map(|node| {
        let store = RedisStore::builder(node.url());
        limiter(store.username("ada").password("secret"))
    });
    let instances: Vec<_> = instances.collect();
    until_acquainted(&instances).await;
}

/// Returns how often a node has sent a redirect to a slot that is being moved.
fn asks(node: &Server) -> u64 {
    let stats = node.info("errorstats");
    let asks = stats.get("errorstat_ASK");
    let asks = asks.and_then(|asks| asks.strip_prefix("count="));
    asks.map_or(0, |asks| asks.parse().expect("a number"))
}

// Regression: while its slot was being moved, a registration was sent with each reply.
#[tokio::test]
async fn registration_whose_slot_is_being_moved_is_sent_no_more_often() {
    let cluster = Cluster::start(2, 0);
    // Each decision must have a reply.
    let store = RedisStore::builder(cluster.nodes[0].url()).denial_cache(false);
    let one = limiter(store);
    until_acquainted(std::slice::from_ref(&one)).await;
    let members = "tollgate:{!}:members";
    let from = cluster.primary_of("{!}");
    assert!(cluster.nodes[from].keys().contains(&members.to_owned()));
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[1 - from]);
    let slot = cluster.slot_of("{!}").to_string();
    let (from_id, to_id) = (cluster.id(from), cluster.id(1 - from));
    target.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    source.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    let port = target.port().to_string();
    source.command(&["MIGRATE", "127.0.0.1", &port, members, "0", "5000"]);
    let key = Key::new(cluster.identity_at(1 - from, "k"));
    let started = Instant::now();
    while asks(source) == 0 {
        assert!(started.elapsed() < HUNG, "it is never sent");
        allowed(&one, key, 1).await;
    }
    let (started, before) = (Instant::now(), asks(source));
    allowed(&one, key, 200).await;
    let most = started.elapsed().as_secs() / 2 + 1;
    let sent = asks(source) - before;
    assert!(
        sent <= most,
        "{sent} registrations in {:?}",
        started.elapsed()
    );
}

// Regression: an instance with a pool was not registered in a cluster of one node, and noticed no restart of it.
#[tokio::test]
async fn pool_on_a_cluster_of_one_node_is_registered_and_notices_a_restart() {
    let mut cluster = Cluster::start(1, 0);
    let instances = [(); 2].map(|()| pooled(&cluster.nodes[0]));
    until_acquainted(&instances).await;
    let key = Key::new("ada");
    assert_eq!(allowed(&instances[0], key, 27).await, 27);
    cluster.nodes[0].kill();
    until_degraded(&instances).await;
    cluster.nodes[0].restart();
    for one in &instances {
        until_shared(one).await;
    }
    assert_eq!(allowed(&instances[0], key, 20).await, 13);
}

// Regression: the run of a server stayed unknown on connections that were made while it ran a slow script, so no restart
// was noticed.
#[tokio::test]
async fn restart_is_noticed_although_the_server_was_busy_as_connections_were_made() {
    let mut server = Server::start_with(&["--lua-time-limit", "10"]);
    let looping = {
        let mut connection = server.connection();
        std::thread::spawn(move || {
            let script = redis::cmd("EVAL")
                .arg("while true do end")
                .arg(0)
                .to_owned();
            script
                .query::<Value>(&mut connection)
                .expect_err("it is killed");
        })
    };
    let started = Instant::now();
    let is_busy = || {
        let mut connection = server.connection();
        let ping = redis::cmd("PING").query::<Value>(&mut connection);
        ping.is_err_and(|error| error.code() == Some("BUSY"))
    };
    while !is_busy() {
        assert!(started.elapsed() < HUNG, "the script does not run");
    }
    let one = limiter(RedisStore::builder(server.url()).connections(1));
    let key = Key::new("ada");
    let decision = one.check(&[daily().charge(Key::new("idle"))]).await;
    let decision = decision.expect("a decision");
    assert_ne!(decision.counted_by(), CountedBy::Shared);
    server.command(&["SCRIPT", "KILL"]);
    looping.join().expect("the script ends");
    until_shared(&one).await;
    assert_eq!(allowed(&one, key, 27).await, 27);
    server.restart();
    until_shared(&one).await;
    assert_eq!(allowed(&one, key, 20).await, 13);
}
