//! Watches the rules in Redis.
//!
//! ```text
//! a push is announced ──┐
//! poll interval       ──┼──> read ──> Reloader::take_version
//! twice a second      ──┘    while announcements cannot be received
//! ```

use std::{sync::Arc, time::Duration};

use tokio::task::AbortHandle;

use crate::{
    error::{Error, ErrorKind},
    task::{
        backoff::jittered,
        home,
        timer::{sleep, timeout},
    },
};

use super::{
    error::ReloadError, new_rules::NewRules, reloader::Reloader, shared_rules::SharedRules,
    state::RuleVersion,
};

/// Starts the task that watches, until the returned value is dropped.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`] if the system cannot start a thread.
pub(super) fn start(
    reloader: Arc<Reloader>,
    shared: Arc<SharedRules>,
    interval: Duration,
) -> Result<SharedWatch, Error> {
    let task = home::spawn(run(reloader, shared, interval));
    task.map(SharedWatch).ok_or_else(|| {
        Error::new(
            ErrorKind::Unavailable,
            "no thread can be started to watch the rules in redis: this process has too many",
        )
    })
}

/// Ends the task when it is dropped.
pub(super) struct SharedWatch(AbortHandle);

impl Drop for SharedWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run(reloader: Arc<Reloader>, shared: Arc<SharedRules>, interval: Duration) {
    loop {
        // At random, so that a fleet does not read in step.
        let poll = interval / 2 + jittered(interval / 2);
        let announced = timeout(poll, shared.store().rules_stored()).await;
        let can_listen = match announced {
            // Listening or lost in silence: what the poll finds shows which.
            None | Some(Ok(true)) => true,
            Some(Ok(false)) => false,
            Some(Err(error)) => {
                reloader.note_unreachable(ReloadError::Source(error));
                sleep(RETRY).await;
                continue;
            }
        };
        // A refusal is noted where it is found.
        let _ = take(&reloader, &shared).await;
        if !can_listen {
            sleep(RETRY.min(interval)).await;
        }
    }
}

/// Reads the rules, and takes them if they are new.
///
/// # Errors
///
/// Why they were not taken, now or before.
pub(super) async fn take(reloader: &Reloader, shared: &SharedRules) -> Result<(), ReloadError> {
    let mut seen = shared.turn().await;
    match shared.read(&mut seen).await {
        Ok(Some(Ok(version))) => reloader.take_version(version).await.map(drop),
        Ok(Some(Err(error))) => Err(reloader.refuse_version(error)),
        Ok(None) => reloader.note_reached(),
        Err(error) => Err(reloader.note_unreachable(error)),
    }
}

/// Stores rules for all instances, and takes them here.
///
/// # Errors
///
/// Why they cannot be used, were not stored, or were replaced meanwhile.
pub(super) async fn push(
    reloader: &Reloader,
    shared: &SharedRules,
    new: NewRules,
) -> Result<RuleVersion, ReloadError> {
    reloader.check(&new).await?;
    let mut seen = shared.turn().await;
    let version = shared.push(&mut seen, new, reloader.number()).await?;
    reloader.take_version(version).await
}

/// The wait before rules are read again without an announcement.
const RETRY: Duration = Duration::from_millis(500);
