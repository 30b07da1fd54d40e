//! Limits of calls that go out, from rule files.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response};
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter,
    client::{OutgoingError, OutgoingLayer, OutgoingLayerBuilder},
    clock::{Clock, Timestamp},
    config::{Format, RuleSet},
};
use tower::{Layer, ServiceExt, service_fn};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// Returns a builder whose time stands still, and whose calls do not wait.
fn builder() -> OutgoingLayerBuilder {
    let limiter = RateLimiter::builder().clock(Clock::manual(START)).build();
    let builder = OutgoingLayer::builder(&limiter.expect("it is well set up"));
    builder.max_wait(Duration::ZERO)
}

fn parsed(yaml: &str) -> RuleSet {
    RuleSet::parse(Format::Yaml, yaml).unwrap_or_else(|error| panic!("{error}"))
}

fn built(yaml: &str) -> OutgoingLayer {
    let layer = builder().rules(parsed(yaml)).build();
    layer.expect("the rules fit")
}

/// Sends a call to an API that responds with this status. `None` if it has no turn.
async fn send(layer: &OutgoingLayer, request: Request<()>, status: u16) -> Option<u16> {
    let api = service_fn(move |_: Request<()>| async move {
        Ok::<_, Infallible>(Response::builder().status(status).body(()).expect("valid"))
    });
    match layer.layer(api).oneshot(request).await {
        Ok(response) => Some(response.status().as_u16()),
        Err(OutgoingError::Limited(_)) => None,
        Err(error) => panic!("the API always responds: {error}"),
    }
}

fn get(uri: &str) -> Request<()> {
    Request::get(uri).body(()).expect("a valid request")
}

/// Returns how many calls have their turn at once.
async fn calls(layer: &OutgoingLayer, uri: &str) -> usize {
    let mut calls = 0;
    while send(layer, get(uri), 200).await.is_some() {
        calls += 1;
    }
    calls
}

#[tokio::test]
async fn rules_of_a_file_count_the_calls_that_they_match() {
    let layer = built(
        "
outgoing:
  rules:
    - { id: all, key: host, limit: 10/h, unless: { path: /health } }
    - { id: reports, key: global, path: /reports/*, limit: 6/h, costs: [{ when: { method: GET }, units: 2 }] }
",
    );
    assert_eq!(calls(&layer, "http://a.test/reports/1").await, 3);
    assert_eq!(calls(&layer, "http://a.test/users").await, 7);
    assert_eq!(calls(&layer, "http://b.test/users").await, 10);
    for _ in 0..50 {
        assert_eq!(
            send(&layer, get("http://a.test/health"), 200).await,
            Some(200)
        );
    }
}

#[tokio::test]
async fn settings_of_a_rule_are_those_of_the_builder() {
    let layer = built(
        "
defaults: { algorithm: leaky_bucket }
outgoing:
  max_retries: 0
  rules:
    - { id: spread, key: host, limit: 10/h }
    - { id: keyed, key: { header: x-tenant }, limit: 1/h, skip_without_key: true }
    - { id: slots, key: global, algorithm: concurrency, limit: 5, never_paused: true }
",
    );
    assert_eq!(calls(&layer, "http://a.test/").await, 1, "a leaky bucket");
    assert_eq!(send(&layer, get("http://b.test/"), 429).await, Some(429));
    assert_eq!(
        send(&layer, get("http://b.test/"), 200).await,
        None,
        "paused"
    );
    assert_eq!(send(&layer, get("http://c.test/"), 200).await, Some(200));
}

#[tokio::test]
async fn adaptive_rule_begins_at_its_floor() {
    for (adaptive, wait) in [
        ("true", "1s"),
        ("{ floor: 4/s }", "250ms"),
        ("false", "10ms"),
    ] {
        let yaml = format!(
            "outgoing: {{ rules: [{{ id: api, key: host, limit: 100/s, adaptive: {adaptive} }}] }}"
        );
        let layer = built(&yaml);
        assert_eq!(send(&layer, get("http://a.test/"), 200).await, Some(200));
        let policy = Policy::new("api", Quota::per_second(100));
        let charge = policy.charge(Key::new("a.test"));
        let peek = layer.limiter().peek(&[charge]).await.expect("a decision");
        let usage = peek.states()[0].usage().expect("it is counted");
        let taken = usage.reset_at.since(START);
        assert_eq!(format!("{taken:?}"), wait, "{adaptive}");
    }
}

#[test]
fn file_may_have_rules_for_requests_or_for_calls_or_both() {
    let outgoing = "outgoing: { max_wait: 5s, rules: [{ id: out, key: host, limit: 5/min }] }";
    let incoming = "rules: [{ id: in, key: peer_ip, limit: 5/min }]";
    let only = parsed(outgoing);
    assert!(only.rules().is_empty());
    let layer = RateLimitLayer::builder().rules(&only).build();
    assert_eq!(
        layer.expect_err("nothing to limit").kind(),
        ErrorKind::NoPolicy
    );
    let layer = builder().rules(parsed(incoming)).build();
    assert_eq!(
        layer.expect_err("nothing to limit").kind(),
        ErrorKind::NoPolicy
    );
    let both = parsed(&format!("{incoming}\n{outgoing}"));
    assert!(RateLimitLayer::builder().rules(&both).build().is_ok());
    let layer = builder().rules(&both).build().expect("the rules fit");
    assert!(format!("{layer:?}").contains("max_wait: 5s"), "{layer:?}");
    let again = RuleSet::parse(Format::Json, &both.to_json());
    assert_eq!(again.expect("it can be read again"), both);
}

#[test]
fn no_rule_is_left_out_however_many_there_are() {
    let list = |count: usize, more: &str| {
        let rule = |id| format!("{{ id: r{id}, key: host, limit: 5/min{more} }}");
        let rules: Vec<String> = (0..count).map(rule).collect();
        let text = format!("outgoing: {{ rules: [{}] }}", rules.join(", "));
        RuleSet::parse(Format::Yaml, &text)
    };
    assert!(list(16, "").is_ok() && list(1_000, ", path: /a").is_ok());
    let error = list(17, "").expect_err("too many").to_string();
    assert!(
        error.contains("more than 16 policies that count every request"),
        "{error}"
    );
    let error = list(1_001, ", path: /a").expect_err("too many").to_string();
    assert!(error.contains("more than 1000 policies"), "{error}");
}

#[cfg(feature = "reload")]
mod reload {
    use tollgate::config::reload::{NewRules, ReloadError, RuleSource};

    use super::*;

    fn rule(limit: &str) -> String {
        format!("outgoing: {{ max_retries: 0, rules: [{{ id: api, key: host, limit: {limit} }}] }}")
    }

    fn new(limit: &str) -> NewRules {
        NewRules::new(Format::Yaml, rule(limit))
    }

    #[tokio::test]
    async fn next_call_has_the_limits_that_were_pushed() {
        let source = RuleSource::in_process(parsed(&rule("2/h")));
        let (layer, rules) = builder().build_reloading(source).expect("the rules fit");
        let uri = "http://a.test/";
        assert_eq!(calls(&layer, uri).await, 2);
        rules.push(new("4/h")).await.expect("pushed");
        assert_eq!(calls(&layer, uri).await, 0, "the share that was used stays");
        assert_eq!(calls(&layer.clone(), "http://b.test/").await, 4);
        let error = rules.push(new("4/hh")).await.expect_err("a fault");
        assert!(matches!(error, ReloadError::Rules(_)), "{error}");
        assert_eq!(rules.version().number(), 2);
        assert_eq!(calls(&layer, "http://c.test/").await, 4);
        let none = NewRules::new(
            Format::Yaml,
            "rules: [{ id: in, key: peer_ip, limit: 5/min }]",
        );
        let error = rules.push(none).await.expect_err("nothing to limit");
        assert!(matches!(error, ReloadError::Layer(_)), "{error}");
    }

    #[tokio::test]
    async fn pauses_outlast_a_change_of_the_rules() {
        let source = RuleSource::in_process(parsed(&rule("100/h")));
        let (layer, rules) = builder().build_reloading(source).expect("the rules fit");
        assert_eq!(send(&layer, get("http://a.test/"), 429).await, Some(429));
        rules.push(new("200/h")).await.expect("pushed");
        assert_eq!(send(&layer, get("http://a.test/"), 200).await, None);
        assert_eq!(send(&layer, get("http://b.test/"), 200).await, Some(200));
    }

    #[tokio::test]
    async fn file_that_changes_is_taken() {
        let folder = crate::support::Folder::new();
        let path = folder.write("rules.yaml", &rule("2/h"));
        let (layer, rules) = builder()
            .build_reloading(RuleSource::file(path))
            .expect("the rules fit");
        assert_eq!(calls(&layer, "http://a.test/").await, 2);
        folder.write("rules.yaml", &rule("3/h"));
        rules.reload().await.expect("it can be read");
        assert_eq!(calls(&layer, "http://b.test/").await, 3);
    }
}
