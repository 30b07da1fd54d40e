//! Blocks: keys that an operator denies for a time, whatever quota they have left.
//!
//! [`RateLimiter::block`](crate::RateLimiter::block) makes them, and describes where they hold. A
//! [`Penalty`](crate::policy::Penalty) bans keys without an operator.

mod block;
mod list;

pub use self::block::{ActiveBlock, Block, BlockChange, BlockTarget};
pub use self::list::BlockList;
