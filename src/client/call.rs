//! One call: its request, its attempts, and what it has learned of them.

use std::{sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};

use crate::{
    acquire::{Acquire, AcquireError, Permit, Priority},
    clock::Moment,
    request::RequestHead,
    task::timer::timeout,
    telemetry::RetryOutcome,
};

use super::{
    body::{OutgoingBody, Tail, ends_with_trailers},
    charges::CallCharges,
    error::LimitedCall,
    info::OutgoingInfo,
    observed::Observed,
    rates::ReadRates,
    retry::{self, CallFailure},
    sent::SentCall,
    shared::Shared,
    subject::Subject,
};

/// A call until its response is ready.
#[derive(Debug)]
pub(super) struct OutgoingCall<B> {
    shared: Arc<Shared>,
    charges: Arc<CallCharges>,
    priority: Priority,
    is_safe: bool,
    /// The request to send next. `None` if it cannot be sent again.
    request: Option<Request<B>>,
    begun_at: Moment,
    /// When the last attempt was sent.
    sent_at: Moment,
    permit: Option<Permit>,
    attempts: u32,
    waited: Duration,
    last_status: Option<StatusCode>,
}

impl<B: 'static> OutgoingCall<B> {
    pub fn new(shared: Arc<Shared>, request: Request<B>) -> Self {
        let head = RequestHead::from(&request);
        let charges = CallCharges::of(&shared.reaction.rules, &shared.reaction.rates, &head);
        let priority = shared.priority.as_ref();
        let now = Moment::now();
        Self {
            charges: Arc::new(charges),
            priority: priority.map_or(Priority::default(), |priority| priority(&head)),
            is_safe: shared.retry.is_safe(&head),
            request: Some(request),
            begun_at: now,
            sent_at: now,
            permit: None,
            attempts: 0,
            waited: Duration::ZERO,
            last_status: None,
            shared,
        }
    }

    /// Returns the future that waits for the rates of the call's keys, as long as the call waits at most. `None` if they are known.
    pub fn read_rates(&self) -> Option<ReadRates> {
        let read = self.shared.reaction.read_rates(&self.charges)?;
        let left = self.time_left();
        Some(Box::pin(async move {
            let _ = timeout(left, read).await;
        }))
    }

    /// Returns the wait for the next turn. `None` if no rule counts the call.
    pub fn acquire(&self) -> Option<Acquire> {
        let charges = self.charges.borrow();
        if charges.is_empty() {
            return None;
        }
        self.shared.reaction.report_rates(&self.charges);
        let limiter = &self.shared.reaction.limiter;
        let acquire = limiter.acquire(&charges[..]);
        Some(acquire.max_wait(self.time_left()).priority(self.priority))
    }

    /// Notes that the call has its turn.
    pub fn admitted(&mut self, permit: Permit) {
        self.waited += permit.waited();
        self.shared.reaction.note_used(&self.charges);
        self.permit = Some(permit);
    }

    /// Returns the error of a call that got no turn.
    pub fn limited(&self, error: AcquireError) -> LimitedCall {
        LimitedCall {
            error,
            attempts: self.attempts,
            last_status: self.last_status,
            pause: self.shared.reaction.pause_of(&self.charges),
        }
    }

    /// Returns the request of the next attempt, and keeps a copy if there may be another one.
    pub fn next_request(&mut self) -> Request<B> {
        let request = self.request.take();
        let request = request.expect("an attempt begins only if there is a request to send");
        let retry = &self.shared.retry;
        if retry.may_retry(self.is_safe, self.attempts) {
            self.request = self.shared.copies.copy(&request);
        }
        if self.attempts == 0 {
            self.shared.budget.deposit(&self.budget_subject());
        }
        self.attempts += 1;
        self.sent_at = Moment::now();
        request
    }

    /// Returns the error of a call whose client was not ready in time. Its turn is refunded.
    pub fn not_ready(&mut self) -> LimitedCall {
        self.refund();
        let spent = Moment::now().since(self.begun_at);
        self.limited(AcquireError::client_not_ready(spent))
    }

    /// Refunds the turn of an attempt that was not sent.
    pub fn refund(&mut self) {
        if let Some(permit) = self.permit.take() {
            permit.settle(|_, _| 0);
        }
    }

    /// Notes the error of an attempt. Returns the wait before a retry, if there is one.
    pub fn failed<E: 'static>(&mut self, error: &E) -> Option<Duration> {
        let failure = self.shared.retry.of_error(error);
        self.last_status = None;
        if failure == CallFailure::NotSent {
            self.refund();
        }
        self.retry(failure, Duration::ZERO)
    }

    /// Notes the response of an attempt, and obeys it. Returns the wait before a retry, if there is one.
    pub fn responded<R>(&mut self, response: &Response<R>) -> Option<Duration> {
        let observed = Observed::from(response);
        let reaction = &self.shared.reaction;
        self.last_status = Some(response.status());
        let failure = self.shared.retry.of_response(response, &observed);
        let mut floor = Duration::ZERO;
        reaction.follow(&self.charges, &observed);
        if observed.refusal().is_some() {
            let status = response.status();
            let sent = (self.sent_at, self.permit.as_ref().map(Permit::decision));
            floor = reaction.refused(&self.charges, sent, status, &observed);
        } else if let Some(permit) = &self.permit {
            reaction.lower(&self.charges, permit.decision(), &observed);
        }
        match failure {
            Some(failure) => self.retry(failure, floor),
            None => {
                // A 429 that a cache keeps shows no limit, and is no success either.
                let has_worked = !matches!(response.status().as_u16(), 429 | 529);
                if has_worked && !ends_with_trailers(response.headers()) {
                    reaction.succeeded(&self.charges, self.sent_at);
                }
                None
            }
        }
    }

    /// Returns the response of the last attempt, which holds the permit until its body has ended.
    pub fn finish<R>(&mut self, mut response: Response<R>) -> Response<OutgoingBody<R>> {
        let permit = self.permit.take();
        response.extensions_mut().insert(OutgoingInfo {
            attempts: self.attempts,
            waited: self.waited,
            decision: permit.as_ref().map(|permit| permit.decision().clone()),
        });
        let ends_with_trailers = ends_with_trailers(response.headers());
        let tail = Tail {
            permit,
            trailers: ends_with_trailers.then(|| SentCall {
                shared: Arc::clone(&self.shared),
                charges: Arc::clone(&self.charges),
                sent_at: self.sent_at,
            }),
        };
        response.map(|body| OutgoingBody::new(body, tail))
    }

    /// Returns the wait before a retry. `None` if there is no retry.
    fn retry(&mut self, failure: CallFailure, floor: Duration) -> Option<Duration> {
        let shared = &self.shared;
        if self.request.is_none() || !shared.retry.permits(failure, self.is_safe) {
            return None;
        }
        let wait = retry::wait(floor, self.attempts);
        let outcome = if wait > self.time_left() {
            RetryOutcome::TooLate
        } else if shared.budget.withdraw(&self.budget_subject()) {
            RetryOutcome::Retried
        } else {
            RetryOutcome::OverBudget
        };
        shared.reaction.note_retry(&self.charges, outcome);
        if !matches!(outcome, RetryOutcome::Retried) {
            return None;
        }
        // The slots are free meanwhile.
        self.permit = None;
        self.waited += wait;
        Some(wait)
    }

    fn budget_subject(&self) -> Subject {
        let subject = self.charges.subject(&self.shared.reaction.rules);
        subject.unwrap_or(Subject::UNCOUNTED)
    }

    /// Returns how long the call waits at most from now on.
    pub fn time_left(&self) -> Duration {
        let spent = Moment::now().since(self.begun_at);
        self.shared.max_wait.saturating_sub(spent)
    }
}
