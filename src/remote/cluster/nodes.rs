//! The nodes of a cluster, and which of them has which slot.
//!
//! ```text
//! the first server is ...       a decision goes to
//! standalone, or not known yet  the first server
//! a node of a cluster           the node of its slot, or the first server until that is known
//! ```
//!
//! # When the slots are looked up
//!
//! By `CLUSTER SLOTS`, in the background, and never more than every 100 ms:
//!
//! - once the first server turns out to be a node of a cluster,
//! - after each `MOVED`, which also moves its own slot at once,
//! - after each call that fails, and so after each probe of a node that is down.
//!
//! The primaries are asked in a random order until one replies, those with a connection first; then the replicas. A
//! server whose user may not run the command is followed by `MOVED` alone.
//!
//! # Why does tollgate not use the cluster client of redis-rs?
//!
//! That client has one queue for all nodes, and does not report which node a failure came from. It repeats commands whose fate is
//! unknown, which would charge twice. Without its retries, `MOVED` fails. tollgate needs the window of calls, the deadline, the
//! breaker, and whether a command was sent, for each node. Only the map of slots and four error replies would remain of that
//! client. With 512 callers on two cores, both ways took 10 to 11 us of the servers' CPU time for a decision, on 1, 2 and 3
//! primaries. Of the client's CPU time, tollgate took 4 us and redis-rs 8 us (`benches/peers`, program `cluster`).

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak},
    time::Duration,
};

use futures_util::future::join_all;

use crate::{
    charge::{Receipt, Settlement},
    clock::{Clock, Timestamp},
    key::{Key, SLOTS, slot::slot_of},
    resilience::Guards,
    task::{
        Mutex, RetryFuture, RetryOwner, RetryQueue, SingleTask,
        backoff::random,
        timer::{sleep, timeout},
    },
};

use super::{
    super::{
        client::{Client, Nodes},
        connection::Lane,
        leases::Leases,
        node::Node,
        protocol::{NodeAddress, Redirect},
        route,
    },
    slot_map::{SlotMap, UNKNOWN},
    topology::{self, SlotRange},
};

/// The nodes of a cluster, or the only server.
pub(in crate::remote) struct Cluster {
    /// The server that the application named.
    first: Node,
    make_lanes: MakeLanes,
    /// `None` in a store whose errors are the caller's.
    guards: Option<Guards>,
    map: RwLock<SlotMap>,
    /// When the slots were last looked up.
    looked_up_at: Mutex<Timestamp>,
    refresh: SingleTask,
    /// Refunds and releases of decisions on several slots that were not executed.
    refunds: RetryQueue<Settlement>,
    this: Weak<Self>,
}

/// Returns the lanes of a node; `None` if only the application's pool has the settings of connections.
pub(in crate::remote) type MakeLanes =
    Box<dyn Fn(&NodeAddress) -> Option<Box<[Arc<Lane>]>> + Send + Sync>;

impl Cluster {
    /// Returns the only server, which may turn out to be a node of a cluster.
    pub fn new(client: Arc<Client>, make_lanes: MakeLanes, guards: Option<Guards>) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| {
            client.join(this.clone());
            Self {
                first: node_of(client, guards.as_ref()),
                make_lanes,
                guards,
                map: RwLock::default(),
                looked_up_at: Mutex::default(),
                refresh: SingleTask::default(),
                refunds: RetryQueue::default(),
                this: this.clone(),
            }
        })
    }

    /// Returns the server that the application named.
    #[inline]
    pub fn first(&self) -> &Node {
        &self.first
    }

    /// Returns whether keys in different slots must be decided separately.
    #[inline]
    pub fn is_cluster(&self) -> bool {
        self.first.client.mode.is_cluster() == Some(true)
    }

    /// Returns the node of a slot, or the first server if it is not known, as without a cluster.
    pub fn node_of(&self, slot: u16) -> Node {
        let map = self.read();
        let node = map.known_node(slot).or_else(|| {
            // Any node redirects, so one with a connection is better than the first server without.
            let is_up = |node: &&Node| node.client.scheduler.is_up();
            let mut nodes = map.nodes.iter().map(|(_, node)| node);
            let other = nodes.find(is_up);
            other.filter(|_| !is_up(&&self.first))
        });
        node.unwrap_or(&self.first).clone()
    }

    /// Returns the node of a key.
    pub fn node_for(&self, key: &Key) -> Node {
        if self.is_cluster() {
            self.node_of(key.slot())
        } else {
            self.first.clone()
        }
    }

    /// Returns the leases of this instance.
    #[inline]
    pub fn leases(&self) -> &Arc<Leases> {
        &self.first.client.leases
    }

    /// Returns the number of instances that share the store, as far as is known.
    pub fn instances(&self) -> u32 {
        self.first.client.registration.instances()
    }

    /// Returns the nodes that decide: those with slots, and the first server while some slots are not known.
    pub fn nodes(&self) -> Vec<Node> {
        if !self.is_cluster() {
            return vec![self.first.clone()];
        }
        let map = self.read();
        let used: HashSet<u16> = map.slots.iter().copied().collect();
        let nodes = map.nodes.iter().zip(0_u16..);
        let nodes = nodes.filter(|(_, index)| used.contains(index));
        let mut nodes: Vec<_> = nodes.map(|((_, node), _)| node.clone()).collect();
        let has_first = nodes
            .iter()
            .any(|node| Arc::ptr_eq(&node.client, &self.first.client));
        let is_complete = !used.contains(&UNKNOWN) && map.lost.is_empty();
        if !has_first && (nodes.is_empty() || !is_complete) {
            nodes.push(self.first.clone());
        }
        nodes
    }

    fn read(&self) -> RwLockReadGuard<'_, SlotMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, SlotMap> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the index of the node at this address, and adds it if it is new. `None` if it cannot be reached.
    fn index_of(&self, map: &mut SlotMap, address: &NodeAddress) -> Option<u16> {
        let known = map.nodes.iter().position(|(known, _)| known == address);
        let index = match known {
            Some(index) => index,
            None => {
                let node = self.make(address)?;
                map.nodes.push((address.clone(), node));
                map.nodes.len() - 1
            }
        };
        u16::try_from(index).ok()
    }

    /// Returns the node at this address, which may be the first server.
    fn make(&self, address: &NodeAddress) -> Option<Node> {
        let first = &self.first.client;
        if first.address.as_ref() == Some(address) {
            return Some(self.first.clone());
        }
        let client = first.for_node(address.clone(), (self.make_lanes)(address)?);
        Some(node_of(client, self.guards.as_ref()))
    }

    // --- Look-ups of the slots ---

    /// Looks the slots up, and replaces the map.
    ///
    /// If no node replies, those without a connection count as lost: other nodes redirect their keys.
    async fn look_up(&self) {
        for client in self.candidates() {
            let mut command = redis::cmd("CLUSTER");
            let reply = route::run_command(&client, command.arg("SLOTS")).await;
            let ranges = reply.and_then(|reply| topology::parse(&reply, client.address.as_ref()));
            match ranges {
                Ok(ranges) if !ranges.is_empty() => return self.replace_map(&ranges),
                Ok(_) | Err(_) => {}
            }
        }
        let mut map = self.write();
        let nodes = map.nodes.iter().zip(0_u16..);
        let lost = nodes.filter(|((_, node), _)| !node.client.scheduler.is_up());
        let lost: Vec<u16> = lost.map(|(_, index)| index).collect();
        if lost.len() < map.nodes.len() {
            map.lost = lost;
        }
    }

    /// Returns the nodes to ask for the slots, the most promising first.
    fn candidates(&self) -> Vec<Arc<Client>> {
        let mut clients: Vec<_> = self.nodes().into_iter().map(|node| node.client).collect();
        let start = usize::try_from(random() % 1_024).unwrap_or_default();
        let count = clients.len();
        clients.rotate_left(start % count.max(1));
        clients.sort_by_key(|client| !client.scheduler.is_up());
        if !clients
            .iter()
            .any(|client| Arc::ptr_eq(client, &self.first.client))
        {
            clients.push(Arc::clone(&self.first.client));
        }
        clients.extend(self.read().replicas.iter().cloned());
        clients
    }

    /// Replaces the map. Nodes without slots are dropped, and their connections closed.
    fn replace_map(&self, ranges: &[SlotRange]) {
        let mut map = self.write();
        let promoted = self.map_of(&mut map, ranges).promoted_since(&map);
        drop(map);
        // Before decisions find the nodes in the map: each first restores what the node may lack.
        promoted.iter().for_each(|client| client.note_promoted());
        let mut map = self.write();
        let next = self.map_of(&mut map, ranges);
        let taken_over: Vec<Arc<Client>> = map
            .promotions
            .iter()
            .filter_map(|(_, to)| next.nodes.iter().find(|(address, _)| address == to))
            .map(|(_, node)| Arc::clone(&node.client))
            .collect();
        let dropped = std::mem::replace(&mut *map, next);
        // After the lock is released: to close connections wakes tasks.
        drop(map);
        drop(dropped);
        taken_over
            .iter()
            .for_each(|client| client.note_taken_over());
        // All other nodes without slots have been dropped.
        if !self
            .nodes()
            .iter()
            .any(|node| Arc::ptr_eq(&node.client, &self.first.client))
        {
            self.first.client.calls.retired();
        }
    }

    /// Returns the map of a look-up. New nodes are added to the present one, too, so that each address has one client.
    fn map_of(&self, present: &mut SlotMap, ranges: &[SlotRange]) -> SlotMap {
        let mut slots = vec![UNKNOWN; usize::from(SLOTS)].into_boxed_slice();
        let mut nodes: Vec<(NodeAddress, Node)> = Vec::new();
        for range in ranges {
            let known = nodes.iter().position(|(known, _)| *known == range.primary);
            let index = known.or_else(|| {
                let index = self.index_of(present, &range.primary)?;
                nodes.push(present.nodes[usize::from(index)].clone());
                Some(nodes.len() - 1)
            });
            if let Some(index) = index.and_then(|index| u16::try_from(index).ok()) {
                slots[usize::from(range.first)..=usize::from(range.last)].fill(index);
            }
        }
        let replicas = ranges
            .iter()
            .flat_map(|range| range.replicas.iter().cloned());
        let mut replicas: Vec<_> = replicas.collect();
        replicas.sort_unstable();
        replicas.dedup();
        let replicas = replicas.into_iter().filter_map(|address| {
            let lanes = (self.make_lanes)(&address)?;
            Some(self.first.client.for_node(address, lanes))
        });
        let ids = ranges.iter().filter_map(|range| {
            let id = range.primary_id.clone()?;
            Some((range.primary.clone(), id))
        });
        SlotMap {
            slots,
            ids: present.with_other_names(ids.collect()),
            primaries: nodes.iter().map(|(address, _)| address.clone()).collect(),
            nodes,
            lost: Vec::new(),
            promotions: Vec::new(),
            replicas: replicas.collect(),
        }
    }
}

impl Nodes for Cluster {
    fn follow(&self, redirect: &Redirect, from: Option<&NodeAddress>) -> Option<Arc<Client>> {
        let (Redirect::Ask(to) | Redirect::Moved { to, .. }) = redirect else {
            return None;
        };
        let to = to.clone().resolved(from)?;
        let mut map = self.write();
        let index = self.index_of(&mut map, &to)?;
        let node = map.nodes[usize::from(index)].1.clone();
        let client = Arc::clone(&node.client);
        let Redirect::Moved { slot, .. } = redirect else {
            return Some(client);
        };
        let may_lack_states = || node.guard().is_some_and(|guard| guard.has_doubts());
        if map.is_promotion(*slot, &to) {
            drop(map);
            // Before decisions find the slot there: each first restores what the node may lack.
            client.note_promoted();
            map = self.write();
            map.note_promotion(*slot, &to);
        } else if map.was_replaced_by(*slot, &to)
            // Its requests pass the guards of other nodes, which restore nothing here.
            || map.known_node(*slot).is_none() && may_lack_states()
        {
            client.note_taken_over();
        }
        map.primaries.insert(to.clone());
        let index = self.index_of(&mut map, &to)?;
        if map.slots.is_empty() {
            map.slots = vec![UNKNOWN; usize::from(SLOTS)].into();
        }
        if let Some(node) = map.slots.get_mut(usize::from(*slot)) {
            *node = index;
        }
        map.lost.retain(|lost| *lost != index);
        drop(map);
        self.refresh();
        Some(client)
    }

    fn client_of(&self, slot: u16) -> Option<Arc<Client>> {
        let map = self.read();
        let node = map.known_node(slot)?;
        Some(Arc::clone(&node.client))
    }

    fn probe_identity(&self, client: &Client) -> Option<String> {
        let map = self.read();
        let own = map
            .nodes
            .iter()
            .position(|(_, node)| std::ptr::eq(&raw const *node.client, client));
        let own = u16::try_from(own?)
            .ok()
            .filter(|own| map.slots.contains(own))?;
        let mut identities = (0_u32..).map(|number| format!("!{number}"));
        identities.find(|identity| map.slots[usize::from(slot_of(identity.as_bytes()))] == own)
    }

    fn refresh(&self) {
        self.refresh.start(|running| {
            let (this, looked_up_at) = (self.this.clone(), *self.looked_up_at.lock());
            async move {
                sleep((looked_up_at + MIN_INTERVAL).since(Clock::system().now())).await;
                if let Some(cluster) = this.upgrade() {
                    *cluster.looked_up_at.lock() = Clock::system().now();
                    let _ = timeout(MAX_REFRESH, cluster.look_up()).await;
                }
                drop(running);
            }
        });
    }

    fn settle_later(&self, settlement: Settlement) {
        if let Some(this) = self.this.upgrade() {
            let until = Clock::system().now() + settlement.retry_span();
            RetryQueue::add(&this, settlement, until);
        }
    }
}

impl RetryOwner for Cluster {
    type Item = Settlement;

    fn retry_queue(&self) -> &RetryQueue<Settlement> {
        &self.refunds
    }

    fn is_repeatable(settlement: &Settlement) -> bool {
        settlement.is_release()
    }

    fn retry(self: Arc<Self>, settlements: Vec<Arc<Settlement>>) -> RetryFuture {
        Box::pin(async move {
            let settling = settlements.iter().map(async |settlement| {
                let node = self.node_of(settlement.charge().key().slot());
                let receipt = Receipt::with(vec![Settlement::clone(settlement)]);
                let settled = node.settle(receipt).await;
                !settled.is_err_and(|error| settlement.may_retry(&error))
            });
            join_all(settling).await
        })
    }
}

/// Returns the node of a client, with a guard in front of it if the store has guards.
fn node_of(client: Arc<Client>, guards: Option<&Guards>) -> Node {
    let guard = guards.map(|guards| guards.guard(Arc::clone(&client) as _, Some(&client.calls)));
    Node::new(client, guard)
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let map = self.read();
        let nodes: Vec<_> = map.nodes.iter().map(|(address, _)| address).collect();
        f.debug_struct("Cluster")
            .field("first", &self.first)
            .field("nodes", &nodes)
            .finish_non_exhaustive()
    }
}

/// The least time between two look-ups of the slots.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time of a look-up.
const MAX_REFRESH: Duration = Duration::from_secs(5);
