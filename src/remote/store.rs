//! The Redis store: it passes each decision to the store of the node that has the keys.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::sync::watch;

use crate::{
    block::{BlockChange, BlockList},
    charge::{Charge, Merge, OwnedCharge, Receipt, Settlement},
    decision::Decision,
    diagnosis::Warning,
    error::{Error, ErrorKind},
    key::Key,
    policy::{BanState, Policy},
    store::{CallObserver, Fallback, Fleet, Health, Mode, Stats, Store, StoreFuture},
};

#[cfg(feature = "reload")]
use crate::store::RuleStore;
#[cfg(feature = "top-keys")]
use crate::{key::slot::slot_of, top_keys::Snapshot};

use super::{
    blocks::SharedBlocks,
    cluster::{Cluster, Node, split},
};

#[cfg(feature = "top-keys")]
use super::protocol::Keyspace;
#[cfg(feature = "reload")]
use super::rule_store::RedisRuleStore;

/// Counts in Redis. Clones share the connections.
///
/// See the [module docs](super) for waits, costs and failovers. The store alone returns an error during an outage. The
/// builders of the layer and of the limiter put a breaker and each policy's [`OnOutage`](crate::OnOutage) around it, or
/// around each node of a cluster.
#[derive(Clone, Debug)]
pub struct RedisStore {
    cluster: Arc<Cluster>,
    /// `None` if keys cannot be blocked.
    blocks: Option<Arc<SharedBlocks>>,
}

impl RedisStore {
    /// Returns a store over a cluster, or over its only server.
    pub(super) fn over(cluster: Arc<Cluster>, blocks: Option<Arc<SharedBlocks>>) -> Self {
        Self { cluster, blocks }
    }

    /// Runs `call` with the store that decides on all charges; `None` if their keys are in several slots.
    #[inline]
    fn with_one_store<T>(
        &self,
        charges: &[Charge<'_>],
        call: impl FnOnce(&dyn Store) -> T,
    ) -> Option<T> {
        match charges.first() {
            Some(_) if self.cluster.is_cluster() && split::spans_slots(charges) => None,
            Some(first) if self.cluster.is_cluster() => {
                Some(call(&*self.cluster.node_of(first.key().slot()).store))
            }
            Some(_) | None => Some(call(&*self.cluster.first().store)),
        }
    }

    /// Decides charges whose keys are in several slots.
    fn decide_split(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.cluster.first().client.check.check_slots(charges);
        let stores = Arc::clone(&self.cluster);
        split::decide(charges, &(stores as _))
    }

    /// Returns the node of a key.
    fn node_of(&self, key: &Key) -> Node {
        if self.cluster.is_cluster() {
            self.cluster.node_of(key.slot())
        } else {
            self.cluster.first().clone()
        }
    }

    /// Returns the nodes of some items, each with its items.
    fn by_node<T>(&self, items: Vec<T>, key: impl Fn(&T) -> Key) -> Vec<(Node, Vec<T>)> {
        if !self.cluster.is_cluster() {
            return vec![(self.cluster.first().clone(), items)];
        }
        let mut nodes: HashMap<_, (Node, Vec<T>)> = HashMap::new();
        for item in items {
            let node = self.cluster.node_of(key(&item).slot());
            let group = nodes.entry(Arc::as_ptr(&node.client));
            group.or_insert_with(|| (node, Vec::new())).1.push(item);
        }
        nodes.into_values().collect()
    }
}

impl Store for RedisStore {
    #[cfg(feature = "reload")]
    fn rule_store(&self) -> Option<Arc<dyn RuleStore>> {
        Some(Arc::new(RedisRuleStore::new(Arc::clone(&self.cluster))))
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let decided = self.with_one_store(charges, |store| store.decide(charges));
        decided.unwrap_or_else(|| self.decide_split(charges))
    }

    fn decide_with_fallback(
        &self,
        charges: &[Charge<'_>],
        fallback: Arc<dyn Fallback>,
    ) -> StoreFuture<Decision> {
        let one = self.with_one_store(charges, |store| {
            store.decide_with_fallback(charges, Arc::clone(&fallback))
        });
        one.unwrap_or_else(|| {
            let charges: Vec<_> = charges.iter().map(Charge::to_owned).collect();
            let borrowed: Vec<_> = charges.iter().map(OwnedCharge::borrow).collect();
            let deciding = self.decide_split(&borrowed);
            StoreFuture::boxed(async move {
                let result = deciding.await;
                fallback.complete(result, &mut charges.iter().map(OwnedCharge::borrow))
            })
        })
    }

    fn blocks(&self) -> Option<Arc<BlockList>> {
        let blocks = self.blocks.as_ref()?;
        Some(Arc::clone(blocks.list()))
    }

    fn change_block(&self, change: BlockChange) -> StoreFuture<()> {
        let Some(blocks) = self.blocks.clone() else {
            return StoreFuture::ready(Err(Error::new(
                ErrorKind::InvalidConfig,
                "blocks are not shared by this Redis store: call shared_blocks(true) on its builder, in all instances",
            )));
        };
        let cluster = Arc::clone(&self.cluster);
        StoreFuture::boxed(async move { blocks.change(&cluster, &change).await })
    }

    fn refresh_blocks(&self) -> StoreFuture<()> {
        let Some(blocks) = self.blocks.clone() else {
            return StoreFuture::ready(Ok(()));
        };
        let cluster = Arc::clone(&self.cluster);
        StoreFuture::boxed(async move { blocks.refresh(&cluster).await })
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        let settlements = receipt.into_settlements();
        let mut groups = self.by_node(settlements, |settlement| *settlement.charge().key());
        if let [(_, settlements)] = groups.as_slice()
            && are_counted_together(settlements)
            && let Some((node, settlements)) = groups.pop()
        {
            return node.store.settle(Receipt::with(settlements));
        }
        let settled = groups.into_iter().flat_map(|(node, settlements)| {
            let settlements = settlements.into_iter();
            // Each alone: those of one node may be counted by Redis or by its fallback.
            settlements.map(move |settlement| node.store.settle(Receipt::with(vec![settlement])))
        });
        all(settled.collect())
    }

    fn hold(&self, receipt: &Receipt) {
        for settlement in receipt.settlements() {
            let slot = settlement.charge().key().slot();
            let receipt = Receipt::with(vec![settlement.clone()]);
            self.cluster.node_of(slot).store.hold(&receipt);
        }
    }

    fn merge(&self, merge: &Merge) -> StoreFuture<()> {
        self.node_of(merge.charge().key()).store.merge(merge)
    }

    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        let groups = self.by_node(charges.to_vec(), |charge| *charge.key());
        let renewed = groups
            .iter()
            .map(|(node, charges)| node.store.renew(charges));
        all(renewed.collect())
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.node_of(key).store.reset(policy, key)
    }

    fn ban_state(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<BanState>> {
        self.node_of(key).store.ban_state(policy, key)
    }

    fn observe_calls(&self, observer: Weak<dyn CallObserver>) -> bool {
        self.cluster.observe_calls(observer)
    }

    fn deadline(&self) -> Option<Duration> {
        self.cluster.first().store.deadline()
    }

    fn server(&self) -> Option<String> {
        if self.cluster.is_cluster() {
            return None;
        }
        self.cluster.first().store.server()
    }

    fn fleet(&self) -> Option<Arc<Fleet>> {
        self.cluster.first().store.fleet()
    }

    #[cfg(feature = "top-keys")]
    fn shared_top_keys(&self) -> StoreFuture<Vec<Snapshot>> {
        let slot = slot_of(Keyspace::MEMBERS_IDENTITY);
        self.cluster.node_of(slot).store.shared_top_keys()
    }

    fn warnings(&self) -> Vec<Warning> {
        self.cluster.first().store.warnings()
    }

    fn probe(&self) -> StoreFuture<()> {
        let probed = self
            .cluster
            .nodes()
            .into_iter()
            .map(|node| node.store.probe());
        all(probed.collect())
    }

    fn mode_changes(&self) -> watch::Receiver<Mode> {
        // The nodes share one channel.
        self.cluster.first().store.mode_changes()
    }

    fn stats(&self) -> Stats {
        let nodes = self.cluster.nodes().into_iter();
        let stats = nodes.map(|node| node.store.stats());
        stats.reduce(Stats::and).unwrap_or_default()
    }

    fn health(&self) -> Health {
        let nodes = self.cluster.nodes().into_iter();
        let health = nodes.map(|node| node.store.health());
        health.reduce(Health::and).unwrap_or_default()
    }
}

/// Returns whether all settlements are counted in one place.
fn are_counted_together(settlements: &[Settlement]) -> bool {
    settlements
        .windows(2)
        .all(|pair| pair[0].counted_by() == pair[1].counted_by())
}

/// Awaits all calls, and returns the first error.
fn all(mut calls: Vec<StoreFuture<()>>) -> StoreFuture<()> {
    if calls.len() == 1
        && let Some(call) = calls.pop()
    {
        return call;
    }
    StoreFuture::boxed(async move {
        let results: Vec<Result<(), Error>> = join_all(calls).await;
        results.into_iter().collect()
    })
}
