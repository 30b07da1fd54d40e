//! Functions that are called with each decision.

use std::sync::{Arc, Mutex};

use axum::{Router, body::Body, http::Request, routing::get};
use tollgate::{
    Error, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter, extract::Global,
    testing::ScriptedStore,
};
use tower::ServiceExt;

/// The calls of the hooks of one limiter.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn add(&self, line: String) {
        self.0.lock().expect("no panic").push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

/// Returns a limiter over this store, whose hook notes key, cost and outcome.
fn limiter(store: Option<ScriptedStore>) -> (RateLimiter, Seen) {
    let seen = Seen::default();
    let noting = seen.clone();
    let builder = RateLimiter::builder().on_decision(move |charges, result| {
        let outcome = result.as_ref().map(tollgate::Decision::outcome);
        let outcome = outcome.map_or_else(ToString::to_string, |it| format!("{it:?}"));
        for charge in charges {
            noting.add(format!(
                "{} {} {outcome}",
                charge.key().as_str(),
                charge.units()
            ));
        }
    });
    let builder = match store {
        Some(store) => builder.store(store),
        None => builder,
    };
    (builder.build().expect("a usable limiter"), seen)
}

#[tokio::test]
async fn hook_sees_allowed_and_denied_decisions_and_peeks() {
    let (limiter, seen) = limiter(None);
    let policy = Policy::new("api", Quota::per_hour(3));
    for cost in [2, 0, 2] {
        let charge = policy.charge(Key::new("ada")).cost(cost);
        limiter.check(&[charge]).await.expect("a decision");
    }
    assert_eq!(
        seen.take(),
        ["ada 2 Allowed", "ada 0 Allowed", "ada 2 Limited"]
    );
}

#[tokio::test]
async fn hook_sees_the_error_of_a_store() {
    let (limiter, seen) = limiter(Some(
        ScriptedStore::failing(ErrorKind::Unavailable, "down").later(),
    ));
    let policy = Policy::new("api", Quota::per_hour(3));
    let decided = limiter.check(&[policy.charge(Key::new("ada"))]).await;
    decided.expect_err("the store is down");
    assert_eq!(seen.take(), ["ada 1 down"]);
}

#[tokio::test]
async fn hook_sees_a_decision_when_it_is_made_and_never_one_whose_caller_left() {
    let store = ScriptedStore::pending();
    let (limiter, seen) = limiter(Some(store.clone()));
    let policy = Policy::new("api", Quota::per_hour(3));
    let [eve, ada] = ["eve", "ada"].map(|key| limiter.check(&[policy.charge(Key::new(key))]));
    drop(eve);
    drop(store.next_pending().await);
    let asked = store.next_pending().await;
    assert!(seen.take().is_empty());
    asked.complete(|_| {
        Err(Error::new(
            ErrorKind::Timeout(tollgate::error::Phase::Reply),
            "late",
        ))
    });
    ada.await.expect_err("it is late");
    assert_eq!(seen.take(), ["ada 1 late"]);
}

#[tokio::test]
async fn hooks_of_a_layer_are_called_in_the_order_in_which_they_were_added() {
    let seen = Seen::default();
    let hook = |name: &'static str| {
        let seen = seen.clone();
        move |_: &[tollgate::Charge<'_>], _: &Result<tollgate::Decision, Error>| {
            seen.add(name.to_owned());
        }
    };
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("api", Quota::per_hour(3)).key(Global))
        .on_decision(hook("first"))
        .on_decision(hook("second"))
        .build()
        .expect("a usable layer");
    let app = Router::new().route("/", get(|| async {})).layer(layer);
    let response = app.oneshot(Request::get("/").body(Body::empty()).expect("a request"));
    assert!(response.await.expect("infallible").status().is_success());
    assert_eq!(seen.take(), ["first", "second"]);
}

#[test]
fn hook_of_a_layer_with_a_limiter_of_its_own_is_refused() {
    let (limiter, _) = limiter(None);
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("api", Quota::per_hour(3)).key(Global))
        .limiter(&limiter)
        .on_decision(|_, _| {});
    let error = layer.build().expect_err("it would never be called");
    assert!(error.to_string().contains("on_decision"), "{error}");
}
