//! The charges of a request, until they are settled by what it really cost.

use std::{
    fmt, mem,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Extensions, HeaderMap, Response, StatusCode, header::CONTENT_LENGTH};

use smallvec::SmallVec;

use crate::{
    clock::{Clock, Timestamp},
    hold::Hold,
    policy::Policy,
    store::Receipt,
};

use super::{
    actual_cost::ActualCost,
    completed::{BodyOutcome, CompletedRequest, RequestOutcome},
    shared::Shared,
};

/// Returns what a request really cost.
pub(super) type Pricing = Arc<dyn Fn(&CompletedRequest<'_>) -> u64 + Send + Sync>;

/// What a request was charged, from its admission until its response has ended. Dropped, it is settled.
///
/// Whoever holds it drops the inner service's future or body first: both may set the [`ActualCost`] when they are dropped.
pub(super) struct Tab {
    /// One for each decision that charged.
    holds: SmallVec<[Hold; 1]>,
    shared: Arc<Shared>,
    said: ActualCost,
    started: Timestamp,
    /// Whether a rule settles, so that somebody asks how the request ended.
    is_priced: bool,
    /// Whether the request is `HEAD`, whose response has no body.
    is_head: bool,
    /// Whether the inner service or its body runs. It still does when a panic has ended it.
    is_inside: bool,
    progress: Progress,
}

/// How far a request came.
enum Progress {
    /// It waits for its turn, and nothing of it was done.
    Waiting,
    /// The inner service was called and has not returned, or lookups run for a request that was charged.
    Called,
    /// The inner service returned an error.
    Failed,
    /// The inner service responded. Boxed, since most tabs are for slots, of which nobody asks.
    Responded(Box<Sent>),
}

/// A response under way.
struct Sent {
    status: StatusCode,
    headers: HeaderMap,
    elapsed: Duration,
    body: BodyOutcome,
    /// Bytes of the body still to come, when `Content-Length` says so: the server reads no further than that.
    left: Option<u64>,
    /// Whether the body reported its end when asked, after which a server drops it.
    has_ended: AtomicBool,
}

impl Tab {
    pub(super) fn open(receipt: Receipt, shared: &Arc<Shared>) -> Box<Self> {
        Box::new(Self {
            holds: SmallVec::from_buf([shared.limiter.hold(receipt)]),
            shared: Arc::clone(shared),
            said: ActualCost::default(),
            started: Clock::system().now(),
            is_priced: false,
            is_head: false,
            is_inside: false,
            progress: Progress::Waiting,
        })
    }

    /// Sets whether the charges of a request that has not started stand, and are priced as those of a client that went
    /// away; else they are refunded.
    pub(super) fn stand(&mut self, stands: bool) {
        self.is_priced = stands && self.settles();
        self.progress = match stands {
            true => Progress::Called,
            false => Progress::Waiting,
        };
    }

    /// Takes over the charges of another decision on the request.
    pub(super) fn join(&mut self, mut other: Self) {
        self.holds.append(&mut other.holds);
    }

    /// Forgets the charges, which stand as they were made.
    pub(super) fn let_stand(mut self) {
        self.holds.drain(..).for_each(Hold::forget);
    }

    /// Refunds the charges, since another policy denies the request. A policy that counts denied requests keeps its own.
    pub(super) fn give_back(mut self) {
        for hold in self.holds.drain(..) {
            hold.settle(|policy, charged| if policy.counts_denied() { charged } else { 0 });
        }
    }

    /// Settles the charges of a request that the layer itself rejects.
    pub(super) fn reject<B>(mut self, response: &Response<B>) {
        self.stand(true);
        self.end(Some(response));
        self.note_end();
    }

    /// Notes what the inner service returned: the head of its response, or an error.
    pub(super) fn end<B>(&mut self, response: Option<&Response<B>>) {
        self.progress = match response {
            None => Progress::Failed,
            Some(response) if self.is_priced => {
                Progress::Responded(Box::new(Sent::new(response, self.is_head, self.elapsed())))
            }
            // Nobody asks.
            Some(_) => Progress::Called,
        };
    }

    /// Notes that so many bytes of the body were sent.
    pub(super) fn send(&mut self, bytes: usize) {
        if let Progress::Responded(sent) = &mut self.progress
            && let Some(left) = &mut sent.left
        {
            *left = left.saturating_sub(bytes as u64);
            if *left == 0 {
                *sent.has_ended.get_mut() = true;
            }
        }
    }

    /// Notes that nothing more of the body is to come.
    pub(super) fn note_end(&self) {
        if let Progress::Responded(sent) = &self.progress {
            sent.has_ended.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that the body returned an error.
    pub(super) fn fail_body(&mut self) {
        if let Progress::Responded(sent) = &mut self.progress {
            sent.body = BodyOutcome::Failed;
        }
    }

    /// Whether any charge is settled by its rule.
    fn settles(&self) -> bool {
        let receipts = self.holds.iter().filter_map(Hold::receipt);
        let mut settlements = receipts.flat_map(Receipt::settlements);
        settlements.any(|settlement| self.shared.settles(settlement.charge().policy().name()))
    }

    fn elapsed(&self) -> Duration {
        Clock::system().now().since(self.started)
    }

    /// Settles what was charged.
    fn close(&mut self) {
        for hold in mem::take(&mut self.holds) {
            hold.settle(|policy, charged| self.price(policy, charged));
        }
    }

    fn price(&self, policy: &Policy, charged: u64) -> u64 {
        if let Progress::Waiting = self.progress {
            return 0;
        }
        let name = policy.name();
        if !self.shared.settles(name) {
            return charged;
        }
        self.said.of(name).unwrap_or_else(|| {
            let completed = self.completed(charged);
            let price = || self.shared.price(name, &completed);
            // It may be asked while another panic unwinds, where its own would end the process.
            panic::catch_unwind(AssertUnwindSafe(price)).unwrap_or(charged)
        })
    }

    fn completed(&self, charged: u64) -> CompletedRequest<'_> {
        let (outcome, elapsed) = match &self.progress {
            Progress::Responded(sent) => {
                let outcome = RequestOutcome::Responded {
                    status: sent.status,
                    headers: &sent.headers,
                    body: sent.outcome(self.is_inside),
                };
                (outcome, sent.elapsed)
            }
            Progress::Failed => (RequestOutcome::Failed, self.elapsed()),
            _ if self.is_inside => (RequestOutcome::Panicked, self.elapsed()),
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

    fn outcome(&self, is_inside: bool) -> BodyOutcome {
        match self.has_ended.load(Ordering::Relaxed) {
            _ if is_inside => BodyOutcome::Panicked,
            true => BodyOutcome::Complete,
            false => self.body,
        }
    }
}

impl Drop for Tab {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Tab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tab").finish_non_exhaustive()
    }
}

/// Notes that the inner service is about to be called, and heeds its handler's word about the cost if any charge is
/// settled by it.
#[inline]
pub(super) fn start(
    tab: Option<Box<Tab>>,
    is_head: bool,
    extensions: &mut Extensions,
) -> Option<Box<Tab>> {
    let mut tab = tab?;
    tab.progress = Progress::Called;
    tab.started = Clock::system().now();
    tab.is_head = is_head;
    tab.is_priced = tab.settles();
    if tab.is_priced {
        // The handle of a layer around this one serves both, or that one would hear nothing.
        let said = extensions.get_or_insert_with(ActualCost::default);
        tab.said = said.clone();
    }
    Some(tab)
}

/// Runs the inner service or its body. If that panics, the tab of it knows.
#[inline]
pub(super) fn run<T>(tab: &mut Option<Box<Tab>>, inner: impl FnOnce() -> T) -> T {
    if let Some(tab) = tab {
        tab.is_inside = true;
    }
    let returned = inner();
    if let Some(tab) = tab {
        tab.is_inside = false;
    }
    returned
}
