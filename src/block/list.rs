//! The blocks that an instance knows.

use std::{
    collections::HashMap,
    sync::{
        PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use super::block::{ActiveBlock, BlockChange, BlockTarget};
use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
};

/// The blocks of a store, as far as this instance knows them.
///
/// Decisions look here before they ask the store, so a blocked key is denied also while a shared store is unavailable, and
/// without a call if the block outlasts the windows of its policies. It holds at most [`MAX_BLOCKS`](Self::MAX_BLOCKS), of about
/// 300 bytes and their reasons each. A [shared](Self::shared) list holds up to 1,000 more, since the clock of its store may be a
/// little ahead. The others of a store that has more still do not hold here.
///
/// A store [returns](crate::store::Store::blocks) its list. A shared store [brings it up to
/// date](crate::store::Store::refresh_blocks).
#[derive(Debug)]
pub struct BlockList {
    /// The clock by which blocks end.
    clock: Clock,
    is_shared: bool,
    /// Whether decisions must look here: there are blocks, or other instances may have made some.
    is_needed: AtomicBool,
    blocks: RwLock<HashMap<BlockTarget, ActiveBlock>>,
}

impl BlockList {
    /// The most blocks of one store.
    pub const MAX_BLOCKS: usize = 100_000;

    /// Returns the empty list of a store in this process, whose blocks end by this clock.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self::with(clock, false)
    }

    /// Returns an empty list for a store in which other instances block keys, too. `clock` shows the time of that
    /// store.
    #[must_use]
    pub fn shared(clock: Clock) -> Self {
        Self::with(clock, true)
    }

    fn with(clock: Clock, is_shared: bool) -> Self {
        Self {
            clock,
            is_shared,
            is_needed: AtomicBool::new(is_shared),
            blocks: RwLock::default(),
        }
    }

    /// Returns whether other instances block keys, too, so that the list must be refreshed.
    #[must_use]
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns whether decisions must look here. A list in process without blocks costs them one load.
    #[inline]
    pub(crate) fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Relaxed)
    }

    /// Returns the clock by which blocks end.
    #[must_use]
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns when the blocks of a key end that apply to this policy; `None` if there are none.
    #[must_use]
    pub(crate) fn blocked_until(&self, policy: &Policy, key: &Key) -> Option<Timestamp> {
        self.with_block(policy, key, ActiveBlock::until)
    }

    /// Returns the block of a key that applies to this policy, and ends last; `None` if there is none.
    #[must_use]
    #[cfg(feature = "explain")]
    pub(crate) fn block_of(&self, policy: &Policy, key: &Key) -> Option<ActiveBlock> {
        self.with_block(policy, key, ActiveBlock::clone)
    }

    /// Reads from the active block that applies to this policy, and ends last.
    fn with_block<T>(
        &self,
        policy: &Policy,
        key: &Key,
        read: impl FnOnce(&ActiveBlock) -> T,
    ) -> Option<T> {
        let blocks = self.read();
        if blocks.is_empty() {
            return None;
        }
        let now = self.clock.now();
        let targets = [None, Some(policy)].map(|policy| BlockTarget::new(*key, policy));
        let found = targets.iter().filter_map(|target| blocks.get(target));
        let active = found.filter(|block| block.until() > now);
        active.max_by_key(|block| block.until()).map(read)
    }

    /// Returns the active blocks with times by the wall clock, those that end first at the front.
    #[must_use]
    pub(crate) fn active(&self) -> Vec<ActiveBlock> {
        let now = self.clock.now();
        let mut blocks: Vec<ActiveBlock> = self.read().values().cloned().collect();
        blocks.retain(|block| block.until() > now);
        blocks.sort_by_key(ActiveBlock::until);
        let shown = blocks.into_iter();
        shown.map(|block| block.shown_by(&self.clock)).collect()
    }

    /// Makes a change here, from now on. For stores in process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the list is full.
    pub fn change(&self, change: &BlockChange) -> Result<(), Error> {
        match change {
            BlockChange::Block(block) => self.insert(block.begin(self.clock.now())),
            BlockChange::Unblock(target) => {
                self.remove(target);
                Ok(())
            }
        }
    }

    /// Adds a block that is active. Replaces one of the same target.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the list is full.
    pub fn insert(&self, block: ActiveBlock) -> Result<(), Error> {
        match self.update([(*block.target(), Some(block))]) {
            0 => Ok(()),
            _ => Err(Self::full()),
        }
    }

    /// Removes the block of a target, and blocks that have ended if they are all that is left.
    pub fn remove(&self, target: &BlockTarget) {
        self.update([(*target, None)]);
    }

    /// Makes changes in their order: each target gets a block that is active, or loses its block. Returns the number of
    /// blocks for which there was no room.
    pub(crate) fn update(
        &self,
        changes: impl IntoIterator<Item = (BlockTarget, Option<ActiveBlock>)>,
    ) -> usize {
        let now = self.clock.now();
        let (mut left_out, mut has_removed, mut has_made_room) = (0, false, false);
        let mut blocks = self.write();
        for (target, block) in changes {
            let Some(block) = block else {
                has_removed |= blocks.remove(&target).is_some();
                continue;
            };
            if blocks.len() >= self.capacity() && !blocks.contains_key(&target) {
                // Once for all changes: it looks at each block.
                if !has_made_room {
                    blocks.retain(|_, block| block.until() > now);
                    has_made_room = true;
                }
                if blocks.len() >= self.capacity() {
                    left_out += 1;
                    continue;
                }
            }
            blocks.insert(target, block);
        }
        if has_removed && !blocks.values().any(|block| block.until() > now) {
            blocks.clear();
        }
        let is_needed = self.is_shared || !blocks.is_empty();
        self.is_needed.store(is_needed, Ordering::Relaxed);
        left_out
    }

    /// Replaces all blocks by those of the shared store that are active. Returns the number of blocks for which there
    /// was no room.
    pub fn replace(&self, blocks: impl IntoIterator<Item = ActiveBlock>) -> usize {
        let now = self.clock.now();
        let mut left_out = 0;
        let mut taken = HashMap::new();
        for block in blocks.into_iter().filter(|block| block.until() > now) {
            if taken.len() < self.capacity() {
                taken.insert(*block.target(), block);
            } else {
                left_out += 1;
            }
        }
        *self.write() = taken;
        left_out
    }

    /// Returns the most blocks that this list holds.
    fn capacity(&self) -> usize {
        match self.is_shared {
            true => Self::MAX_BLOCKS + SHARED_MORE,
            false => Self::MAX_BLOCKS,
        }
    }

    /// Returns the error of a list that holds [`MAX_BLOCKS`](Self::MAX_BLOCKS).
    #[must_use]
    pub(crate) fn full() -> Error {
        let message = "100,000 keys are blocked: unblock some, or block a larger group by a rule";
        Error::new(ErrorKind::Unavailable, message)
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<BlockTarget, ActiveBlock>> {
        self.blocks.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<BlockTarget, ActiveBlock>> {
        self.blocks.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The blocks that a shared list holds beyond those of its store: they have ended by the clock of the store alone.
const SHARED_MORE: usize = 1_000;

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use std::time::Duration;

    use crate::algorithm::Quota;
    use crate::block::Block;

    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn list() -> BlockList {
        BlockList::new(Clock::manual(START))
    }

    fn block(key: u32, seconds: u64) -> BlockChange {
        let key = Key::new(format!("user{key}"));
        BlockChange::Block(Block::new(key, Duration::from_secs(seconds)))
    }

    #[test]
    fn full_list_takes_no_further_block_until_one_has_ended() {
        let list = list();
        for key in 0..100_000 {
            let seconds = if key == 7 { 1 } else { 60 };
            list.change(&block(key, seconds)).expect("there is room");
        }
        let error = list
            .change(&block(100_000, 60))
            .expect_err("the list is full");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        list.change(&block(1, 90)).expect("it replaces one");
        assert_eq!(list.active().len(), 100_000);
        list.clock.set(START + Duration::from_secs(1));
        list.change(&block(100_000, 60)).expect("one has ended");
        assert_eq!(list.active().len(), 100_000);
    }

    // Regression: an instance never saw a block that was made the moment another one had ended by the server's clock.
    #[test]
    fn shared_list_takes_every_block_that_its_store_has_taken() {
        let list = BlockList::shared(Clock::manual(START));
        for key in 0..=100_000 {
            list.change(&block(key, 60)).expect("the store took it");
        }
        assert_eq!(list.active().len(), 100_001);
        let begun = |key| {
            let BlockChange::Block(block) = block(key, 60) else {
                unreachable!("it is a block")
            };
            block.begin(START)
        };
        let more = (0..200_000).map(begun);
        let changes = more.clone().map(|block| (*block.target(), Some(block)));
        assert_eq!(list.update(changes), 99_000, "the bound is real");
        assert_eq!(list.replace(more), 99_000, "also for all anew");
        assert_eq!(list.active().len(), 101_000);
        let ended = list.active().split_off(1);
        list.clock.set(START + Duration::from_secs(60));
        list.replace(ended);
        assert!(list.read().is_empty());
    }

    #[test]
    fn decisions_need_not_look_at_a_list_without_blocks() {
        let list = list();
        let policy = Policy::new("api", Quota::per_minute(1));
        assert!(!list.is_needed());
        list.change(&block(1, 1)).expect("there is room");
        list.change(&block(2, 60)).expect("there is room");
        assert!(list.is_needed());
        let until = list.blocked_until(&policy, &Key::new("user2"));
        assert_eq!(until, Some(START + Duration::from_secs(60)));
        list.clock.set(START + Duration::from_secs(1));
        assert_eq!(list.blocked_until(&policy, &Key::new("user1")), None);
        list.remove(&BlockTarget::new(Key::new("user2"), None));
        assert!(!list.is_needed(), "the other one has ended");
        assert!(BlockList::shared(Clock::system()).is_needed());
    }
}
