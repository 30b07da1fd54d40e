//! The gate: the short way of requests to which only common settings apply.
//!
//! ```text
//! call ── gate open? ── keys ── MemoryStore: verdicts ── all fit ──> inner service
//!             | no        | none       | needs more         | one does not fit
//!             v           v            v                    v
//!         Admission::begin, out of line                Admission::deny
//! ```
//!
//! A layer has a gate if it counts in process, and each of its rules has a token or leaky bucket and no matcher, cost, lookup, tier,
//! candidate, settlement, penalty or counted denial. It is closed to a request while anything else applies: a mode other than
//! enforced, blocked keys, the checks of the first requests, hooks, or a log of all decisions. So the short way makes no charges and
//! no future of the store, and the request stays where it is.

use http::{Request, Response};
use smallvec::SmallVec;

use crate::{
    decision::Decision,
    extract::Extracted,
    limiter::RateLimiter,
    memory::{BucketCharge, MemoryStore, Verdict},
    request::RequestHead,
    rules::Rule,
};

use super::{
    admission::{Admission, Admitted, KeptCharges},
    body::ResponseBody,
};

impl Admission {
    /// Returns the store behind the gate of a layer without filters; `None` if its settings need the long way.
    pub(crate) fn gate_of(rules: &[Rule], limiter: &RateLimiter) -> Option<MemoryStore> {
        let store = limiter.memory()?.clone();
        let is_simple = rules.len() <= BucketCharge::MAX && rules.iter().all(Rule::is_simple);
        is_simple.then_some(store)
    }

    /// Decides on a request by the short way.
    ///
    /// # Errors
    ///
    /// The decision that denies it; `None`, with nothing charged, if it must take the long way.
    #[inline]
    pub(super) fn pass_gate<A>(
        &self,
        request: &mut Request<A>,
    ) -> Result<Admitted, Option<Decision>> {
        let store = self.gate.as_ref().ok_or(None)?;
        if !self.mode.get().is_enforced() || self.limiter.is_watched() {
            return Err(None);
        }
        match &*self.rules {
            [rule] => {
                let charge = charge(rule, &RequestHead::from(&*request)).ok_or(None)?;
                let mut refunded = 0;
                let verdict = store.verdict(&charge, &mut refunded);
                self.conclude_verdicts(store, (&[charge], &[verdict], refunded), request)
            }
            rules => self.pass_several(store, rules, request),
        }
    }

    /// Returns the response to a request that the gate has denied.
    // Not inlined, for the size of the short way.
    #[inline(never)]
    pub(super) fn deny<A, B>(
        &self,
        decision: Decision,
        request: Request<A>,
    ) -> Response<ResponseBody<B>> {
        let kept = KeptCharges::default();
        let rejected = self.not_admitted(decision, kept, request.extensions());
        self.respond(rejected, request)
    }

    #[inline(never)]
    fn pass_several<A>(
        &self,
        store: &MemoryStore,
        rules: &[Rule],
        request: &mut Request<A>,
    ) -> Result<Admitted, Option<Decision>> {
        // Before any key is extracted: an extractor may be slow, and the long way asks it again.
        if rules.iter().any(|rule| rule.settled_extractor().is_none()) {
            return Err(None);
        }
        let mut charges: SmallVec<[BucketCharge<'_>; BucketCharge::MAX]> = SmallVec::new();
        let head = RequestHead::from(&*request);
        for rule in rules {
            charges.push(charge(rule, &head).ok_or(None)?);
        }
        let verdicts = store.verdicts(&charges).ok_or(None)?;
        self.conclude_verdicts(store, (&charges, &verdicts, 0), request)
    }

    /// Takes the step after the verdicts on all charges. `refunded` are the refunds of the only key before.
    #[inline]
    fn conclude_verdicts<A>(
        &self,
        store: &MemoryStore,
        (charges, verdicts, refunded): (&[BucketCharge<'_>], &[Verdict], u64),
        request: &mut Request<A>,
    ) -> Result<Admitted, Option<Decision>> {
        self.limiter.count(charges, verdicts);
        if !verdicts.iter().all(Verdict::fits) {
            return Err(Some(store.decision_of(charges, verdicts, refunded)));
        }
        let is_unseen = !self.exposes_decision && !self.headers.writes_on_success();
        if is_unseen && self.handles.is_none() {
            return Ok(Admitted::default());
        }
        let decision = store.decision_of(charges, verdicts, refunded);
        Ok(self.admitted(decision, (None, None), request.extensions_mut()))
    }
}

/// Returns the charge of a request under a simple rule; `None` if it needs the long way.
#[inline]
fn charge<'a>(rule: &'a Rule, head: &RequestHead<'_>) -> Option<BucketCharge<'a>> {
    match rule.settled_extractor()?.extract(head) {
        Extracted::Found(ref key) => BucketCharge::of_key(rule.policy(), key),
        Extracted::Absent | Extracted::Ambiguous => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::ready,
        net::{IpAddr, Ipv4Addr},
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        time::Duration,
    };

    use futures_util::FutureExt;
    use http::StatusCode;
    use tower::{Layer, Service, service_fn};

    use crate::{
        Key, Policy, Quota, RateLimitLayer,
        algorithm::{Algorithm, QueueLimits},
        block::{Block, BlockTarget},
        builder::RateLimitLayerBuilder,
        charge::{Charge, Receipt},
        decision::PolicyState,
        extract::{Global, PeerIp},
        policy::Penalty,
        rejection::Rejection,
        rules::{CompletedRequest, RuleMode},
        store::{Store, StoreFuture},
        tiers::Tier,
    };

    use super::*;

    const PLENTY: Quota = Quota::per_second(1_000_000);
    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    fn request() -> Request<()> {
        let mut request = Request::new(());
        request.extensions_mut().insert(PEER);
        request
    }

    fn plenty(name: &str) -> Rule {
        Policy::new(name, PLENTY).key(PeerIp)
    }

    fn layer_of(rule: Rule) -> RateLimitLayer {
        build(RateLimitLayer::builder().policy(rule))
    }

    /// Returns a layer that has checked its first requests.
    fn build(builder: RateLimitLayerBuilder) -> RateLimitLayer {
        let layer = builder.build().expect("a layer");
        let respond = |_| ready(Ok::<_, Infallible>(Response::new(String::new())));
        let mut service = layer.layer(service_fn(respond));
        for _ in 0..1_000 {
            let response = service.call(request()).now_or_never();
            response.expect("ready").expect("a response");
        }
        layer
    }

    /// Returns whether the gate admits a request, and `None` if it denies it.
    fn passes(layer: &RateLimitLayer) -> Option<bool> {
        match layer.rules.load().pass_gate(&mut request()) {
            Ok(_) => Some(true),
            Err(None) => Some(false),
            Err(Some(denial)) => {
                assert!(!denial.is_allowed());
                None
            }
        }
    }

    #[test]
    fn gate_opens_after_the_checks_of_the_first_requests() {
        let fresh = RateLimitLayer::builder().policy(plenty("peer")).build();
        assert_eq!(passes(&fresh.expect("a layer")), Some(false));
        assert_eq!(passes(&layer_of(plenty("peer"))), Some(true));
    }

    #[test]
    fn gate_admits_several_policies_together_and_denies_without_a_charge() {
        let [peer, day] = [("peer", 2_000), ("day", 1_002)];
        let [peer, day] = [peer, day].map(|(name, count)| Policy::new(name, Quota::per_day(count)));
        let builder = RateLimitLayer::builder();
        let layer = build(builder.policy(peer.key(PeerIp)).policy(day.key(Global)));
        assert_eq!(
            [passes(&layer), passes(&layer), passes(&layer)],
            [Some(true), Some(true), None]
        );
        let Err(Some(denial)) = layer.rules.load().pass_gate(&mut request()) else {
            panic!("the day has no unit left");
        };
        let [peer, day] = denial.states() else {
            panic!("two states: {denial:?}")
        };
        let left = |state: &PolicyState| state.usage().map(|usage| usage.remaining);
        assert_eq!((left(peer), left(day)), (Some(998), Some(0)));
        assert!(
            denial
                .retry_after()
                .is_some_and(|wait| wait > Duration::from_secs(60))
        );
    }

    #[test]
    fn denial_at_the_gate_is_a_whole_response() {
        let layer = layer_of(Policy::new("once", Quota::per_day(1_000)).key(PeerIp));
        let respond = |_| ready(Ok::<_, Infallible>(Response::new(String::new())));
        let mut service = layer.layer(service_fn(respond));
        let response = service.call(request()).now_or_never();
        let response = response.expect("ready").expect("a response");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        let headers = response.headers();
        assert_eq!(headers["x-ratelimit-limit"], "1000");
        assert_eq!(headers["x-ratelimit-remaining"], "0");
        assert!(headers.contains_key("retry-after") && headers.contains_key("cache-control"));
        assert!(response.extensions().get::<Rejection>().is_some());
    }

    #[test]
    fn gate_is_closed_while_a_mode_a_rollout_or_a_block_applies() {
        let layer = layer_of(plenty("peer"));
        for mode in [RuleMode::Shadow, RuleMode::Off] {
            layer.set_mode(mode);
            assert_eq!(passes(&layer), Some(false), "{mode:?}");
            layer.set_mode(RuleMode::Enforce);
            layer.set_rule_mode("peer", mode).expect("it has the rule");
            assert_eq!(passes(&layer), Some(false), "{mode:?}");
            layer
                .set_rule_mode("peer", RuleMode::Enforce)
                .expect("it has the rule");
            assert_eq!(passes(&layer), Some(true));
        }
        layer.set_rollout("peer", 50.0).expect("it has the rule");
        assert_eq!(passes(&layer), Some(false));
        layer.set_rollout("peer", 100.0).expect("it has the rule");
        let other = Key::new("another caller");
        let blocking = layer
            .limiter()
            .block(Block::new(other, Duration::from_secs(60)));
        blocking.now_or_never().expect("ready").expect("blocked");
        assert_eq!(passes(&layer), Some(false));
        let unblocking = layer.limiter().unblock(BlockTarget::new(other, None));
        unblocking
            .now_or_never()
            .expect("ready")
            .expect("unblocked");
        assert_eq!(passes(&layer), Some(true));
    }

    // Regression: the gate asked the extractors before the rule that needs the long way, which then asked them again.
    #[test]
    fn closed_gate_asks_no_extractor() {
        let asked = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&asked);
        let counting = move |_: &RequestHead<'_>| {
            counter.fetch_add(1, Ordering::Relaxed);
            Some(Key::GLOBAL)
        };
        let first = Policy::new("first", PLENTY).key(counting);
        let layer = build(
            RateLimitLayer::builder()
                .policy(first)
                .policy(plenty("peer")),
        );
        let count_asked = |passed| {
            let before = asked.load(Ordering::Relaxed);
            assert_eq!(passes(&layer), passed);
            asked.load(Ordering::Relaxed) - before
        };
        assert_eq!(count_asked(Some(true)), 1);
        let set = layer.set_rule_mode("peer", RuleMode::Shadow);
        set.expect("it has the rule");
        assert_eq!(count_asked(Some(false)), 0);
    }

    // Regression: the mark was 0, so a later refund of this request returned too little.
    #[test]
    fn decision_at_the_gate_has_the_refunds_before_it() {
        let policy = Policy::new("peer", Quota::per_day(5_000));
        let layer = layer_of(policy.clone().key(PeerIp));
        let charges = [policy.charge(Key::from(PEER)).cost(5)];
        let check = || layer.limiter().check(&charges).now_or_never();
        let [first, _] = [(); 2].map(|()| check().expect("ready").expect("a decision"));
        let receipt = Receipt::of(&charges, &first).expect("it was charged");
        let settled = layer.limiter().settle(receipt.actual_cost(|_, _| 0));
        settled.now_or_never().expect("ready").expect("settled");
        let mut request = request();
        assert!(layer.rules.load().pass_gate(&mut request).is_ok());
        let decision = request.extensions().get::<Decision>();
        let state = decision.and_then(|decision| decision.state("peer"));
        assert!(state.is_some_and(|state| state.refunded_before() > 0));
    }

    #[test]
    fn request_without_a_key_takes_the_long_way() {
        let layer = layer_of(plenty("peer"));
        let taken = layer.rules.load().pass_gate(&mut Request::new(()));
        assert!(matches!(taken, Err(None)));
    }

    #[cfg(feature = "tracing")]
    #[test]
    fn gate_is_closed_while_decisions_are_logged() {
        let layer = layer_of(plenty("peer"));
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(std::io::sink)
            .finish();
        let logged = tracing::subscriber::with_default(subscriber, || passes(&layer));
        assert_eq!((logged, passes(&layer)), (Some(false), Some(true)));
    }

    #[test]
    fn settings_that_need_the_long_way_leave_a_layer_without_a_gate() {
        let queue = Algorithm::LeakyQueue(QueueLimits::new(10, Duration::from_secs(1)));
        let of = |change: fn(Policy) -> Policy| change(Policy::new("peer", PLENTY)).key(PeerIp);
        let tier = |_: &RequestHead<'_>, _: &Key| None::<Tier>;
        let rules = [
            (
                "window",
                of(|policy| policy.algorithm(Algorithm::SlidingWindow)),
            ),
            (
                "queue",
                Policy::new("peer", Quota::per_second(1_000))
                    .algorithm(queue)
                    .key(PeerIp),
            ),
            ("slots", Policy::concurrency("peer", 10).key(PeerIp)),
            ("counted denials", of(|policy| policy.count_denied(true))),
            (
                "penalty",
                of(|policy| policy.penalty(Penalty::after(5, Duration::from_secs(60)))),
            ),
            ("peeks", of(|policy| policy.cost(0))),
            ("condition", plenty("peer").when(|_: &RequestHead<'_>| true)),
            (
                "exception",
                plenty("peer").unless(|_: &RequestHead<'_>| false),
            ),
            ("cost", plenty("peer").cost_by(|_: &RequestHead<'_>| 1)),
            ("tier", plenty("peer").tier_by(tier)),
            ("candidate", plenty("peer").candidate(PLENTY)),
            (
                "settlement",
                plenty("peer").settle(|_: &CompletedRequest<'_>| 1),
            ),
        ];
        for (name, rule) in rules {
            let layer = RateLimitLayer::builder().policy(rule).build();
            let layer = layer.expect(name);
            assert!(layer.rules.load().gate.is_none(), "{name}");
        }
        let skipping = RateLimitLayer::builder().policy(plenty("peer"));
        let skipping = build(skipping.skip(|_: &RequestHead<'_>| false));
        assert!(skipping.rules.load().gate.is_none());
        let mut five = RateLimitLayer::builder();
        for name in ["a", "b", "c", "d", "e"] {
            five = five.policy(plenty(name));
        }
        assert!(build(five).rules.load().gate.is_none());
    }

    /// Passes decisions on.
    #[derive(Debug, Default)]
    struct Custom(MemoryStore);

    impl Store for Custom {
        fn inner(&self) -> Option<&dyn Store> {
            Some(&self.0)
        }

        fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
            self.0.decide(charges)
        }

        fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
            self.0.reset(policy, key)
        }
    }

    #[test]
    fn custom_store_and_hooks_see_each_decision() {
        let builder = || RateLimitLayer::builder().policy(plenty("peer"));
        let limiter = RateLimiter::new(Custom::default(), []).expect("a limiter");
        assert!(
            build(builder().limiter(&limiter))
                .rules
                .load()
                .gate
                .is_none()
        );
        let hooked = build(builder().on_decision(|_, _| {}));
        assert_eq!(passes(&hooked), Some(false));
    }
}
