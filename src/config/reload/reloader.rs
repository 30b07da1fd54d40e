//! Takes new rules or refuses them, for one layer.

use std::{collections::VecDeque, fmt, sync::Weak};

use tokio::sync::watch;

use crate::{
    builder::RateLimitLayerBuilder, clock::Clock, log, middleware::in_force::Replaceable,
    sync::Mutex,
};

use super::{
    super::{
        fault::RuleSetError,
        rule_set::{Format, RuleSet, RuleSetReader},
    },
    error::ReloadError,
    new_rules::NewRules,
    rule_file::RuleFile,
    state::{RuleVersion, RulesState, VersionData},
};

/// Replaces the rules of one layer.
///
/// The layer keeps it alive; it does not keep the layer alive.
pub(super) struct Reloader {
    /// The settings of the layer, without the rules of the source.
    template: RateLimitLayerBuilder,
    pub(super) reader: RuleSetReader,
    pub(super) place: Place,
    layer: Weak<Replaceable>,
    /// Held from the reading of a source to the swap, so that no older text replaces a newer one.
    progress: Mutex<Progress>,
    state: watch::Sender<RulesState>,
}

/// Where a reloader finds new rules.
#[derive(Debug)]
pub(super) enum Place {
    File(RuleFile),
    InProcess,
}

/// The versions that a reloader has taken, and the text that it has refused.
#[derive(Debug)]
pub(super) struct Progress {
    /// The latest versions that were in force, from the oldest.
    history: VecDeque<RuleVersion>,
    /// The text that was refused last; `None` if it could not be read.
    refused: Option<(Format, String)>,
}

impl Reloader {
    /// Returns a reloader of a layer that was built by `template` and these rules.
    pub(super) fn new(
        (template, reader): (RateLimitLayerBuilder, RuleSetReader),
        place: Place,
        layer: Weak<Replaceable>,
        (rules, format, text): (RuleSet, Format, String),
    ) -> Self {
        let version = RuleVersion::new(VersionData {
            number: 1,
            format,
            text,
            author: None,
            comment: None,
            time: Clock::system().now(),
        });
        let state = RulesState {
            version: version.clone(),
            rules,
            last_error: None,
        };
        Self {
            template,
            reader,
            place,
            layer,
            progress: Mutex::new(Progress {
                history: VecDeque::from([version]),
                refused: None,
            }),
            state: watch::Sender::new(state),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<RulesState> {
        self.state.subscribe()
    }

    /// Returns the latest versions that were in force in this process, from the oldest.
    pub(super) fn history(&self) -> Vec<RuleVersion> {
        self.progress.lock().history.iter().cloned().collect()
    }

    /// Returns whether what was read is in force or was refused already.
    pub(super) fn is_known(&self, read: &Result<(Format, String), RuleSetError>) -> bool {
        let progress = self.progress.lock();
        let state = self.state.borrow();
        match read {
            Ok((format, text)) if state.version.has_text(*format, text) => {
                state.last_error.is_none()
            }
            Ok(read) => progress.refused.as_ref() == Some(read),
            Err(error) => match &state.last_error {
                Some(ReloadError::Rules(last)) => last == error,
                _ => false,
            },
        }
    }

    /// Reads a text by `read`, and takes it if it is new and has no faults.
    ///
    /// # Errors
    ///
    /// Why the text was refused, now or before.
    pub(super) fn take_read(
        &self,
        read: impl FnOnce() -> Result<(Format, String), RuleSetError>,
    ) -> Result<(), ReloadError> {
        let mut progress = self.progress.lock();
        let (format, text) = match read() {
            Ok(read) => read,
            Err(error) => return Err(self.refuse(&mut progress, None, error.into())),
        };
        let state = self.state.borrow().clone();
        if state.version.has_text(format, &text) {
            progress.refused = None;
            self.forget_error();
            return Ok(());
        }
        let is_refused = progress.refused.as_ref();
        if is_refused.is_some_and(|refused| refused.0 == format && refused.1 == text)
            && let Some(error) = state.last_error
        {
            return Err(error);
        }
        let new = NewRules::new(format, text);
        match self.swap(&mut progress, &new) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.refuse(&mut progress, Some((format, new.text)), error)),
        }
    }

    /// Takes rules that were pushed in this process.
    ///
    /// # Errors
    ///
    /// Why they were not taken. The source has not changed, so it is not noted as a refusal.
    pub(super) fn take_pushed(&self, new: &NewRules) -> Result<RuleVersion, ReloadError> {
        let mut progress = self.progress.lock();
        let stored = self.state.borrow().version.number();
        if new.replaced.is_some_and(|replaced| replaced != stored) {
            return Err(ReloadError::Conflict { stored });
        }
        self.swap(&mut progress, new)
    }

    /// Replaces the rules in force.
    fn swap(&self, progress: &mut Progress, new: &NewRules) -> Result<RuleVersion, ReloadError> {
        let name = self.place.name();
        let rules = self.reader.parse_named(&name, new.format, &new.text)?;
        let template = self.template.clone().rules(&rules);
        if let Some(layer) = self.layer.upgrade() {
            layer
                .replace(|old| template.build_successor(old))
                .map_err(ReloadError::Layer)?;
        }
        let version = RuleVersion::new(VersionData {
            number: self.state.borrow().version.number() + 1,
            format: new.format,
            text: new.text.clone(),
            author: new.author.clone(),
            comment: new.comment.clone(),
            time: Clock::system().now(),
        });
        progress.refused = None;
        progress.history.push_back(version.clone());
        while progress.history.len() > KEPT {
            progress.history.pop_front();
        }
        log::event!(
            INFO,
            "rules replaced",
            source = name,
            version = version.number(),
            rules = rules.rules().len(),
            author = version.author().unwrap_or("unknown"),
        );
        self.state.send_replace(RulesState {
            version: version.clone(),
            rules,
            last_error: None,
        });
        Ok(version)
    }

    /// Notes and logs a refusal, unless it is the same as the last one.
    fn refuse(
        &self,
        progress: &mut Progress,
        text: Option<(Format, String)>,
        error: ReloadError,
    ) -> ReloadError {
        progress.refused = text;
        let noted = error.clone();
        let is_new = self.state.send_if_modified(|state| {
            let same = state.last_error.as_ref();
            let is_new = !same.is_some_and(|last| last.is_same(&noted));
            state.last_error = Some(noted);
            is_new
        });
        if is_new {
            log::event!(
                WARN,
                "rules refused, those in force stay",
                source = self.place.name(),
                version = self.state.borrow().version.number(),
                error = error,
            );
        }
        error
    }

    /// Notes that the source has the rules in force again.
    fn forget_error(&self) {
        self.state
            .send_if_modified(|state| state.last_error.take().is_some());
    }
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader")
            .field("place", &self.place)
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

impl Place {
    /// Returns the name of the source in messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::File(file) => file.name(),
            Self::InProcess => "rules".to_owned(),
        }
    }
}

/// The number of versions in a history.
pub(super) const KEPT: usize = 10;
