//! Decisions that wait to be sent.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use crate::{clock::Timestamp, error::Error};

use super::super::protocol::{Reply, Request};

/// A decision that waits, and where its result goes.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: Box<Request>,
    /// When the caller asked, also if it asked again after [`JobResult::NotSent`].
    pub(super) asked_at: Timestamp,
    pub(super) answer: Answer,
}

/// Where the result of a job goes.
pub(super) type Answer = oneshot::Sender<JobResult>;

/// The end of a job.
#[derive(Debug)]
pub(super) enum JobResult {
    /// It was not sent, and whoever would have sent it is gone: the caller may ask again.
    NotSent(Box<Request>),
    Replied(Result<Reply, Error>),
}

/// Waiting jobs, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    jobs: VecDeque<Job>,
    charges: usize,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns the number of charges that wait.
    pub(super) fn charges(&self) -> usize {
        self.charges
    }

    /// Returns when the oldest job was asked for.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        self.jobs.front().map(|job| job.asked_at)
    }

    /// Adds a job. Returns the oldest one if more than `most` would wait.
    pub(super) fn push(&mut self, job: Job, most: usize) -> Option<Job> {
        self.charges += job.request.charges();
        // A job that was handed back may be older than those that wait.
        let place = self
            .jobs
            .iter()
            .rposition(|other| other.asked_at <= job.asked_at);
        self.jobs.insert(place.map_or(0, |place| place + 1), job);
        self.drop_abandoned();
        match self.jobs.len() > most {
            true => self.pop_oldest(),
            false => None,
        }
    }

    /// Removes the oldest job if it was asked for before `limit`.
    pub(super) fn pop_older_than(&mut self, limit: Timestamp) -> Option<Job> {
        self.drop_abandoned();
        match self.oldest()? < limit {
            true => self.pop_oldest(),
            false => None,
        }
    }

    /// Removes a batch: up to `most` charges, at least one job. `newest_first` takes it from the other end.
    pub(super) fn take(&mut self, most: usize, newest_first: bool) -> Vec<Job> {
        let mut batch = Vec::new();
        let mut charges = 0;
        loop {
            let next = match newest_first {
                true => self.jobs.back(),
                false => self.jobs.front(),
            };
            let Some(next) = next else { break };
            let is_abandoned = next.answer.is_closed();
            if !is_abandoned && !batch.is_empty() && charges + next.request.charges() > most {
                break;
            }
            let job = match newest_first {
                true => self.jobs.pop_back(),
                false => self.jobs.pop_front(),
            };
            let job = job.expect("it was looked at");
            self.charges -= job.request.charges();
            if !is_abandoned {
                charges += job.request.charges();
                batch.push(job);
            }
        }
        batch
    }

    /// Removes all jobs.
    pub(super) fn drain(&mut self) -> VecDeque<Job> {
        self.charges = 0;
        std::mem::take(&mut self.jobs)
    }

    /// Removes the oldest job.
    pub(super) fn pop_oldest(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front()?;
        self.charges -= job.request.charges();
        Some(job)
    }

    /// Drops jobs at the old end whose callers have left.
    fn drop_abandoned(&mut self) {
        while self.jobs.front().is_some_and(|job| job.answer.is_closed()) {
            self.pop_oldest();
        }
    }
}

/// Answers a job. A caller who has left needs no answer.
pub(super) fn answer(job: Answer, result: Result<Reply, Error>) {
    let _ = job.send(JobResult::Replied(result));
}

/// Lets a caller ask again.
pub(super) fn hand_back(job: Answer, request: Box<Request>) {
    let _ = job.send(JobResult::NotSent(request));
}
