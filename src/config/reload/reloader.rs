//! Takes new rules or refuses them, for one layer.

use std::{collections::VecDeque, fmt};

use tokio::sync::{Mutex as AsyncMutex, watch};

use crate::{
    clock::Clock,
    diagnosis::log,
    store::RulesId,
    task::{Mutex, spawn},
};

use super::{
    super::{
        fault::RuleSetError,
        rule_set::{Format, RuleSet, RuleSetReader},
    },
    error::ReloadError,
    new_rules::NewRules,
    source::RuleOrigin,
    state::{RuleVersion, RulesState},
    target::ReloadTarget,
};

/// Replaces the rules of one layer.
///
/// The layer keeps it alive; it does not keep the layer alive.
pub(super) struct Reloader {
    pub reader: RuleSetReader,
    pub origin: RuleOrigin,
    target: Box<dyn ReloadTarget>,
    /// Held from the reading of a text to the swap, so that no older text replaces a newer one, and one text is parsed at a
    /// time. Whoever only looks at the rules never waits for it.
    turn: AsyncMutex<()>,
    progress: Mutex<TakenVersions>,
    state: watch::Sender<RulesState>,
}

/// The versions that a reloader has taken, and the text that it has refused.
#[derive(Debug)]
struct TakenVersions {
    /// The latest versions that were current, from the oldest.
    history: VecDeque<RuleVersion>,
    /// The version that was refused last (`None` if it could not be read), and the reason.
    refused: Option<(Option<RuleVersion>, ReloadError)>,
}

impl Reloader {
    /// Returns a reloader of a layer that has this current version.
    pub fn new(
        target: Box<dyn ReloadTarget>,
        reader: RuleSetReader,
        origin: RuleOrigin,
        (rules, version): (RuleSet, RuleVersion),
    ) -> Self {
        let state = RulesState {
            version: version.clone(),
            rules,
            last_error: None,
        };
        Self {
            target,
            reader,
            origin,
            turn: AsyncMutex::new(()),
            progress: Mutex::new(TakenVersions {
                history: VecDeque::from([version]),
                refused: None,
            }),
            state: watch::Sender::new(state),
        }
    }

    pub fn subscribe(&self) -> watch::Receiver<RulesState> {
        self.state.subscribe()
    }

    /// Returns the latest versions that were current in this process, the oldest first.
    pub fn history(&self) -> Vec<RuleVersion> {
        self.progress.lock().history.iter().cloned().collect()
    }

    /// Returns the number of the current version.
    pub fn number(&self) -> u64 {
        self.state.borrow().version.number()
    }

    /// Returns the id of the next version in this process.
    fn next_id(&self) -> RulesId {
        RulesId {
            version: self.number() + 1,
            time: Clock::wall_now(),
        }
    }

    // === Text that was read ===

    /// Returns whether what was read is current or was refused already.
    pub fn is_known(&self, read: &Result<(Format, String), RuleSetError>) -> bool {
        let progress = self.progress.lock();
        let state = self.state.borrow();
        match read {
            Ok((format, text)) if state.version.has_text(*format, text) => {
                state.last_error.is_none()
            }
            Ok((format, text)) => progress.refusal_of(*format, text).is_some(),
            Err(error) => match &state.last_error {
                Some(ReloadError::Rules(last)) => last == error,
                _ => false,
            },
        }
    }

    /// Takes a text that was read, on this thread, if it is new and has no faults. For threads without a runtime.
    pub fn take_read(&self, read: Result<(Format, String), RuleSetError>) {
        let _turn = self.turn.blocking_lock();
        // A refusal is logged where it is noted.
        let Ok(Some(new)) = self.new_text(read) else {
            return;
        };
        let parsed = self.parser(new.format(), new.text())();
        let _ = self.take_parsed(new, parsed);
    }

    /// Reads a text by `read`, and takes it if it is new and has no faults.
    ///
    /// # Errors
    ///
    /// Why the text was refused, now or before.
    pub async fn take_from(
        &self,
        read: impl FnOnce() -> Result<(Format, String), RuleSetError> + Send + 'static,
    ) -> Result<(), ReloadError> {
        let _turn = self.turn.lock().await;
        let read = spawn::blocking(read).await.map_err(ReloadError::Source)?;
        let Some(new) = self.new_text(read)? else {
            return Ok(());
        };
        let parsed = self.parse(new.format(), new.text()).await?;
        self.take_parsed(new, parsed).map(drop)
    }

    /// Returns the version that a text which was read is; `None` if it is current.
    ///
    /// # Errors
    ///
    /// Why the text was refused, now or before.
    fn new_text(
        &self,
        read: Result<(Format, String), RuleSetError>,
    ) -> Result<Option<RuleVersion>, ReloadError> {
        let mut progress = self.progress.lock();
        let (format, text) = match read {
            Ok(read) => read,
            Err(error) => return Err(self.refuse(&mut progress, None, error.into())),
        };
        if self.state.borrow().version.has_text(format, &text) {
            progress.refused = None;
            self.set_error(None);
            return Ok(None);
        }
        if let Some(error) = progress.refusal_of(format, &text) {
            return Err(error.clone());
        }
        let new = NewRules::new(format, text);
        Ok(Some(new.into_version(self.next_id())))
    }

    /// Takes a version, whose text was parsed with this result.
    ///
    /// # Errors
    ///
    /// Why it was refused.
    fn take_parsed(
        &self,
        version: RuleVersion,
        parsed: Result<RuleSet, RuleSetError>,
    ) -> Result<RuleVersion, ReloadError> {
        let mut progress = self.progress.lock();
        let refused = version.clone();
        let rules = parsed.map_err(ReloadError::from);
        let swapped = rules.and_then(|rules| self.swap(&mut progress, version, rules));
        swapped.map_err(|error| self.refuse(&mut progress, Some(refused), error))
    }

    // === Parsing ===

    /// Parses a text on a thread for such work.
    ///
    /// # Errors
    ///
    /// [`ReloadError::Source`] if the runtime ends meanwhile.
    async fn parse(
        &self,
        format: Format,
        text: &str,
    ) -> Result<Result<RuleSet, RuleSetError>, ReloadError> {
        let parsed = spawn::blocking(self.parser(format, text)).await;
        parsed.map_err(ReloadError::Source)
    }

    fn parser(
        &self,
        format: Format,
        text: &str,
    ) -> impl FnOnce() -> Result<RuleSet, RuleSetError> + Send + use<> {
        let (reader, name, text) = (self.reader.clone(), self.origin.name(), text.to_owned());
        move || reader.parse_named(&name, format, &text)
    }

    // === Pushed rules ===

    /// Takes rules that were pushed in this process.
    ///
    /// # Errors
    ///
    /// Why they were not taken. The source has not changed, so it is not noted as a refusal.
    pub async fn take_pushed(&self, new: NewRules) -> Result<RuleVersion, ReloadError> {
        let _turn = self.turn.lock().await;
        let stored = self.number();
        if new.replaced.is_some_and(|replaced| replaced != stored) {
            return Err(ReloadError::Conflict { stored });
        }
        let version = new.into_version(self.next_id());
        let rules = self.parse(version.format(), version.text()).await??;
        self.swap(&mut self.progress.lock(), version, rules)
    }

    /// Takes a version that all instances share.
    ///
    /// # Errors
    ///
    /// Why it was refused.
    #[cfg(feature = "redis")]
    pub async fn take_version(&self, version: RuleVersion) -> Result<RuleVersion, ReloadError> {
        let _turn = self.turn.lock().await;
        let parsed = self.parse(version.format(), version.text()).await?;
        self.take_parsed(version, parsed)
    }

    /// Refuses a version that all instances share, in a format that is unknown here.
    #[cfg(feature = "redis")]
    pub fn refuse_version(&self, error: ReloadError) -> ReloadError {
        self.refuse(&mut self.progress.lock(), None, error)
    }

    /// Checks that rules could be used.
    ///
    /// # Errors
    ///
    /// Why not.
    #[cfg(feature = "redis")]
    pub async fn check(&self, new: &NewRules) -> Result<(), ReloadError> {
        let _turn = self.turn.lock().await;
        let rules = self.parse(new.format, &new.rules.text).await??;
        self.target.check(&rules).map_err(ReloadError::Layer)
    }

    // === Outcomes ===

    /// Replaces the current rules.
    fn swap(
        &self,
        progress: &mut TakenVersions,
        version: RuleVersion,
        rules: RuleSet,
    ) -> Result<RuleVersion, ReloadError> {
        self.target.replace(&rules).map_err(ReloadError::Layer)?;
        progress.refused = None;
        progress.history.push_back(version.clone());
        while progress.history.len() > KEPT {
            progress.history.pop_front();
        }
        log::event!(
            INFO,
            "rules replaced",
            source = self.origin.name(),
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
        progress: &mut TakenVersions,
        version: Option<RuleVersion>,
        error: ReloadError,
    ) -> ReloadError {
        progress.refused = Some((version, error.clone()));
        if self.set_error(Some(error.clone())) {
            log::event!(
                WARN,
                "rules refused, the current rules stay",
                source = self.origin.name(),
                version = self.number(),
                error = error,
            );
        }
        error
    }

    /// Notes that the source cannot be reached. That is logged once until it [can](Self::note_reached).
    #[cfg(feature = "redis")]
    pub fn note_unreachable(&self, error: ReloadError) -> ReloadError {
        let was_reachable = !matches!(self.state.borrow().last_error, Some(ReloadError::Source(_)));
        self.set_error(Some(error.clone()));
        if was_reachable {
            log::event!(
                WARN,
                "rules cannot be read, the current rules stay",
                source = self.origin.name(),
                version = self.number(),
                error = error,
            );
        }
        error
    }

    /// Notes that the source was read, and had nothing new.
    ///
    /// # Errors
    ///
    /// Why what it has was refused.
    #[cfg(feature = "redis")]
    pub fn note_reached(&self) -> Result<(), ReloadError> {
        let progress = self.progress.lock();
        let refusal = progress.refused.as_ref().map(|(_, error)| error);
        self.set_error(refusal.cloned());
        refusal.cloned().map_or(Ok(()), Err)
    }

    /// Sets the error that handles show. Returns whether it is another one.
    fn set_error(&self, error: Option<ReloadError>) -> bool {
        self.state.send_if_modified(|state| {
            let is_same = match (&state.last_error, &error) {
                (Some(last), Some(error)) => last.is_same(error),
                (None, None) => true,
                _ => false,
            };
            state.last_error = error;
            !is_same
        })
    }
}

impl TakenVersions {
    /// Returns why a text was refused; `None` if it was not refused last.
    fn refusal_of(&self, format: Format, text: &str) -> Option<&ReloadError> {
        let (version, error) = self.refused.as_ref()?;
        let version = version.as_ref()?;
        version.has_text(format, text).then_some(error)
    }
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader")
            .field("origin", &self.origin)
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

/// The number of versions in a history.
const KEPT: usize = 10;
