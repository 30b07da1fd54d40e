//! What a layer does with a request.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use http::{
    Extensions, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, WWW_AUTHENTICATE},
    request::Parts,
};

use crate::{
    charge::{Charges, OwnedCharge},
    decision::Decision,
    diagnosis::{Code, Ledger, Warning},
    limiter::RateLimiter,
    state::PolicyName,
    store::Receipt,
};

use super::{
    actual_cost::ActualCost,
    body::ResponseBody,
    completed::CompletedRequest,
    denial::MakeRejection,
    gate::Gate,
    headers::Plan,
    info::{self, Nested},
    next::{Admitted, Next, Refusal},
    rule::Rule,
    settling::Tab,
};

/// What all clones of a layer share.
pub(crate) struct Shared {
    pub(crate) gate: Gate,
    pub(crate) rules: Box<[Rule]>,
    pub(crate) limiter: RateLimiter,
    pub(crate) rejection: Arc<dyn MakeRejection>,
    pub(crate) headers: Arc<Plan>,
    /// Whether charges must be remembered until the request has ended.
    pub(crate) keeps_charges: bool,
    /// Whether any rule settles, so that handlers may look for the handle on the cost.
    pub(crate) settles: bool,
    /// Whether keys or tiers must be found before a request can be charged.
    pub(crate) finds: bool,
    /// How long a request waits for them.
    pub(crate) lookup_timeout: Duration,
    /// Whether a decision that failed was reported.
    pub(crate) warned: AtomicBool,
    pub(crate) ledger: Arc<Ledger>,
}

impl Shared {
    /// Lets a request go on that no rule counts. Its handler shall know that there is a layer.
    pub(super) fn pass(self: &Arc<Self>, extensions: &mut Extensions) -> Next {
        info::pass(extensions);
        self.offer(extensions);
        Next::Go(Admitted::default())
    }

    /// Gives the handler its word on the cost, also where nothing was charged: it need not know of that.
    #[inline]
    pub(super) fn offer(self: &Arc<Self>, extensions: &mut Extensions) {
        if self.settles {
            let cost = extensions.get_or_insert_with(ActualCost::default);
            cost.attach(self);
        }
    }

    #[cold]
    pub(super) fn note_nesting(&self, nested: &Nested<'_>) {
        if let Some(state) = nested.shared_policy() {
            let detail = "a layer around this one charged the same request under this name";
            let warning = Warning::new(Code::ChargedTwice, detail);
            self.ledger.report(warning.about(*state.policy()));
        }
    }

    /// Remembers the charges of a decision until the request has ended. They are given back unless the request starts.
    pub(super) fn tab(
        self: &Arc<Self>,
        charged: &[OwnedCharge],
        decision: &Decision,
    ) -> Option<Box<Tab>> {
        let charges: Charges<'_> = charged.iter().map(OwnedCharge::borrow).collect();
        let receipt = Receipt::of(&charges, decision)?;
        Some(Tab::open(receipt, self))
    }

    /// What a request really cost under a policy.
    pub(super) fn price(&self, policy: &PolicyName, completed: &CompletedRequest<'_>) -> u64 {
        self.rule(policy)
            .map_or(completed.charged, |rule| rule.price(completed))
    }

    /// Whether a policy is asked what a request really cost.
    pub(super) fn settles(&self, policy: &PolicyName) -> bool {
        self.rule(policy).is_some_and(Rule::settles)
    }

    /// The policies that are asked what a request really cost.
    pub(super) fn settled(&self) -> impl Iterator<Item = &PolicyName> {
        let rules = self.rules.iter().filter(|rule| rule.settles());
        rules.map(|rule| rule.policy().name())
    }

    fn rule(&self, policy: &PolicyName) -> Option<&Rule> {
        let mut rules = self.rules.iter();
        rules.find(|rule| rule.policy().name() == policy)
    }

    /// The answer to a request that may not go on. Charges that stand nevertheless are settled by it.
    #[cold]
    pub(super) fn reject<B>(&self, refusal: Refusal, request: &Parts) -> Response<ResponseBody<B>> {
        let Refusal { rejection, tab } = refusal;
        let response = self.rejection.make(&rejection, request);
        let mut response = response.map(ResponseBody::rejection);
        // A cache must not answer others, or this client later, with it.
        let cache_control = response.headers_mut().entry(CACHE_CONTROL);
        cache_control.or_insert(HeaderValue::from_static("no-store"));
        if response.status() == StatusCode::UNAUTHORIZED
            && let Some(challenge) = rejection.challenge()
            && !response.headers().contains_key(WWW_AUTHENTICATE)
        {
            let headers = response.headers_mut();
            headers.insert(WWW_AUTHENTICATE, challenge.clone());
        }
        if let Some(decision) = rejection.decision() {
            let terms = rejection.terms();
            self.headers.tell(decision, terms, &mut response);
        }
        response.extensions_mut().insert(rejection);
        if let Some(tab) = tab {
            tab.reject(&response);
        }
        response
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("rules", &self.rules)
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
