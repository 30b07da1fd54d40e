//! Requests that wait to be sent, the oldest first.
//!
//! ```text
//!          oldest                                newest
//! shed <- [ job ][ job ][ job ][ job ] ... [ job ] <- push
//!            `- take() in order                `- take(newest_first) while the oldest waits too long
//! ```
//!
//! A caller that leaves drops its receiver. Its job stays in the queue and is skipped when its turn comes; jobs at the
//! old end whose callers have left are dropped with each push.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use crate::clock::Timestamp;

use super::super::protocol::{Redirect, Request, RequestResult};

/// A request that waits, and the caller that waits for its result.
#[derive(Debug)]
pub(super) struct Job {
    pub request: Box<Request>,
    /// When the caller submitted it first. After [`JobResult::NotSent`] it submits it again with the same time.
    pub submitted_at: Timestamp,
    pub waiter: Waiter,
}

/// The end of a job, which its caller receives.
#[derive(Debug)]
pub(super) enum JobResult {
    /// It was not sent, and the task that was to send it is gone: the caller may submit it again.
    NotSent(Box<Request>),
    /// A cluster did not execute it: the caller submits it where the redirect leads.
    Redirected(Box<Request>, Redirect),
    /// It has ended: with a reply, or with the error of its call.
    Replied(RequestResult),
}

/// The caller of a job, for the task that ends the job.
///
/// Each job has one result, so both methods consume the waiter. Nothing happens if the caller has left.
#[derive(Debug)]
pub(super) struct Waiter(oneshot::Sender<JobResult>);

impl Waiter {
    /// Returns a waiter, and the receiver for its caller.
    pub fn new() -> (Self, oneshot::Receiver<JobResult>) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    /// Sends the caller the end of its job.
    pub fn end(self, result: JobResult) {
        let _ = self.0.send(result);
    }

    /// Sends the caller its result.
    pub fn complete(self, result: RequestResult) {
        self.end(JobResult::Replied(result));
    }

    /// Returns the request, which was not sent, so that the caller can submit it again.
    pub fn hand_back(self, request: Box<Request>) {
        self.end(JobResult::NotSent(request));
    }

    /// Returns whether the future of the caller was dropped.
    fn has_left(&self) -> bool {
        self.0.is_closed()
    }
}

// === JobQueue ===

/// Waiting jobs by the time they were submitted, and the number of their charges.
#[derive(Debug, Default)]
pub(super) struct JobQueue {
    jobs: VecDeque<Job>,
    /// The charges of all jobs, of abandoned ones too.
    charges: usize,
}

impl JobQueue {
    /// Returns whether no job waits.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns the number of charges of all jobs.
    pub fn charges(&self) -> usize {
        self.charges
    }

    /// Returns when the oldest job was submitted.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.jobs.front().map(|job| job.submitted_at)
    }

    /// Adds a job. Returns the oldest one if more than `max` would wait.
    pub fn push(&mut self, job: Job, max: usize) -> Option<Job> {
        self.charges += job.request.charges();
        // A job that was handed back may be older than those that wait.
        let before = self
            .jobs
            .iter()
            .rposition(|other| other.submitted_at <= job.submitted_at);
        self.jobs.insert(before.map_or(0, |index| index + 1), job);
        self.drop_abandoned();
        if self.jobs.len() > max {
            self.pop_oldest()
        } else {
            None
        }
    }

    /// Removes the oldest job.
    pub fn pop_oldest(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front()?;
        self.charges -= job.request.charges();
        Some(job)
    }

    /// Removes the oldest job if it was submitted before `limit`.
    pub fn pop_older_than(&mut self, limit: Timestamp) -> Option<Job> {
        self.drop_abandoned();
        if self.oldest()? < limit {
            self.pop_oldest()
        } else {
            None
        }
    }

    /// Removes a batch: up to `max_charges`, but at least one job. With `newest_first` it is taken from the other end.
    ///
    /// A job of more than `max_charges` is sent alone. The batch is empty if all callers have left.
    pub fn take(&mut self, max_charges: usize, newest_first: bool) -> Vec<Job> {
        let mut batch = Vec::new();
        let mut charges = 0;
        loop {
            let next = if newest_first {
                self.jobs.back()
            } else {
                self.jobs.front()
            };
            let Some(next) = next else { break };
            let is_abandoned = next.waiter.has_left();
            let next_charges = next.request.charges();
            if !is_abandoned && !batch.is_empty() && charges + next_charges > max_charges {
                break;
            }
            let job = if newest_first {
                self.jobs.pop_back()
            } else {
                self.jobs.pop_front()
            };
            self.charges -= next_charges;
            if !is_abandoned {
                charges += next_charges;
                batch.extend(job);
            }
        }
        batch
    }

    /// Removes all jobs.
    pub fn drain(&mut self) -> VecDeque<Job> {
        self.charges = 0;
        std::mem::take(&mut self.jobs)
    }

    /// Drops jobs at the old end whose callers have left, so that the oldest is one that somebody waits for.
    fn drop_abandoned(&mut self) {
        while self.jobs.front().is_some_and(|job| job.waiter.has_left()) {
            self.pop_oldest();
        }
    }
}
