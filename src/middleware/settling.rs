//! What a request really cost, found out after it was answered.

use std::{
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use http::{Extensions, HeaderMap, Response, StatusCode};
use smallvec::SmallVec;

use crate::{
    clock::{Clock, Timestamp},
    holding::Hold,
    state::PolicyName,
    store::{Receipt, Settlement},
    sync::Mutex,
};

use super::shared::Shared;

/// How a request ended, for the closure that says what it really cost.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Finished<'a> {
    /// Units that were charged when the request was admitted.
    pub charged: u64,
    /// The answer's status; `None` when there was no answer: the handler panicked or failed, or the client went away.
    pub status: Option<StatusCode>,
    /// The answer's headers, when there was one.
    pub headers: Option<&'a HeaderMap>,
    /// From when the request was admitted until the head of the answer was there, or until it was given up.
    pub elapsed: Duration,
}

/// Says what a request really cost.
pub(super) type Pricing = Arc<dyn Fn(&Finished<'_>) -> u64 + Send + Sync>;

// === ActualCost ===

/// The handler's word on what a request really costs. It is in the extensions of all requests that pass a layer of which
/// a rule [settles](super::Rule::settle).
///
/// It may be given until the body of the answer has ended, and goes before what the rule's closure says. Where nothing
/// was charged it changes nothing.
///
/// # Examples
///
/// ```
/// use axum::Extension;
/// use tollgate::middleware::ActualCost;
///
/// async fn complete(Extension(cost): Extension<ActualCost>) -> &'static str {
///     // ... so many tokens were used
///     cost.set("tokens", 1_234);
///     "done"
/// }
/// ```
#[derive(Clone, Default)]
pub struct ActualCost {
    said: Arc<Mutex<Words>>,
}

/// What was said, by policy.
type Words = SmallVec<[(PolicyName, u64); 1]>;

impl ActualCost {
    /// Says what the request costs under a policy, in place of what was said before.
    ///
    /// A policy that does not settle, or is not asked about this request, stays as it was charged.
    pub fn set(&self, policy: &str, units: u64) {
        let Ok(policy) = PolicyName::new(policy) else {
            return;
        };
        let mut said = self.said.lock();
        said.retain(|(name, _)| *name != policy);
        said.push((policy, units));
    }

    fn of(&self, policy: &PolicyName) -> Option<u64> {
        let said = self.said.lock();
        let found = said.iter().find(|(name, _)| name == policy);
        found.map(|(_, units)| *units)
    }
}

impl fmt::Debug for ActualCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActualCost").finish_non_exhaustive()
    }
}

// === Tab ===

/// What a request was charged, from its admission until its answer has ended. Dropped, it is settled.
pub(super) struct Tab {
    hold: Option<Hold>,
    shared: Arc<Shared>,
    said: ActualCost,
    opened: Timestamp,
    /// What the closures say, once there is an answer: one word per settlement.
    prices: Option<SmallVec<[u64; 2]>>,
    /// Whether the request never started: then nothing of it stands.
    is_waiting: bool,
}

impl Tab {
    pub(super) fn open(receipt: Receipt, shared: &Arc<Shared>) -> Box<Self> {
        Box::new(Self {
            hold: Some(shared.limiter.hold(receipt)),
            shared: Arc::clone(shared),
            said: ActualCost::default(),
            opened: Clock::system().now(),
            prices: None,
            is_waiting: true,
        })
    }

    /// Takes the closures' word on an answer.
    pub(super) fn answered<B>(&mut self, response: &Response<B>) {
        self.prices = Some(self.ask(Some(response.status()), Some(response.headers())));
    }

    fn ask(&self, status: Option<StatusCode>, headers: Option<&HeaderMap>) -> SmallVec<[u64; 2]> {
        let elapsed = Clock::system().now().since(self.opened);
        let price = self.settlements().map(|settlement| {
            let charge = settlement.charge();
            let finished = Finished {
                charged: charge.units(),
                status,
                headers,
                elapsed,
            };
            let price = || self.shared.price(charge.policy().name(), &finished);
            // It may be asked while another panic unwinds, where its own would end the process.
            let said = panic::catch_unwind(AssertUnwindSafe(price));
            said.unwrap_or(charge.units())
        });
        price.collect()
    }

    fn settlements(&self) -> impl Iterator<Item = &Settlement> {
        let receipt = self.hold.as_ref().and_then(Hold::receipt);
        receipt.into_iter().flat_map(Receipt::settlements)
    }

    /// Whether the handler's word counts under any of the policies.
    fn heeds_handler(&self) -> bool {
        self.settlements()
            .any(|settlement| self.shared.settles(settlement.charge().policy().name()))
    }

    fn close(&mut self) {
        let prices = match self.prices.take() {
            Some(prices) => prices,
            None if self.is_waiting => SmallVec::new(),
            None => self.ask(None, None),
        };
        let Some(hold) = self.hold.take() else {
            return;
        };
        let mut prices = prices.into_iter();
        hold.settle(|policy, charged| {
            let price = prices.next().unwrap_or(charged);
            let name = policy.name();
            match self.is_waiting {
                true => 0,
                false if self.shared.settles(name) => self.said.of(name).unwrap_or(price),
                false => price,
            }
        });
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

/// Notes that a request starts, and heeds its handler's word about the cost if any charge is settled by it.
#[inline]
pub(super) fn start(tab: Option<Box<Tab>>, extensions: &mut Extensions) -> Option<Box<Tab>> {
    let mut tab = tab?;
    tab.is_waiting = false;
    tab.opened = Clock::system().now();
    if tab.heeds_handler() {
        // The handle of a layer around this one serves both, or that one would hear nothing.
        let said = extensions.get_or_insert_with(ActualCost::default);
        tab.said = said.clone();
    }
    Some(tab)
}
