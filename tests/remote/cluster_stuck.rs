//! Hash slots of a Redis Cluster that no node decides on, although their nodes reply in time and decide on others.

use std::time::{Duration, Instant};

use tollgate::{
    Decision, Key, Policy, Quota, RateLimiter,
    decision::CountedBy,
    diagnosis::{Code, Warning},
    store::Mode,
};

use crate::support::{Cluster, Server, logged};

/// Longer than anything here takes on a loaded machine.
const HUNG: Duration = Duration::from_secs(30);

/// Two policies of one caller: their keys are in one slot.
fn policies() -> [Policy; 2] {
    let hour = Policy::new("hour", Quota::per_hour(1_000_000));
    [hour, Policy::new("day", Quota::per_day(1_000_000))]
}

async fn check(limiter: &RateLimiter, key: Key) -> Decision {
    let policies = policies();
    let charges = policies.each_ref().map(|policy| policy.charge(key));
    limiter
        .check(&charges)
        .await
        .expect("a decision, whatever breaks")
}

/// Decides until a condition holds.
async fn decide_until(limiter: &RateLimiter, key: Key, condition: impl Fn(&Decision) -> bool) {
    let started = Instant::now();
    loop {
        let decision = check(limiter, key).await;
        if condition(&decision) {
            return;
        }
        assert!(started.elapsed() < HUNG, "{:?}", limiter.health());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns how often a node was asked to run a script, also if it refused.
fn scripts(node: &Server) -> u64 {
    let statistics = node.info("commandstats").into_iter();
    let scripts = statistics.filter(|(name, _)| name.starts_with("cmdstat_eval"));
    let count = |value: &str, field: &str| -> u64 {
        let mut fields = value.split(',');
        let number = fields.find_map(|other| other.strip_prefix(field)?.strip_prefix('='));
        number.map_or(0, |number| number.parse().expect("a number"))
    };
    scripts
        .map(|(_, value)| count(&value, "calls") + count(&value, "rejected_calls"))
        .sum()
}

/// A limiter of a cluster of two nodes, with a key in a slot of each.
struct Place {
    cluster: Cluster,
    limiter: RateLimiter,
    /// The key whose slot is to be stuck, and another one of the same node.
    key: Key,
    slot: String,
    other: Key,
}

impl Place {
    async fn new(node: usize) -> Self {
        let settings = ["--cluster-require-full-coverage", "no"];
        let cluster = Cluster::start_with(2, 0, &settings);
        let identity = cluster.identity_at(node, "k");
        let slot = cluster.slot_of(&identity).to_string();
        let other = Key::new(cluster.identity_at(node, "other"));
        let place = Self {
            limiter: limiter(&cluster),
            key: Key::new(identity),
            slot,
            other,
            cluster,
        };
        for key in [place.key, place.other] {
            place.until_shared(key).await;
        }
        place
    }

    /// Waits until the slots were looked up. Before, a node that gets a slot back is taken for one that was promoted.
    async fn until_looked_up(&self) {
        let second = format!("127.0.0.1:{}", self.cluster.nodes[1].port());
        decide_until(&self.limiter, self.key, |_| {
            format!("{:?}", self.limiter).contains(&second)
        })
        .await;
    }

    async fn until_shared(&self, key: Key) {
        decide_until(&self.limiter, key, |decision| {
            decision.counted_by() == CountedBy::Shared
        })
        .await;
    }

    /// Sets the state of the slot at a node.
    fn set_slot(&self, node: usize, state: &[&str]) {
        let mut words = vec!["CLUSTER", "SETSLOT", &self.slot];
        words.extend(state);
        self.cluster.nodes[node].command(&words);
    }

    /// Moves keys of the slot from the first node to the second one.
    fn migrate(&self, count: &str) {
        let [source, target] = [0, 1].map(|node| &self.cluster.nodes[node]);
        let keys: Vec<String> = source.query(&["CLUSTER", "GETKEYSINSLOT", &self.slot, count]);
        for key in keys {
            let port = target.port().to_string();
            source.command(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
        }
    }

    /// Expects that the slot gets a breaker of its own, which is told, and costs neither time nor scripts; that other slots
    /// of its node are decided as usual; and that the slot is decided again once the fault is mended.
    async fn expect_stuck(&self, cause: &str, mend: impl FnOnce(&Self)) {
        let Self { limiter, key, .. } = self;
        logged();
        let mut decisions = 0;
        let started = Instant::now();
        while limiter.health().stuck_slots() == 0 {
            assert_eq!(check(limiter, *key).await.counted_by(), CountedBy::Fallback);
            decisions += 1;
            assert!(started.elapsed() < HUNG, "{:?}", limiter.health());
        }
        let health = limiter.health();
        assert_eq!(health.mode(), Mode::Degraded);
        assert!(!health.is_well());
        let [outage] = health.outages() else {
            panic!("{health:?}");
        };
        assert_eq!((outage.stuck_slots(), outage.server()), (Some(1), None));
        let text = health.cause().expect("a cause").to_string();
        assert!(text.contains(cause), "{text}");
        let warnings = limiter.warnings();
        let codes: Vec<Code> = warnings.iter().map(Warning::code).collect();
        assert_eq!(codes, [Code::UnreachableSlots], "{warnings:?}");
        let lines = logged();
        // On a busy machine failures, or decisions that come too late, last longer than a second: findings of their own.
        let is_slow = started.elapsed() >= Duration::from_secs(1);
        let is_own = |line: &&String| {
            ["mode=failing", "mode=shedding"]
                .iter()
                .any(|mode| line.contains(mode))
        };
        let is_expected = |line: &&String| !(is_slow && is_own(line));
        let told: Vec<_> = lines.iter().filter(|line| line.contains("WARN")).collect();
        let told: Vec<_> = told.into_iter().filter(is_expected).collect();
        assert_eq!(told.len(), 2, "the slot and the coded warning: {lines:#?}");
        assert!(
            lines.iter().any(|line| line.contains("mode=degraded")),
            "{lines:#?}"
        );
        assert!(
            lines.iter().all(|line| !line.contains("replaced")),
            "{lines:#?}"
        );
        println!(
            "{text}: stuck after {decisions} decisions and {:?}",
            started.elapsed()
        );

        // No decision waits, and only probes reach the nodes.
        self.cluster.nodes.iter().for_each(Server::flush_stats);
        let policies = policies();
        for _ in 0..1_000 {
            let charges = policies.each_ref().map(|policy| policy.charge(*key));
            let decision = limiter.check(&charges).take_ready();
            let decision = decision.expect("at once").expect("a decision");
            assert_eq!(decision.counted_by(), CountedBy::Fallback);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let scripts: u64 = self.cluster.nodes.iter().map(scripts).sum();
        println!("{scripts} scripts in the second of 1,000 decisions");
        assert!(scripts < 300, "{scripts}");

        for _ in 0..20 {
            let other = check(limiter, self.other).await;
            assert_eq!(
                other.counted_by(),
                CountedBy::Shared,
                "{:?}",
                limiter.health()
            );
        }
        mend(self);
        let started = Instant::now();
        self.until_shared(*key).await;
        println!("decided again {:?} after the end", started.elapsed());
        let health = limiter.health();
        assert!(health.is_well(), "{health:?}");
        assert_eq!(health.stuck_slots(), 0);
        // A node that is first seen under its right address is taken for one that was promoted.
        let lines = logged().into_iter();
        let lines: Vec<_> = lines.filter(|line| !line.contains("replaced")).collect();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains("decided again"), "{lines:#?}");
    }
}

fn limiter(cluster: &Cluster) -> RateLimiter {
    let limiter = RateLimiter::builder().redis(cluster.nodes[0].url());
    // Longer than the default, so that a loaded machine does not look like an outage.
    let limiter = limiter.deadline(Duration::from_millis(250));
    limiter.build().expect("a usable limiter")
}

// Regression: each decision waited for the deadline for ever, without a word but that Redis was overloaded.
#[tokio::test]
async fn slot_that_stays_half_moved_gets_a_breaker_of_its_own() {
    let place = Place::new(0).await;
    let [first, second] = [0, 1].map(|node| place.cluster.id(node));
    place.set_slot(1, &["IMPORTING", &first]);
    place.set_slot(0, &["MIGRATING", &second]);
    place.migrate("1");
    place
        .expect_stuck("TRYAGAIN", |place| {
            place.migrate("10");
            for node in [1, 0] {
                place.set_slot(node, &["NODE", &second]);
            }
        })
        .await;
}

// Regression: 17 scripts a decision, for ever, without a word.
#[tokio::test]
async fn node_that_announces_the_address_of_another_does_not_keep_decisions_in_a_circle() {
    let mut place = Place::new(1).await;
    let port = place.cluster.nodes[0].port().to_string();
    place.cluster.nodes[1].command(&["CONFIG", "SET", "cluster-announce-port", &port]);
    let is_known_at = |port: u16| {
        let nodes: String = place.cluster.nodes[0].query(&["CLUSTER", "NODES"]);
        nodes.matches(&format!("127.0.0.1:{port}@")).count()
    };
    let (own, other) = (place.cluster.nodes[0].port(), place.cluster.nodes[1].port());
    let started = Instant::now();
    while is_known_at(own) < 2 {
        assert!(started.elapsed() < HUNG, "never announced");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // One that does not know the right address any more, and a slot of the node that is always known.
    place.limiter = limiter(&place.cluster);
    place.other = Key::new(place.cluster.identity_at(0, "known"));
    place
        .expect_stuck("redirected the decision", |place| {
            place.cluster.nodes[1].command(&["CONFIG", "SET", "cluster-announce-port", "0"]);
            let started = Instant::now();
            loop {
                let nodes: String = place.cluster.nodes[0].query(&["CLUSTER", "NODES"]);
                if nodes.contains(&format!("127.0.0.1:{other}@")) {
                    return;
                }
                assert!(started.elapsed() < HUNG, "never announced");
                std::thread::sleep(Duration::from_millis(5));
            }
        })
        .await;
}

// Regression: see above.
#[tokio::test]
async fn nodes_that_each_call_the_other_one_the_owner_do_not_keep_decisions_in_a_circle() {
    let place = Place::new(0).await;
    place.until_looked_up().await;
    let [first, second] = [0, 1].map(|node| place.cluster.id(node));
    let keys: Vec<String> =
        place.cluster.nodes[0].query(&["CLUSTER", "GETKEYSINSLOT", &place.slot, "10"]);
    for key in keys {
        place.cluster.nodes[0].command(&["DEL", &key]);
    }
    place.set_slot(1, &["NODE", &first]);
    place.set_slot(0, &["NODE", &second]);
    place
        .expect_stuck("redirected the decision", |place| {
            place.set_slot(0, &["NODE", &first]);
        })
        .await;
}

// Regression: see above.
#[tokio::test]
async fn slot_that_only_one_node_knows_to_move_does_not_keep_decisions_in_a_circle() {
    let place = Place::new(0).await;
    let second = place.cluster.id(1);
    let keys: Vec<String> =
        place.cluster.nodes[0].query(&["CLUSTER", "GETKEYSINSLOT", &place.slot, "10"]);
    for key in keys {
        place.cluster.nodes[0].command(&["DEL", &key]);
    }
    place.set_slot(0, &["MIGRATING", &second]);
    place
        .expect_stuck("redirected the decision", |place| {
            place.set_slot(0, &["STABLE"]);
        })
        .await;
}

// Regression: healthy, with all decisions by the fallback.
#[tokio::test]
async fn slot_without_a_node_is_not_an_outage_of_the_node_that_reports_it() {
    let place = Place::new(0).await;
    for node in &place.cluster.nodes {
        node.command(&["CLUSTER", "DELSLOTS", &place.slot]);
    }
    place
        .expect_stuck("cluster is down", |place| {
            place.cluster.nodes[0].command(&["CLUSTER", "ADDSLOTS", &place.slot]);
        })
        .await;
}

/// Has nodes call the second one by a name that nobody knows.
async fn misname(place: &Place, nodes: &[usize]) {
    let set = |node: usize, name: &str, value: &str| {
        place.cluster.nodes[node].command(&["CONFIG", "SET", name, value]);
    };
    set(0, "cluster-announce-hostname", "127.0.0.1");
    set(1, "cluster-announce-hostname", "unknown.invalid");
    for node in nodes {
        set(*node, "cluster-preferred-endpoint-type", "hostname");
    }
    let started = Instant::now();
    loop {
        let nodes: String = place.cluster.nodes[0].query(&["CLUSTER", "NODES"]);
        if nodes.contains("unknown.invalid") {
            return;
        }
        assert!(started.elapsed() < HUNG, "never announced");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// Regression: it was logged as a store that was replaced, and no warning named the address.
#[tokio::test]
async fn node_under_an_unknown_name_is_unavailable_and_not_replaced() {
    for misled in [&[0, 1][..], &[0]] {
        let place = Place::new(1).await;
        misname(&place, misled).await;
        logged();
        place.cluster.nodes[1].close_connections();
        let started = Instant::now();
        while !place.limiter.health().is_degraded() {
            // A node without the misleading setting may be asked for the slots.
            if misled.len() == 1 && started.elapsed() > Duration::from_secs(3) {
                break;
            }
            check(&place.limiter, place.key).await;
            assert!(started.elapsed() < HUNG, "{:?}", place.limiter.health());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let health = place.limiter.health();
        let codes: Vec<Code> = place.limiter.warnings().iter().map(Warning::code).collect();
        if health.is_degraded() {
            let cause = health.cause().expect("a cause").to_string();
            assert!(cause.contains("unknown.invalid"), "{cause}");
            assert_eq!(codes, [Code::UnreachableSlots]);
        }
        for node in &place.cluster.nodes {
            node.command(&["CONFIG", "SET", "cluster-preferred-endpoint-type", "ip"]);
        }
        place.until_shared(place.key).await;
        let log = logged().join("\n");
        assert!(!log.contains("replaced"), "{log}");
    }
}
