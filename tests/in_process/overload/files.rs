//! Settings in rule files, and their replacement while requests run.

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use tollgate::{
    config::{Format, RuleSet},
    extract::Global,
    overload::{Overload, Priority},
    rules::RuleMode,
};
use tower::ServiceExt;

use super::{
    layer::weight_of,
    places::{built, fill, stopped},
};

const FILE: &str = "
overload:
  classes: [critical, paid, normal, sheddable]
  key: { header: x-tenant }
  priority_header: { name: x-priority, from: { path: /inside/* } }
  priority:
    - { when: { path: /pay }, class: critical }
    - { when: { path: /paid/* }, class: paid }
    - { when: { method: DELETE }, class: sheddable }
  skip: { path: /health }
  max_retry_after: 1s
";

fn parsed(yaml: &str) -> RuleSet {
    RuleSet::parse(Format::Yaml, yaml).expect("rules without a fault")
}

fn shows_class(overload: &Overload) -> Router {
    let show = |priority: Priority| async move { priority.to_string() };
    Router::new().fallback(get(show)).layer(overload.clone())
}

async fn ask(app: &Router, path: &str) -> (StatusCode, String) {
    let request = Request::get(path).header("x-priority", "paid");
    let request = request.body(Body::empty()).expect("a request");
    let response = app.clone().oneshot(request).await.expect("a response");
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1_000).await;
    let body = body.expect("a body").to_vec();
    (status, String::from_utf8(body).expect("text"))
}

async fn class(app: &Router, path: &str) -> String {
    let (status, class) = ask(app, path).await;
    assert_eq!(status, StatusCode::OK, "{path}");
    class
}

#[tokio::test]
async fn file_has_classes_and_who_is_skipped() {
    let overload = built(stopped().0.rules(parsed(FILE)));
    let classes: Vec<_> = overload
        .shed()
        .iter()
        .map(|(class, _)| class.name())
        .collect();
    assert_eq!(classes, ["critical", "paid", "normal", "sheddable"]);
    let app = shows_class(&overload);
    for (path, expected) in [
        ("/pay", "critical"),
        ("/paid/7", "paid"),
        ("/inside/7", "paid"),
        ("/", "normal"),
    ] {
        assert_eq!(class(&app, path).await, expected, "{path}");
    }
    let _places = fill(&overload, Priority::Critical);
    assert_eq!(ask(&app, "/pay").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(class(&app, "/health").await, "normal");
}

#[test]
fn file_has_weights_of_keys() {
    let set = parsed(
        "
overload:
  classes: [normal]
  weights:
    - { when: { path: /partner/* }, weight: 3 }
    - { when: { path: /guest/* }, weight: 2 }
",
    );
    // The key is from code.
    let overload = built(stopped().0.key(Global).rules(set));
    assert_eq!(weight_of(&overload, "/partner/7"), 3);
    assert_eq!(weight_of(&overload, "/"), 1);
}

#[tokio::test]
async fn file_without_settings_leaves_those_of_the_code() {
    let set = parsed("{ overload: {}, rules: [{ id: api, key: global, limit: 5/s }] }");
    let overload = stopped().0.priority_when("/pay", Priority::Critical);
    let overload = built(overload.mode(RuleMode::Shadow).rules(set));
    assert_eq!(overload.mode(), RuleMode::Shadow);
    assert_eq!(class(&shows_class(&overload), "/pay").await, "critical");
}

#[cfg(feature = "reload")]
mod reloading {
    use tollgate::config::reload::{NewRules, ReloadError, RuleSource};

    use super::*;

    fn new(overload: &str) -> NewRules {
        NewRules::new(Format::Yaml, format!("overload: {overload}"))
    }

    #[tokio::test]
    async fn next_request_has_the_settings_that_were_pushed_and_places_stay() {
        let source = RuleSource::in_process(parsed(FILE));
        let (overload, rules) = stopped().0.build_reloading(source).expect("they fit");
        let app = shows_class(&overload);
        assert_eq!(class(&app, "/pay").await, "critical");
        let places = fill(&overload, Priority::Critical);
        let (in_flight, limit) = (overload.in_flight(), overload.limit());
        assert_eq!(
            ask(&app, "/paid/7").await.0,
            StatusCode::SERVICE_UNAVAILABLE
        );
        let shed = |class| {
            let found = overload
                .shed()
                .into_iter()
                .find(|(known, _)| *known == class);
            found.map(|(_, count)| count)
        };
        let paid = Priority::Named("paid");
        assert_eq!(shed(paid), Some(1));

        let pushed = rules.push(new("{ classes: [paid, normal], skip: { path: /pay } }"));
        pushed.await.expect("it fits");
        assert_eq!((overload.in_flight(), overload.limit()), (in_flight, limit));
        assert_eq!((shed(paid), shed(Priority::Critical)), (Some(1), None));
        assert_eq!(class(&app, "/pay").await, "normal", "it is skipped now");
        assert_eq!(
            ask(&app, "/paid/7").await.0,
            StatusCode::SERVICE_UNAVAILABLE
        );
        drop(places);
        assert_eq!(overload.in_flight(), 0);
        assert_eq!(class(&app, "/paid/7").await, "normal");
    }

    #[tokio::test]
    async fn settings_with_a_fault_change_nothing() {
        let source = RuleSource::in_process(parsed(FILE));
        let (overload, rules) = stopped().0.build_reloading(source).expect("they fit");
        for fault in ["{ classes: [critical] }", "{ mode: of }", "[]"] {
            let error = rules.push(new(fault)).await.expect_err("a fault");
            assert!(matches!(error, ReloadError::Rules(_)), "{error}");
        }
        assert_eq!(class(&shows_class(&overload), "/pay").await, "critical");
        assert_eq!(rules.version().number(), 1);
    }

    // The file is often pushed for another reason, and must not switch on what an operator has switched off.
    #[tokio::test]
    async fn mode_that_was_set_stays_unless_the_file_has_another_one() {
        let source = RuleSource::in_process(parsed(FILE));
        let (overload, rules) = stopped().0.build_reloading(source).expect("they fit");
        overload.set_mode(RuleMode::Off);
        rules.push(new("{}")).await.expect("it fits");
        assert_eq!(overload.mode(), RuleMode::Off);
        rules.push(new("{ mode: shadow }")).await.expect("it fits");
        assert_eq!(overload.mode(), RuleMode::Shadow);
        rules.push(new("{ mode: enforce }")).await.expect("it fits");
        assert_eq!(overload.mode(), RuleMode::Enforce);
    }

    #[tokio::test]
    async fn file_that_changes_is_taken() {
        let folder = crate::support::Folder::new();
        let path = folder.write("rules.yaml", FILE);
        let built = stopped().0.build_reloading(RuleSource::file(path));
        let (overload, rules) = built.expect("they fit");
        let app = shows_class(&overload);
        assert_eq!(class(&app, "/pay").await, "critical");
        folder.write("rules.yaml", "overload: { mode: off }");
        rules.reload().await.expect("it can be read");
        assert_eq!(overload.mode(), RuleMode::Off);
        assert_eq!(class(&app, "/pay").await, "normal");
    }
}
