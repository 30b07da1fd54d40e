//! What a decision returns: the outcome, and the state of each policy with its quota left, reset time and retry time.
//!
//! [`Decision`] is the whole. It has one [`PolicyState`] for each policy that was charged.

pub(crate) mod decision;
mod policy_name;
mod policy_state;
mod ticket;
mod usage;

pub(crate) use self::decision::Decision;
pub use self::policy_name::PolicyName;
pub use self::policy_state::PolicyState;
pub(crate) use self::policy_state::headroom;
pub use self::ticket::Ticket;
pub use self::usage::{CountedBy, DeniedBy, Outcome, Retry, Usage};
