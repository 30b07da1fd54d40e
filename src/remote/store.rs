//! The Redis store: it passes each decision to the node that has the keys.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::sync::watch;

use crate::{
    algorithm::{MicroRate, RateReport},
    block::{BlockChange, BlockList},
    charge::{Charge, OwnedCharge, Receipt, Settlement, TurnRequest, Turns},
    clock::{Clock, Timestamp},
    decision::Decision,
    diagnosis::Warning,
    error::{Error, ErrorKind},
    key::Key,
    policy::{BanRecord, Policy},
    resilience::Primary,
    store::{Health, LocalView, Mode, OnSlotMessage, Stats, Store, StoreFuture},
};

#[cfg(feature = "reload")]
use crate::store::RuleStore;
#[cfg(feature = "test-util")]
use crate::{algorithm::Admitted, charge::Merge};
#[cfg(feature = "top-keys")]
use crate::{key::slot::slot_of, top_keys::Snapshot};

use super::{
    blocks::SharedBlocks,
    cluster::{Cluster, split},
    leases,
    node::Node,
    wakes,
};

#[cfg(feature = "top-keys")]
use super::protocol::Keyspace;
#[cfg(feature = "reload")]
use super::rule_store::RedisRuleStore;

/// Counts in Redis. Clones share the connections.
///
/// See the [module docs](super) for waits, costs and failovers. The store alone returns an error during an outage. The
/// builders of the layer and of the limiter put a breaker and each policy's [`OnOutage`](crate::OnOutage) in front of it,
/// or of each node of a cluster.
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

    /// Returns the Redis store that `store` is or wraps.
    #[cfg(any(feature = "reload", feature = "top-keys"))]
    pub(crate) fn of(mut store: &dyn Store) -> Option<&Self> {
        loop {
            if let Some(redis) = (store as &dyn std::any::Any).downcast_ref() {
                return Some(redis);
            }
            store = store.inner()?;
        }
    }

    /// Merges what an instance admitted during an outage: units, or as a TAT the microseconds from `from`.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn merge(
        &self,
        charge: &Charge<'_>,
        (units, from, until): (u64, u64, Timestamp),
        id: u64,
    ) -> StoreFuture<()> {
        let admitted = Admitted::new(units, from, until);
        let merge = Merge::new(charge.to_owned(), admitted, id);
        let client = self.cluster.node_for(charge.key()).client;
        let run_number = client.run_number();
        Primary::merge(client, &merge, run_number)
    }

    /// Returns the node of a key.
    pub(super) fn node_for(&self, key: &Key) -> Node {
        self.cluster.node_for(key)
    }

    /// Resets a key, of which others may have leased units, whatever its policy is.
    pub(super) fn reset_leased(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.node_for(key).reset(policy, key, true)
    }

    /// Returns the rules that all instances share.
    #[cfg(feature = "reload")]
    pub(crate) fn rule_store(&self) -> Arc<dyn RuleStore> {
        Arc::new(RedisRuleStore::new(Arc::clone(&self.cluster)))
    }

    /// Returns what the instances share of their top keys: for each, a snapshot of each half of the window.
    #[cfg(feature = "top-keys")]
    pub(crate) fn shared_top_keys(&self) -> StoreFuture<Vec<Snapshot>> {
        let slot = slot_of(Keyspace::MEMBERS_IDENTITY);
        self.cluster.node_of(slot).shared_top_keys()
    }

    /// Settles where the keys are.
    fn settle_at_nodes(&self, settlements: Vec<Settlement>) -> StoreFuture<()> {
        if settlements.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        let mut groups = self.by_node(settlements, |settlement| *settlement.charge().key());
        if let [(_, settlements)] = groups.as_slice()
            && are_counted_together(settlements)
            && let Some((node, settlements)) = groups.pop()
        {
            return node.settle(Receipt::with(settlements));
        }
        let settled = groups.into_iter().flat_map(|(node, settlements)| {
            let settlements = settlements.into_iter();
            // Each alone: those of one node may be counted by Redis or by its fallback.
            settlements.map(move |settlement| node.settle(Receipt::with(vec![settlement])))
        });
        all(settled.collect())
    }

    /// Decides where the keys are.
    fn decide_at_nodes(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let cluster = &self.cluster;
        if !cluster.is_cluster() {
            return cluster.first().decide(charges, split::decide_in_parts);
        }
        if split::spans_slots(charges) {
            cluster.first().client.check.check_slots(charges);
            return split::decide(charges, |slot| cluster.node_of(slot));
        }
        match charges.first() {
            Some(first) => cluster
                .node_of(first.key().slot())
                .decide(charges, split::decide_in_parts),
            None => cluster.first().decide(charges, split::decide_in_parts),
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
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if charges.iter().any(|charge| charge.policy().is_leased()) {
            let decided = leases::decide(&self.cluster, charges, |charges| {
                self.decide_at_nodes(charges)
            });
            let waiting = match decided {
                leases::LeasedDecision::Decided(decision) => return decision,
                leases::LeasedDecision::Waits(waiting) => waiting,
            };
            let this = self.clone();
            return StoreFuture::boxed(async move {
                match waiting.end().await {
                    Ok(decision) => Ok(decision),
                    Err((charge, time)) => {
                        time.ask(|| this.decide_at_nodes(&[charge.borrow()])).await
                    }
                }
            });
        }
        self.decide_at_nodes(charges)
    }

    fn take_turns(&self, request: TurnRequest) -> StoreFuture<Turns> {
        let Some(first) = request.charges.first().map(|charge| *charge.borrow().key()) else {
            return StoreFuture::ready(Ok(Turns::default()));
        };
        let spans_slots = self.cluster.is_cluster() && {
            let charges: Vec<_> = request.charges.iter().map(OwnedCharge::borrow).collect();
            split::spans_slots(&charges)
        };
        if !spans_slots {
            return self.node_for(&first).take_turns(request);
        }
        // No line has the callers of all nodes.
        if request.callers() == 0 {
            return StoreFuture::ready(Ok(Turns::default()));
        }
        if let Some(turns) = Turns::in_pause(&request, Clock::system().now()) {
            return StoreFuture::ready(Ok(turns));
        }
        let decided = self.decide_at_nodes(&request.charges_of(0));
        decided.map(move |decision| Ok(Turns::from_decision(decision?, &request)))
    }

    fn listen_for_slots(&self, queues: u32, received: Weak<OnSlotMessage>) {
        wakes::listen(&self.cluster, queues, received);
    }

    fn pause(&self, charge: &Charge<'_>, length: Duration) -> StoreFuture<()> {
        self.node_for(charge.key()).pause(charge, length)
    }

    fn paused_until(&self, charge: &Charge<'_>) -> StoreFuture<Option<Timestamp>> {
        self.node_for(charge.key()).paused_until(charge)
    }

    fn lower(&self, charge: &Charge<'_>, remaining: u64) -> StoreFuture<()> {
        self.node_for(charge.key()).lower(charge, remaining)
    }

    fn adapt(&self, charge: &Charge<'_>, report: RateReport) -> StoreFuture<MicroRate> {
        self.node_for(charge.key()).adapt(charge, report)
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
        let mut settlements = receipt.into_settlements();
        if settlements.iter().any(leases::is_refund) {
            let this = self.clone();
            let mut here = StoreFuture::polled(async move {
                leases::settle_here(&this.cluster, &mut settlements).await;
                Ok(settlements)
            });
            // What is sent begins where it is awaited, since it needs a runtime.
            return match here.take_ready() {
                Some(Ok(rest)) => self.settle_at_nodes(rest),
                Some(Err(error)) => StoreFuture::ready(Err(error)),
                None => {
                    let this = self.clone();
                    StoreFuture::boxed(async move { this.settle_at_nodes(here.await?).await })
                }
            };
        }
        self.settle_at_nodes(settlements)
    }

    fn hold(&self, receipt: &Receipt) {
        for settlement in receipt.settlements() {
            let slot = settlement.charge().key().slot();
            let receipt = Receipt::with(vec![settlement.clone()]);
            self.cluster.node_of(slot).hold(&receipt);
        }
    }

    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        let groups = self.by_node(charges.to_vec(), |charge| *charge.key());
        let renewed = groups.iter().map(|(node, charges)| node.renew(charges));
        all(renewed.collect())
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.node_for(key).reset(policy, key, policy.is_leased())
    }

    fn count_failure(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<Timestamp>> {
        self.node_for(key).count_failure(policy, key)
    }

    fn ban_record(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<BanRecord>> {
        self.node_for(key).ban_record(policy, key)
    }

    fn deadline(&self) -> Option<Duration> {
        Some(self.cluster.first().client.deadline)
    }

    fn drain(&self) -> StoreFuture<()> {
        let cluster = Arc::clone(&self.cluster);
        if !cluster.leases().has_keys() {
            return StoreFuture::ready(Ok(()));
        }
        StoreFuture::boxed(async move {
            leases::drain(cluster).await;
            Ok(())
        })
    }

    fn warnings(&self) -> Vec<Warning> {
        self.cluster.first().warnings()
    }

    fn probe(&self) -> StoreFuture<()> {
        let probed = self
            .cluster
            .nodes()
            .into_iter()
            .map(|node| Primary::probe(node.client));
        all(probed.collect())
    }

    fn mode_changes(&self) -> watch::Receiver<Mode> {
        // The nodes share one channel.
        match self.cluster.first().guard() {
            Some(guard) => guard.mode_changes(),
            None => watch::channel(Mode::Healthy).1,
        }
    }

    fn stats(&self) -> Stats {
        let nodes = self.cluster.nodes().into_iter();
        let stats = nodes.map(|node| node.stats());
        let stats = stats.reduce(Stats::merge).unwrap_or_default();
        let leases = self.cluster.leases();
        match leases.usage(Clock::system().now()) {
            Some((keys, units)) => {
                leases.metrics.show();
                stats.leased(keys, units)
            }
            None => stats,
        }
    }

    fn local_view(&self, charge: &Charge<'_>) -> LocalView {
        let node = self.cluster.node_for(charge.key());
        let is_leased = charge.policy().is_leased() && !charge.is_shadow();
        let lease = is_leased.then(|| {
            let leases = self.cluster.leases();
            leases.view(charge, Clock::system().now())
        });
        LocalView::new(lease.flatten(), node.denied_for(charge))
    }

    fn health(&self) -> Health {
        leases::note_all_decided(&self.cluster);
        let nodes = self.cluster.nodes().into_iter();
        let health = nodes.map(|node| node.health());
        health.reduce(Health::merge).unwrap_or_default()
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
