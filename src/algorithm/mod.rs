//! Algorithms that count a quota: pure arithmetic on whole microseconds.
//!
//! Nothing here reads a clock, takes a lock or waits: state and time come in, the new state goes out. The in-process
//! store runs this code. Each algorithm has a Lua twin in `lua/` that computes the same results inside Redis.
//!
//! A policy names an [`Algorithm`]. A [`Counter`] is the quota of a policy, validated and ready to count. The [`guide`]
//! compares the algorithms and helps to choose one.
//!
//! # When a limit changes
//!
//! The state of a key contains a tag of the quota it was made under, so a policy may change its limit while keys are in
//! debt:
//!
//! | algorithm | what stays |
//! |---|---|
//! | buckets and queue | the spent *share*: half of the old burst becomes half of the new burst |
//! | fixed and sliding window | the used *number*, in a window of the new length |
//! | sliding log | the *times*: requests within the new period count |
//! | concurrency | the units in flight |
//!
//! No key waits longer than the new quota alone could make it wait. A key with no quota left does not get all of it
//! back, except that a log forgets requests older than its new period. A debt stays when a policy changes between the
//! two buckets and the queue. A change to any other algorithm resets the key.
//!
//! The table is about a single change. While instances with different periods count the same key, as during a deployment,
//! each switch between them opens a first-hit or sliding window anew, with the units used. A busy key then stays limited
//! until all instances have the same period. Buckets, logs and clock windows do not have this fault.

mod adaptive;
mod calendar;
mod choice;
mod concurrency;
mod counter;
mod counting;
mod fixed_window;
mod free_turns;
pub mod guide;
pub(crate) mod quota;
mod rate;
mod sliding_log;
mod sliding_window;
mod span_tag;
mod token_bucket;
mod window;

pub use self::adaptive::{AdaptiveRate, MicroRate, RateReport};
pub use self::choice::{Algorithm, QueueLimits, WindowStart};
pub(crate) use self::quota::Quota;
pub(crate) use self::token_bucket::TurnShape;

// The arithmetic of the algorithms, for the tests of this package.
#[doc(hidden)]
pub use self::{
    concurrency::{Concurrency, SlotState},
    counter::Counter,
    counting::{Admitted, Counting, RefundToken, Refunded},
    fixed_window::{FixedWindow, WindowState},
    free_turns::FreeTurns,
    sliding_log::{LogState, SlidingLog},
    sliding_window::{SlidingState, SlidingWindow},
    token_bucket::{BucketState, TokenBucket},
};
