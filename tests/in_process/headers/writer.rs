//! Headers of decisions that were made outside of a layer.

use std::convert::Infallible;

use http::{HeaderMap, Request, Response, header::RETRY_AFTER};
use tollgate::{
    Decision, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter,
    clock::{Clock, Timestamp},
    decision::{CountedBy, Outcome, PolicyName, PolicyState},
    extract::Global,
    headers::{DiscordScope, HeaderWriter, Headers, ResetFormat},
};
use tower::{Layer, ServiceExt, service_fn};

fn policies() -> [Policy; 2] {
    [
        Policy::new("burst", Quota::per_minute(2)),
        Policy::new("day", Quota::per_day(1_000)).unit("pages"),
    ]
}

fn choices() -> [Headers; 7] {
    [
        Headers::default(),
        Headers::legacy().reset(ResetFormat::DeltaSeconds).into(),
        Headers::draft06(),
        Headers::draft11(),
        Headers::discord().scope("day", DiscordScope::Shared).into(),
        Headers::draft11()
            .with(Headers::legacy())
            .with(Headers::reason_with_policy()),
        Headers::none(),
    ]
}

#[tokio::test]
async fn headers_are_those_of_a_layer_with_the_same_policies() {
    for choice in choices() {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_250_000));
        let [burst, day] = policies();
        let layer = RateLimitLayer::builder()
            .policy(burst.key(Global))
            .policy(day.key(Global))
            .headers(choice.clone())
            .clock(clock.clone())
            .build()
            .expect("it is well set up");
        let service = layer.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
        let policies = policies();
        let limiter = RateLimiter::builder().clock(clock).build();
        let limiter = limiter.expect("it is well set up");
        let writer = HeaderWriter::new(choice.clone(), &policies).expect("they are known");
        let charges = policies.each_ref().map(|policy| policy.charge(Key::GLOBAL));
        for is_allowed in [true, true, false] {
            let Ok(response) = service.clone().oneshot(Request::new(())).await;
            let (mut expected, _) = response.into_parts();
            for name in ["cache-control", "content-type"] {
                expected.headers.remove(name);
            }
            let decision = limiter.check(&charges).await.expect("it is in process");
            assert_eq!(decision.is_allowed(), is_allowed);
            let mut headers = HeaderMap::new();
            writer.write(&decision, &mut headers);
            assert_eq!(headers, expected.headers, "{choice:?}");
            assert_eq!(headers.is_empty(), is_allowed && is_none(&choice));
        }
    }
}

fn is_none(choice: &Headers) -> bool {
    choice.header_names() == [RETRY_AFTER]
}

#[tokio::test]
async fn headers_that_are_there_stay() {
    let policy = Policy::new("searches", Quota::per_minute(5));
    let limiter = RateLimiter::builder().build().expect("a limiter");
    let decision = limiter.check(policy.charge(Key::GLOBAL)).await;
    let decision = decision.expect("it is in process");
    let mut headers = HeaderMap::new();
    headers.insert("x-ratelimit-limit", 7.into());
    HeaderWriter::default().write(&decision, &mut headers);
    assert_eq!(headers.len(), 1);
    assert_eq!(headers["x-ratelimit-limit"], "7");
}

#[test]
fn decision_that_nobody_could_make_has_a_reason_and_no_numbers() {
    let name = PolicyName::new("searches").expect("a name");
    let state = PolicyState::uncounted(name, Outcome::Unavailable);
    let decision = Decision::new(CountedBy::Uncounted, Timestamp::from_micros(0), [state]);
    let choice = Headers::legacy().with(Headers::reason_with_policy());
    let writer = HeaderWriter::new(choice, []).expect("they name no policy");
    let mut headers = HeaderMap::new();
    writer.write(&decision, &mut headers);
    assert_eq!(headers.len(), 1);
    assert_eq!(headers["x-ratelimit-reason"], "unavailable");
}

#[test]
fn headers_that_refer_to_an_unknown_policy_are_refused() {
    let choice = Headers::discord().scope("other", DiscordScope::Shared);
    let error = HeaderWriter::new(choice, &policies()).expect_err("it has other policies");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}
