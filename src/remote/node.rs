//! One Redis server: its connections, and everything that waits for it.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    clock::Clock,
    error::{Error, ErrorKind, Phase},
    retry::RetryQueue,
    store::{CallObserver, CallReport, Settlement},
};

use super::{
    batch::{Traffic, Watch},
    connection::{Lane, ServerCheck},
    protocol::Keyspace,
};

/// A server that decisions are made on.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) traffic: Traffic,
    pub(super) keyspace: Keyspace,
    pub(super) deadline: Duration,
    /// The caller's clock, when the server's must not be used.
    pub(super) clock: Option<Clock>,
    pub(super) check: ServerCheck,
    pub(super) watch: Watch,
    pub(super) observer: OnceLock<Weak<dyn CallObserver>>,
    /// Slots that nobody holds, whose release is not confirmed.
    pub(super) releases: RetryQueue<Settlement>,
    /// Whether the next dial is to be made although the last ones failed.
    dials_at_once: AtomicBool,
}

impl Node {
    pub(super) fn new(
        lanes: Box<[Arc<Lane>]>,
        keyspace: Keyspace,
        deadline: Duration,
        clock: Option<Clock>,
        check: ServerCheck,
    ) -> Arc<Self> {
        Arc::new(Self {
            traffic: Traffic::new(deadline, lanes),
            keyspace,
            deadline,
            clock,
            check,
            watch: Watch::default(),
            observer: OnceLock::new(),
            releases: RetryQueue::default(),
            dials_at_once: AtomicBool::new(false),
        })
    }

    /// Lets the next dial be made although the last ones failed: a probe has a backoff of its own.
    pub(super) fn dial_at_once(&self) {
        self.dials_at_once.store(true, Ordering::Relaxed);
    }

    /// Whether a dial is to be made although the last ones failed.
    pub(super) fn takes_no_backoff(&self) -> bool {
        self.dials_at_once.swap(false, Ordering::Relaxed)
    }

    /// Reports a call that the server answered.
    pub(super) fn report_answer(&self, took: Duration) {
        self.report(CallReport::Replied { latency: took });
    }

    /// Reports a call that failed.
    pub(super) fn report_failure(&self, error: &Error) {
        self.report(CallReport::Failed { error });
    }

    /// Returns the error of a decision that got no reply in time.
    pub(super) fn late(&self, phase: Phase) -> Error {
        let what = match phase {
            Phase::Connect => "no connection to redis",
            Phase::Queue => "no room for another call to redis",
            Phase::Reply => "no reply from redis",
        };
        Error::new(
            ErrorKind::Timeout(phase),
            format!("{what} within the deadline of {:?}", self.deadline),
        )
    }

    fn report(&self, call: CallReport<'_>) {
        if let Some(observer) = self.observer.get().and_then(Weak::upgrade) {
            observer.call_ended(call);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.watch.wake();
    }
}
