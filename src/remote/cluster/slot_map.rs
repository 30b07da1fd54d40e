//! Which node has which slot.

use std::{collections::HashSet, sync::Arc};

use crate::store::Store;

use super::super::{client::Client, protocol::NodeAddress};

/// A node, and the store that decides on it.
#[derive(Clone, Debug)]
pub(in crate::remote) struct Node {
    pub(in crate::remote) client: Arc<Client>,
    pub(in crate::remote) store: Arc<dyn Store>,
}

/// Which node has which slot, as far as it is known.
#[derive(Default)]
pub(super) struct SlotMap {
    /// Per slot, the index of its node; [`UNKNOWN`] without one. Empty until a slot is known.
    pub(super) slots: Box<[u16]>,
    pub(super) nodes: Vec<(NodeAddress, Node)>,
    /// The indexes of nodes that had no connection when no node replied: another one may have their slots.
    pub(super) lost: Vec<u16>,
    /// The primaries in the last look-up of the slots, and those that were found to be promoted since.
    pub(super) primaries: HashSet<NodeAddress>,
    /// Nodes to ask for the slots if no primary replies. They connect when they are first asked, and stay connected until
    /// a look-up succeeds: on a long way, one alone may end before its connection is there.
    pub(super) replicas: Vec<Arc<Client>>,
}

impl SlotMap {
    /// Returns the node of a slot, if it is known and not lost.
    pub(super) fn known_node(&self, slot: u16) -> Option<&Node> {
        let index = self.slots.get(usize::from(slot))?;
        let (_, node) = self.nodes.get(usize::from(*index))?;
        (!self.lost.contains(index)).then_some(node)
    }

    /// Returns whether a slot that moves to the node at `to` shows that this one was promoted: its node is known, and
    /// the new one was no primary. An empty primary that gets its first slot looks the same.
    pub(super) fn is_promotion(&self, slot: u16, to: &NodeAddress) -> bool {
        let index = self.slots.get(usize::from(slot));
        let owner = index.and_then(|index| self.nodes.get(usize::from(*index)));
        owner.is_some_and(|(owner, _)| owner != to) && !self.primaries.contains(to)
    }

    /// Returns the nodes with slots of nodes that have none any more, unless they were primaries before: replicas that were
    /// promoted, which may lack the latest states. A slot that is moved to another primary takes its keys along.
    pub(super) fn promoted_since(&self, before: &Self) -> Vec<Arc<Client>> {
        let is_gone = |address| self.nodes.iter().all(|(other, _)| other != address);
        let gone: Vec<bool> = before
            .nodes
            .iter()
            .map(|(address, _)| is_gone(address))
            .collect();
        let slots = before.slots.iter().zip(&self.slots);
        let taken_over = slots.filter(|(before, _)| gone.get(usize::from(**before)) == Some(&true));
        let promoted: HashSet<u16> = taken_over.map(|(_, now)| *now).collect();
        let nodes = promoted
            .iter()
            .filter_map(|index| self.nodes.get(usize::from(*index)));
        nodes
            .filter(|(address, _)| !before.primaries.contains(address))
            .map(|(_, node)| Arc::clone(&node.client))
            .collect()
    }
}

/// The index of a slot without a node.
pub(super) const UNKNOWN: u16 = u16::MAX;
