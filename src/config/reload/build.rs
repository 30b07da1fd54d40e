//! Builds a layer whose rules change.

use std::sync::Arc;

use crate::{
    builder::RateLimitLayerBuilder,
    error::{Error, ErrorKind},
    middleware::{in_force::Replaceable, layer::RateLimitLayer},
};

use super::{
    super::rule_set::Format,
    error::ReloadError,
    file_watch,
    handle::RulesHandle,
    reloader::{Place, Reloader},
    rule_file::RuleFile,
    source::{Origin, RuleSource},
};

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
    /// [`build`](Self::build), and [`ReloadError::Source`] for a poll interval of zero, or if the system cannot start a thread.
    pub fn build_reloading(
        self,
        source: RuleSource,
    ) -> Result<(RateLimitLayer, RulesHandle), ReloadError> {
        if source.poll_interval.is_zero() {
            let message = "poll_interval of zero: the source would be read without a pause; the default is 5 s";
            let error = Error::new(ErrorKind::InvalidConfig, message);
            return Err(ReloadError::Source(error));
        }
        let (place, rules, format, text) = match source.origin {
            Origin::File(path) => {
                let file = RuleFile::new(path);
                let (format, text) = file.read(&source.reader)?;
                let rules = source.reader.parse_named(&file.name(), format, &text)?;
                (Place::File(file), rules, format, text)
            }
            Origin::InProcess(rules) => {
                let text = rules.to_json();
                (Place::InProcess, rules, Format::Json, text)
            }
        };
        let with_rules = self.clone().rules(&rules);
        let built = with_rules.build_replaceable();
        let (layer, replaceable) = built.map_err(ReloadError::Layer)?;
        let reloader = Arc::new(Reloader::new(
            (self, source.reader),
            place,
            Replaceable::downgrade(&replaceable),
            (rules, format, text),
        ));
        let handle = RulesHandle::new(&reloader);
        match &reloader.place {
            Place::File(_) => {
                let watch = file_watch::start(reloader, source.poll_interval);
                replaceable.accompany(watch.map_err(ReloadError::Source)?);
            }
            Place::InProcess => replaceable.accompany(reloader),
        }
        Ok((layer, handle))
    }
}
