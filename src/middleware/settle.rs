//! Charges of an admitted request, settled by its real cost when it has ended.
//!
//! # Why does the layer not end responses that nobody reads?
//!
//! A slot is held until the response body ends, and a server asks a body for more only when the client has read the earlier
//! pieces. So while a client reads nothing, no code of the layer runs for its response. A timer could release the slot, but the
//! body, the handler's stream and the connection to the backend would stay, and the limit would admit more than its number. To
//! drop them, each body would have to be shared with a timer, for an allocation and a lock per response. A server owns the task
//! of each stream and can drop it for less. The gateway does so in 100 lines (`examples/gateway/unread.rs`), and a rule by caller
//! bounds what one client can hold until then.

use std::{
    fmt, mem,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Extensions, HeaderMap, Method, Response, StatusCode, header::CONTENT_LENGTH};

use smallvec::SmallVec;

use crate::{
    charge::{Receipt, Settlement},
    clock::{Clock, Timestamp},
    hold::Hold,
    policy::Policy,
    rules::{BodyOutcome, CompletedRequest, RequestOutcome, Rule},
};

use super::actual_cost::ActualCost;

/// Charges of a request, from its admission until its response has ended. Settles them when dropped.
///
/// Its holder drops the inner service's future or body first: both may set the [`ActualCost`] when they are dropped.
pub(super) struct PendingSettlement {
    /// One for each decision with a charge.
    holds: SmallVec<[Hold; 1]>,
    rules: Arc<[Rule]>,
    /// Set by the handler.
    actual_cost: ActualCost,
    started: Timestamp,
    /// Whether a rule settles the charges, by how the request ended.
    is_priced: bool,
    /// Whether the method is `CONNECT`: a successful response upgrades the connection.
    is_connect: bool,
    /// Whether the method is `HEAD`: the response has no body.
    is_head: bool,
    /// Whether the inner service or its body runs. Still set if that panicked.
    is_running: bool,
    progress: Progress,
}

/// Progress of a request.
enum Progress {
    /// In a queue: the inner service was not called.
    Waiting,
    /// The inner service was called and has not responded, or lookups run for a request that was charged.
    Called,
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
    pub(super) fn new(hold: Hold, rules: Arc<[Rule]>) -> Box<Self> {
        Box::new(Self {
            holds: SmallVec::from_buf([hold]),
            rules,
            actual_cost: ActualCost::default(),
            started: Clock::system().now(),
            is_priced: false,
            is_connect: false,
            is_head: false,
            is_running: false,
            progress: Progress::Waiting,
        })
    }

    /// Sets whether the charges are kept although the request has not started. They are then priced as those of a
    /// client that went away; otherwise they are refunded.
    pub(super) fn set_standing(&mut self, is_standing: bool) {
        self.is_priced = is_standing && self.settles();
        self.progress = if is_standing {
            Progress::Called
        } else {
            Progress::Waiting
        };
    }

    /// Notes that the inner service is about to be called, and reads the handler's [`ActualCost`] if a rule settles.
    pub(super) fn start(&mut self, method: &Method, extensions: &mut Extensions) {
        self.progress = Progress::Called;
        self.started = Clock::system().now();
        self.is_connect = method == Method::CONNECT;
        self.is_head = method == Method::HEAD;
        self.is_priced = self.settles();
        if self.is_priced {
            // Shared with a layer around this one, so that one call of `set` reaches both.
            self.actual_cost = ActualCost::shared(extensions);
        }
    }

    /// Notes whether the inner service or its body runs.
    #[inline]
    pub(super) fn set_running(&mut self, is_running: bool) {
        self.is_running = is_running;
    }

    /// Takes over the charges of another decision on the same request.
    pub(super) fn join(&mut self, mut other: Self) {
        self.holds.append(&mut other.holds);
    }

    /// Leaves the charges as they were made.
    pub(super) fn keep(mut self) {
        self.holds.drain(..).for_each(Hold::forget);
    }

    /// Refunds the charges, since another policy denies the request. A policy that counts denied requests keeps its own.
    pub(super) fn refund(mut self) {
        for hold in self.holds.drain(..) {
            hold.settle(|policy, charged| if policy.counts_denied() { charged } else { 0 });
        }
    }

    /// Settles the charges of a request that the layer itself rejects.
    pub(super) fn reject<B>(mut self, response: &Response<B>) {
        self.set_standing(true);
        self.end(Some(response));
        self.note_end();
    }

    /// Notes the outcome of the inner service: the head of its response, or `None` for an error.
    pub(super) fn end<B>(&mut self, response: Option<&Response<B>>) {
        if response.is_some_and(|response| self.is_upgrade(response.status())) {
            self.note_upgrade();
        }
        self.progress = match response {
            None => Progress::Failed,
            Some(response) if self.is_priced => {
                Progress::Responded(Box::new(Sent::new(response, self.is_head, self.elapsed())))
            }
            Some(_) => Progress::Called,
        };
    }

    /// Whether a response with this status makes a tunnel of the connection, or of the stream of HTTP/2.
    fn is_upgrade(&self, status: StatusCode) -> bool {
        status == StatusCode::SWITCHING_PROTOCOLS || self.is_connect && status.is_success()
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
    pub(super) fn note_sent(&mut self, bytes: usize) {
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
    pub(super) fn note_end(&self) {
        if let Progress::Responded(sent) = &self.progress {
            sent.has_ended.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that the body returned an error.
    pub(super) fn note_body_failed(&mut self) {
        if let Progress::Responded(sent) = &mut self.progress {
            sent.body = BodyOutcome::Failed;
        }
    }

    /// Whether a rule settles any of the charges.
    fn settles(&self) -> bool {
        self.settlements()
            .any(|settlement| self.settling_rule(settlement.charge().policy()).is_some())
    }

    fn settlements(&self) -> impl Iterator<Item = &Settlement> {
        let receipts = self.holds.iter().filter_map(Hold::receipt);
        receipts.flat_map(Receipt::settlements)
    }

    /// Returns the rule that settles charges of this policy; `None` if no rule does.
    fn settling_rule(&self, policy: &Policy) -> Option<&Rule> {
        let mut rules = self.rules.iter();
        rules.find(|rule| rule.settles() && rule.has_policy(policy))
    }

    fn elapsed(&self) -> Duration {
        Clock::system().now().since(self.started)
    }

    /// Settles the charges.
    fn close(&mut self) {
        for hold in mem::take(&mut self.holds) {
            hold.settle(|policy, charged| self.price(policy, charged));
        }
    }

    fn price(&self, policy: &Policy, charged: u64) -> u64 {
        if let Progress::Waiting = self.progress {
            return 0;
        }
        let Some(rule) = self.settling_rule(policy) else {
            return charged;
        };
        self.actual_cost
            .of(rule.policy().name())
            .unwrap_or_else(|| {
                let completed = self.completed(charged);
                let price = || rule.price(&completed);
                // A second panic while one unwinds would abort the process.
                panic::catch_unwind(AssertUnwindSafe(price)).unwrap_or(charged)
            })
    }

    fn completed(&self, charged: u64) -> CompletedRequest<'_> {
        let (outcome, elapsed) = match &self.progress {
            Progress::Responded(sent) => {
                let outcome = RequestOutcome::Responded {
                    status: sent.status,
                    headers: &sent.headers,
                    body: sent.outcome(self.is_running),
                };
                (outcome, sent.elapsed)
            }
            Progress::Failed => (RequestOutcome::Failed, self.elapsed()),
            _ if self.is_running => (RequestOutcome::Panicked, self.elapsed()),
            _ => (RequestOutcome::ClientGone, self.elapsed()),
        };
        CompletedRequest {
            charged,
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
        self.close();
    }
}

impl fmt::Debug for PendingSettlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingSettlement").finish_non_exhaustive()
    }
}
