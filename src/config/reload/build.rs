//! Builds a layer whose rules change.

use std::sync::Arc;

use crate::{
    builder::RateLimitLayerBuilder,
    clock::Clock,
    error::{Error, ErrorKind},
    middleware::layer::RateLimitLayer,
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
};

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
        if source.poll_interval.is_zero() {
            let message = "poll_interval of zero: the source would be read without a pause; the default is 5 s";
            let error = Error::new(ErrorKind::InvalidConfig, message);
            return Err(ReloadError::Source(error));
        }
        let (rules, version) = source.initial()?;
        let with_rules = self.clone().rules(&rules);
        let built = with_rules.build_replaceable();
        let (layer, replaceable) = built.map_err(ReloadError::Layer)?;
        let origin = match source.initial {
            Initial::File(path) => RuleOrigin::File(path),
            Initial::InProcess(_) => RuleOrigin::InProcess,
            #[cfg(feature = "redis")]
            Initial::Redis(_) => {
                let store = replaceable.limiter().rule_store();
                let store = store.ok_or_else(no_redis)?;
                RuleOrigin::Redis(Arc::new(SharedRules::new(store)))
            }
        };
        let reloader = Arc::new(Reloader::new(
            (self, source.reader),
            origin,
            Arc::downgrade(&replaceable),
            (rules, version),
        ));
        let handle = RulesHandle::new(&reloader);
        match &reloader.origin {
            RuleOrigin::File(path) => {
                let path = path.clone();
                let watch = file_watch::start(reloader, path, source.poll_interval);
                replaceable.accompany(watch.map_err(ReloadError::Source)?);
            }
            RuleOrigin::InProcess => replaceable.accompany(reloader),
            #[cfg(feature = "redis")]
            RuleOrigin::Redis(shared) => {
                let shared = Arc::clone(shared);
                let watch = shared_watch::start(reloader, shared, source.poll_interval);
                replaceable.accompany(watch.map_err(ReloadError::Source)?);
            }
        }
        Ok((layer, handle))
    }
}

impl RuleSource {
    /// Returns the rules to begin with.
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

#[cfg(feature = "redis")]
fn no_redis() -> ReloadError {
    ReloadError::Source(Error::new(
        ErrorKind::InvalidConfig,
        "rules in redis need a layer that counts there: call redis(), or limiter() with such a limiter",
    ))
}
