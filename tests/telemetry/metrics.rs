//! Metrics: which exist, what they count, and what Prometheus makes of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::body::Body;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use metrics::set_default_local_recorder;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use tollgate::{
    Consistency, ErrorKind, Key, OnOutage, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    block::Block,
    call::CallLimitLayer,
    charge::Receipt,
    extract::{Global, Header},
    overload::{Overload, Priority},
    remote::Regions,
    store::Store,
    testing::ScriptedStore,
    tiers::{Tier, TierCache},
};
use tower::{Layer, ServiceExt, service_fn};

use super::waits;
use crate::support::{Server, over_a_full_store};

// === What is exported ===

#[tokio::test]
async fn table_of_the_docs_lists_what_is_exported_with_kinds_and_labels() {
    let exported = Exported::of(&everything().await);
    let table = table();
    assert_eq!(
        exported.kinds.keys().collect::<Vec<_>>(),
        table.keys().collect::<Vec<_>>()
    );
    for (name, (kind, unit, labels)) in &table {
        assert_eq!(&exported.kinds[name], kind, "{name}");
        assert_eq!(&exported.labels[name], labels, "{name}");
        let unit_of_name = ["seconds", "bytes"]
            .into_iter()
            .find(|unit| name.ends_with(unit));
        assert_eq!(unit_of_name.unwrap_or_default(), unit, "{name}");
    }
}

#[tokio::test]
async fn promtool_accepts_what_is_exported() {
    let (is_ok, said) = promtool(&["check", "metrics"], &everything().await);
    assert!(is_ok, "{said}");
    assert_eq!(said, "", "promtool has no advice");
}

#[test]
fn promtool_accepts_the_alerts_and_their_tests() {
    let folder = "examples/prometheus";
    for arguments in [
        ["check", "rules", &format!("{folder}/alerts.yml")],
        ["test", "rules", &format!("{folder}/alerts_test.yml")],
    ] {
        let (is_ok, said) = promtool(&arguments, "");
        assert!(is_ok, "{said}");
    }
}

#[test]
fn alerts_use_exported_metrics_and_values_of_labels_only() {
    let alerts = std::fs::read_to_string(root().join("examples/prometheus/alerts.yml"));
    let alerts = alerts.expect("the alerts");
    let table = table();
    let words = alerts.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let mut names: BTreeSet<&str> = words.filter(|word| word.starts_with("tollgate_")).collect();
    assert!(names.remove("tollgate_redis_round_trip_seconds_bucket"));
    names.insert("tollgate_redis_round_trip_seconds");
    for name in names {
        assert!(table.contains_key(name), "{name} is not in the table");
    }
}

#[test]
fn grafana_dashboard_shows_exported_metrics_by_labels_that_they_have() {
    let table = table();
    let mut shown = BTreeSet::new();
    for expression in grafana_expressions() {
        let words: Vec<&str> = expression
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .collect();
        let names = words.iter().filter(|word| word.starts_with("tollgate_"));
        let names: Vec<&str> = names
            .map(|name| {
                let suffixes = ["_bucket", "_sum", "_count"];
                let base = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
                base.filter(|base| table.contains_key(*base))
                    .unwrap_or(name)
            })
            .collect();
        assert!(!names.is_empty(), "{expression}");
        for name in &names {
            let (_, _, labels) = table
                .get(*name)
                .unwrap_or_else(|| panic!("{name} does not exist"));
            let known =
                |label: &str| labels.contains(label) || ["job", "instance", "le"].contains(&label);
            for label in labels_in(&expression) {
                assert!(known(label), "{name} has no label {label}: {expression}");
            }
        }
        shown.extend(names.into_iter().map(str::to_owned));
    }
    assert_eq!(
        table.keys().collect::<Vec<_>>(),
        shown.iter().collect::<Vec<_>>(),
        "each metric has a place in the dashboard"
    );
}

#[test]
fn promtool_understands_every_expression_of_the_grafana_dashboard() {
    let rules = grafana_expressions().map(|expression| {
        let expression = expression.replace("$__rate_interval", "5m");
        serde_json::json!({ "record": "shown", "expr": expression })
    });
    let rules: Vec<_> = rules.collect();
    assert!(rules.len() > 30);
    // Rules of one group may not be equal, and JSON is YAML.
    let groups = rules.iter().enumerate().map(
        |(number, rule)| serde_json::json!({ "name": format!("panel-{number}"), "rules": [rule] }),
    );
    let file = serde_json::json!({ "groups": groups.collect::<Vec<_>>() });
    let path = std::env::temp_dir().join(format!("tollgate-grafana-{}.yml", std::process::id()));
    std::fs::write(&path, file.to_string()).expect("written");
    let (is_ok, said) = promtool(&["check", "rules", &path.display().to_string()], "");
    std::fs::remove_file(&path).expect("removed");
    assert!(is_ok, "{said}");
}

/// Returns the expressions of all panels of the Grafana dashboard.
fn grafana_expressions() -> impl Iterator<Item = String> {
    let text = std::fs::read_to_string(root().join("examples/grafana/tollgate.json"));
    let dashboard: serde_json::Value =
        serde_json::from_str(&text.expect("the dashboard")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("a list").clone();
    let targets = panels
        .into_iter()
        .flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    targets.map(|target| target["expr"].as_str().expect("an expression").to_owned())
}

/// Returns the labels that an expression selects or groups by.
fn labels_in(expression: &str) -> impl Iterator<Item = &str> {
    let selectors = expression.split('{').skip(1);
    let selectors = selectors.flat_map(|part| part.split('}').next().expect("a part").split(", "));
    let selected = selectors.map(|matcher| matcher.split(['=', '!']).next().expect("a name"));
    let groups = expression.split("by (").skip(1);
    let grouped = groups.flat_map(|part| part.split(')').next().expect("a part").split(", "));
    selected.chain(grouped)
}

// Regression: the policies beside the blocked one were counted by nobody, as in an outage.
#[tokio::test]
async fn block_is_no_decision_without_the_store() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let [one, two] = ["one", "two"].map(|name| Policy::new(name, Quota::per_hour(10)));
    let limiter = RateLimiter::builder().build().expect("a limiter");
    let block = Block::new(Key::new("ada"), Duration::from_secs(60));
    limiter.block(block).await.expect("blocked");
    let charges = [one.charge(Key::new("ada")), two.charge(Key::new("bob"))];
    assert!(
        !limiter
            .check(&charges)
            .await
            .expect("a decision")
            .is_allowed()
    );
    let exported = recorder.handle().render();
    let counted = exported
        .lines()
        .filter(|line| line.starts_with("tollgate_decisions_total"));
    assert_eq!(counted.clone().count(), 2);
    for line in counted {
        assert!(line.contains("counted_by=\"in_process\""), "{line}");
    }
}

/// Returns the export of a process in which everything has happened that metrics count.
async fn everything() -> String {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let mut server = Server::start();
    let api = Policy::new("api", Quota::per_hour(10)).on_outage(OnOutage::Local);
    let uploads = Policy::concurrency("uploads", 10);
    let limiter = RateLimiter::builder()
        .redis(server.url())
        .deadline(DEADLINE)
        .build()
        .expect("a limiter");
    let layer = RateLimitLayer::builder()
        .limiter(&limiter)
        .policy(api.key(Header::new("x-caller")).tier_cache(plans()))
        .build()
        .expect("a layer");
    assert_eq!(status(&layer, "pro").await, StatusCode::OK);
    let charges = [uploads.charge(Key::new("ada"))];
    let decision = limiter.check(&charges).await.expect("a decision");
    let hold = limiter.hold(Receipt::of(&charges, &decision).expect("a slot"));
    let leased = Policy::new("leased", Quota::per_hour(100)).consistency(Consistency::Leased);
    let decision = limiter.check(&[leased.charge(Key::new("ada"))]).await;
    assert!(decision.is_ok_and(|decision| decision.is_allowed()));
    until(
        || limiter.health().instances().is_some(),
        async || {
            status(&layer, "pro").await;
        },
    )
    .await;
    server.kill();
    until(
        || limiter.health().is_degraded(),
        async || {
            status(&layer, "pro").await;
        },
    )
    .await;
    waits::happen().await;
    let overload = Overload::adaptive().build().expect("usable settings");
    let places = std::iter::from_fn(|| overload.enter(Priority::Normal, None).ok());
    let places: Vec<_> = places.collect();
    overload.record_gauges();
    drop(places);
    limiter.record_gauges("web");
    drop(hold);
    let regions = Regions::here("west", server.url()).region("east", server.url());
    let limiter = RateLimiter::builder().regions(regions).build();
    limiter.expect("a limiter").record_gauges("regions");
    recorder.handle().render()
}

// === What is counted ===

#[tokio::test]
async fn decision_counts_the_same_whichever_way_it_was_asked_for() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let policy = Policy::new("three", Quota::per_hour(2));
    let limiter = in_process();

    let layer = RateLimitLayer::builder().limiter(&limiter);
    let layer = layer
        .policy(policy.clone().key(Global))
        .build()
        .expect("a layer");
    assert_eq!(status(&layer, "ada").await, StatusCode::OK);

    let calls = CallLimitLayer::builder(&limiter, |(), _| Ok::<_, Infallible>("denied"));
    let calls = calls
        .policy(policy.clone().key_of(|()| Some(Key::GLOBAL)))
        .build()
        .expect("a layer");
    let service = calls.layer(service_fn(async |()| Ok::<_, Infallible>("allowed")));
    assert_eq!(service.oneshot(()).await, Ok("allowed"));

    let charges = [policy.charge(Key::GLOBAL)];
    let decision = limiter.check(&charges).await.expect("a decision");
    assert!(!decision.is_allowed());

    let exported = Exported::of(&recorder.handle().render());
    let labels = r#"policy="three",tier="none",mode="enforced""#;
    assert_eq!(
        exported.values("tollgate_decisions_total"),
        [
            (
                format!(r#"{labels},outcome="allowed",counted_by="in_process""#),
                2.0
            ),
            (
                format!(r#"{labels},outcome="limited",counted_by="in_process""#),
                1.0
            ),
        ]
    );
}

#[tokio::test]
async fn policies_of_one_decision_count_by_their_own_outcomes_and_peeks_do_not_count() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let (wide, narrow) = (
        Policy::new("wide", Quota::per_hour(9)),
        Policy::new("narrow", Quota::per_hour(1)),
    );
    let limiter = in_process();
    let charges = [wide.charge(Key::GLOBAL), narrow.charge(Key::GLOBAL)];
    for _ in 0..2 {
        limiter.check(&charges).await.expect("a decision");
        limiter.peek(&charges).await.expect("a decision");
    }
    let exported = Exported::of(&recorder.handle().render());
    assert_eq!(exported.decisions("wide", "allowed"), 2.0);
    assert_eq!(exported.decisions("narrow", "allowed"), 1.0);
    assert_eq!(exported.decisions("narrow", "limited"), 1.0);
    assert_eq!(exported.decisions("wide", "limited"), 0.0);
}

#[tokio::test]
async fn requests_of_an_overload_limit_count_under_its_name_as_its_gauges_do() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    for (name, requests) in [("api", 2), ("jobs", 1)] {
        let overload = Overload::adaptive().name(name).build();
        let overload = overload.expect("usable settings");
        let enter = || overload.enter(Priority::Critical, None);
        let places = (0..requests).map(|_| enter().expect("there is room"));
        let _places: Vec<_> = places.collect();
        overload.record_gauges();
    }
    let exported = Exported::of(&recorder.handle().render());
    let of = |name: &str| format!("overload=\"{name}\"");
    let served = exported.values("tollgate_overload_requests_total");
    let served = served.into_iter().filter(|(_, count)| *count > 0.0);
    let served: Vec<_> = served.collect();
    let labels = |name| format!("{},class=\"critical\",outcome=\"served\"", of(name));
    assert_eq!(served, [(labels("api"), 2.0), (labels("jobs"), 1.0)]);
    assert_eq!(
        exported.values("tollgate_overload_in_flight"),
        [(of("api"), 2.0), (of("jobs"), 1.0)]
    );
}

// Regression: handles that are registered while no recorder is installed record nothing forever.
#[tokio::test]
async fn recorder_that_is_installed_after_the_first_decisions_counts_the_next_ones() {
    let policy = Policy::new("early", Quota::per_hour(9));
    let limiter = in_process();
    let charges = [policy.charge(Key::GLOBAL)];
    limiter.check(&charges).await.expect("a decision");

    let late = recorder();
    {
        let _installed = set_default_local_recorder(&late);
        limiter.check(&charges).await.expect("a decision");
    }
    let later = recorder();
    {
        let _installed = set_default_local_recorder(&later);
        limiter.check(&charges).await.expect("a decision");
        limiter.check(&charges).await.expect("a decision");
    }
    limiter.check(&charges).await.expect("a decision");
    let count = |recorder: &PrometheusRecorder| {
        Exported::of(&recorder.handle().render()).decisions("early", "allowed")
    };
    assert_eq!([count(&late), count(&later)], [1.0, 2.0]);
}

#[tokio::test]
async fn tier_is_a_label_and_the_key_is_not() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let limiter = in_process();
    let layer = RateLimitLayer::builder().limiter(&limiter);
    let api = Policy::new("api", Quota::per_hour(9));
    let by_plan = api.clone().key(Header::new("x-caller")).tier_cache(plans());
    let layer = layer.policy(by_plan).build().expect("a layer");
    for caller in ["pro", "free", "pro"] {
        assert_eq!(status(&layer, caller).await, StatusCode::OK);
    }
    let pro = Tier::new("pro", Quota::per_hour(100)).expect("a tier");
    let api = api.under(&pro).expect("a policy");
    let charge = api.charge(Key::new("ada-in-clear"));
    limiter.check(&[charge]).await.expect("a decision");

    let text = recorder.handle().render();
    let exported = Exported::of(&text);
    let by_tier = |tier: &str| {
        let label = format!(r#"tier="{tier}""#);
        let values = exported.values("tollgate_decisions_total").into_iter();
        let of_tier = values.filter(|(labels, _)| labels.contains(&label));
        of_tier.map(|(_, count)| count).sum::<f64>()
    };
    assert_eq!([by_tier("pro"), by_tier("none")], [3.0, 1.0]);
    assert!(!text.contains("ada"), "{text}");
}

#[tokio::test]
async fn tier_cache_counts_hits_misses_and_failed_lookups() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let is_down = Arc::new(AtomicBool::new(true));
    let database = Arc::clone(&is_down);
    let cache = TierCache::builder(move |_: &RequestHead, _: &Key| {
        let is_down = database.load(Ordering::Relaxed);
        async move {
            if is_down {
                return Err(io::Error::other("the database is down"));
            }
            Ok(Some(Tier::unlimited()))
        }
    });
    let cache = cache.build().expect("a cache");
    let api = Policy::new("api", Quota::per_hour(9));
    let layer = RateLimitLayer::builder()
        .policy(api.key(Global).tier_cache(cache.clone()))
        .build()
        .expect("a layer");
    status(&layer, "ada").await;
    is_down.store(false, Ordering::Relaxed);
    cache.clear();
    for _ in 0..3 {
        status(&layer, "ada").await;
    }
    let exported = Exported::of(&recorder.handle().render());
    let requests = |result| exported.value("tollgate_tier_cache_requests_total", result);
    assert_eq!(
        [r#"result="hit""#, r#"result="miss""#].map(requests),
        [2.0, 2.0]
    );
    assert_eq!(
        exported.value("tollgate_failed_tier_lookups_total", ""),
        1.0
    );
}

#[tokio::test]
async fn error_of_a_store_is_a_failed_decision() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let policy = Policy::new("api", Quota::per_hour(9));
    let broken = ScriptedStore::failing(ErrorKind::Unavailable, "broken").later();
    let limiter = RateLimiter::new(broken, [policy.clone()]).expect("a limiter");
    let decided = limiter.check(&[policy.charge(Key::GLOBAL)]).await;
    assert!(decided.is_err());
    let exported = Exported::of(&recorder.handle().render());
    assert_eq!(exported.value("tollgate_failed_decisions_total", ""), 1.0);
    assert!(exported.values("tollgate_decisions_total").is_empty());
}

#[tokio::test]
async fn shed_decisions_are_counted_and_are_none_of_the_fallback() {
    for reports_calls in [true, false] {
        let recorder = recorder();
        let _installed = set_default_local_recorder(&recorder);
        let store = over_a_full_store(reports_calls);
        let policy = Policy::new("api", Quota::per_hour(9));
        for _ in 0..20 {
            let decision = store.decide(&[policy.charge(Key::GLOBAL)]).await;
            decision.expect("a decision");
        }
        let exported = Exported::of(&recorder.handle().render());
        let total = |name: &str| -> f64 {
            let values = exported.values(name);
            values.iter().map(|(_, value)| value).sum()
        };
        assert_eq!(total("tollgate_shed_decisions_total"), 20.0);
        assert_eq!(total("tollgate_fallback_decisions_total"), 0.0);
        assert_eq!(store.health().shed_decisions(), 20);
    }
}

// === Redis ===

#[tokio::test]
async fn calls_to_redis_are_counted_with_their_charges_and_times() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let server = Server::start();
    let policy = Policy::new("api", Quota::per_hour(1_000));
    let limiter = over_redis(&server, &policy);
    let decide = |_| limiter.check(&[policy.charge(Key::GLOBAL)]);
    decide(0).await.expect("a decision");
    let decisions: Vec<_> = (0..40).map(decide).collect();
    for decision in decisions {
        decision.await.expect("a decision");
    }
    limiter.record_gauges("jobs");

    let exported = Exported::of(&recorder.handle().render());
    let server = format!(r#"server="{}""#, server.address());
    let value = |name: &str| exported.value(name, &server);
    let decisions = exported.decisions("api", "allowed");
    let calls = value("tollgate_redis_call_charges_count");
    assert_eq!(decisions, 41.0);
    assert_eq!(value("tollgate_redis_call_charges_sum"), 41.0);
    assert!((2.0..=41.0).contains(&calls), "{calls} calls");
    assert_eq!(value("tollgate_redis_queue_seconds_count"), calls);
    assert_eq!(value("tollgate_redis_round_trip_seconds_count"), calls);
    let network = value("tollgate_redis_network_seconds");
    let mean = value("tollgate_redis_round_trip_seconds_sum") / calls;
    assert!(network > 0.0 && network <= mean, "{network} s of {mean} s");
    assert_eq!(value("tollgate_redis_calls_in_flight"), 0.0);
    assert_eq!(value("tollgate_breaker_open"), 0.0);
    assert_eq!(value("tollgate_fallback_decisions_total"), 0.0);
}

#[tokio::test]
async fn outage_shows_in_decisions_and_breaker_and_ends() {
    const NAME: &str = "telemetry::metrics::outage_shows_in_decisions_and_breaker_and_ends";
    // In a process of its own, whose recorder is that of all threads: the task that probes has another one.
    if std::env::var_os("TOLLGATE_ONE_RECORDER").is_none() {
        let output = Command::new(std::env::current_exe().expect("this test"))
            .args([NAME, "--exact"])
            .env("TOLLGATE_ONE_RECORDER", "")
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:#?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        return;
    }
    let recorder = recorder();
    let exporter = recorder.handle();
    metrics::set_global_recorder(recorder).expect("no other recorder");
    let mut server = Server::start();
    let policy = Policy::new("api", Quota::per_hour(1_000_000));
    let limiter = over_redis(&server, &policy);
    let label = format!(r#"server="{}""#, server.address());
    let decide = async || {
        let decided = limiter.check(&[policy.charge(Key::GLOBAL)]).await;
        decided.expect("a decision");
    };
    decide().await;
    server.kill();
    until(|| limiter.health().is_degraded(), decide).await;
    decide().await;
    limiter.record_gauges("jobs");
    let exported = Exported::of(&exporter.render());
    let health = limiter.health();
    assert_eq!(exported.value("tollgate_breaker_open", &label), 1.0);
    assert_eq!(
        exported.value("tollgate_fallback_decisions_total", &label),
        health.fallback_decisions() as f64
    );
    let by_fallback = exported.values("tollgate_decisions_total").into_iter();
    let mut by_fallback = by_fallback.filter(|(labels, _)| labels.contains("fallback"));
    let (_, count) = by_fallback.next().expect("decisions by the fallback");
    assert_eq!(count, health.fallback_decisions() as f64);

    server.restart();
    until(
        || !limiter.health().is_degraded(),
        async || {
            tokio::time::sleep(Duration::from_millis(1)).await;
        },
    )
    .await;
    limiter.record_gauges("jobs");
    let exported = Exported::of(&exporter.render());
    assert_eq!(exported.value("tollgate_breaker_open", &label), 0.0);
    let transitions = |to| exported.value("tollgate_breaker_transitions_total", to);
    assert_eq!(
        [r#"to="open""#, r#"to="closed""#].map(transitions),
        [1.0, 1.0]
    );
}

// Regression: the policies beside the one that denies were counted as in an outage.
#[tokio::test]
async fn denial_that_is_kept_is_counted_as_such_for_all_policies() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let server = Server::start();
    let [once, plenty] = [("once", 1), ("plenty", 1_000)]
        .map(|(name, count)| Policy::new(name, Quota::per_hour(count)));
    let limiter = over_redis(&server, &once);
    let charges = [&plenty, &once].map(|policy| policy.charge(Key::GLOBAL));
    for _ in 0..4 {
        limiter.check(&charges).await.expect("a decision");
    }
    let exported = Exported::of(&recorder.handle().render());
    let decisions = exported.values("tollgate_decisions_total");
    let by = |place: &str| {
        let of_place = decisions
            .iter()
            .filter(|(labels, _)| labels.contains(place));
        of_place.map(|(_, count)| *count).collect::<Vec<_>>()
    };
    assert_eq!(by("denial_cache"), [2.0, 2.0]);
    assert!(by("uncounted").is_empty());
}

// Regression: of a decision on several policies, those with leased units were counted where the others were.
#[tokio::test]
async fn each_policy_is_counted_where_its_units_were() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let server = Server::start();
    let strict = Policy::new("strict", Quota::per_hour(100_000));
    let limiter = over_redis(&server, &strict);
    let leased = leased();
    let charges = [&leased, &strict].map(|policy| policy.charge(Key::GLOBAL));
    let by_lease = || {
        let exported = Exported::of(&recorder.handle().render());
        let decisions = exported.values("tollgate_decisions_total").into_iter();
        let mut by_lease = decisions.filter(|(labels, _)| labels.contains("\"lease\""));
        by_lease.next().map(|(labels, _)| labels)
    };
    until(
        || by_lease().is_some(),
        async || {
            limiter.check(&charges).await.expect("a decision");
        },
    )
    .await;
    assert!(by_lease().is_some_and(|labels| labels.contains(r#"policy="leased""#)));
}

#[tokio::test]
async fn reports_and_requests_that_miss_leased_units_are_counted() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let server = Server::start();
    let policy = leased();
    let limiter = over_redis(&server, &policy);
    let charges = [policy.charge(Key::GLOBAL)];
    let value = |name: &str, label: &str| {
        let exported = Exported::of(&recorder.handle().render());
        let values = exported.values(name).into_iter();
        let mut values = values.filter(|(labels, _)| labels.contains(label));
        values.next().map_or(0.0, |(_, value)| value)
    };
    let flood = async || {
        join_all((0..32).map(|_| limiter.check(&charges))).await;
    };
    // Until the leases are as large as the demand, some requests come too early.
    until(|| value("tollgate_lease_misses_total", "") > 0.0, flood).await;
    until(
        || value("tollgate_lease_reports_total", "accepted") > 0.0,
        async || {
            flood().await;
            // Its reports are made on this thread, which has the recorder.
            limiter.drain().await.expect("drained");
        },
    )
    .await;
    assert_eq!(value("tollgate_lease_reports_total", "failed"), 0.0);
}

// === Gauges ===

#[tokio::test]
async fn gauges_of_two_limiters_are_distinct() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let policy = Policy::new("api", Quota::per_hour(9));
    for (name, keys) in [("first", 2), ("second", 5)] {
        let limiter = in_process();
        for key in 0..keys {
            let charge = policy.charge(Key::new(key.to_string()));
            limiter.check(&[charge]).await.expect("a decision");
        }
        limiter.record_gauges(name);
    }
    let exported = Exported::of(&recorder.handle().render());
    let keys = |limiter| exported.value("tollgate_keys", limiter);
    let expected = [2.0, 5.0];
    assert_eq!(
        [r#"limiter="first""#, r#"limiter="second""#].map(keys),
        expected
    );
    assert!(exported.value("tollgate_key_bytes", r#"limiter="first""#) > 0.0);
}

#[tokio::test]
async fn held_slots_are_those_of_holds_that_have_not_ended() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let server = Server::start();
    let policy = Policy::concurrency("uploads", 10);
    for limiter in [in_process(), over_redis(&server, &policy)] {
        let charges = [policy.charge(Key::GLOBAL).cost(3)];
        let mut holds = Vec::new();
        for _ in 0..2 {
            let decision = limiter.check(&charges).await.expect("a decision");
            holds.push(limiter.hold(Receipt::of(&charges, &decision).expect("slots")));
        }
        let mut held = Vec::new();
        loop {
            limiter.record_gauges("jobs");
            held.push(Exported::of(&recorder.handle().render()).value("tollgate_held_slots", ""));
            let Some(hold) = holds.pop() else { break };
            drop(hold);
        }
        assert_eq!(held, [6.0, 3.0, 0.0]);
    }
}

// === Helpers ===

pub(super) fn recorder() -> PrometheusRecorder {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &[0.001, 0.01])
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Suffix("_charges".to_owned()), &[1.0, 64.0])
        });
    builder.expect("usable buckets").build_recorder()
}

fn in_process() -> RateLimiter {
    RateLimiter::builder().build().expect("a limiter")
}

fn leased() -> Policy {
    let quota = Quota::per_second(10_000);
    Policy::new("leased", quota).consistency(Consistency::Leased)
}

fn over_redis(server: &Server, policy: &Policy) -> RateLimiter {
    let builder = RateLimiter::builder()
        .redis(server.url())
        .deadline(DEADLINE);
    builder.policy(policy.clone()).build().expect("a limiter")
}

/// Returns a cache of plans. The caller `pro` has one.
fn plans() -> TierCache {
    let pro = Tier::new("pro", Quota::per_hour(100)).expect("a tier");
    let lookup = move |head: &RequestHead, _: &Key| {
        let is_pro = head.headers["x-caller"] == "pro";
        let tier = is_pro.then(|| pro.clone());
        async move { Ok::<_, io::Error>(tier) }
    };
    TierCache::builder(lookup).build().expect("a cache")
}

/// Returns the status of a caller's request.
async fn status(layer: &RateLimitLayer, caller: &str) -> StatusCode {
    let service = layer.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    let request = Request::get("/").header("x-caller", caller);
    let request = request.body(Body::empty()).expect("a request");
    let response = service.oneshot(request).await;
    response.expect("a response").status()
}

/// Repeats `act` until `is_reached` returns true.
async fn until(is_reached: impl Fn() -> bool, act: impl AsyncFn()) {
    let started = Instant::now();
    while !is_reached() {
        act().await;
        assert!(started.elapsed() < Duration::from_secs(60), "never reached");
    }
}

/// The text format of Prometheus.
pub(super) struct Exported {
    /// Kinds by metric.
    kinds: BTreeMap<String, String>,
    /// Names of labels by metric, without that of the buckets.
    labels: BTreeMap<String, BTreeSet<String>>,
    /// Name, labels and value of each sample.
    samples: Vec<(String, String, f64)>,
}

impl Exported {
    pub(super) fn of(text: &str) -> Self {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let types = types.map(|line| line.split_once(' ').expect("name and kind"));
        let kinds: BTreeMap<String, String> = types
            .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
            .collect();
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples: Vec<(String, String, f64)> = lines
            .map(|line| {
                let (series, value) = line.rsplit_once(' ').expect("series and value");
                let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
                let labels = labels.trim_end_matches('}').to_owned();
                (name.to_owned(), labels, value.parse().expect("a number"))
            })
            .collect();
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (name, labels, _) in &samples {
            let is_of = |metric: &&String| {
                let suffix = name.strip_prefix(metric.as_str());
                suffix.is_some_and(|suffix| ["", "_bucket", "_sum", "_count"].contains(&suffix))
            };
            let metric = kinds.keys().find(is_of).expect("a metric with a kind");
            let names = labels.split(',').filter_map(|label| label.split_once('='));
            let names = names
                .map(|(name, _)| name.to_owned())
                .filter(|name| name != "le");
            all.entry(metric.clone()).or_default().extend(names);
        }
        Self {
            kinds,
            labels: all,
            samples,
        }
    }

    /// Returns labels and values of a metric, in order.
    pub(super) fn values(&self, name: &str) -> Vec<(String, f64)> {
        let samples = self.samples.iter().filter(|(other, ..)| other == name);
        let mut values: Vec<_> = samples
            .map(|(_, labels, value)| (labels.clone(), *value))
            .collect();
        values.sort_by(|one, other| one.0.cmp(&other.0));
        values
    }

    /// Returns the value of the only sample with this label.
    #[track_caller]
    pub(super) fn value(&self, name: &str, label: &str) -> f64 {
        let values = self.values(name).into_iter();
        let values: Vec<_> = values
            .filter(|(labels, _)| labels.contains(label))
            .collect();
        let [(_, value)] = values.as_slice() else {
            panic!("{name} with {label}: {values:?}")
        };
        *value
    }

    /// Returns the decisions of a policy with this outcome.
    fn decisions(&self, policy: &str, outcome: &str) -> f64 {
        let (policy, outcome) = (
            format!("policy=\"{policy}\""),
            format!("outcome=\"{outcome}\""),
        );
        let values = self.values("tollgate_decisions_total").into_iter();
        let ours =
            values.filter(|(labels, _)| labels.contains(&policy) && labels.contains(&outcome));
        ours.map(|(_, value)| value).sum()
    }
}

/// Returns the metrics in the docs: kind, unit and labels by name.
fn table() -> BTreeMap<String, (String, String, BTreeSet<String>)> {
    let docs = std::fs::read_to_string(root().join("src/telemetry/mod.rs")).expect("the docs");
    let rows = docs
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `tollgate_"));
    let rows = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [name, kind, unit, labels, ..] = cells.as_slice() else {
            panic!("a row has five cells: {row}")
        };
        let name = format!("tollgate_{}", name.trim_end_matches('`'));
        let labels = labels.split(", ").filter(|label| !label.is_empty());
        let labels = labels
            .map(|label| label.trim_matches('`').to_owned())
            .collect();
        (name, ((*kind).to_owned(), (*unit).to_owned(), labels))
    });
    rows.collect()
}

/// Runs promtool from the project's root. Returns whether it succeeded, and its output.
fn promtool(arguments: &[&str], input: &str) -> (bool, String) {
    let child = Command::new("promtool")
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| {
        panic!("promtool: {error}; run `bash tests/run.sh telemetry`, which installs it")
    });
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_millis(250);
