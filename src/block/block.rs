//! Orders to block a key, and the blocks that hold.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::{Clock, Timestamp},
    decision::PolicyName,
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
};

/// An order to deny a key for a time, under all policies or under one.
///
/// [`RateLimiter::block`](crate::RateLimiter::block) carries it out.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Key, block::Block};
///
/// let block = Block::new(Key::new("ada"), Duration::from_secs(3_600)).reason("scraping");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    target: BlockTarget,
    duration: Duration,
    reason: Arc<str>,
}

impl Block {
    /// The longest time of a block: ten years of 365 days.
    pub const MAX_DURATION: Duration = Duration::from_secs(10 * 365 * 86_400);

    /// The longest reason, in bytes.
    pub const MAX_REASON: usize = 200;

    /// Creates a block of `key` under all policies, from the time when it is made.
    #[must_use]
    pub fn new(key: Key, duration: Duration) -> Self {
        Self {
            target: BlockTarget { key, policy: None },
            duration,
            reason: Arc::from(""),
        }
    }

    /// Limits the block to one policy.
    ///
    /// Default: all policies.
    #[must_use]
    pub fn policy(mut self, policy: &Policy) -> Self {
        self.target.policy = Some(*policy.name());
        self
    }

    /// Sets the reason, for operators. Clients do not see it.
    ///
    /// Default: empty. At most 200 bytes, without control characters.
    #[must_use]
    pub fn reason(mut self, reason: impl AsRef<str>) -> Self {
        self.reason = reason.as_ref().into();
        self
    }

    /// Returns the key and the policy that are blocked.
    #[must_use]
    pub fn target(&self) -> &BlockTarget {
        &self.target
    }

    /// Returns how long the key is blocked.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// Checks the duration and the reason.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a duration below 1 ms or above [`MAX_DURATION`](Self::MAX_DURATION), for a reason
    /// that is too long or contains a control character, and for a policy whose name is invalid.
    pub fn validate(&self) -> Result<(), Error> {
        let invalid = |message: &'static str| Err(Error::new(ErrorKind::InvalidConfig, message));
        if self.duration < Duration::from_millis(1) {
            return invalid("block of less than 1 ms: it would end at once; set a longer duration");
        }
        if self.duration > Self::MAX_DURATION {
            return invalid("block of more than 10 years: set a shorter duration");
        }
        if self.reason.len() > Self::MAX_REASON || self.reason.chars().any(char::is_control) {
            return invalid(
                "the reason of a block is unusable: set at most 200 bytes without control characters",
            );
        }
        self.target.validate()
    }

    /// Returns the block as it is active from `now` on.
    #[must_use]
    pub(crate) fn begin(&self, now: Timestamp) -> ActiveBlock {
        ActiveBlock {
            target: self.target,
            since: now,
            until: now + self.duration,
            reason: Arc::clone(&self.reason),
        }
    }

    /// Returns the reason as it was set.
    #[cfg(feature = "redis")]
    pub(crate) fn reason_text(&self) -> &str {
        &self.reason
    }
}

// === BlockTarget ===

/// The key of a block, and the policy if it is limited to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct BlockTarget {
    /// The key that is blocked.
    pub key: Key,
    /// The policy under which it is blocked; `None` for all.
    pub policy: Option<PolicyName>,
}

impl BlockTarget {
    /// Returns the target of blocks of a key under one policy, or with `None` under all of them.
    #[must_use]
    pub fn new(key: Key, policy: Option<&Policy>) -> Self {
        Self {
            key,
            policy: policy.map(|policy| *policy.name()),
        }
    }

    /// Checks the name of the policy.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if it is invalid.
    pub fn validate(&self) -> Result<(), Error> {
        if self.policy == Some(PolicyName::INVALID) {
            let message = "the policy of a block has an invalid name: name an existing policy";
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        Ok(())
    }
}

// === ActiveBlock ===

/// An active block.
///
/// Times are by the wall clock in [`RateLimiter::blocks`](crate::RateLimiter::blocks), and else by the clock of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveBlock {
    target: BlockTarget,
    since: Timestamp,
    until: Timestamp,
    reason: Arc<str>,
}

impl ActiveBlock {
    /// Creates a block that is active, for a custom [`Store`](crate::store::Store).
    #[must_use]
    pub fn new(
        target: BlockTarget,
        since: Timestamp,
        until: Timestamp,
        reason: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            target,
            since,
            until,
            reason: reason.into(),
        }
    }

    /// Returns the block with its times by the wall clock. `clock` is that of the store.
    pub(crate) fn shown_by(self, clock: &Clock) -> Self {
        Self {
            since: clock.wall_time(self.since),
            until: clock.wall_time(self.until),
            ..self
        }
    }

    /// Returns the key and the policy that are blocked.
    #[must_use]
    pub fn target(&self) -> &BlockTarget {
        &self.target
    }

    /// Returns when the block was made.
    #[must_use]
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// Returns when the block ends.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// Returns the reason for operators; empty if none was set.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

// === BlockChange ===

/// A change of the blocks of a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BlockChange {
    /// Blocks a key. Replaces a block of the same target.
    Block(Block),
    /// Ends the block of this target, if there is one.
    Unblock(BlockTarget),
}
