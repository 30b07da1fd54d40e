//! The handle on a layer's rules, for operators.

use std::sync::{Arc, Weak};

use tokio::sync::watch;

use crate::error::{Error, ErrorKind};

use super::{
    error::ReloadError,
    new_rules::NewRules,
    reloader::Reloader,
    source::RuleOrigin,
    state::{RuleVersion, RulesState},
};

#[cfg(feature = "redis")]
use super::shared_watch;

/// Shows and changes the rules of a layer that was built by
/// [`build_reloading`](crate::builder::RateLimitLayerBuilder::build_reloading).
///
/// Clones show the same layer. A handle keeps neither the layer nor what watches its source: once the last layer and service
/// are dropped, it shows the last rules, and its other methods fail.
#[derive(Clone, Debug)]
pub struct RulesHandle {
    reloader: Weak<Reloader>,
    state: watch::Receiver<RulesState>,
}

impl RulesHandle {
    pub(super) fn new(reloader: &Arc<Reloader>) -> Self {
        Self {
            reloader: Arc::downgrade(reloader),
            state: reloader.subscribe(),
        }
    }

    /// Returns the current rules, and the latest refusal.
    #[must_use]
    pub fn state(&self) -> RulesState {
        self.state.borrow().clone()
    }

    /// Returns the current version, with its text.
    #[must_use]
    pub fn version(&self) -> RuleVersion {
        self.state.borrow().version.clone()
    }

    /// Returns why the latest rules of the source were refused; `None` if they are current.
    #[must_use]
    pub fn last_error(&self) -> Option<ReloadError> {
        self.state.borrow().last_error.clone()
    }

    /// Returns a channel that holds the present state, and reports each swap and each refusal.
    ///
    /// It is closed once the last layer and service are dropped.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<RulesState> {
        self.state.clone()
    }

    /// Returns the last ten versions that were current, from the oldest; the last one is current.
    ///
    /// Those of a file, and those in process, are the versions that this process has had. Those in Redis are the same for all
    /// instances; the initial rules are not among them, and neither is a version in a format that this tollgate does not know.
    /// If the last one was [refused](Self::last_error) here, an earlier one is current.
    ///
    /// # Errors
    ///
    /// [`ReloadError::Source`] if the layer was dropped, or Redis cannot be read.
    pub async fn history(&self) -> Result<Vec<RuleVersion>, ReloadError> {
        let reloader = self.reloader()?;
        match &reloader.origin {
            RuleOrigin::File(_) | RuleOrigin::InProcess => Ok(reloader.history()),
            #[cfg(feature = "redis")]
            RuleOrigin::Redis(shared) => shared.history().await,
        }
    }

    /// Replaces the rules, if they have no faults and nobody else has replaced them meanwhile.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{RateLimitLayer, config::{Format, RuleSet, reload::{NewRules, RuleSource}}};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = RuleSet::parse(Format::Yaml, "rules: [{ id: api, key: peer_ip, limit: 100/min }]")?;
    /// let (layer, rules) = RateLimitLayer::builder().build_reloading(RuleSource::in_process(rules))?;
    ///
    /// let text = "rules: [{ id: api, key: peer_ip, limit: 200/min }]";
    /// let version = rules.push(NewRules::new(Format::Yaml, text).author("ada")).await?;
    /// assert_eq!(version.number(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ReloadError::Rules`] and [`ReloadError::Layer`] for rules that cannot be used. Nothing was pushed.
    /// - [`ReloadError::Conflict`] if another version is current than the one that they [replace](NewRules::replacing).
    /// - [`ReloadError::Source`] for rules from a file, which is changed by editing it; if Redis does not store them; or if the
    ///   layer was dropped. After a timeout they may have been stored.
    pub async fn push(&self, rules: NewRules) -> Result<RuleVersion, ReloadError> {
        rules.validate()?;
        let reloader = self.reloader()?;
        match &reloader.origin {
            RuleOrigin::File(path) => Err(failed(&format!(
                "the rules come from {}: edit that file",
                path.display()
            ))),
            RuleOrigin::InProcess => reloader.take_pushed(rules).await,
            #[cfg(feature = "redis")]
            RuleOrigin::Redis(shared) => shared_watch::push(&reloader, shared, rules).await,
        }
    }

    /// Pushes the text of an earlier version as a new version.
    ///
    /// # Errors
    ///
    /// Those of [`push`](Self::push), and [`ReloadError::UnknownVersion`] for a version that is not in the
    /// [history](Self::history).
    pub async fn roll_back(
        &self,
        version: u64,
        author: impl Into<String>,
    ) -> Result<RuleVersion, ReloadError> {
        let present = self.latest().await?;
        let history = self.history().await?;
        let old = history.iter().find(|old| old.number() == version);
        let Some(old) = old else {
            let known = history.iter().map(RuleVersion::number).collect();
            return Err(ReloadError::UnknownVersion { version, known });
        };
        let rules = NewRules::new(old.format(), old.text())
            .author(author)
            .comment(format!("roll back to version {version}"))
            .replacing(present);
        self.push(rules).await
    }

    /// Reads the source now, without waiting for an event: for a signal such as `SIGHUP`, or a button.
    ///
    /// A file is read on a thread of the runtime for blocking work; without a runtime on the caller's.
    ///
    /// # Errors
    ///
    /// Why the rules were refused, now or before.
    pub async fn reload(&self) -> Result<(), ReloadError> {
        let reloader = self.reloader()?;
        match &reloader.origin {
            RuleOrigin::File(path) => {
                let (path, reader) = (path.clone(), reloader.reader.clone());
                reloader.take_from(move || reader.read_text(&path)).await
            }
            RuleOrigin::InProcess => Ok(()),
            #[cfg(feature = "redis")]
            RuleOrigin::Redis(shared) => shared_watch::take(&reloader, shared).await,
        }
    }

    /// Returns whether the rules come from a file, which is changed by editing it.
    #[cfg(feature = "dashboard")]
    pub(crate) fn is_of_file(&self) -> bool {
        let reloader = self.reloader.upgrade();
        reloader.is_some_and(|reloader| matches!(reloader.origin, RuleOrigin::File(_)))
    }

    /// Returns the version that a push replaces: the latest that this process has seen, also if it was refused.
    pub(crate) async fn latest(&self) -> Result<u64, ReloadError> {
        let reloader = self.reloader()?;
        match &reloader.origin {
            RuleOrigin::File(_) | RuleOrigin::InProcess => Ok(reloader.number()),
            #[cfg(feature = "redis")]
            RuleOrigin::Redis(shared) => {
                let seen = shared.seen().await;
                Ok(seen.unwrap_or_else(|| reloader.number()))
            }
        }
    }

    fn reloader(&self) -> Result<Arc<Reloader>, ReloadError> {
        let reloader = self.reloader.upgrade();
        reloader.ok_or_else(|| failed("the layer of these rules was dropped"))
    }
}

fn failed(message: &str) -> ReloadError {
    ReloadError::Source(Error::new(ErrorKind::InvalidConfig, message.to_owned()))
}
