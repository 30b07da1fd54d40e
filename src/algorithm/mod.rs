//! How a quota is counted: pure arithmetic on whole microseconds.
//!
//! Nothing here reads a clock, locks or waits: the state and the time come in, the new state goes out. The in-process
//! store runs this code, and each algorithm has a Lua twin in `lua/` that gives equal answers.

mod token_bucket;

pub use self::token_bucket::{Form, Judgement, TokenBucket};
