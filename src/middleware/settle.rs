//! Charges of an admitted request, settled by its real cost when it has ended.
//!
//! # Why does the layer not end responses that nobody reads?
//!
//! A slot is held until the response body ends, and a server asks a body for more only when the client has read the earlier
//! pieces. So while a client reads nothing, no code of the layer runs for its response. A timer could release the slot, but the
//! body, the handler's stream and the connection to the backend would stay, and the limit would admit more than its
//! number. To end these too, each body would have to be shared with a timer, which costs an allocation and a lock per
//! response. A server owns the task of each stream and can drop it for less. The gateway does so in 100 lines
//! (`examples/gateway/unread.rs`). Until then, a rule by caller bounds what one client can hold.

use std::{
    fmt, mem,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, Method, Request, Response, StatusCode, header::CONTENT_LENGTH};

use crate::{
    charge::{Actual, KeyEffect, Receipt, Settlement},
    hold::Hold,
    policy::Policy,
    rules::{BodyOutcome, CompletedRequest, RequestOutcome, Rule},
};

use super::{actual_cost::ActualCost, held::HeldCharges, request_hold::SharedHold};

/// Charges of a request, from its admission until its response has ended. Settles them when dropped.
///
/// Its holder drops the inner service's future or body first: both may set the [`ActualCost`] when they are dropped.
pub(super) struct PendingSettlement {
    pub held: HeldCharges,
    rules: Arc<[Rule]>,
    /// Keeps the charges if the handler takes a [`RequestHold`](super::RequestHold). `None` without slots.
    shared_hold: Option<SharedHold>,
    /// Set by the handler.
    actual_cost: ActualCost,
    /// Whether a rule settles the charges, by how the request ended.
    is_priced: bool,
    method: Method,
    progress: Progress,
}

/// Progress of a request.
enum Progress {
    /// The inner service has not responded, or no rule settles by its response.
    Open,
    /// The inner service returned an error.
    Failed,
    /// The inner service responded. Boxed: most settlements release slots, which needs no details.
    Responded(Box<Sent>),
}

/// A response that is being sent.
struct Sent {
    status: StatusCode,
    headers: HeaderMap,
    elapsed: Duration,
    body: BodyOutcome,
    /// Bytes of the body left to send by `Content-Length`: servers read no further.
    left: Option<u64>,
    /// Whether the body reported its end, after which a server drops it.
    has_ended: AtomicBool,
}

impl PendingSettlement {
    pub fn new(held: HeldCharges, rules: Arc<[Rule]>) -> Box<Self> {
        Box::new(Self {
            held,
            rules,
            shared_hold: None,
            actual_cost: ActualCost::default(),
            is_priced: false,
            method: Method::GET,
            progress: Progress::Open,
        })
    }

    /// Sets whether the charges are kept although the request has not started. They are then priced as those of a
    /// client that went away; otherwise they are refunded.
    pub fn set_standing(&mut self, is_standing: bool) {
        self.is_priced = is_standing && self.settles();
        if is_standing {
            self.held.start();
        } else {
            self.held.wait();
        }
    }

    /// Notes that the inner service is about to be called, and reads the handler's [`ActualCost`] if a rule settles.
    pub fn start<A>(&mut self, request: &mut Request<A>) {
        self.method.clone_from(request.method());
        self.is_priced = self.settles();
        if self.has_slots() {
            self.shared_hold = Some(SharedHold::attach(request.extensions_mut()).clone());
        }
        if self.is_priced {
            // Shared with a layer around this one, so that one call of `set` reaches both.
            self.actual_cost = ActualCost::shared(request.extensions_mut());
        }
    }

    /// Takes over the charges of another decision on the same request.
    pub fn join(&mut self, mut other: Self) {
        self.held.holds.append(&mut other.held.holds);
    }

    /// Leaves the charges as they were made.
    pub fn keep(mut self) {
        self.held.holds.drain(..).for_each(Hold::forget);
    }

    /// Refunds the charges, since another policy denies the request. A policy that counts denied requests keeps its own.
    pub fn refund(mut self) {
        mem::take(&mut self.held).settle(
            |_, policy, charged| {
                if policy.counts_denied() { charged } else { 0 }
            },
        );
    }

    /// Settles the charges of a request that the layer itself rejects.
    pub fn reject<B>(mut self, response: &Response<B>) {
        self.set_standing(true);
        self.end(Some(response));
        self.note_end();
    }

    /// Notes the outcome of the inner service: the head of its response, or `None` for an error.
    pub fn end<B>(&mut self, response: Option<&Response<B>>) {
        if response.is_some_and(|response| self.is_upgrade(response.status())) && !self.is_kept() {
            self.note_upgrade();
        }
        self.progress = match response {
            None => Progress::Failed,
            Some(response) if self.is_priced => {
                let elapsed = self.held.elapsed();
                Progress::Responded(Box::new(Sent::new(
                    response,
                    self.method == Method::HEAD,
                    elapsed,
                )))
            }
            Some(_) => Progress::Open,
        };
        if matches!(self.progress, Progress::Responded(_)) && self.has_backoff() {
            self.begin_delays();
        }
    }

    fn has_backoff(&self) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.policy().failure_penalty().is_some())
    }

    /// Begins the delays of a response that shows a failure. At the end of its body they could come too late: a client decides when
    /// it reads that.
    fn begin_delays(&mut self) {
        let mut holds = mem::take(&mut self.held.holds);
        for hold in &mut holds {
            hold.fail(|policy, charged| self.has_failed(policy, charged));
        }
        self.held.holds = holds;
    }

    /// Whether the head of the response shows a failure under this policy.
    fn has_failed(&self, policy: &Policy, charged: u64) -> bool {
        let Some(rule) = self.settling_rule(policy) else {
            return false;
        };
        if rule.policy().failure_penalty().is_none() {
            return false;
        }
        let set = self.actual_cost.of(rule.policy().name());
        let mut completed = self.completed(&self.held, charged);
        if let RequestOutcome::Responded { body, .. } = &mut completed.outcome {
            *body = BodyOutcome::Complete;
        }
        let actual = || rule.actual(&completed, set);
        // A closure that panics is called again at the end.
        panic::catch_unwind(AssertUnwindSafe(actual))
            .is_ok_and(|actual| actual.effect == KeyEffect::Failed)
    }

    /// Whether a response with this status makes a tunnel of the connection, or of the stream of HTTP/2.
    fn is_upgrade(&self, status: StatusCode) -> bool {
        status == StatusCode::SWITCHING_PROTOCOLS
            || self.method == Method::CONNECT && status.is_success()
    }

    /// Notes that the slots are released although the connection goes on.
    #[cold]
    fn note_upgrade(&self) {
        for settlement in self.settlements() {
            let policy = settlement.charge().policy();
            if policy.is_concurrency()
                && let Some(rule) = self.rules.iter().find(|rule| rule.has_policy(policy))
            {
                rule.report_upgrade();
            }
        }
    }

    /// Notes that bytes of the body were sent.
    pub fn note_sent(&mut self, bytes: usize) {
        if let Progress::Responded(sent) = &mut self.progress
            && let Some(left) = &mut sent.left
        {
            *left = left.saturating_sub(bytes as u64);
            if *left == 0 {
                *sent.has_ended.get_mut() = true;
            }
        }
    }

    /// Notes the end of the body.
    pub fn note_end(&self) {
        if let Progress::Responded(sent) = &self.progress {
            sent.has_ended.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that the body returned an error.
    pub fn note_body_failed(&mut self) {
        if let Progress::Responded(sent) = &mut self.progress {
            sent.body = BodyOutcome::Failed;
        }
    }

    /// Whether a rule settles any of the charges.
    fn settles(&self) -> bool {
        self.settlements()
            .any(|settlement| self.settling_rule(settlement.charge().policy()).is_some())
    }

    fn has_slots(&self) -> bool {
        self.settlements()
            .any(|settlement| settlement.charge().ticket().is_some())
    }

    /// Whether the handler has taken a hold on the charges.
    fn is_kept(&self) -> bool {
        self.shared_hold.as_ref().is_some_and(SharedHold::is_taken)
    }

    fn settlements(&self) -> impl Iterator<Item = &Settlement> {
        let receipts = self.held.holds.iter().filter_map(Hold::receipt);
        receipts.flat_map(Receipt::settlements)
    }

    /// Returns the rule that settles charges of this policy; `None` if no rule does.
    fn settling_rule(&self, policy: &Policy) -> Option<&Rule> {
        let mut rules = self.rules.iter();
        rules.find(|rule| rule.settles() && rule.has_policy(policy))
    }

    fn actual(&self, held: &HeldCharges, policy: &Policy, charged: u64) -> Actual {
        let Some(rule) = self.settling_rule(policy) else {
            return charged.into();
        };
        let set = self.actual_cost.of(rule.policy().name());
        rule.actual(&self.completed(held, charged), set)
    }

    fn completed(&self, held: &HeldCharges, charged: u64) -> CompletedRequest<'_> {
        let (outcome, elapsed) = match &self.progress {
            Progress::Responded(sent) => {
                let outcome = RequestOutcome::Responded {
                    status: sent.status,
                    headers: &sent.headers,
                    body: sent.outcome(held.is_running()),
                };
                (outcome, sent.elapsed)
            }
            Progress::Failed => (RequestOutcome::Failed, held.elapsed()),
            _ if held.is_running() => (RequestOutcome::Panicked, held.elapsed()),
            _ => (RequestOutcome::ClientGone, held.elapsed()),
        };
        CompletedRequest {
            charged,
            method: &self.method,
            elapsed,
            outcome,
        }
    }
}

impl Sent {
    fn new<B>(response: &Response<B>, is_head: bool, elapsed: Duration) -> Self {
        let (status, headers) = (response.status(), response.headers());
        let length = headers.get(CONTENT_LENGTH);
        let left = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let has_no_body = is_head
            || status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        Self {
            status,
            headers: headers.clone(),
            elapsed,
            body: BodyOutcome::ClientGone,
            left,
            has_ended: AtomicBool::new(has_no_body || left == Some(0)),
        }
    }

    fn outcome(&self, is_running: bool) -> BodyOutcome {
        if is_running {
            BodyOutcome::Panicked
        } else if self.has_ended.load(Ordering::Relaxed) {
            BodyOutcome::Complete
        } else {
            self.body
        }
    }
}

impl Drop for PendingSettlement {
    fn drop(&mut self) {
        if let Some(shared) = self.shared_hold.take()
            && shared.is_taken()
        {
            let kept = Self {
                held: mem::take(&mut self.held),
                rules: Arc::clone(&self.rules),
                shared_hold: None,
                actual_cost: mem::take(&mut self.actual_cost),
                is_priced: self.is_priced,
                method: self.method.clone(),
                progress: mem::replace(&mut self.progress, Progress::Open),
            };
            return shared.keep(Box::new(kept));
        }
        let held = mem::take(&mut self.held);
        held.settle(|held, policy, charged| self.actual(held, policy, charged));
    }
}

impl fmt::Debug for PendingSettlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingSettlement").finish_non_exhaustive()
    }
}
