//! What a layer does with a request.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use http::{
    Extensions, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, WWW_AUTHENTICATE},
    request::Parts,
};
use smallvec::SmallVec;
use tokio::time::{Sleep, sleep};

use crate::{
    decision::Decision,
    diagnosis::{Code, Ledger, Warning},
    error::Error,
    limiter::RateLimiter,
    policy::{Charge, Charges, OwnedCharge},
    state::PolicyName,
    store::Receipt,
};

use super::{
    actual_cost::ActualCost,
    body::ResponseBody,
    completed::CompletedRequest,
    denial::MakeRejection,
    finding::{Finding, Findings, Stage},
    gate::Gate,
    headers::{Fields, Plan, Terms},
    info::{self, Nested},
    next::{Admitted, Asking, Charged, Next},
    rejection::Rejection,
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
    /// Decides on a request by its head, when nothing must be found first. The request is given the decision.
    #[inline]
    pub(super) fn decide(self: &Arc<Self>, parts: &mut Parts) -> Result<Next, Rejection> {
        if !self.gate.limits(parts, &self.ledger)? {
            return Ok(self.pass(&mut parts.extensions));
        }
        let mut charges = Charges::new();
        for rule in &self.rules {
            rule.charge(parts, &mut charges)?;
        }
        self.ask(&charges, self.keeps_charges, None, &mut parts.extensions)
    }

    /// Begins to find what is needed to decide on a request.
    // Out of line: its size is not for those to carry that need not find anything.
    #[inline(never)]
    pub(super) fn begin(self: &Arc<Self>, parts: &mut Parts) -> Result<Next, Rejection> {
        if !self.gate.limits(parts, &self.ledger)? {
            return Ok(self.pass(&mut parts.extensions));
        }
        let unasked = self.rules.iter().map(|_| Finding::Unasked);
        self.find(parts, unasked.collect(), None)
    }

    /// Goes on with a request whose keys and tiers were looked up, or are late.
    pub(super) fn resume(
        self: &Arc<Self>,
        parts: &mut Parts,
        stage: Stage,
    ) -> Result<Next, Rejection> {
        let (findings, time) = stage.into_parts();
        self.find(parts, findings, Some(time))
    }

    /// Finds what is not known yet. At most twice there is something to wait for: keys, and then their tiers.
    fn find(
        self: &Arc<Self>,
        parts: &mut Parts,
        mut findings: Findings,
        time: Option<Pin<Box<Sleep>>>,
    ) -> Result<Next, Rejection> {
        let mut pending = SmallVec::new();
        for (rule, finding) in self.rules.iter().enumerate().zip(&mut findings) {
            pending.extend(finding.go_on(rule, parts)?);
        }
        if !pending.is_empty() {
            let time = time.unwrap_or_else(|| Box::pin(sleep(self.lookup_timeout)));
            return Ok(Next::Find(Stage::new(findings, pending, time)));
        }
        let mut charges = Charges::new();
        for (rule, finding) in self.rules.iter().zip(&findings) {
            finding.charge(rule, parts, &mut charges)?;
        }
        // A tier may be counted in a way that its policy is not.
        let must_end = |charge: &Charge<'_>| charge.policy().must_end();
        let keeps_charges = self.keeps_charges || charges.iter().any(must_end);
        let terms = self.headers.changed(&charges);
        self.ask(&charges, keeps_charges, terms, &mut parts.extensions)
    }

    /// Asks the store, and goes on with its answer when that is there at once.
    #[inline]
    fn ask(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        keeps_charges: bool,
        terms: Option<Box<[Terms]>>,
        extensions: &mut Extensions,
    ) -> Result<Next, Rejection> {
        if charges.is_empty() {
            return Ok(self.pass(extensions));
        }
        let list = keeps_charges.then(|| charges.iter().map(Charge::to_owned).collect());
        let charged = Charged {
            list,
            terms,
            has_peeks: charges.iter().any(|charge| charge.units() == 0),
        };
        match self.limiter.check(charges).into_later() {
            Ok(decided) => self.admit(decided, charged, extensions).map(Next::Go),
            Err(answer) => Ok(Next::Wait(Asking { answer, charged })),
        }
    }

    /// What follows for a request that may go on; the request is given the decision.
    #[inline]
    pub(super) fn admit(
        self: &Arc<Self>,
        decided: Result<Decision, Error>,
        charged: Charged,
        extensions: &mut Extensions,
    ) -> Result<Admitted, Rejection> {
        match decided {
            Ok(mut decision) if decision.is_allowed() => {
                let terms = charged.terms.as_deref();
                let mut fields = Fields::of(&self.headers, &decision, terms);
                let (mut tab, mut delay) = (None, None);
                if let Some(charged) = charged.list {
                    tab = self.tab(&charged, &decision);
                    delay = decision.delay();
                }
                self.offer(extensions);
                if charged.has_peeks {
                    decision.note_peeks();
                }
                if let Some(nested) = info::leave(extensions, decision) {
                    self.note_nesting(&nested);
                    fields = Fields::nested(&self.headers, nested.decision(), terms);
                }
                Ok(Admitted { fields, tab, delay })
            }
            Ok(mut decision) => {
                if charged.has_peeks {
                    decision.note_peeks();
                }
                if let Some(nested) = Nested::denied(extensions, &decision) {
                    self.note_nesting(&nested);
                }
                Err(Rejection::denied(decision).under(charged.terms))
            }
            Err(error) => Err(Rejection::undecided(
                error,
                &self.warned,
                "requests get 503",
            )),
        }
    }

    /// Lets a request go on that no rule counts. Its handler shall know that there is a layer.
    fn pass(self: &Arc<Self>, extensions: &mut Extensions) -> Next {
        info::pass(extensions);
        self.offer(extensions);
        Next::Go(Admitted::default())
    }

    /// Gives the handler its word on the cost, also where nothing was charged: it need not know of that.
    #[inline]
    fn offer(self: &Arc<Self>, extensions: &mut Extensions) {
        if self.settles {
            let cost = extensions.get_or_insert_with(ActualCost::default);
            cost.attach(self);
        }
    }

    #[cold]
    fn note_nesting(&self, nested: &Nested<'_>) {
        if let Some(state) = nested.shared_policy() {
            let detail = "a layer around this one charged the same request under this name";
            let warning = Warning::new(Code::ChargedTwice, detail);
            self.ledger.report(warning.about(*state.policy()));
        }
    }

    fn tab(self: &Arc<Self>, charged: &[OwnedCharge], decision: &Decision) -> Option<Box<Tab>> {
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

    /// The answer to a request that may not go on.
    #[cold]
    pub(super) fn reject<B>(
        &self,
        rejection: Rejection,
        request: &Parts,
    ) -> Response<ResponseBody<B>> {
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
