//! "Why was I limited?": explanations agree with what requests get, charge nothing, and show who counts.

use std::{convert::Infallible, io, time::Duration};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tollgate::{
    ErrorKind, Key, OnOutage, Percent, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    block::Block,
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    decision::{CountedBy, Outcome, Retry, Usage},
    explain::{PolicyExplanation, RequestExplanation, RuleExplanation, RuleFinding},
    extract::Header,
    matching::PathPattern,
    overload::Priority,
    policy::Penalty,
    rules::{OnMissingKey, RuleMode},
    store::Mode,
    tiers::{Tier, TierCache},
};
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    fleet::shares::{until_degraded, until_shared},
    support::{Cluster, Random, Server},
};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_millis(250);
const SECOND: Duration = Duration::from_secs(1);
const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn daily(units: u64) -> Policy {
    Policy::new("daily", Quota::per_day(units))
}

async fn state(limiter: &RateLimiter, key: &str, policy: &str) -> PolicyExplanation {
    let explanation = limiter.explain(&Key::new(key)).await.expect("explained");
    let state = explanation.policy(policy).expect("a policy of the limiter");
    state.clone()
}

async fn is_allowed(limiter: &RateLimiter, policy: &Policy, key: &str) -> bool {
    let decision = limiter.check(&[policy.charge(Key::new(key))]).await;
    decision.expect("a decision").is_allowed()
}

// === Keys ===

#[tokio::test]
async fn explanation_charges_nothing_and_has_every_policy() {
    let slots = Policy::concurrency("slots", 4);
    let limiter = RateLimiter::builder().policy(daily(3)).policy(slots);
    let limiter = limiter.build().expect("a usable limiter");
    assert!(is_allowed(&limiter, &daily(3), "ada").await);
    for _ in 0..5 {
        let explanation = limiter.explain(&Key::new("ada")).await.expect("explained");
        let names = explanation.policies().iter();
        let names: Vec<&str> = names.map(|policy| policy.name().as_str()).collect();
        assert_eq!(names, ["daily", "slots"]);
        let remaining = explanation.policies().iter();
        let remaining = remaining.map(|policy| policy.usage().expect("counted").remaining);
        assert_eq!(remaining.collect::<Vec<_>>(), [2, 4]);
        let daily = explanation.policy("daily").expect("a policy");
        assert_eq!(daily.outcome(), Outcome::Allowed);
        assert_eq!(daily.counted_by(), CountedBy::InProcess);
        assert_eq!(daily.shared_count_age(), Some(Duration::ZERO));
        assert_eq!(explanation.health().mode(), Mode::Healthy);
        assert!(explanation.policy("other").is_none());
    }
}

#[tokio::test]
async fn reserve_is_shown_with_its_classes_and_what_of_it_is_kept() {
    let api = Policy::new("api", Quota::per_second(50).burst(40));
    let fifth = Percent::new(20.5);
    let strict = api.clone().reserve(Priority::Critical, fifth);
    let lent = strict.clone().lend(SECOND);
    let classes = [Priority::Critical, Priority::Named("paid")];
    let cases = [
        (api.clone(), None),
        (strict, Some("20.5 % for critical")),
        (
            lent.clone(),
            Some("20.5 % for critical, of which all but 2 units are lent"),
        ),
        (
            api.reserve(classes, Percent::new(20.0)),
            Some("20 % for critical, paid"),
        ),
    ];
    for (policy, expected) in cases {
        let limiter = RateLimiter::builder().policy(policy).build();
        let state = state(&limiter.expect("a usable limiter"), "ada", "api").await;
        let text = state.to_string();
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("  reserve: "));
        assert_eq!(
            lines.collect::<Vec<_>>(),
            Vec::from_iter(expected),
            "{text}"
        );
    }
    // As a request of another class sees it.
    let layer = RateLimitLayer::builder().policy(lent.key(Header::new("x-user")));
    let layer = layer.clock(Clock::manual(START)).build();
    let request = Request::get("/").header("x-user", "ada").body(());
    let explanation = layer
        .expect("a usable layer")
        .explain(&request.expect("a request"))
        .await;
    let text = explanation.expect("explained").to_string();
    assert!(text.contains("38 of 38 units left"), "{text}");
    assert!(text.contains("all but 2 units are lent"), "{text}");
}

#[tokio::test]
async fn more_than_sixteen_policies_are_explained() {
    let limiter = RateLimiter::builder().build().expect("a usable limiter");
    for layer in 0..3 {
        let builder = (0..10).fold(RateLimitLayer::builder(), |builder, number| {
            let policy = Policy::new(format!("p{layer}.{number}"), Quota::per_day(5));
            builder.policy(policy.key(Header::new("x-user")))
        });
        builder.limiter(&limiter).build().expect("a usable layer");
    }
    let explanation = limiter.explain(&Key::new("ada")).await.expect("explained");
    assert_eq!(explanation.policies().len(), 30);
    assert_eq!(explanation.policies()[29].name().as_str(), "p2.9");
}

#[tokio::test]
async fn last_denial_has_its_time_its_retry_and_the_number_of_denials() {
    let clock = Clock::manual(START);
    let limiter = RateLimiter::builder().policy(daily(2)).clock(clock.clone());
    let limiter = limiter.record_denials(100).build().expect("usable");
    assert_eq!(state(&limiter, "ada", "daily").await.last_denial(), None);
    for _ in 0..2 {
        assert!(is_allowed(&limiter, &daily(2), "ada").await);
    }
    assert_eq!(state(&limiter, "ada", "daily").await.last_denial(), None);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(10));
        assert!(!is_allowed(&limiter, &daily(2), "ada").await);
    }
    clock.advance(Duration::from_secs(5));
    let explained = state(&limiter, "ada", "daily").await;
    let denial = explained.last_denial().expect("denied");
    assert_eq!(denial.first_at(), START + Duration::from_secs(10));
    assert_eq!(denial.at(), START + Duration::from_secs(30));
    assert_eq!(denial.count(), 3);
    assert_eq!(denial.outcome(), Outcome::Limited);
    assert_eq!(denial.counted_by(), CountedBy::InProcess);
    assert_eq!(
        denial.retry(),
        Retry::At(START + Duration::from_secs(43_200))
    );
    assert_eq!(state(&limiter, "bob", "daily").await.last_denial(), None);
    assert_eq!(
        limiter
            .explain(&Key::new("ada"))
            .await
            .expect("explained")
            .to_string(),
        "store: healthy
daily: limited, 0 of 2 units left, all back in 24 h
  quota: 2 per 24 h by token_bucket, 1 a request
  counted by: in_process
  last denial: 5 s ago, limited, counted by in_process, retry in 12 h; 3 in 25 s"
    );
}

#[tokio::test]
async fn pause_in_redis_is_explained_until_an_outage_in_which_nobody_heeds_it() {
    let mut server = Server::start();
    let partner = Policy::new("partner", Quota::per_hour(10));
    let limiter = RateLimiter::builder()
        .redis(server.url())
        .deadline(DEADLINE);
    let limiter = limiter.policy(partner.clone()).build().expect("usable");
    let ada = Key::new("ada");
    let paused = limiter.pause(&partner.charge(ada), 60 * SECOND);
    paused.await.expect("paused");
    let explained = state(&limiter, "ada", "partner").await;
    assert_eq!(explained.counted_by(), CountedBy::Shared);
    let until = explained.paused_until().expect("paused");
    let left = until.since(explained.counted_at());
    assert!(left > 50 * SECOND && left <= 60 * SECOND, "{left:?}");
    assert_eq!(explained.next_turn(), Some(left));
    assert_eq!(state(&limiter, "bob", "partner").await.paused_until(), None);

    server.kill();
    until_degraded(std::slice::from_ref(&limiter)).await;
    let outage = state(&limiter, "ada", "partner").await;
    assert_eq!(outage.counted_by(), CountedBy::Fallback);
    assert_eq!(outage.paused_until(), None);
}

#[tokio::test]
async fn ban_is_explained_with_its_begin_its_end_and_its_number() {
    let clock = Clock::manual(START);
    let login = banning("login", 2);
    let limiter = RateLimiter::builder()
        .policy(login.clone())
        .clock(clock.clone());
    let limiter = limiter.build().expect("usable");
    let lines = async || {
        let explanation = limiter.explain(&Key::new("ada")).await.expect("explained");
        let text = explanation.to_string();
        let line = |number: usize| {
            text.lines()
                .nth(number)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        (line(1), line(4))
    };
    let (first, last) = lines().await;
    assert_eq!(
        (first.as_str(), last.as_str()),
        ("login: allowed, 2 of 2 units left", "")
    );
    for _ in 0..3 {
        is_allowed(&limiter, &login, "ada").await;
    }
    assert_eq!(
        lines().await.1,
        "penalty: 1 of 2 denials to a ban, forgiven in 7 min"
    );
    is_allowed(&limiter, &login, "ada").await;
    clock.advance(30 * SECOND);
    let (first, last) = lines().await;
    assert_eq!(first, "login: limited by a ban, 2 of 2 units left");
    assert_eq!(
        last,
        "ban: number 1, for 30 s, ends in 60 s or by a reset of the key"
    );
    let explained = state(&limiter, "ada", "login").await;
    assert_eq!(
        (explained.is_banned(), explained.outcome()),
        (true, Outcome::Limited)
    );
    let ban_status = explained.ban_status().expect("banned");
    assert_eq!(ban_status.banned_since(), Some(START));
    assert_eq!(ban_status.banned_until(), Some(START + 90 * SECOND));
    assert!(!is_allowed(&limiter, &login, "ada").await);

    clock.advance(60 * SECOND);
    assert_eq!(
        lines().await.1,
        "penalty: 0 of 2 denials to a ban after 1 ban, forgiven in 7 min"
    );
    for _ in 0..4 {
        is_allowed(&limiter, &login, "ada").await;
    }
    assert_eq!(
        lines().await.1,
        "ban: number 2, for 0 ms, ends in 3 min or by a reset of the key"
    );
    limiter
        .reset(&login, &Key::new("ada"))
        .await
        .expect("reset");
    assert_eq!(lines().await.1, "");
    assert!(is_allowed(&limiter, &login, "ada").await);
}

// Regression: they were "allowed by a block", and "allowed by a ban".
#[tokio::test]
async fn requests_without_a_cost_pass_and_their_explanation_says_only_that() {
    let limiter = RateLimiter::builder().policy(banning("login", 2).cost(0));
    let limiter = limiter.build().expect("usable");
    let first_line = async || {
        let explained = state(&limiter, "ada", "login").await;
        explained.to_string().lines().next().map(str::to_owned)
    };
    let allowed = Some("login: allowed, 2 of 2 units left".to_owned());
    assert_eq!(first_line().await, allowed);
    let block = Block::new(Key::new("ada"), 60 * SECOND);
    limiter.block(block).await.expect("blocked");
    assert_eq!(first_line().await, allowed);
}

#[tokio::test]
async fn denials_are_not_kept_unless_the_operator_chooses_so() {
    let limiter = RateLimiter::builder()
        .policy(daily(1))
        .build()
        .expect("usable");
    for _ in 0..3 {
        is_allowed(&limiter, &daily(1), "ada").await;
    }
    let explained = state(&limiter, "ada", "daily").await;
    assert_eq!(
        (explained.outcome(), explained.last_denial()),
        (Outcome::Limited, None)
    );
    for pairs in [0, 1_000_001] {
        let error = RateLimiter::builder().record_denials(pairs).build();
        let error = error.expect_err("not usable");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("record_denials"), "{error}");
    }
}

#[tokio::test]
async fn request_that_costs_more_than_is_left_would_be_limited() {
    let policy = daily(10).cost(4);
    let limiter = RateLimiter::builder()
        .policy(policy.clone())
        .build()
        .expect("usable");
    for expected in [Outcome::Allowed, Outcome::Allowed, Outcome::Limited] {
        let explained = state(&limiter, "ada", "daily").await;
        assert_eq!((explained.outcome(), explained.cost()), (expected, 4));
        let is_allowed = is_allowed(&limiter, &policy, "ada").await;
        assert_eq!(is_allowed, expected == Outcome::Allowed);
    }
}

// === Requests ===

/// A quota that is back long before the ban of a key ends.
fn banning(name: &str, denials: u32) -> Policy {
    let penalty = Penalty::after(denials, 60 * SECOND)
        .ban(90 * SECOND)
        .growing(2, 200 * SECOND)
        .forgiven_after(400 * SECOND);
    Policy::new(name, Quota::new(2, 10 * SECOND)).penalty(penalty)
}

/// Adds rules with penalties.
fn with_bans(builder: RateLimitLayerBuilder) -> RateLimitLayerBuilder {
    let user = || Header::new("x-user");
    let tier = |_: &RequestHead, _: &Key| {
        Some(Tier::new("acme", Quota::new(4, 10 * SECOND)).expect("a tier"))
    };
    builder
        .policy(
            banning("banning", 2)
                .key(user())
                .on_missing_key(OnMissingKey::Skip),
        )
        .policy(
            banning("tier-banning", 1)
                .cost(2)
                .key(Header::new("x-tenant"))
                .on_missing_key(OnMissingKey::Skip)
                .tier_by(tier),
        )
        .policy(
            banning("shadow-banning", 1)
                .key(user())
                .mode(RuleMode::Shadow)
                .on_missing_key(OnMissingKey::Skip),
        )
        .policy(
            // Its peeks are admitted during a ban, too.
            banning("peeking", 1)
                .cost(0)
                .key(user())
                .on_missing_key(OnMissingKey::Skip)
                .cost_when(PathPattern::new("/report"), 1),
        )
}

/// A layer with a rule of each kind.
fn layer() -> RateLimitLayerBuilder {
    let by_tier = |_: &RequestHead, key: &Key| match key.as_str() {
        "pro" => Some(Tier::new("pro", Quota::per_day(4)).expect("a tier")),
        "free" => Some(Tier::unlimited()),
        "banned" => Some(Tier::forbidden()),
        _ => None,
    };
    let looked_up = TierCache::builder(|_: &RequestHead, key: &Key| {
        let is_slow = key.as_str() == "slow";
        async move {
            if is_slow {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(Some(Tier::new("gold", Quota::per_day(3)).expect("a tier")))
        }
    });
    let looked_up = looked_up.build().expect("a usable cache");
    let session = |head: &RequestHead| {
        let session = head.headers.get("x-session").cloned();
        async move {
            match session {
                Some(session) if session == "broken" => Err(io::Error::other("no database")),
                Some(session) => Ok(Some(Key::new(session.as_bytes()))),
                None => Ok(None),
            }
        }
    };
    let user = || Header::new("x-user");
    with_bans(RateLimitLayer::builder())
        .policy(
            daily(2)
                .key(user())
                .tier_by(by_tier)
                .candidate(Quota::per_day(1)),
        )
        .policy(
            Policy::new("login", Quota::per_day(1))
                .key(user())
                .when(PathPattern::new("/login")),
        )
        .policy(
            Policy::new("tenant", Quota::per_day(3))
                .key(Header::new("x-tenant"))
                .on_missing_key(OnMissingKey::Skip),
        )
        .policy(
            Policy::new("costly", Quota::per_day(10))
                .key(user())
                .on_missing_key(OnMissingKey::Share)
                .cost_when(PathPattern::new("/report"), 6),
        )
        .policy(
            Policy::new("shadow", Quota::per_day(1))
                .key(user())
                .mode(RuleMode::Shadow),
        )
        .policy(
            Policy::new("partial", Quota::per_day(2))
                .key(user())
                .rollout(50.0),
        )
        .policy(
            Policy::new("off", Quota::per_day(1))
                .key(user())
                .mode(RuleMode::Off),
        )
        .policy(Policy::new("session", Quota::per_day(3)).key_async(session))
        .policy(
            Policy::new("cached", Quota::per_day(2))
                .key(user())
                .tier_cache(looked_up),
        )
        .forbid(PathPattern::new("/secret"))
        .skip(PathPattern::new("/health"))
        .lookup_timeout(Duration::from_millis(200))
}

fn request(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let request = headers
        .iter()
        .fold(Request::get(path), |request, (name, value)| {
            request.header(*name, *value)
        });
    request.body(Body::empty()).expect("a request")
}

async fn status(layer: &RateLimitLayer, request: Request<Body>) -> StatusCode {
    let service = layer.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    let Ok(response) = service.oneshot(request).await;
    response.status()
}

async fn explain(
    layer: &RateLimitLayer,
    path: &str,
    headers: &[(&str, &str)],
) -> RequestExplanation {
    let (head, _) = request(path, headers).into_parts();
    layer.explain(&head).await.expect("explained")
}

#[tokio::test]
async fn explanation_of_any_request_agrees_with_what_the_request_gets() {
    let (mut random, clock) = (Random(14), Clock::manual(START));
    let layer = layer().clock(clock.clone()).build();
    let layer = layer.expect("a usable layer");
    let (mut denied, mut admitted, mut banned) = (0, 0, 0);
    for round in 0..400 {
        clock.advance(Duration::from_millis(random.below(8_000)));
        let mut any = |values: &[&'static str]| values[random.below(values.len() as u64) as usize];
        let path = any(&["/", "/", "/login", "/report", "/secret", "/health"]);
        let mut headers = Vec::new();
        for (name, values) in [
            (
                "x-user",
                ["ada", "bob", "pro", "free", "banned", "", "twice"],
            ),
            ("x-tenant", ["", "acme", "", "globex", "acme", "", ""]),
            ("x-session", ["s1", "s2", "s1", "s3", "broken", "s4", ""]),
        ] {
            match any(&values) {
                "" => {}
                "twice" => headers.extend([(name, "ada"), (name, "bob")]),
                value => headers.push((name, value)),
            }
        }
        if round % 40 == 39 {
            let mode =
                [RuleMode::Enforce, RuleMode::Shadow, RuleMode::Off][random.below(3) as usize];
            layer.set_mode(mode);
        }
        let explanation = explain(&layer, path, &headers).await;
        let status = status(&layer, request(path, &headers)).await;
        let is_denied = status != StatusCode::OK;
        assert_eq!(
            explanation.is_denied(),
            is_denied,
            "{path} {headers:?}: {status}\n{explanation}"
        );
        let mut denying = explanation.rules().iter().filter(|rule| rule.is_denying());
        banned += usize::from(is_denied && denying.all(is_by_ban));
        *(if is_denied {
            &mut denied
        } else {
            &mut admitted
        }) += 1;
    }
    assert!(
        denied > 50 && admitted > 50 && banned > 10,
        "seed 14: {denied} denied, {banned} by a ban alone, {admitted} admitted"
    );
}

#[tokio::test]
async fn explanation_of_banned_keys_agrees_with_what_their_requests_get() {
    let (mut random, clock) = (Random(15), Clock::manual(START));
    let layer = with_bans(RateLimitLayer::builder()).clock(clock.clone());
    let layer = layer.build().expect("a usable layer");
    let (mut denied, mut admitted, mut banned) = (0, 0, 0);
    for round in 0..400 {
        // Mostly a few seconds, and at times longer than a ban.
        let most = if random.below(20) == 0 {
            300_000
        } else {
            5_000
        };
        clock.advance(Duration::from_millis(random.below(most)));
        let mut any = |values: &[&'static str]| values[random.below(values.len() as u64) as usize];
        let path = any(&["/", "/report"]);
        let headers = [
            ("x-user", any(&["ada", "bob"])),
            ("x-tenant", any(&["acme", "globex"])),
        ];
        let explanation = explain(&layer, path, &headers).await;
        let status = status(&layer, request(path, &headers)).await;
        assert_eq!(
            explanation.is_denied(),
            status != StatusCode::OK,
            "seed 15, round {round}: {path} {headers:?}: {status}\n{explanation}"
        );
        let mut denying = explanation.rules().iter().filter(|rule| rule.is_denying());
        banned += usize::from(explanation.is_denied() && denying.all(is_by_ban));
        *(if explanation.is_denied() {
            &mut denied
        } else {
            &mut admitted
        }) += 1;
    }
    assert!(
        banned > 50 && denied > banned && admitted > 50,
        "seed 15: {denied} denied, {banned} by a ban alone, {admitted} admitted"
    );
}

/// Whether only a ban denies a request under a rule, and not its quota.
fn is_by_ban(rule: &RuleExplanation) -> bool {
    let RuleFinding::Counted { policies, .. } = rule.finding() else {
        return false;
    };
    let fits = |usage: Usage| usage.remaining >= policies[0].cost();
    policies[0].is_banned() && policies[0].usage().is_some_and(fits)
}

#[tokio::test]
async fn each_rule_is_explained() {
    let layer = layer().build().expect("a usable layer");
    let headers = [("x-user", "pro"), ("x-session", "s1")];
    let explanation = explain(&layer, "/report", &headers).await;
    let finding = |policy: &str| {
        let rule = explanation.rule(policy).expect("a rule of the layer");
        rule.finding().clone()
    };
    let RuleFinding::Counted {
        policies,
        is_enforced,
        ..
    } = finding("daily")
    else {
        panic!("{explanation}")
    };
    assert_eq!(
        (policies.len(), is_enforced),
        (1, true),
        "a tier has no candidate"
    );
    assert_eq!(policies[0].tier().expect("a tier").as_str(), "pro");
    assert_eq!(policies[0].usage().expect("counted").limit, 4);
    assert!(matches!(finding("login"), RuleFinding::NotMatched));
    assert!(matches!(finding("tenant"), RuleFinding::Skipped));
    let RuleFinding::Counted { policies, .. } = finding("costly") else {
        panic!("{explanation}")
    };
    assert_eq!(policies[0].cost(), 6);
    let RuleFinding::Counted {
        is_enforced: false, ..
    } = finding("shadow")
    else {
        panic!("{explanation}")
    };
    assert!(matches!(finding("off"), RuleFinding::Off));
    let RuleFinding::Counted { policies, .. } = finding("cached") else {
        panic!("{explanation}")
    };
    assert_eq!(policies[0].tier().expect("looked up").as_str(), "gold");
    assert!(explanation.rule("other").is_none());

    let late = explain(&layer, "/", &[("x-user", "slow"), ("x-session", "broken")]).await;
    assert!(late.is_denied());
    let rule = late.rule("session").expect("a rule");
    assert!(
        matches!(rule.finding(), RuleFinding::LookupFailed),
        "{late}"
    );
    let RuleFinding::Counted { policies, .. } = late.rule("cached").expect("a rule").finding()
    else {
        panic!("{late}")
    };
    assert_eq!(policies[0].tier(), None, "the own quota applies");
    let RuleFinding::Counted { policies, .. } = late.rule("daily").expect("a rule").finding()
    else {
        panic!("{late}")
    };
    assert_eq!(policies[1].name().as_str(), "daily.candidate");
}

#[tokio::test]
async fn lists_and_modes_of_the_layer_are_explained() {
    let layer = layer().build().expect("a usable layer");
    let forbidden = explain(&layer, "/secret", &[]).await;
    assert!(forbidden.is_forbidden() && forbidden.is_denied() && forbidden.rules().is_empty());
    let skipped = explain(&layer, "/health", &[]).await;
    assert!(skipped.is_skipped() && !skipped.is_denied());
    layer.set_mode(RuleMode::Shadow);
    let shadow = explain(&layer, "/secret", &[]).await;
    assert!(shadow.is_forbidden() && !shadow.is_denied());
    assert!(shadow.to_string().contains("would forbid"), "{shadow}");
    layer.set_mode(RuleMode::Off);
    let off = explain(&layer, "/secret", &[("x-user", "ada")]).await;
    assert_eq!((off.mode(), off.is_forbidden()), (RuleMode::Off, false));
    let mut rules = off.rules().iter();
    assert!(rules.all(|rule| matches!(rule.finding(), RuleFinding::Off)));
}

#[tokio::test]
async fn explanation_of_a_request_reads_well_in_a_terminal_and_has_no_key() {
    let clock = Clock::manual(START);
    let pro = Tier::new("pro", Quota::per_minute(2)).expect("a tier");
    let layer = RateLimitLayer::builder()
        .policy(
            Policy::new("per-user", Quota::per_minute(100).burst(20))
                .key(Header::new("x-user"))
                .tier_by(move |_: &RequestHead, _: &Key| Some(pro.clone())),
        )
        .policy(
            Policy::new("trial", Quota::per_hour(1))
                .key(Header::new("x-user"))
                .mode(RuleMode::Shadow),
        )
        .policy(Policy::new("uploads", Quota::per_day(1)).key(Header::new("x-file")))
        .clock(clock.clone())
        .record_denials(10);
    let layer = layer.build().expect("a usable layer");
    let headers = [("x-user", "ada-lovelace"), ("x-file", "42")];
    for _ in 0..2 {
        status(&layer, request("/", &headers)).await;
    }
    clock.advance(Duration::from_secs(3));
    let explanation = explain(&layer, "/", &headers).await;
    assert_eq!(
        explanation.to_string(),
        "store: healthy
layer (enforce): denies the request
rule per-user (enforce, key x-user): counted
per-user: allowed, 1 of 2 units left, all back in 27 s
  quota: 2 per 60 s by token_bucket, 1 a request, tier pro
  counted by: in_process
rule trial (shadow, key x-user): counted
trial: limited, 0 of 1 units left, all back in 60 min
  quota: 1 per 60 min by token_bucket, 1 a request
  counted by: in_process
  last denial: 3 s ago, limited in shadow mode, so that the request passed, counted by in_process, retry in 60 min
rule uploads (enforce, key x-file): counted; denies the request
uploads: limited, 0 of 1 units left, all back in 24 h
  quota: 1 per 24 h by token_bucket, 1 a request
  counted by: in_process
  last denial: 3 s ago, limited, counted by in_process, retry in 24 h"
    );
    let debug = format!("{explanation:?}");
    assert!(!debug.contains("lovelace"), "{debug}");
}

#[test]
fn explanations_can_be_awaited_on_any_thread() {
    fn assert_send<T: Send>(_: T) {}
    let layer = layer().build().expect("a usable layer");
    let (head, _) = request("/", &[]).into_parts();
    assert_send(layer.explain(&head));
    assert_send(layer.limiter().explain(&Key::new("ada")));
}

// === Redis, and without it ===

fn redis_layer(url: String) -> RateLimitLayer {
    let user = || Header::new("x-user");
    let of = |name, choice| Policy::new(name, Quota::per_day(5)).on_outage(choice);
    let layer = RateLimitLayer::builder()
        .policy(of("local", OnOutage::Local).key(user()))
        .policy(of("open", OnOutage::Allow).key(user()))
        .policy(of("closed", OnOutage::Deny).key(Header::new("x-tenant")))
        .redis(url)
        .deadline(DEADLINE)
        .record_denials(100);
    layer.build().expect("a usable layer")
}

const CLIENT: [(&str, &str); 2] = [("x-user", "ada"), ("x-tenant", "acme")];

#[tokio::test]
async fn explanation_shows_who_counts_on_redis_and_in_an_outage_of_it() {
    let mut server = Server::start();
    let layer = redis_layer(server.url());
    let limiter = layer.limiter();
    until_shared(limiter).await;
    for _ in 0..3 {
        assert_eq!(status(&layer, request("/", &CLIENT)).await, StatusCode::OK);
    }
    let before = server.command_calls();
    let shared = explain(&layer, "/", &CLIENT).await;
    let after = server.command_calls();
    assert!(before.contains_key("set"), "requests are written");
    assert_eq!(before.get("set"), after.get("set"), "nothing is written");
    assert_eq!(shared.health().mode(), Mode::Healthy);
    let healthy_since = shared.health().mode_since().expect("a store with modes");
    for policy in ["local", "open", "closed"] {
        let state = of_rule(&shared, policy);
        assert_eq!(state.counted_by(), CountedBy::Shared);
        assert_eq!(state.usage().expect("counted").remaining, 2);
        assert_eq!(state.shared_count_age(), Some(Duration::ZERO));
    }

    server.kill();
    until_degraded(std::slice::from_ref(limiter)).await;
    assert_eq!(
        status(&layer, request("/", &CLIENT)).await,
        StatusCode::SERVICE_UNAVAILABLE
    );
    let outage = explain(&layer, "/", &CLIENT).await;
    assert!(outage.is_denied(), "{outage}");
    assert_eq!(outage.health().mode(), Mode::Degraded);
    let since = outage.health().mode_since().expect("a store with modes");
    assert!(since >= healthy_since);
    assert_eq!(outage.health().outages().len(), 1);
    let local = of_rule(&outage, "local");
    assert_eq!(local.counted_by(), CountedBy::Fallback);
    assert_eq!(
        local.usage().expect("counted").remaining,
        2,
        "from the state of redis"
    );
    assert!(local.shared_count_age().is_some());
    let open = of_rule(&outage, "open");
    assert_eq!(
        (open.counted_by(), open.outcome()),
        (CountedBy::Uncounted, Outcome::Allowed)
    );
    assert_eq!((open.usage(), open.shared_count_age()), (None, None));
    let closed = of_rule(&outage, "closed");
    assert_eq!(
        (closed.counted_by(), closed.outcome()),
        (CountedBy::Uncounted, Outcome::Unavailable)
    );
    let denial = closed.last_denial().expect("503");
    assert_eq!(denial.outcome(), Outcome::Unavailable);
    let text = outage.to_string();
    for part in [
        "store: degraded for ",
        "is unavailable: ",
        "counted by: fallback, since the count",
    ] {
        assert!(text.contains(part), "{text}");
    }

    server.restart();
    until_shared(limiter).await;
    let again = explain(&layer, "/", &CLIENT).await;
    assert_eq!(again.health().mode(), Mode::Healthy);
    assert!(again.health().mode_since() > Some(since));
    assert_eq!(of_rule(&again, "closed").counted_by(), CountedBy::Shared);
}

#[tokio::test]
async fn explanation_of_keys_in_several_slots_of_a_cluster_agrees_with_the_counts() {
    let cluster = Cluster::shared(3);
    let layer = redis_layer(cluster.nodes[0].url());
    until_shared(layer.limiter()).await;
    let users: Vec<String> = (0..3)
        .map(|node| cluster.identity_at(node, "explained"))
        .collect();
    for (tenant, user) in users.iter().enumerate() {
        let tenant = cluster.identity_at((tenant + 1) % 3, "tenant-explained");
        let client = [("x-user", user.as_str()), ("x-tenant", tenant.as_str())];
        for left in (0..5).rev() {
            let is_ok = status(&layer, request("/", &client)).await == StatusCode::OK;
            assert!(is_ok, "{left} left");
            let explanation = explain(&layer, "/", &client).await;
            for policy in ["local", "open", "closed"] {
                let state = of_rule(&explanation, policy);
                assert_eq!(state.counted_by(), CountedBy::Shared, "{explanation}");
                assert_eq!(
                    state.usage().expect("counted").remaining,
                    left,
                    "{explanation}"
                );
            }
            assert_eq!(explanation.is_denied(), left == 0);
        }
    }
}

#[tokio::test]
async fn ban_in_redis_is_explained_without_a_write_and_in_an_outage_as_it_was_seen() {
    let mut server = Server::start();
    let minutes = Penalty::after(1, 60 * SECOND).ban(300 * SECOND);
    // The quota is back at once, so only the ban denies.
    let policy = |name: &str| Policy::new(name, Quota::per_second(1_000).burst(1)).penalty(minutes);
    let user = || Header::new("x-user");
    let layer = RateLimitLayer::builder()
        .policy(policy("local").key(user()))
        .policy(policy("open").on_outage(OnOutage::Allow).key(user()))
        .redis(server.url())
        .deadline(DEADLINE)
        .build()
        .expect("a usable layer");
    until_shared(layer.limiter()).await;
    let client = [("x-user", "ada")];
    let started = std::time::Instant::now();
    while status(&layer, request("/", &client)).await == StatusCode::OK
        || !of_rule(&explain(&layer, "/", &client).await, "local").is_banned()
    {
        assert!(started.elapsed() < 60 * SECOND, "never banned");
    }
    let before = server.command_calls();
    let shared = explain(&layer, "/", &client).await;
    let after = server.command_calls();
    assert_eq!(before.get("set"), after.get("set"), "nothing is written");
    assert!(shared.is_denied(), "{shared}");
    let ban_status = *of_rule(&shared, "local").ban_status().expect("banned");
    assert_eq!(ban_status.bans(), 1);
    let length = ban_status.banned_until().zip(ban_status.banned_since());
    let length = length.map(|(until, since)| until.since(since));
    assert_eq!(length, Some(300 * SECOND));
    assert!(
        shared.to_string().contains("ban: number 1, for "),
        "{shared}"
    );

    server.kill();
    until_degraded(std::slice::from_ref(layer.limiter())).await;
    let outage = explain(&layer, "/", &client).await;
    assert!(outage.is_denied(), "{outage}");
    let local = of_rule(&outage, "local");
    assert_eq!(local.counted_by(), CountedBy::Fallback);
    let seen = local.ban_status().expect("banned");
    assert_eq!(seen.banned_until(), ban_status.banned_until());
    assert!(outage.to_string().contains("ban: for "), "{outage}");
    let open = of_rule(&outage, "open");
    assert_eq!(
        (open.ban_status(), open.outcome()),
        (None, Outcome::Allowed)
    );
    assert_eq!(
        status(&layer, request("/", &client)).await,
        StatusCode::TOO_MANY_REQUESTS
    );
}

/// The state under the policy of a rule.
fn of_rule<'a>(explanation: &'a RequestExplanation, policy: &str) -> &'a PolicyExplanation {
    match explanation
        .rule(policy)
        .expect("a rule of the layer")
        .finding()
    {
        RuleFinding::Counted { policies, .. } => &policies[0],
        other => panic!("{other:?}"),
    }
}
