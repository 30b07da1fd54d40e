//! How much a store may hold, and how that is divided among its shards.

use std::{sync::Arc, thread::available_parallelism};

use crate::{algorithm::Concurrency, sync::Mutex};

use super::budget::Budget;

/// Limits of one shard, and the budgets that all shards share.
#[derive(Clone, Debug)]
pub(super) struct Capacity {
    /// Slots of a table that has any.
    pub(super) min_slots: usize,
    /// Slots of a table that cannot grow any more.
    pub(super) max_slots: usize,
    /// Entries of logs beyond those that every log may have.
    pub(super) log_entries: Budget,
    /// Bytes for requests in flight.
    pub(super) in_flight: Budget,
    /// Locked while a table grows.
    pub(super) growth: Arc<Mutex<()>>,
}

impl Capacity {
    /// Returns the limits for each of `shards` shards of a store that holds `max_keys` keys within the documented bytes.
    pub(super) fn of(max_keys: usize, shards: usize) -> Self {
        let slots = slots_for(max_keys);
        let (min_slots, max_slots) = if shards < GROWING {
            let slots = slots.div_ceil(shards);
            (slots, slots)
        } else {
            // While a table grows, its old slots are there too: two thirds as many as the new ones.
            (SMALLEST, slots / (3 * shards + 2) * 3)
        };
        let in_flight = max_keys.saturating_add(ONE_KEY).saturating_mul(IN_FLIGHT);
        Self {
            min_slots,
            max_slots,
            log_entries: Budget::new(max_keys.saturating_mul(ENTRIES)),
            in_flight: Budget::new(in_flight),
            growth: Arc::default(),
        }
    }
}

/// Number of shards for `max_keys` keys: enough for all cores, but none so small that it overflows by chance.
pub(super) fn shards_for(max_keys: usize) -> usize {
    let wanted = available_parallelism().map_or(16, |cores| cores.get() * 16);
    let most = (max_keys / 1_024).max(1).next_power_of_two();
    wanted.next_power_of_two().min(most)
}

/// Slots that hold `keys` keys at three quarters.
pub(super) const fn slots_for(keys: usize) -> usize {
    keys.div_ceil(3).saturating_mul(4)
}

/// With fewer shards, a growing one would be much of the whole: their tables, which are small, are made at full size.
const GROWING: usize = 16;
/// Slots of a table that grows.
const SMALLEST: usize = 16;
/// Log entries that all logs share, per key of `max_keys`.
const ENTRIES: usize = 4;
/// Bytes for requests in flight, per key of `max_keys`.
const IN_FLIGHT: usize = 64;
/// Requests in flight beyond that, so that one key can fill the highest limit even where the store holds few keys.
#[expect(clippy::cast_possible_truncation, reason = "it fits")]
const ONE_KEY: usize = Concurrency::MAX_LIMIT as usize;
