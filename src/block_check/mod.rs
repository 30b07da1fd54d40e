//! Denies blocked keys before a store is asked.

mod block_check;
mod block_wait;

pub(crate) use self::block_check::{BlockCheck, BlockRefresh, Settle};
