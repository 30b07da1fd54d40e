//! The rules in Redis, as this process last saw them.

use std::sync::Arc;

use crate::{
    diagnosis::outside_text::shown,
    error::{Error, ErrorKind},
    store::{RuleStore, RulesId, RulesText},
};

use super::{
    super::rule_set::Format,
    error::ReloadError,
    new_rules::{MAX_AUTHOR, MAX_COMMENT, NewRules},
    state::RuleVersion,
};

/// The rules that all instances share.
#[derive(Debug)]
pub(super) struct SharedRules {
    store: Arc<dyn RuleStore>,
    /// Held over a read or a push, and until its rules are applied: an older version never replaces a newer one.
    seen: tokio::sync::Mutex<Option<RulesId>>,
}

/// The version that was stored last, as far as it is known. No other call changes it meanwhile.
pub(super) type Seen<'a> = tokio::sync::MutexGuard<'a, Option<RulesId>>;

/// A version that was read, or why it cannot be used.
pub(super) type Read = Result<RuleVersion, ReloadError>;

impl SharedRules {
    pub fn new(store: Arc<dyn RuleStore>) -> Self {
        Self {
            store,
            seen: tokio::sync::Mutex::new(None),
        }
    }

    pub fn store(&self) -> &Arc<dyn RuleStore> {
        &self.store
    }

    /// Waits until no other call reads or pushes.
    pub async fn turn(&self) -> Seen<'_> {
        self.seen.lock().await
    }

    /// Returns the number of the version that was stored last, as far as it is known; `None` for none.
    pub async fn seen(&self) -> Option<u64> {
        self.seen.lock().await.map(|seen| seen.version)
    }

    /// Returns the stored version if it is another one than the last that was seen: an error if this tollgate does not know
    /// its format.
    ///
    /// # Errors
    ///
    /// [`ReloadError::Source`] if Redis cannot be read.
    pub async fn read(&self, seen: &mut Seen<'_>) -> Result<Option<Read>, ReloadError> {
        let stored = self.store.rules_id().await.map_err(ReloadError::Source)?;
        if stored == **seen {
            return Ok(None);
        }
        let read = match stored {
            Some(id) => {
                let rules = self.store.read_rules(id).await;
                Some(version(id, rules.map_err(ReloadError::Source)?))
            }
            None => None,
        };
        **seen = stored;
        Ok(read)
    }

    /// Stores rules as the next version. `number` is that of the current version.
    ///
    /// # Errors
    ///
    /// [`ReloadError::Conflict`] if others were stored meanwhile, and [`ReloadError::Source`] if Redis does not store them.
    pub async fn push(
        &self,
        seen: &mut Seen<'_>,
        new: NewRules,
        number: u64,
    ) -> Result<RuleVersion, ReloadError> {
        let known = seen.map_or(0, |seen| seen.version);
        let replaced = new.replaced.unwrap_or(known);
        let store = |replaced| {
            let rules = new.rules.clone();
            self.store.store_rules(rules, replaced, number.max(known))
        };
        let mut stored = store(replaced).await.map_err(ReloadError::Source)?;
        // Redis has lost the version that is replaced, so nothing that the author has not seen is replaced.
        if stored == Err(0) && (replaced == known || replaced == number) {
            stored = store(0).await.map_err(ReloadError::Source)?;
        }
        let id = stored.map_err(|stored| ReloadError::Conflict { stored })?;
        **seen = Some(id);
        Ok(new.into_version(id))
    }

    /// Returns the last ten versions, from the oldest. Those in an unknown format are left out.
    ///
    /// # Errors
    ///
    /// [`ReloadError::Source`] if Redis cannot be read.
    pub async fn history(&self) -> Result<Vec<RuleVersion>, ReloadError> {
        let stored = self.store.rules_history().await;
        let stored = stored.map_err(ReloadError::Source)?;
        let versions = stored.into_iter();
        let versions = versions.filter_map(|(id, rules)| version(id, rules).ok());
        Ok(versions.collect())
    }
}

/// Returns a version from what is stored.
fn version(id: RulesId, rules: RulesText) -> Result<RuleVersion, ReloadError> {
    let Some(format) = Format::of_extension(&rules.format) else {
        let message = format!(
            "version {} of the rules in redis has the unknown format {:?}: push it again by a newer tollgate",
            id.version,
            shown(&rules.format, MAX_FORMAT)
        );
        let error = Error::new(ErrorKind::ForeignValue, message);
        return Err(ReloadError::Source(error));
    };
    // Others than tollgate may have written them.
    let rules = Arc::new(RulesText {
        author: shown(&rules.author, MAX_AUTHOR),
        comment: shown(&rules.comment, MAX_COMMENT),
        ..rules
    });
    Ok(RuleVersion { id, format, rules })
}

/// The most bytes of an unknown format that are shown.
const MAX_FORMAT: usize = 40;
