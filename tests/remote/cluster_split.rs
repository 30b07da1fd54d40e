//! Decisions on keys in several slots of a Redis Cluster.

use std::env;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, yield_now};
use tollgate::{
    Charge, Decision, Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, WindowStart},
    charge::Receipt,
    decision::{CountedBy, Outcome, PolicyState},
    diagnosis::{Code, Warning},
    remote::RedisStore,
};

use crate::support::{Cluster, Server};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_millis(500);
/// Longer than anything here takes on a loaded machine.
const HUNG: Duration = Duration::from_secs(30);

/// Returns a limiter that returns the errors of Redis.
fn bare(url: &str) -> RateLimiter {
    within(DEADLINE, url)
}

fn within(deadline: Duration, url: &str) -> RateLimiter {
    let store = RedisStore::builder(url).deadline(deadline).build();
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

#[tokio::test]
async fn first_decision_may_have_keys_in_several_slots() {
    let cluster = Cluster::start(3, 0);
    let (user, address) = (per_hour("user", 5), per_hour("address", 3));
    for (round, node) in cluster.nodes.iter().enumerate() {
        let limiter = bare(&node.url());
        let keys =
            [0, 1].map(|primary| Key::new(cluster.identity_at(primary, &format!("{round}-"))));
        let charges = [user.charge(keys[0]), address.charge(keys[1])];
        for allowed in [true, true, true, false] {
            let decision = check(&limiter, &charges).await;
            assert_eq!(decision.is_allowed(), allowed, "{decision:?}");
            assert_eq!(decision.counted_by(), CountedBy::Shared);
            assert_eq!(decision.states().len(), 2);
        }
    }
}

#[tokio::test]
async fn keys_with_a_common_part_are_warned_about_until_they_are_in_one_slot() {
    let cluster = Cluster::shared(3);
    let limiter = RateLimiter::builder()
        .redis(RedisStore::builder(cluster.nodes[0].url()).prefix("in-slot"))
        .deadline(DEADLINE)
        .build()
        .expect("a usable limiter");
    let (tenants, users) = (per_hour("tenant", 5), per_hour("user", 3));
    let tenant = Key::new(cluster.identity_at(0, "tenant"));
    let user = Key::new(cluster.identity_at(1, "user"));
    let codes = || {
        limiter
            .warnings()
            .iter()
            .map(Warning::code)
            .collect::<Vec<_>>()
    };
    let counts = async |charges: [Charge<'_>; 2]| {
        let started = Instant::now();
        while check(&limiter, &charges).await.counted_by() != CountedBy::Shared {
            assert!(started.elapsed() < HUNG, "never counted by Redis");
        }
    };
    counts([
        tenants.charge(Key::GLOBAL),
        users.charge(Key::GLOBAL.and(&user)),
    ])
    .await;
    counts([tenants.charge(tenant), users.charge(user)]).await;
    let both = tenant.and(&user).co_located_with(&tenant);
    counts([tenants.charge(tenant), users.charge(both)]).await;
    assert_eq!(codes(), []);
    let apart = (0..).map(|number| tenant.and(&Key::new(format!("user{number}"))));
    let mut apart = apart.filter(|key| cluster.primary_of(key.as_str()) != 0);
    for _ in 0..2 {
        counts([
            tenants.charge(tenant),
            users.charge(apart.next().expect("many")),
        ])
        .await;
    }
    assert_eq!(codes(), [Code::SeveralSlots]);
    assert_eq!(
        limiter.warnings()[0].detail(),
        "the policies tenant and user are in different slots, though their keys have a part in common"
    );
}

/// Waits until a policy has this much left for a key, and checks that it stays so.
async fn settles_at(limiter: &RateLimiter, charge: Charge<'_>, remaining: u64) {
    let started = Instant::now();
    loop {
        let decision = limiter.peek(&[charge]).await.expect("a peek");
        let usage = decision.states()[0].usage().expect("it is counted");
        if usage.remaining == remaining {
            return;
        }
        assert!(
            started.elapsed() < HUNG,
            "{} remain of {}, and not {remaining}",
            usage.remaining,
            charge.policy().name()
        );
        yield_now().await;
    }
}

#[tokio::test]
async fn denial_in_one_slot_gives_the_charges_in_others_back() {
    let cluster = Cluster::start(3, 0);
    let limiter = bare(&cluster.nodes[0].url());
    let keys = [0, 1, 2].map(|primary| Key::new(cluster.identity_at(primary, "k")));
    let policies = [per_hour("a", 10), per_hour("b", 10), per_hour("c", 2)];
    let charges = [0, 1, 2].map(|index| policies[index].charge(keys[index]));
    for _ in 0..2 {
        assert!(check(&limiter, &charges).await.is_allowed());
    }
    for _ in 0..20 {
        let denied = check(&limiter, &charges).await;
        assert_eq!(denied.outcome(), Outcome::Limited);
        assert_eq!(
            denied
                .narrowest()
                .expect("it was counted")
                .policy()
                .as_str(),
            "c"
        );
        assert!(denied.retry_after().is_some());
        // The state of a policy that admitted is that without the charge.
        let state = denied.state("a").expect("it was charged");
        assert_eq!(state.outcome(), Outcome::Allowed);
        settles_at(&limiter, charges[0], 8).await;
        settles_at(&limiter, charges[1], 8).await;
        settles_at(&limiter, charges[2], 0).await;
    }
}

#[tokio::test]
async fn caller_that_leaves_tears_no_decision() {
    let cluster = Cluster::start(3, 0);
    let limiter = bare(&cluster.nodes[0].url());
    let keys = [0, 1].map(|primary| Key::new(cluster.identity_at(primary, "k")));
    // A window, where no unit that is lost comes back by time. A bucket with little debt may get less back than it could.
    let wide = per_hour("wide", 200).algorithm(Algorithm::FixedWindow(WindowStart::FirstHit));
    let narrow = per_hour("narrow", 1);
    let slots = Policy::concurrency("slots", 1_000);
    let charges = [
        wide.charge(keys[0]),
        slots.charge(keys[0]),
        narrow.charge(keys[1]),
    ];
    assert!(check(&limiter, &charges).await.is_allowed());
    let before = limiter.peek(&charges).await.expect("a peek");
    let remaining = |decision: &Decision, policy| {
        decision
            .state(policy)
            .and_then(PolicyState::usage)
            .expect("it is counted")
            .remaining
    };
    for polls in 1..60 {
        let mut decision = std::pin::pin!(limiter.check(&charges));
        for _ in 0..polls {
            let is_ready = std::future::poll_fn(|context| {
                std::task::Poll::Ready(decision.as_mut().poll(context).is_ready())
            });
            if is_ready.await {
                break;
            }
            yield_now().await;
        }
    }
    settles_at(&limiter, charges[0], remaining(&before, "wide")).await;
    settles_at(&limiter, charges[1], remaining(&before, "slots")).await;
}

// Regression: each of them failed as a call to the server, and the third one opened the breaker.
#[tokio::test]
async fn first_decisions_on_several_slots_do_not_open_the_breaker() {
    let server = Server::start_cluster();
    let (user, address) = (per_hour("user", 1_000), per_hour("address", 1_000));
    for round in 0..5 {
        let limiter = resilient(&server.url(), HUNG);
        let mut callers = JoinSet::new();
        for caller in 0..64 {
            let (limiter, user, address) = (limiter.clone(), user.clone(), address.clone());
            callers.spawn(async move {
                let keys =
                    ["user", "address"].map(|kind| Key::new(format!("{kind}-{round}-{caller}")));
                let charges = [user.charge(keys[0]), address.charge(keys[1])];
                let decision = check(&limiter, &charges).await;
                assert!(decision.is_allowed());
                decision.counted_by()
            });
        }
        let counted_by = callers.join_all().await;
        assert!(
            counted_by.iter().all(|by| *by == CountedBy::Shared),
            "{counted_by:?}"
        );
        assert!(!limiter.health().is_degraded());
    }
}

#[tokio::test]
async fn admitted_charges_in_several_slots_are_settled_where_they_were_made() {
    let cluster = Cluster::start(3, 0);
    let limiter = resilient(&cluster.nodes[0].url(), DEADLINE);
    let keys = [0, 1, 2].map(|primary| Key::new(cluster.identity_at(primary, "k")));
    let policies = [
        per_hour("a", 100),
        per_hour("b", 100),
        Policy::concurrency("c", 100),
    ];
    let charges = [0, 1, 2].map(|index| policies[index].charge(keys[index]));
    let costs = [charges[0].cost(10), charges[1].cost(10), charges[2]];
    let decision = check(&limiter, &costs).await;
    assert!(decision.is_allowed());
    settles_at(&limiter, charges[2], 99).await;
    let receipt = Receipt::of(&costs, &decision).expect("charges were made");
    assert_eq!(receipt.settlements().len(), 3);
    let receipt =
        receipt.actual_cost(|policy, _| if policy.name().as_str() == "a" { 4 } else { 15 });
    limiter.settle(receipt).await.expect("all nodes are up");
    settles_at(&limiter, charges[0], 96).await;
    settles_at(&limiter, charges[1], 85).await;
    settles_at(&limiter, charges[2], 100).await;
    for (policy, key) in policies.iter().zip(&keys) {
        limiter.reset(policy, key).await.expect("all nodes are up");
    }
    settles_at(&limiter, charges[0], 100).await;
}

#[tokio::test]
async fn part_on_a_dead_node_takes_its_outage_choice_and_a_denial_there_tears_nothing() {
    let mut cluster = Cluster::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let limiter = resilient(&cluster.nodes[0].url(), Duration::from_millis(100));
    let keys = [0, 1].map(|primary| Key::new(cluster.identity_at(primary, "k")));
    let (alive, dead) = (per_hour("alive", 100), per_hour("dead", 2));
    let charges = [alive.charge(keys[0]), dead.charge(keys[1])];
    let started = Instant::now();
    while limiter
        .peek(&charges)
        .await
        .map(|decision| decision.counted_by())
        .ok()
        != Some(CountedBy::Shared)
    {
        assert!(started.elapsed() < HUNG, "never counted by Redis");
    }
    cluster.nodes[1].kill();
    let mut allowed = 0;
    for _ in 0..10 {
        let decision = check(&limiter, &charges).await;
        assert_ne!(decision.outcome(), Outcome::Unavailable);
        allowed += u64::from(decision.is_allowed());
    }
    assert_eq!(allowed, 2, "by the fallback");
    settles_at(&limiter, charges[0], 98).await;
}

// === Contention ===

/// Callers whose requests are denied by a second policy.
const DENIED_CALLERS: usize = 32;
/// Callers whose requests only the shared policy can deny.
const OTHER_CALLERS: usize = 32;

/// Requests that are denied by `narrow` reserve a unit of `shared` for a moment.
struct Contention {
    shared: (Policy, Key),
    narrow: (Policy, Key),
    wide: (Policy, Key),
}

impl Contention {
    fn new(limit: u64, keys: [&str; 3]) -> Self {
        let [shared, narrow, wide] = keys.map(Key::new);
        // A window, so that no unit comes back while a test runs.
        let policy = Policy::new("shared", Quota::per_day(limit));
        let policy = policy.algorithm(Algorithm::FixedWindow(WindowStart::FirstHit));
        Self {
            shared: (policy, shared),
            narrow: (per_hour("narrow", 1), narrow),
            wide: (per_hour("wide", 1_000_000), wide),
        }
    }

    fn denied(&self) -> [Charge<'_>; 2] {
        [
            self.shared.0.charge(self.shared.1),
            self.narrow.0.charge(self.narrow.1),
        ]
    }

    fn allowed(&self) -> [Charge<'_>; 2] {
        [
            self.shared.0.charge(self.shared.1),
            self.wide.0.charge(self.wide.1),
        ]
    }

    /// Sends requests that are denied, from [`DENIED_CALLERS`] callers until they are aborted.
    async fn reserve(self: Arc<Self>, limiter: RateLimiter) -> JoinSet<()> {
        // The only unit of `narrow`.
        assert!(check(&limiter, &self.denied()).await.is_allowed());
        let mut callers = JoinSet::new();
        for _ in 0..DENIED_CALLERS {
            let (this, limiter) = (Arc::clone(&self), limiter.clone());
            callers.spawn(async move {
                loop {
                    let decision = check(&limiter, &this.denied()).await;
                    assert_eq!(decision.outcome(), Outcome::Limited);
                    yield_now().await;
                }
            });
        }
        callers
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_units_are_never_exceeded_and_wrongly_denied_only_while_others_hold_the_last_ones()
 {
    let cluster = Cluster::start(3, 0);
    let limit = 4_000;
    let keys = [0, 1, 2].map(|primary| cluster.identity_at(primary, "k"));
    let contention = Contention::new(limit, keys.each_ref().map(String::as_str));
    let contention = Arc::new(contention);
    let limiter = bare(&cluster.nodes[0].url());
    let reserving = Arc::clone(&contention).reserve(limiter.clone()).await;
    let (admitted, wrongly_denied) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
    let first_denied = Arc::new(AtomicU64::new(u64::MAX));
    let has_ended = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for _ in 0..OTHER_CALLERS {
        let (contention, limiter) = (Arc::clone(&contention), limiter.clone());
        let (admitted, wrongly_denied) = (Arc::clone(&admitted), Arc::clone(&wrongly_denied));
        let (first_denied, has_ended) = (Arc::clone(&first_denied), Arc::clone(&has_ended));
        callers.spawn(async move {
            while !has_ended.load(Ordering::Relaxed) {
                if check(&limiter, &contention.allowed()).await.is_allowed() {
                    let now = admitted.fetch_add(1, Ordering::Relaxed) + 1;
                    has_ended.fetch_or(now >= limit, Ordering::Relaxed);
                } else {
                    first_denied.fetch_min(admitted.load(Ordering::Relaxed), Ordering::Relaxed);
                    wrongly_denied.fetch_add(1, Ordering::Relaxed);
                    yield_now().await;
                }
            }
        });
    }
    let started = Instant::now();
    while !callers.is_empty() {
        let next =
            tokio::time::timeout(HUNG.saturating_sub(started.elapsed()), callers.join_next());
        let ended = next.await.expect("every unit can be had in the end");
        ended.expect("there is one").expect("no caller panics");
    }
    drop(reserving);
    let (admitted, wrongly_denied) = (
        admitted.load(Ordering::Relaxed),
        wrongly_denied.load(Ordering::Relaxed),
    );
    println!(
        "{admitted} admitted of {limit}; {wrongly_denied} denied while others held the last units, the first after {}",
        first_denied.load(Ordering::Relaxed)
    );
    assert_eq!(admitted, limit, "none too many");
    // Each caller holds one unit at most, and its refund may be on its way while it holds the next one.
    let most_held = 2 * DENIED_CALLERS as u64 + OTHER_CALLERS as u64;
    assert!(first_denied.load(Ordering::Relaxed) >= limit - most_held);
    settles_at(&limiter, contention.allowed()[0], 0).await;
}

// === A process that is killed ===

const WORKER: &str = "TOLLGATE_SPLIT_WORKER";

#[test]
fn process_that_is_killed_between_charge_and_refund_leaves_no_more_than_it_had_in_flight() {
    if let Ok(work) = env::var(WORKER) {
        return reserve_until_killed(&work);
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cluster = Cluster::start(3, 0);
    let limit = 1_000_000;
    let limiter = bare(&cluster.nodes[0].url());
    let evaluated = || {
        let calls = cluster
            .nodes
            .iter()
            .map(|node| node.command_calls().get("evalsha").copied());
        calls.flatten().sum::<u64>()
    };
    let mut worst = 0;
    for round in 0..5 {
        // Others each time: the nodes may still execute what the last worker has sent.
        let keys = [0, 1, 2].map(|primary| cluster.identity_at(primary, &format!("{round}-")));
        let contention = Contention::new(limit, keys.each_ref().map(String::as_str));
        let work = format!("{} {limit} {}", cluster.nodes[0].url(), keys.join(" "));
        let (mut worker, before, started) = (start_worker(&work), evaluated(), Instant::now());
        while evaluated() < before + 2_000 {
            let ended = worker.try_wait().expect("the child is ours to wait for");
            assert_eq!(ended, None, "the worker ended");
            assert!(started.elapsed() < HUNG, "the worker does not work");
            std::thread::yield_now();
        }
        worker.kill().expect("the child is ours to kill");
        worker.wait().expect("the child is ours to wait for");
        let decision = runtime
            .block_on(limiter.peek(&[contention.allowed()[0]]))
            .expect("a peek");
        let usage = decision.states()[0].usage().expect("it is counted");
        // One unit was admitted.
        let left_charged = limit - usage.remaining - 1;
        worst = worst.max(left_charged);
        assert!(
            left_charged <= 2 * DENIED_CALLERS as u64,
            "{left_charged} units are left charged"
        );
    }
    println!("{worst} units were left charged at most, of {DENIED_CALLERS} callers");
}

fn start_worker(work: &str) -> Child {
    Command::new(env::current_exe().expect("this test"))
        .args([
            "remote::cluster_split::process_that_is_killed_between_charge_and_refund_leaves_no_more_than_it_had_in_flight",
            "--exact",
            // a panic is seen on stderr
            "--nocapture",
        ])
        .env(WORKER, work)
        // its own test report does not belong to this run
        .stdout(Stdio::null())
        .spawn()
        .expect("a worker process")
}

fn reserve_until_killed(work: &str) {
    let parts: Vec<&str> = work.split(' ').collect();
    let [url, limit, ref keys @ ..] = parts[..] else {
        panic!("a worker gets the url, the limit and the keys");
    };
    let limit = limit.parse().expect("a number");
    let keys = keys.try_into().expect("three keys");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let contention = Arc::new(Contention::new(limit, keys));
        // Regression: on a loaded machine a decision of the worker was late, and it ended before it was killed.
        let callers = contention.reserve(within(HUNG, url)).await;
        callers.join_all().await;
    });
}
