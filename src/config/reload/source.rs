//! Where the rules of a layer come from.

use std::{path::PathBuf, time::Duration};

#[cfg(feature = "redis")]
use std::sync::Arc;

use super::super::rule_set::{RuleSet, RuleSetReader};

#[cfg(feature = "redis")]
use super::shared_rules::SharedRules;

/// Where the rules of a layer come from, also later on.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Key, RequestHead, config::{RuleSetReader, reload::RuleSource}};
///
/// let tenant = |head: &RequestHead| head.headers.get("x-tenant").map(|name| Key::new(name.as_bytes()));
/// let source = RuleSource::file("/etc/app/rules.yaml")
///     .reader(RuleSetReader::default().extractor("tenant", tenant))
///     .poll_interval(Duration::from_secs(30));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a source does nothing until a layer is built with it"]
pub struct RuleSource {
    pub(super) initial: Initial,
    pub(super) reader: RuleSetReader,
    pub(super) poll_interval: Duration,
}

/// The rules that a layer begins with.
#[derive(Clone, Debug)]
pub(super) enum Initial {
    File(PathBuf),
    InProcess(RuleSet),
    #[cfg(feature = "redis")]
    Redis(RuleSet),
}

impl RuleSource {
    /// Reads a file, and reads it again whenever it changes. The extension of its name is its [`Format`](crate::config::Format).
    ///
    /// A file that is replaced by renaming another one, written in place, deleted and made again, or reached through a
    /// symbolic link that is replaced (as in Kubernetes) is noticed at once by the events of the system, and otherwise at the
    /// next [poll](Self::poll_interval). Text that is still being written is waited for: the file must be the same for 50 ms.
    /// While it is missing or has faults, the current rules stay.
    ///
    /// A thread named `tollgate-rules` watches; it ends with the last layer and service.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::of(Initial::File(path.into()))
    }

    /// Begins with these rules, which only [`RulesHandle::push`](super::RulesHandle::push) replaces, in this process alone.
    pub fn in_process(rules: RuleSet) -> Self {
        Self::of(Initial::InProcess(rules))
    }

    /// Reads the rules that all instances share in Redis, through the store of the layer, and takes others within a second
    /// after they are [pushed](super::RulesHandle::push).
    ///
    /// `initial` is used until rules are found there, or for as long as Redis has none. The rules in Redis are read by the
    /// [`reader`](Self::reader) of this source, so it needs what `initial` was read with. To begin with those in Redis, await
    /// [`RulesHandle::reload`](super::RulesHandle::reload) before the service starts. Its error is logged, and leaves the initial
    /// current rules: it is not a reason to end the start, because anyone who writes to Redis could cause it. While Redis is
    /// down, the current rules stay.
    ///
    /// One key (`prefix:{!}:rules`, a hash without expiry) has the last ten versions. Each layer holds one more connection, which
    /// listens on the channel of that name. [`remote`](crate::remote#rules) lists the rights that it needs. If it cannot
    /// listen, it reads twice a second. Two layers with different rules need stores with different prefixes.
    #[cfg(feature = "redis")]
    pub fn redis(initial: RuleSet) -> Self {
        Self::of(Initial::Redis(initial))
    }

    fn of(initial: Initial) -> Self {
        Self {
            initial,
            reader: RuleSetReader::default(),
            poll_interval: Duration::from_secs(5),
        }
    }

    /// Sets the reader, which knows the extractors, matchers and tiers from code, and the secret for hashed keys.
    ///
    /// Default: one that knows none.
    pub fn reader(mut self, reader: RuleSetReader) -> Self {
        self.reader = reader;
        self
    }

    /// Sets how often the source is read without an event: the longest time until a change is seen, if its event is lost.
    ///
    /// Default: 5 seconds. Some network file systems have no events at all. Rules in process are not polled.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }
}

// === RuleOrigin ===

/// Where a layer finds new rules.
#[derive(Debug)]
pub(super) enum RuleOrigin {
    File(PathBuf),
    InProcess,
    #[cfg(feature = "redis")]
    Redis(Arc<SharedRules>),
}

impl RuleOrigin {
    /// Returns the name of the origin in messages.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::InProcess => "rules".to_owned(),
            #[cfg(feature = "redis")]
            Self::Redis(_) => "redis".to_owned(),
        }
    }
}
