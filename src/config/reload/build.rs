//! Builds a layer whose rules change.

use std::{any::Any, sync::Arc};

use crate::{
    builder::RateLimitLayerBuilder,
    clock::Clock,
    error::{Error, ErrorKind},
    limiter::RateLimiter,
    middleware::layer::RateLimitLayer,
    overload::{Overload, OverloadBuilder},
    store::RulesId,
};

use super::{
    super::rule_set::{Format, RuleSet},
    error::ReloadError,
    file_watch,
    handle::RulesHandle,
    new_rules::NewRules,
    reloader::Reloader,
    source::{Initial, RuleOrigin, RuleSource},
    state::RuleVersion,
    target::{Target, Template},
};

#[cfg(feature = "client")]
use crate::client::{OutgoingLayer, OutgoingLayerBuilder};

#[cfg(feature = "redis")]
use super::{shared_rules::SharedRules, shared_watch};

impl RateLimitLayerBuilder {
    /// Builds a layer whose rules come from a source, and are replaced while the service runs.
    ///
    /// Rules from code can be added beside them, by [`policy`](Self::policy); they stay. All clones and services of the layer
    /// change together. See [`reload`](crate::config::reload) for the guarantees.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tollgate::{RateLimitLayer, config::reload::RuleSource};
    ///
    /// let (layer, rules) = RateLimitLayer::builder()
    ///     .redis("redis://127.0.0.1/")
    ///     .build_reloading(RuleSource::file("rules.yaml"))?;
    /// # Ok::<(), tollgate::config::reload::ReloadError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReloadError::Rules`] for a file that is missing or has faults, [`ReloadError::Layer`] for the errors of
    /// [`build`](Self::build), and [`ReloadError::Source`] for a poll interval of zero, for rules in Redis
    /// without a Redis store or outside of a Tokio runtime, and if the system cannot start a thread.
    pub fn build_reloading(
        self,
        source: RuleSource,
    ) -> Result<(RateLimitLayer, RulesHandle), ReloadError> {
        build(self, source)
    }
}

#[cfg(feature = "client")]
impl OutgoingLayerBuilder {
    /// Builds a layer whose rules and settings come from a source, and are replaced while the service runs.
    ///
    /// Rules from code can be added beside them, by [`policy`](Self::policy). They stay. All clones and services of the layer
    /// change together. A call keeps the settings that it began with, also for its retries. Pauses, adaptive rates and retry
    /// budgets are kept.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tollgate::{RateLimiter, client::OutgoingLayer, config::reload::RuleSource};
    ///
    /// let limiter = RateLimiter::builder().redis("redis://127.0.0.1/").build()?;
    /// let (outgoing, rules) = OutgoingLayer::builder(&limiter)
    ///     .build_reloading(RuleSource::file("rules.yaml"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReloadError::Rules`] for a file that is missing or has faults, [`ReloadError::Layer`] for the errors of
    /// [`build`](Self::build), and [`ReloadError::Source`] as for a
    /// [`RateLimitLayerBuilder`](RateLimitLayerBuilder::build_reloading).
    pub fn build_reloading(
        self,
        source: RuleSource,
    ) -> Result<(OutgoingLayer, RulesHandle), ReloadError> {
        build(self, source)
    }
}

impl OverloadBuilder {
    /// Builds a limit whose settings come from the `overload` part of a source, and are replaced while the service runs.
    ///
    /// Settings that the source does not have are those of this builder. All clones and services change together. The limit that
    /// was found, the requests in flight and what was counted stay. A mode that was [set](Overload::set_mode) stays too, unless the
    /// new settings have another one written.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tollgate::{config::reload::RuleSource, overload::Overload};
    ///
    /// let (overload, rules) = Overload::adaptive().build_reloading(RuleSource::file("rules.yaml"))?;
    /// # Ok::<(), tollgate::config::reload::ReloadError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReloadError::Rules`] for a file that is missing or has faults, [`ReloadError::Layer`] for the errors of
    /// [`build`](Self::build), and [`ReloadError::Source`] as for a
    /// [`RateLimitLayerBuilder`](RateLimitLayerBuilder::build_reloading). Rules in Redis need a [`limiter`](Self::limiter).
    pub fn build_reloading(
        self,
        source: RuleSource,
    ) -> Result<(Overload, RulesHandle), ReloadError> {
        build(self, source)
    }
}

/// Builds a layer with the rules of a source, and watches the source for new ones.
fn build<T: Template>(
    template: T,
    source: RuleSource,
) -> Result<(T::Layer, RulesHandle), ReloadError> {
    let (rules, version) = source.begin()?;
    let built = template.with(&rules).build();
    let (layer, replaceable) = built.map_err(ReloadError::Layer)?;
    let origin = source.origin(replaceable.limiter())?;
    let target = Target {
        template,
        layer: Arc::downgrade(&replaceable),
    };
    let reader = source.reader.clone();
    let reloader = Reloader::new(Box::new(target), reader, origin, (rules, version));
    let (handle, companion) = source.start(reloader)?;
    replaceable.accompany(companion);
    Ok((layer, handle))
}

impl RuleSource {
    /// Returns the rules to begin with.
    ///
    /// # Errors
    ///
    /// Those of the rules, and of the poll interval.
    fn begin(&self) -> Result<(RuleSet, RuleVersion), ReloadError> {
        if self.poll_interval.is_zero() {
            let message = "poll_interval of zero: the source would be read without a pause; the default is 5 s";
            let error = Error::new(ErrorKind::InvalidConfig, message);
            return Err(ReloadError::Source(error));
        }
        self.initial()
    }

    /// Returns where the layer of a limiter finds new rules.
    #[cfg_attr(
        not(feature = "redis"),
        expect(
            unused_variables,
            clippy::unnecessary_wraps,
            reason = "only rules in Redis need the limiter"
        )
    )]
    fn origin(&self, limiter: Option<&RateLimiter>) -> Result<RuleOrigin, ReloadError> {
        Ok(match &self.initial {
            Initial::File(path) => RuleOrigin::File(path.clone()),
            Initial::InProcess(_) => RuleOrigin::InProcess,
            #[cfg(feature = "redis")]
            Initial::Redis(_) => {
                let store = limiter.and_then(RateLimiter::rule_store);
                let store = store.ok_or_else(no_redis)?;
                RuleOrigin::Redis(Arc::new(SharedRules::new(store)))
            }
        })
    }

    /// Starts to watch for new rules. Returns the handle of the layer, and what the layer keeps alive.
    fn start(&self, reloader: Reloader) -> Result<(RulesHandle, Companion), ReloadError> {
        let reloader = Arc::new(reloader);
        let handle = RulesHandle::new(&reloader);
        let companion: Companion = match &reloader.origin {
            RuleOrigin::File(path) => {
                let path = path.clone();
                let watch = file_watch::start(reloader, path, self.poll_interval);
                Box::new(watch.map_err(ReloadError::Source)?)
            }
            RuleOrigin::InProcess => Box::new(reloader),
            #[cfg(feature = "redis")]
            RuleOrigin::Redis(shared) => {
                let shared = Arc::clone(shared);
                let watch = shared_watch::start(reloader, shared, self.poll_interval);
                Box::new(watch.map_err(ReloadError::Source)?)
            }
        };
        Ok((handle, companion))
    }

    fn initial(&self) -> Result<(RuleSet, RuleVersion), ReloadError> {
        let (rules, format, text, version) = match &self.initial {
            Initial::File(path) => {
                let (format, text) = self.reader.read_text(path)?;
                let name = path.display().to_string();
                let rules = self.reader.parse_named(&name, format, &text)?;
                (rules, format, text, 1)
            }
            Initial::InProcess(rules) => (rules.clone(), Format::Json, rules.to_json(), 1),
            // Not a version that is stored.
            #[cfg(feature = "redis")]
            Initial::Redis(rules) => (rules.clone(), Format::Json, rules.to_json(), 0),
        };
        let id = RulesId {
            version,
            time: Clock::wall_now(),
        };
        Ok((rules, NewRules::new(format, text).into_version(id)))
    }
}

/// A value that ends what watches for new rules when the last layer and service is dropped.
type Companion = Box<dyn Any + Send + Sync>;

#[cfg(feature = "redis")]
fn no_redis() -> ReloadError {
    ReloadError::Source(Error::new(
        ErrorKind::InvalidConfig,
        "rules in redis need a layer that counts there: call redis(), or limiter() with such a limiter",
    ))
}
