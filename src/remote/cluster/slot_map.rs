//! Which node has which slot.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::super::{client::Client, node::Node, protocol::NodeAddress};

/// Which node has which slot, as far as it is known.
#[derive(Default)]
pub(super) struct SlotMap {
    /// Per slot, the index of its node; [`UNKNOWN`] without one. Empty until a slot is known.
    pub slots: Box<[u16]>,
    pub nodes: Vec<(NodeAddress, Node)>,
    /// The indexes of nodes that had no connection when no node replied: another one may have their slots.
    pub lost: Vec<u16>,
    /// The primaries in the last look-up of the slots, and those that were found to be promoted since.
    pub primaries: HashSet<NodeAddress>,
    /// The ids of the primaries in the last look-up, also by other addresses that they had in those before.
    pub ids: HashMap<NodeAddress, String>,
    /// The nodes that were replaced since the last look-up, each with the one that was promoted. Their slots move one by one.
    pub promotions: Vec<(NodeAddress, NodeAddress)>,
    /// Nodes to ask for the slots if no primary replies. They connect when they are first asked, and stay connected until
    /// a look-up succeeds: on a long way, one alone may end before its connection is there.
    pub replicas: Vec<Arc<Client>>,
}

impl SlotMap {
    /// Returns the node of a slot, if it is known and not lost.
    pub fn known_node(&self, slot: u16) -> Option<&Node> {
        let index = self.slots.get(usize::from(slot))?;
        let (_, node) = self.nodes.get(usize::from(*index))?;
        (!self.lost.contains(index)).then_some(node)
    }

    /// Returns whether the node at `to`, to which a slot moves, may lack the latest states of the slot's node: if it was no
    /// primary, it was promoted, and a node that is lost gives no keys away. An empty primary that gets its first slot looks
    /// as if it was promoted.
    pub fn is_promotion(&self, slot: u16, to: &NodeAddress) -> bool {
        let owner = self.owner_of(slot);
        if owner.is_some_and(|owner| self.is_same_node(owner, to)) {
            return false;
        }
        let is_taken_from_lost =
            || self.known_node(slot).is_none() && !self.was_replaced_by(slot, to);
        owner.is_some_and(|owner| owner != to)
            && (!self.primaries.contains(to) || is_taken_from_lost())
    }

    /// Returns whether a look-up gave one node both addresses.
    fn is_same_node(&self, one: &NodeAddress, other: &NodeAddress) -> bool {
        let id = self.ids.get(one);
        id.is_some() && id == self.ids.get(other)
    }

    /// Returns the ids of a look-up, with the addresses that these nodes had before: nodes may disagree about the name of one.
    pub fn with_other_names(
        &self,
        mut ids: HashMap<NodeAddress, String>,
    ) -> HashMap<NodeAddress, String> {
        let present: HashSet<String> = ids.values().cloned().collect();
        let max = present.len() * MAX_NAMES;
        let others = self.ids.iter().filter(|(_, id)| present.contains(*id));
        for (address, id) in others {
            if ids.len() < max && !ids.contains_key(address) {
                ids.insert(address.clone(), id.clone());
            }
        }
        ids
    }

    /// Notes that the node at `to` was promoted in place of the one that has this slot. That one may be promoted again.
    pub fn note_promotion(&mut self, slot: u16, to: &NodeAddress) {
        if let Some(owner) = self.owner_of(slot).cloned() {
            self.primaries.remove(&owner);
            self.promotions.push((owner, to.clone()));
        }
    }

    /// Returns whether the node of this slot was replaced by the one at `to`.
    pub fn was_replaced_by(&self, slot: u16, to: &NodeAddress) -> bool {
        let owner = self.owner_of(slot);
        let mut promotions = self.promotions.iter();
        promotions.any(|(from, promoted)| Some(from) == owner && promoted == to)
    }

    fn owner_of(&self, slot: u16) -> Option<&NodeAddress> {
        let index = self.slots.get(usize::from(slot))?;
        let (owner, _) = self.nodes.get(usize::from(*index))?;
        Some(owner)
    }

    /// Returns the nodes with slots of nodes that have none any more, unless they were primaries before: replicas that were
    /// promoted, which may lack the latest states. A slot that is moved to another primary takes its keys along. A node that
    /// has its slots under another address, since the nodes call it differently, is the same one.
    pub fn promoted_since(&self, before: &Self) -> Vec<Arc<Client>> {
        let is_gone = |address| self.nodes.iter().all(|(other, _)| other != address);
        let gone: Vec<bool> = before
            .nodes
            .iter()
            .map(|(address, _)| is_gone(address))
            .collect();
        let (before_nodes, before_ids) = (&before.nodes, &before.ids);
        let slots = before.slots.iter().zip(&self.slots);
        let taken_over = slots.filter(|(before, _)| gone.get(usize::from(**before)) == Some(&true));
        // A node that is down gives no keys away.
        let is_down = |before: u16| {
            let (_, node) = &before_nodes[usize::from(before)];
            node.client.is_down()
        };
        let is_renamed = |before: u16, now: u16| {
            let id_before = before_nodes.get(usize::from(before));
            let id_before = id_before.and_then(|(address, _)| before_ids.get(address));
            let id_now = self.nodes.get(usize::from(now));
            let id_now = id_now.and_then(|(address, _)| self.ids.get(address));
            id_before.is_some() && id_before == id_now
        };
        let taken_over: HashSet<(u16, u16)> =
            taken_over.map(|(before, now)| (*before, *now)).collect();
        let taken_over = taken_over.into_iter();
        let taken_over = taken_over.filter(|(before, now)| !is_renamed(*before, *now));
        let taken_over: HashSet<(u16, bool)> = taken_over
            .map(|(before, now)| (now, is_down(before)))
            .collect();
        let nodes = taken_over.iter().filter_map(|(index, is_lost)| {
            let (address, node) = self.nodes.get(usize::from(*index))?;
            (*is_lost || !before.primaries.contains(address)).then_some(&node.client)
        });
        let mut promoted: Vec<Arc<Client>> = nodes.cloned().collect();
        promoted.sort_by_key(Arc::as_ptr);
        promoted.dedup_by_key(|client| Arc::as_ptr(client));
        promoted
    }
}

/// Addresses that are kept for each node, on average.
const MAX_NAMES: usize = 4;
/// The index of a slot without a node.
pub(super) const UNKNOWN: u16 = u16::MAX;
