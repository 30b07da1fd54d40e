//! Space-Saving: the keys with the largest counts, in a fixed number of counters.
//!
//! A key without a counter takes over the smallest one, with its count, which becomes the error of the key:
//!
//! ```text
//! capacity 3      a:5  b:3  c:2          a key d comes, 1 unit
//!                 a:5  b:3  d:3 (2)      d was counted at least 3 - 2 times, at most 3 times
//! ```
//!
//! The source is Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams" (ICDT 2005). With `m` counters and a total of `N` units, for each key:
//!
//! - `count - error <= true count <= count`
//! - `error <= smallest count <= N / m`, because all counts sum to `N`
//! - The true count of a key without a counter is at most the smallest count, so each key above `N / m` has one.
//!
//! A heap finds the smallest count, and a hash table the counter of a key. Both hold indices, and nothing allocates
//! after [`Summary::new`]. The hash is keyed, so clients cannot aim keys at one place of the table.
//!
//! # Why does tollgate count the top keys on its own?
//!
//! The counts are updated for denied requests, which are the traffic during an attack, and clients choose the keys. So the memory
//! must be bounded, and the error proven for every stream. A record must not allocate, wait for other threads, or panic. Crates
//! were compared in November 2026. `datasketches` 0.6, of the Apache project, is the best kept. It hashes keys without a secret,
//! panics when its total overflows, and regularly scans its whole table, with an allocation, inside an update. `heavykeeper` 0.7
//! is right with a probability, so no single count has a bound. `topk` 0.7 is the nearest. It depends on eleven crates, its sums
//! wrap around, and it only merges lists of equal size, so an instance could not send a short one. The algorithm is 150 lines
//! here, and property tests compare it with exact counts.
//!
//! A sum of summaries keeps the bound (`merged_list.rs` has the proof), which covers three needs. Threads record into shards of
//! their own. Two halves of a window take turns, without a decay that would blur the bound. Instances exchange snapshots, by half
//! of the window: with whole windows, the counts of an instance that has ended would overlap the others, and the sum would cover
//! no definite time. The hash in Redis has a field for each instance, so a write replaces the last one and may be repeated.
//!
//! A denied request counts as 1, whatever it costs. Otherwise one request with a huge cost would raise the error above all other
//! counts.

use crate::key::Key;

/// Counts of the most frequent keys. See the [module docs](self).
#[derive(Debug)]
pub(super) struct Summary {
    /// At most as many as the capacity.
    counters: Vec<KeyCounter>,
    /// Indices of the counters, as a binary heap with the smallest count first.
    heap: Vec<u16>,
    /// Indices of the counters by hash, with linear probing. At most half full.
    table: Box<[u16]>,
    total: u64,
}

/// The count of one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyCounter {
    pub key: Key,
    pub count: u64,
    /// The part of the count that may belong to other keys.
    pub error: u64,
    hash: u64,
    /// Position in the heap.
    position: u16,
}

impl Summary {
    /// Allocates a summary with 1 to [`MAX_CAPACITY`] counters.
    pub fn new(capacity: usize) -> Self {
        Self {
            counters: Vec::with_capacity(capacity),
            heap: Vec::with_capacity(capacity),
            table: vec![EMPTY; (2 * capacity).next_power_of_two()].into(),
            total: 0,
        }
    }

    /// Counts units of a key. `hash` is its keyed hash.
    pub fn record(&mut self, hash: u64, key: &Key, units: u64) {
        self.total = self.total.saturating_add(units);
        let place = self.find(hash, key);
        let index = self.table[place];
        if index != EMPTY {
            let counter = &mut self.counters[usize::from(index)];
            counter.count = counter.count.saturating_add(units);
            let position = counter.position;
            self.sift_down(position);
        } else if self.counters.len() < self.counters.capacity() {
            self.add(place, hash, key, units);
        } else {
            self.take_over(hash, key, units);
        }
    }

    /// Removes all counts.
    pub fn clear(&mut self) {
        self.counters.clear();
        self.heap.clear();
        self.table.fill(EMPTY);
        self.total = 0;
    }

    /// Returns the counters, in no order.
    pub fn counters(&self) -> &[KeyCounter] {
        &self.counters
    }

    /// Returns the sum of all recorded units.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the largest count that a key without a counter may have.
    pub fn unlisted(&self) -> u64 {
        match self.heap.first() {
            Some(index) if self.counters.len() == self.counters.capacity() => {
                self.counters[usize::from(*index)].count
            }
            _ => 0,
        }
    }

    /// Returns the place of a key in the table, or the empty place where it belongs.
    fn find(&self, hash: u64, key: &Key) -> usize {
        let mut place = self.home(hash);
        loop {
            let index = self.table[place];
            if index == EMPTY {
                return place;
            }
            let counter = &self.counters[usize::from(index)];
            if counter.hash == hash && counter.key == *key {
                return place;
            }
            place = self.next(place);
        }
    }

    fn add(&mut self, place: usize, hash: u64, key: &Key, units: u64) {
        let index = u16::try_from(self.counters.len()).expect("a capacity is below 2^16");
        self.table[place] = index;
        self.heap.push(index);
        self.counters.push(KeyCounter {
            key: *key,
            count: units,
            error: 0,
            hash,
            position: index,
        });
        self.sift_up(index);
    }

    /// Gives the counter with the smallest count to another key.
    fn take_over(&mut self, hash: u64, key: &Key, units: u64) {
        let index = self.heap[0];
        let KeyCounter {
            key: old_key,
            hash: old_hash,
            ..
        } = self.counters[usize::from(index)];
        self.remove(self.find(old_hash, &old_key));
        let place = self.find(hash, key);
        self.table[place] = index;
        let counter = &mut self.counters[usize::from(index)];
        counter.error = counter.count;
        counter.count = counter.count.saturating_add(units);
        (counter.key, counter.hash) = (*key, hash);
        self.sift_down(0);
    }

    /// Empties a place of the table. Entries behind the gap that a search would no longer find move up.
    fn remove(&mut self, mut gap: usize) {
        let mask = self.table.len() - 1;
        let mut place = gap;
        loop {
            place = self.next(place);
            let index = self.table[place];
            if index == EMPTY {
                break;
            }
            let home = self.home(self.counters[usize::from(index)].hash);
            let distance_to = |from: usize| place.wrapping_sub(from) & mask;
            if distance_to(home) >= distance_to(gap) {
                self.table[gap] = index;
                gap = place;
            }
        }
        self.table[gap] = EMPTY;
    }

    fn home(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "only low bits are used")]
        let hash = hash as usize;
        hash & (self.table.len() - 1)
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.table.len() - 1)
    }

    /// Moves the entry at this position of the heap down while one below it has a smaller count.
    fn sift_down(&mut self, position: u16) {
        let mut position = usize::from(position);
        loop {
            let left = 2 * position + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = (left + 1).min(self.heap.len() - 1);
            let least = if self.count_at(right) < self.count_at(left) {
                right
            } else {
                left
            };
            if self.count_at(position) <= self.count_at(least) {
                return;
            }
            self.swap(position, least);
            position = least;
        }
    }

    /// Moves the entry at this position of the heap up while the one above it has a larger count.
    fn sift_up(&mut self, position: u16) {
        let mut position = usize::from(position);
        while position > 0 {
            let above = (position - 1) / 2;
            if self.count_at(above) <= self.count_at(position) {
                return;
            }
            self.swap(position, above);
            position = above;
        }
    }

    fn count_at(&self, position: usize) -> u64 {
        self.counters[usize::from(self.heap[position])].count
    }

    fn swap(&mut self, first: usize, second: usize) {
        self.heap.swap(first, second);
        for position in [first, second] {
            let index = usize::from(self.heap[position]);
            self.counters[index].position =
                u16::try_from(position).expect("a capacity is below 2^16");
        }
    }
}

/// The largest capacity of a summary.
pub(super) const MAX_CAPACITY: usize = 4_096;

/// Marks an empty place of the table. No index is as large.
const EMPTY: u16 = u16::MAX;
