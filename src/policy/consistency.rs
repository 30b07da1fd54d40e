//! Whether each decision asks the shared store.

/// How a policy is counted when several instances share its counts.
///
/// Both keep the same limit. They differ in how often they ask the shared store:
///
/// | | a request for a busy key | the shared store gets |
/// |---|---|---|
/// | `Strict` | waits for the store | an entry of a call for each request |
/// | `Leased` | is mostly decided at once, in process | about 6 reports a second for each busy key and instance |
///
/// Without Redis, this has no effect. The page `docs/consistency.md` of the package compares both: when to choose which, what a
/// crash costs, and in which cases leased units are admitted besides the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Consistency {
    /// Instances lease units of busy keys in advance, and spend them without a round trip.
    ///
    /// For token and leaky buckets with a burst of 16 units or more, and best 16 for each instance. Not with counted denials or a
    /// penalty.
    Leased,
    /// The shared store makes each decision.
    #[default]
    Strict,
}
