//! The rules in Redis, as this process last saw them.

use std::sync::Arc;

use crate::{
    diagnosis::outside_text::shown,
    error::{Error, ErrorKind},
    store::{ReadRulesReply, RuleStore, RulesId, RulesToStore, StoreRulesReply, StoredRules},
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
    /// Held over a read or a push, and until its rules are in force: an older version never replaces a newer one.
    seen: tokio::sync::Mutex<Option<RulesId>>,
}

/// The version that was stored last, as far as it is known. No other call changes it meanwhile.
pub(super) type Seen<'a> = tokio::sync::MutexGuard<'a, Option<RulesId>>;

/// A version that was read, or why it cannot be used.
pub(super) type Read = Result<RuleVersion, ReloadError>;

impl SharedRules {
    pub(super) fn new(store: Arc<dyn RuleStore>) -> Self {
        Self {
            store,
            seen: tokio::sync::Mutex::new(None),
        }
    }

    pub(super) fn store(&self) -> &Arc<dyn RuleStore> {
        &self.store
    }

    /// Waits until no other call reads or pushes.
    pub(super) async fn turn(&self) -> Seen<'_> {
        self.seen.lock().await
    }

    /// Returns the number of the version that was stored last, as far as it is known; `None` for none.
    pub(super) async fn seen(&self) -> Option<u64> {
        self.seen.lock().await.map(|seen| seen.version)
    }

    /// Returns the stored version if it is another one than the last that was seen: an error if this tollgate does not know
    /// its format.
    ///
    /// # Errors
    ///
    /// [`ReloadError::Source`] if Redis cannot be read.
    pub(super) async fn read(&self, seen: &mut Seen<'_>) -> Result<Option<Read>, ReloadError> {
        let read = self.store.read_rules(**seen).await;
        match read.map_err(ReloadError::Source)? {
            ReadRulesReply::Known => Ok(None),
            ReadRulesReply::Missing => {
                **seen = None;
                Ok(None)
            }
            ReadRulesReply::Stored(stored) => {
                **seen = Some(stored.id);
                Ok(Some(version(stored)))
            }
        }
    }

    /// Stores rules as the next version. `number` is that in force.
    ///
    /// # Errors
    ///
    /// [`ReloadError::Conflict`] if others were stored meanwhile, and [`ReloadError::Source`] if Redis does not store them.
    pub(super) async fn push(
        &self,
        seen: &mut Seen<'_>,
        new: NewRules,
        number: u64,
    ) -> Result<RuleVersion, ReloadError> {
        let known = seen.map_or(0, |seen| seen.version);
        let replaced = new.replaced.unwrap_or(known);
        let mut reply = self.store_over(replaced, &new, number.max(known)).await?;
        // Redis has lost the version that is replaced, so nothing that the author has not seen is replaced.
        if let StoreRulesReply::Conflict { stored: 0 } = reply
            && (replaced == known || replaced == number)
        {
            reply = self.store_over(0, &new, number.max(known)).await?;
        }
        match reply {
            StoreRulesReply::Conflict { stored } => Err(ReloadError::Conflict { stored }),
            StoreRulesReply::Stored(id) => {
                **seen = Some(id);
                Ok(new.into_version(id.version, id.time))
            }
        }
    }

    /// Stores rules if they replace this version.
    async fn store_over(
        &self,
        replaced: u64,
        new: &NewRules,
        floor: u64,
    ) -> Result<StoreRulesReply, ReloadError> {
        let pushed = RulesToStore {
            format: new.format.name(),
            text: new.text.clone(),
            author: new.author.clone().unwrap_or_default(),
            comment: new.comment.clone().unwrap_or_default(),
            replaced,
            floor,
        };
        let reply = self.store.store_rules(pushed).await;
        reply.map_err(ReloadError::Source)
    }

    /// Returns the last ten versions, from the oldest. Those in an unknown format are left out.
    ///
    /// # Errors
    ///
    /// [`ReloadError::Source`] if Redis cannot be read.
    pub(super) async fn history(&self) -> Result<Vec<RuleVersion>, ReloadError> {
        let stored = self.store.rules_history().await;
        let stored = stored.map_err(ReloadError::Source)?;
        let versions = stored.into_iter();
        Ok(versions.filter_map(|stored| version(stored).ok()).collect())
    }
}

/// Returns a version from what is stored.
fn version(stored: StoredRules) -> Result<RuleVersion, ReloadError> {
    let Some(format) = Format::of_extension(&stored.format) else {
        let message = format!(
            "version {} of the rules in redis has the unknown format {:?}: push it again by a newer tollgate",
            stored.id.version,
            shown(&stored.format, MAX_FORMAT)
        );
        let error = Error::new(ErrorKind::ForeignValue, message);
        return Err(ReloadError::Source(error));
    };
    // Others than tollgate may have written them.
    let present = |text: String, most| (!text.is_empty()).then(|| shown(&text, most).into());
    Ok(RuleVersion {
        number: stored.id.version,
        format,
        text: stored.text.into(),
        author: present(stored.author, MAX_AUTHOR),
        comment: present(stored.comment, MAX_COMMENT),
        time: stored.id.time,
    })
}

/// The most bytes of an unknown format that are shown.
const MAX_FORMAT: usize = 40;
