//! Small records, found by hash and without gaps, whose memory grows and shrinks piece by piece.
//!
//! ```text
//! heads:  [ 2 | - | 0 | .. ]             the first record of each hash chain
//! chunks: [ 0: next in chain 1 | 1: - | 2: - | .. 31 ] [ 32 .. 63 ] ..
//! ```
//!
//! A removed record is replaced by the last one, so that whole chunks come free at the end.

use std::{fmt::Debug, mem};

use super::fingerprint::place;

/// A record of a slab.
pub(super) trait Record: Copy + Debug + Default {
    /// Returns evenly distributed bits by which the record is found.
    fn hash(&self) -> u64;
}

/// Records of one kind.
#[derive(Debug)]
pub(super) struct Slab<R: Record> {
    chunks: Vec<Box<[Node<R>]>>,
    len: usize,
    heads: Box<[u32]>,
}

/// Packed, as the records are.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
struct Node<R: Record> {
    record: R,
    /// The next record in the chain.
    next: u32,
}

impl<R: Record> Slab<R> {
    pub(super) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
            heads: Box::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of records that can be added without new memory.
    #[inline]
    pub(super) fn spare(&self) -> usize {
        self.chunks.len() * CHUNK - self.len
    }

    /// Bytes that the records take.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.heads)
            + self.chunks.capacity() * size_of::<Box<[Node<R>]>>()
            + self.chunks.len() * CHUNK * size_of::<Node<R>>()
    }

    /// Returns the peak of bytes while a chunk is added.
    pub(super) fn bytes_to_grow(&self) -> usize {
        let pointers = self.chunks_to_grow() * size_of::<Box<[Node<R>]>>();
        let heads = self.heads_to_grow().saturating_sub(self.heads.len()) * size_of::<u32>();
        self.bytes() + CHUNK * size_of::<Node<R>>() + pointers + heads
    }

    /// Adds a chunk.
    pub(super) fn grow(&mut self) {
        if self.heads_to_grow() > 0 {
            self.chain_anew(self.heads_to_grow());
        }
        let more = self.chunks_to_grow().saturating_sub(self.chunks.len());
        self.chunks.reserve_exact(more);
        self.chunks
            .push(vec![Node::default(); CHUNK].into_boxed_slice());
    }

    /// Frees memory that is no longer needed. Returns whether there was any.
    ///
    /// A chunk stays in reserve, so that a number of records that goes up and down does not allocate.
    #[inline]
    pub(super) fn shrink(&mut self) -> bool {
        if self.spare() < 2 * CHUNK {
            return false;
        }
        self.chunks.pop();
        let records = self.chunks.len() * CHUNK;
        if self.heads.len() > 8 * records {
            self.chain_anew(records);
            self.chunks.shrink_to_fit();
        }
        true
    }

    /// Finds a record by its hash.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(&R) -> bool) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut index = self.heads[place(hash, self.heads.len())];
        while index != NONE {
            let node = self.node(index);
            let record = node.record;
            if is_it(&record) {
                return Some(index);
            }
            index = node.next;
        }
        None
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> R {
        self.node(index).record
    }

    /// Replaces a record by another of the same hash.
    #[inline]
    pub(super) fn set(&mut self, index: u32, record: R) {
        self.node_mut(index).record = record;
    }

    /// Adds a record; there must be memory to [`spare`](Self::spare) for it.
    #[inline]
    pub(super) fn insert(&mut self, record: R) -> u32 {
        // Invariant: fewer records than 2^31, which would take 64 GiB.
        #[expect(clippy::cast_possible_truncation, reason = "below 2^31")]
        let index = self.len as u32;
        self.len += 1;
        self.node_mut(index).record = record;
        self.chain(index);
        index
    }

    /// Removes a record and moves the last one into its place. Returns the former index of the moved record.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> Option<u32> {
        self.unchain(index);
        self.len -= 1;
        #[expect(clippy::cast_possible_truncation, reason = "below 2^31")]
        let last = self.len as u32;
        if index == last {
            return None;
        }
        self.unchain(last);
        self.node_mut(index).record = self.node(last).record;
        self.chain(index);
        Some(last)
    }

    /// Makes a record the first of its chain.
    fn chain(&mut self, index: u32) {
        let hash = self.get(index).hash();
        let place = place(hash, self.heads.len());
        let next = mem::replace(&mut self.heads[place], index);
        self.node_mut(index).next = next;
    }

    fn unchain(&mut self, index: u32) {
        let next = self.node(index).next;
        let place = place(self.get(index).hash(), self.heads.len());
        let mut before = self.heads[place];
        if before == index {
            self.heads[place] = next;
            return;
        }
        while self.node(before).next != index {
            before = self.node(before).next;
        }
        self.node_mut(before).next = next;
    }

    /// Makes new chains. The old heads go first, so that both are never there together.
    fn chain_anew(&mut self, heads: usize) {
        self.heads = Box::default();
        self.heads = vec![NONE; heads].into_boxed_slice();
        #[expect(clippy::cast_possible_truncation, reason = "below 2^31")]
        (0..self.len as u32).for_each(|index| self.chain(index));
    }

    /// Length that the heads need before a chunk is added, at least one for two records; 0 when they have it.
    fn heads_to_grow(&self) -> usize {
        let records = (self.chunks.len() + 1) * CHUNK;
        match records > 2 * self.heads.len() {
            true => records,
            false => 0,
        }
    }

    /// Length of the memory for another chunk's pointer, 0 when there is some.
    fn chunks_to_grow(&self) -> usize {
        let chunks = self.chunks.len();
        match chunks == self.chunks.capacity() {
            true => (chunks + chunks / 2).max(4),
            false => 0,
        }
    }

    #[inline]
    fn node(&self, index: u32) -> &Node<R> {
        let index = index as usize;
        &self.chunks[index / CHUNK][index % CHUNK]
    }

    #[inline]
    fn node_mut(&mut self, index: u32) -> &mut Node<R> {
        let index = index as usize;
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }
}

/// No record.
pub(super) const NONE: u32 = u32::MAX;
/// Records that share an allocation: more than one decision can add.
const CHUNK: usize = 32;
