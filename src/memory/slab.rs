//! Small records that are found by hash. Their memory grows and shrinks by chunks and has no gaps.
//!
//! ```text
//! heads:  [ 2 | - | 0 | .. ]             index of the first record of each hash chain
//! chunks: [ 0: next in chain 1 | 1: - | 2: - | .. 31 ] [ 32 .. 63 ] ..
//! ```
//!
//! The last record replaces a removed one, so that the last chunks become empty and can be freed:
//!
//! ```text
//! records  [ a b c d e f ]     remove c  ─>  [ a b f d e ]     the chain of f now leads to index 2
//! ```
//!
//! So an index is valid until the next removal. [`Slab::remove`] returns the former index of the record that it moved, so
//! that its owner can correct links to it.
//!
//! A chain has at most two records on average: the number of heads doubles when there is one head for two records. Memory
//! is added only after the caller has reserved [`Slab::bytes_to_grow`] bytes.

use std::{fmt::Debug, mem};

use crate::charge::place;

/// A record of a slab.
pub(super) trait Record: Copy + Debug + Default {
    /// Returns evenly distributed bits that identify the record's chain.
    fn hash(&self) -> u64;
}

/// Records of one kind.
#[derive(Debug)]
pub(super) struct Slab<R: Record> {
    /// [`CHUNK`] records each. All but the last two are full.
    chunks: Vec<Box<[ChainedRecord<R>]>>,
    /// Number of records.
    len: usize,
    /// Index of the first record of each chain, or [`NONE`].
    heads: Box<[u32]>,
}

/// A record in its chain. Packed, as the records are.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
struct ChainedRecord<R: Record> {
    record: R,
    /// Index of the next record in the chain, or [`NONE`].
    next: u32,
}

impl<R: Record> Slab<R> {
    /// Returns an empty slab, which allocates nothing.
    pub fn new() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
            heads: Box::default(),
        }
    }

    /// Number of records, whose indices are below it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of records that fit without new memory.
    #[inline]
    pub fn spare(&self) -> usize {
        self.chunks.len() * CHUNK - self.len
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.heads)
            + self.chunks.capacity() * size_of::<Box<[ChainedRecord<R>]>>()
            + self.chunks.len() * CHUNK * size_of::<ChainedRecord<R>>()
    }

    /// Returns the peak number of bytes while a chunk is added.
    pub fn bytes_to_grow(&self) -> usize {
        let pointers = self.chunks_to_grow() * size_of::<Box<[ChainedRecord<R>]>>();
        let heads = self.heads_to_grow().saturating_sub(self.heads.len()) * size_of::<u32>();
        self.bytes() + CHUNK * size_of::<ChainedRecord<R>>() + pointers + heads
    }

    /// Adds a chunk.
    pub fn grow(&mut self) {
        if self.heads_to_grow() > 0 {
            self.rechain(self.heads_to_grow());
        }
        let more = self.chunks_to_grow().saturating_sub(self.chunks.len());
        self.chunks.reserve_exact(more);
        self.chunks
            .push(vec![ChainedRecord::default(); CHUNK].into_boxed_slice());
    }

    /// Frees the last chunk if two are unused. Returns whether it did.
    ///
    /// One unused chunk stays, so that a number of records that goes up and down does not allocate.
    #[inline]
    pub fn shrink(&mut self) -> bool {
        if self.spare() < 2 * CHUNK {
            return false;
        }
        self.chunks.pop();
        let records = self.chunks.len() * CHUNK;
        if self.heads.len() > 8 * records {
            self.rechain(records);
            self.chunks.shrink_to_fit();
        }
        true
    }

    /// Returns the index of the first record in the chain of `hash` for which `matches` returns `true`.
    #[inline]
    pub fn find(&self, hash: u64, matches: impl Fn(&R) -> bool) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut index = self.heads[place(hash, self.heads.len())];
        while index != NONE {
            let node = self.node(index);
            let record = node.record;
            if matches(&record) {
                return Some(index);
            }
            index = node.next;
        }
        None
    }

    /// Returns a copy of the record at an index.
    #[inline]
    pub fn get(&self, index: u32) -> R {
        self.node(index).record
    }

    /// Replaces a record by another of the same hash.
    #[inline]
    pub fn set(&mut self, index: u32, record: R) {
        self.node_mut(index).record = record;
    }

    /// Adds a record, for which there must be [`spare`](Self::spare) memory. Returns its index.
    #[inline]
    pub fn insert(&mut self, record: R) -> u32 {
        // Invariant: fewer records than 2^31, which would take 64 GiB.
        #[expect(clippy::cast_possible_truncation, reason = "below 2^31")]
        let index = self.len as u32;
        self.len += 1;
        self.node_mut(index).record = record;
        self.chain(index);
        index
    }

    /// Removes a record and moves the last one to its index. Returns the former index of the moved record, if there is one.
    #[inline]
    pub fn remove(&mut self, index: u32) -> Option<u32> {
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

    /// Inserts a record at the head of its chain.
    fn chain(&mut self, index: u32) {
        let hash = self.get(index).hash();
        let place = place(hash, self.heads.len());
        let next = mem::replace(&mut self.heads[place], index);
        self.node_mut(index).next = next;
    }

    /// Removes a record from its chain.
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

    /// Rebuilds all chains with another number of heads.
    fn rechain(&mut self, heads: usize) {
        // Frees the old heads first, so that both are never in memory together.
        self.heads = Box::default();
        self.heads = vec![NONE; heads].into_boxed_slice();
        #[expect(clippy::cast_possible_truncation, reason = "below 2^31")]
        (0..self.len as u32).for_each(|index| self.chain(index));
    }

    /// Returns how many heads the table must have before a chunk is added: at least one for two records. 0 if there are
    /// enough.
    fn heads_to_grow(&self) -> usize {
        let records = (self.chunks.len() + 1) * CHUNK;
        if records > 2 * self.heads.len() {
            records
        } else {
            0
        }
    }

    /// Returns the capacity needed for another chunk's pointer, or 0 if there is enough.
    fn chunks_to_grow(&self) -> usize {
        let chunks = self.chunks.len();
        if chunks == self.chunks.capacity() {
            (chunks + chunks / 2).max(4)
        } else {
            0
        }
    }

    #[inline]
    fn node(&self, index: u32) -> &ChainedRecord<R> {
        let index = index as usize;
        &self.chunks[index / CHUNK][index % CHUNK]
    }

    #[inline]
    fn node_mut(&mut self, index: u32) -> &mut ChainedRecord<R> {
        let index = index as usize;
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }
}

/// Marks the end of a chain or list.
pub(super) const NONE: u32 = u32::MAX;
/// Number of records in an allocation: more than one decision can add.
const CHUNK: usize = 32;
