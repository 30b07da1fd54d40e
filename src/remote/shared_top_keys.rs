//! Shares the top keys of this instance through Redis.
//!
//! ```text
//! a registration, at most every 2 s ──> lua/top_keys.lua: prefix:{!}:top:<number of the half>   instance ──> its snapshot
//! `fleet_top_keys.rs`               ──> HSCAN of the current half and of the previous one       all snapshots are merged
//! ```
//!
//! A hash has the counts of one half of the window, so that the sum of two hashes covers the same time for all instances,
//! and those of an instance that has ended count until the window is over. The previous half is written once more when a new
//! one has begun: until then it lacks what was recorded last.
//!
//! A failed write has no effect on decisions, and the next one makes up for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::Cmd;

use crate::{
    task::timer::timeout,
    top_keys::{Snapshot, TopKeys},
};

use super::{
    connection::{LaneConnection, classify},
    protocol::{Keyspace, RedisKey, Script},
};

/// The top keys that an instance shares.
#[derive(Debug)]
pub(super) struct SharedTopKeys {
    top_keys: TopKeys,
    keyspace: Arc<Keyspace>,
    /// The current half when the previous one was written for the last time; 0 for never.
    completed: AtomicU64,
}

impl SharedTopKeys {
    pub fn new(top_keys: TopKeys, keyspace: Arc<Keyspace>) -> Self {
        Self {
            top_keys,
            keyspace,
            completed: AtomicU64::new(0),
        }
    }

    /// Writes the current half, and the previous one if it is not complete. An error ends the write.
    pub async fn write(&self, connection: &mut LaneConnection, instance: u64) {
        let [current, previous] = self.top_keys.halves();
        if self.completed.load(Ordering::Relaxed) != current.0 {
            if !self.write_half(connection, instance, &previous).await {
                return;
            }
            self.completed.store(current.0, Ordering::Relaxed);
        }
        self.write_half(connection, instance, &current).await;
    }

    /// Writes a half, unless nothing was recorded in it. Returns whether nothing is left to be written.
    async fn write_half(
        &self,
        connection: &mut LaneConnection,
        instance: u64,
        (number, snapshot): &(u64, Snapshot),
    ) -> bool {
        if snapshot.policies().is_empty() {
            return true;
        }
        let key = self.keyspace.top_keys_key(*number);
        let value = snapshot.clone().truncated(SHARED_KEYS).encode();
        let command = |start: fn(&Script, usize) -> Cmd| {
            let mut command = start(Script::TOP_KEYS, 5);
            command
                .arg(1)
                .arg(key.as_slice())
                .arg(&instance.to_be_bytes())
                .arg(self.top_keys.window().as_millis())
                .arg(MOST_INSTANCES)
                .arg(value.as_slice());
            command
        };
        let mut reply = timeout(TIMEOUT, connection.send(&command(Script::by_hash))).await;
        if let Some(Err(failed)) = &reply
            && classify::is_unknown_script(&failed.error)
        {
            reply = timeout(TIMEOUT, connection.send(&command(Script::by_text))).await;
        }
        matches!(reply, Some(Ok(_)))
    }

    /// Returns the keys of the previous half of the window and of the current one.
    pub fn keys(&self) -> [RedisKey; 2] {
        let current = self.top_keys.current_half();
        [current.saturating_sub(1), current].map(|half| self.keyspace.top_keys_key(half))
    }
}

/// The most keys of each policy that an instance shares.
const SHARED_KEYS: usize = 100;
/// The most instances in a half of the window. Those that were restarted in it count again.
pub(super) const MOST_INSTANCES: usize = 1_000;
/// The longest wait for a reply.
const TIMEOUT: Duration = Duration::from_secs(1);
