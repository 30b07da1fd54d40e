//! How a quota is counted: pure arithmetic on whole microseconds.
//!
//! Nothing here reads a clock, locks or waits: the state and the time come in, the new state goes out. The in-process
//! store runs this code, and each algorithm has a Lua twin in `lua/` that gives equal answers.
//!
//! [`Algorithm`] is what a policy names; a [`Counter`] is the quota made ready for counting in that way. Which one to take
//! is said in the [`guide`].
//!
//! # When a limit changes
//!
//! The state of a key tells under which shape of the policy it was made, so that a policy may change its limit while
//! keys are in debt. For the buckets the spent *share* stays: who had spent half of the old burst has spent half of the
//! new one. For windows the used *number* stays, in a window of the new length; a log keeps the *times*, and counts what
//! was taken within the new period. Either way nobody waits longer than the new quota alone could make anybody wait, and
//! nobody who had nothing left gets it all back, but for what a log knows to be older than its new period. Between the
//! two buckets a debt stays; a key that changes to another algorithm starts afresh.

mod bucket_state;
mod calendar;
mod choice;
mod concurrency;
mod counter;
mod counting;
mod fixed_window;
mod form;
pub mod guide;
mod rate;
mod share;
mod sliding_log;
mod sliding_window;
mod token_bucket;
mod window;

pub use self::bucket_state::BucketState;
pub use self::choice::{Algorithm, Queue, WindowStart};
pub use self::concurrency::{Concurrency, SlotState};
pub use self::counter::Counter;
pub use self::counting::{ChargeMark, Counting};
pub use self::fixed_window::{FixedWindow, WindowState};
pub use self::form::Form;
pub use self::sliding_log::{LogState, SlidingLog};
pub use self::sliding_window::{SlidingState, SlidingWindow};
pub use self::token_bucket::TokenBucket;
