//! A real Redis Cluster on loopback ports.

use std::collections::{BTreeSet, HashSet};
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::server::Server;

/// A cluster of some primaries with equal shares of the slots, and their replicas. It ends when it is dropped.
pub(crate) struct Cluster {
    /// The primaries at first, then their replicas in the same order.
    pub(crate) nodes: Vec<Server>,
    primaries: usize,
}

impl Cluster {
    /// Starts a cluster, each primary with this number of replicas, and waits until all nodes know it.
    ///
    /// # Panics
    ///
    /// If it is not ready in time.
    pub(crate) fn start(primaries: usize, replicas: usize) -> Self {
        Self::start_with(primaries, replicas, &[])
    }

    /// Starts a cluster whose nodes have more arguments.
    pub(crate) fn start_with(primaries: usize, replicas: usize, arguments: &[&str]) -> Self {
        let mut all = vec![
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            NODE_TIMEOUT,
        ];
        all.extend([
            "--repl-diskless-sync-delay",
            "0",
            "--cluster-replica-validity-factor",
            "0",
        ]);
        all.extend(arguments);
        let count = primaries * (1 + replicas);
        let nodes = (0..count).map(|_| Server::start_with(&all)).collect();
        let cluster = Self { nodes, primaries };
        for (index, node) in cluster.nodes.iter().enumerate() {
            let epoch = (index + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            if index < primaries {
                let slots = cluster.slots(index);
                let (first, last) = (slots.start().to_string(), slots.end().to_string());
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
            let port = cluster.nodes[0].port().to_string();
            node.command(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        }
        cluster.wait(|node| known_nodes(node) == count);
        for index in primaries..count {
            let id = cluster.id(index % primaries);
            cluster.nodes[index].command(&["CLUSTER", "REPLICATE", &id]);
        }
        cluster.wait(|node| info(node).contains("cluster_state:ok"));
        for replica in &cluster.nodes[primaries..] {
            wait_until(|| {
                replica
                    .info("replication")
                    .get("master_link_status")
                    .is_some_and(|status| status == "up")
            });
        }
        cluster.wait(|node| {
            slots_of(node).len() == primaries
                && slots_of(node).iter().all(|nodes| *nodes == 1 + replicas)
        });
        cluster
    }

    /// Returns a cluster that all tests of this process share, each with a prefix of its own.
    ///
    /// To start one takes seconds. It ends with this process.
    pub(crate) fn shared(primaries: usize) -> &'static Self {
        static SHARED: Mutex<Vec<(usize, &Cluster)>> = Mutex::new(Vec::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, cluster)) = shared.iter().find(|(count, _)| *count == primaries) {
            return cluster;
        }
        let cluster: &'static Self = Box::leak(Box::new(Self::start(primaries, 0)));
        super::server::end_with_this_process(&cluster.nodes);
        shared.push((primaries, cluster));
        cluster
    }

    /// Returns the slots that a primary has at first.
    pub(crate) fn slots(&self, primary: usize) -> RangeInclusive<usize> {
        let first = primary * SLOTS / self.primaries;
        first..=(primary + 1) * SLOTS / self.primaries - 1
    }

    /// Returns the index of the primary that has the slot of this identity at first.
    pub(crate) fn primary_of(&self, identity: &str) -> usize {
        let slot = self.slot_of(identity);
        (0..self.primaries)
            .find(|primary| self.slots(*primary).contains(&slot))
            .expect("each slot has a primary")
    }

    /// Returns the slot of an identity.
    pub(crate) fn slot_of(&self, identity: &str) -> usize {
        let slot = self.nodes[0].command(&["CLUSTER", "KEYSLOT", identity]);
        redis::from_redis_value(slot).expect("a slot")
    }

    /// Returns an identity, which begins with `start`, whose slot is at this primary at first.
    pub(crate) fn identity_at(&self, primary: usize, start: &str) -> String {
        let mut identities = (0..).map(|number| format!("{start}{number}"));
        identities
            .find(|identity| self.primary_of(identity) == primary)
            .expect("there are many")
    }

    /// Returns the id of a node.
    pub(crate) fn id(&self, node: usize) -> String {
        let id = self.nodes[node].command(&["CLUSTER", "MYID"]);
        redis::from_redis_value(id).expect("an id")
    }

    /// Moves a slot with its keys, one key at a time, as `redis-cli --cluster reshard` does. `while_moving` is called
    /// before each key, and once more before the slot belongs to its new node.
    pub(crate) fn move_slot(
        &self,
        slot: usize,
        from: usize,
        to: usize,
        mut while_moving: impl FnMut(),
    ) {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let (slot, from_id, to_id) = (slot.to_string(), self.id(from), self.id(to));
        target.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        source.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
        let port = target.port().to_string();
        loop {
            while_moving();
            let keys = source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
            let keys: Vec<String> = redis::from_redis_value(keys).expect("keys");
            let Some(key) = keys.first() else { break };
            source.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
        for node in [target, source] {
            node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
        // The move gave `to` an epoch, which another node may have, too. As long as that is not resolved, a message that
        // the source sent before can take the slot back, and the two nodes redirect to each other for ever.
        wait_until(|| self.agrees());
    }

    /// Returns whether all nodes know the same primaries, with the same slots and with epochs that differ.
    fn agrees(&self) -> bool {
        let mut views = self.nodes.iter().map(primaries_known_to);
        let first = views.next().expect("a node");
        let epochs: HashSet<_> = first.iter().map(|(_, epoch, _)| epoch).collect();
        epochs.len() == first.len() && views.all(|view| view == first)
    }

    /// Waits until a condition holds for every node.
    fn wait(&self, condition: impl Fn(&Server) -> bool) {
        for node in &self.nodes {
            wait_until(|| condition(node));
        }
    }
}

/// Waits until a condition holds.
#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + START_TIMEOUT;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "the cluster is not ready in time"
        );
        thread::sleep(POLL_INTERVAL);
    }
}

fn info(node: &Server) -> String {
    redis::from_redis_value(node.command(&["CLUSTER", "INFO"])).expect("text")
}

/// Returns the number of nodes that a node knows and has shaken hands with.
fn known_nodes(node: &Server) -> usize {
    let nodes: String = redis::from_redis_value(node.command(&["CLUSTER", "NODES"])).expect("text");
    nodes
        .lines()
        .filter(|line| !line.contains("handshake") && line.contains(" connected"))
        .count()
}

/// Returns the number of nodes of each range of slots.
fn slots_of(node: &Server) -> Vec<usize> {
    let ranges: Vec<Vec<redis::Value>> =
        redis::from_redis_value(node.command(&["CLUSTER", "SLOTS"])).expect("ranges");
    ranges.iter().map(|range| range.len() - 2).collect()
}

/// Returns the id, the epoch and the slots of each primary that a node knows.
fn primaries_known_to(node: &Server) -> BTreeSet<(String, String, String)> {
    let nodes = node.command(&["CLUSTER", "NODES"]);
    let nodes: String = redis::from_redis_value(nodes).expect("nodes");
    let primaries = nodes.lines().filter(|node| node.contains("master"));
    // id, address, flags, primary, ping sent, pong received, epoch, link, slots
    let primaries = primaries.map(|node| {
        let fields: Vec<_> = node.split(' ').collect();
        (
            fields[0].to_owned(),
            fields[6].to_owned(),
            fields[8..].join(" "),
        )
    });
    primaries.collect()
}

const SLOTS: usize = 16_384;
/// Milliseconds without a reply after which a node counts as failed.
const NODE_TIMEOUT: &str = "1000";
const START_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
