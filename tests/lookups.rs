//! Keys that are awaited: what is asked when, how long it may take, and that nothing is charged meanwhile.

use std::{
    collections::HashMap,
    convert::Infallible,
    future, io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{Extension, Router, body::Body, routing::get};
use http::{Request, Response, StatusCode, request::Parts};
use tokio::{
    sync::{Notify, RwLock, oneshot},
    time,
};
use tollgate::{
    Decision, ErrorKind, Key, Policy, Quota, RateLimitLayer,
    algorithm::{Algorithm, Queue},
    builder::RateLimitLayerBuilder,
    extract::{AsyncKeyExtractor, Extracted, Global, Header, KeyLookup},
    matching::Path,
    middleware::{MissingKey, RateLimitInfo, Reason, Rejection, Rule},
};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_test::mock;

use crate::{
    support::logged,
    witness::{World, everywhere},
};

everywhere! {
    key_is_looked_up_in_state_and_counted
    rules_that_wait_and_rules_that_do_not_are_decided_all_or_nothing
    request_dropped_while_its_key_is_looked_up_is_charged_nothing
    queue_and_slots_work_behind_a_look_up
}

// === What is found ===

async fn key_is_looked_up_in_state_and_counted(world: World) {
    let sessions = HashMap::from([
        ("s-1".to_owned(), 7),
        ("s-2".to_owned(), 7),
        ("s-3".to_owned(), 8),
    ]);
    let sessions = Arc::new(RwLock::new(sessions));
    let rule = plan().key_async(Session {
        sessions: Arc::clone(&sessions),
    });
    let app = Router::new()
        .route(
            "/",
            get(|Extension(decision): Extension<Decision>| async move {
                decision.states()[0]
                    .usage()
                    .expect("it is counted")
                    .remaining
                    .to_string()
            }),
        )
        .layer(world.layer([rule]));
    for (session, status, left) in [
        ("s-1", 200, Some("9")),
        ("s-2", 200, Some("8")),
        ("s-3", 200, Some("9")),
        ("s-1", 200, Some("7")),
        ("unknown", 401, None),
    ] {
        let request = Request::get("/").header("x-session", session);
        let request = request.body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("it answers");
        assert_eq!(response.status(), status, "{session}");
        let remaining = response.headers().get("x-ratelimit-remaining");
        assert_eq!(
            remaining.map(|value| value.to_str().expect("text")),
            left,
            "{session}"
        );
    }
    assert_eq!(world.usage(&plan(), Key::from(7)).await.remaining, 7);
}

/// The user of a session.
struct Session {
    sessions: Arc<RwLock<HashMap<String, u64>>>,
}

impl AsyncKeyExtractor for Session {
    fn extract(&self, parts: &Parts) -> KeyLookup {
        let sessions = Arc::clone(&self.sessions);
        let session = parts.headers.get("x-session").cloned();
        Box::pin(async move {
            let Some(session) = session else {
                return Ok(Extracted::Absent);
            };
            let user = sessions.read().await.get(session.to_str()?).copied();
            Ok(user.map(Key::from).into())
        })
    }

    fn label(&self) -> &'static str {
        "session"
    }

    fn missing_status(&self) -> StatusCode {
        StatusCode::UNAUTHORIZED
    }
}

async fn rules_that_wait_and_rules_that_do_not_are_decided_all_or_nothing(world: World) {
    let user = Policy::new("user", Quota::per_hour(1));
    let app = world
        .layer([plan().key(Global), user.clone().key_async(at_once("ada"))])
        .layer(service_fn(fine));
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(ask(&app).await.status().as_u16());
    }
    assert_eq!(statuses, [200, 429, 429]);
    assert_eq!(world.remaining(&plan()).await, 9);
    assert_eq!(world.usage(&user, Key::new("ada")).await.remaining, 0);
}

#[tokio::test]
async fn all_keys_are_looked_up_at_the_same_time() {
    let meeting = Arc::new(tokio::sync::Barrier::new(3));
    let meet = |name: &'static str| {
        let meeting = Arc::clone(&meeting);
        Policy::new(name, Quota::per_hour(10)).key_async(move |_: &Parts| {
            let meeting = Arc::clone(&meeting);
            async move {
                meeting.wait().await;
                Ok::<_, Infallible>(Some(Key::new(name)))
            }
        })
    };
    let builder = RateLimitLayer::builder()
        .policy(meet("one"))
        .policy(meet("two"))
        .policy(meet("three"))
        .lookup_timeout(PATIENCE);
    let app = built(builder).layer(service_fn(fine));
    let response = ask(&app).await;
    assert_eq!(response.status(), 200);
    let decision = response.extensions().get::<Decision>();
    assert_eq!(decision.expect("a decision").states().len(), 3);
}

#[tokio::test]
async fn nothing_is_looked_up_for_a_request_that_the_rule_does_not_count() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let rule = plan()
        .key_async(move |_: &Parts| {
            counter.fetch_add(1, Ordering::Relaxed);
            future::ready(Ok::<_, Infallible>(Some(Key::GLOBAL)))
        })
        .unless(Path::new("/"));
    let builder = RateLimitLayer::builder().policy(rule);
    let app = built(builder.skip(Path::new("/skipped"))).layer(service_fn(fine));
    for uri in ["/", "/skipped"] {
        assert!(at(&app, uri).await.extensions().get::<Decision>().is_none());
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    at(&app, "/x").await;
    assert_eq!(asked.load(Ordering::Relaxed), 1, "once");
}

#[tokio::test]
async fn request_that_a_rule_refuses_anyway_is_not_looked_up_to_the_end() {
    let rules = [
        plan().key_async(never),
        Policy::new("tenant", Quota::per_hour(1)).key(Header::new("x-tenant")),
    ];
    let app = layer(rules).layer(service_fn(fine));
    let refused = ask(&app);
    let response = now(refused).expect("it does not wait");
    assert_eq!(response.status(), 400);
}

// === What is not found ===

#[tokio::test(start_paused = true)]
async fn key_that_is_late_or_failed_is_what_the_rule_says_of_missing_ones() {
    for (choice, expected) in [
        (MissingKey::Reject, [503, 503, 400]),
        (MissingKey::Share, [200, 200, 200]),
        (MissingKey::Skip, [200, 200, 200]),
    ] {
        let rules = [
            plan().key_async(never).on_missing_key(choice),
            plan().key_async(fails).on_missing_key(choice),
            plan().key_async(nobody).on_missing_key(choice),
        ];
        for (rule, status) in rules.into_iter().zip(expected) {
            let layer = layer([rule]);
            let app = layer.layer(service_fn(fine));
            let response = ask(&app).await;
            assert_eq!(response.status(), status, "{choice:?}");
            let decision = response.extensions().get::<Decision>();
            assert_eq!(decision.is_some(), choice == MissingKey::Share);
            if choice == MissingKey::Reject {
                let rejection = response.extensions().get::<Rejection>().expect("why");
                let is_missing = matches!(rejection.reason(), Reason::MissingKey { .. });
                assert_eq!(is_missing, status == 400);
            }
            let policy = plan();
            let shared = policy.charge(Key::UNIDENTIFIED);
            let peek = layer.limiter().peek(&[shared]).await.expect("it answers");
            let left = peek.states()[0].usage().expect("it is counted").remaining;
            assert_eq!(left, if choice == MissingKey::Share { 9 } else { 10 });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_waits_as_long_as_the_layer_says_and_no_longer() {
    for (timeout, expected) in [(None, 100), (Some(Duration::from_millis(30)), 30)] {
        let rules = ["one", "two"].map(|name| {
            let rule = Policy::new(name, Quota::per_hour(1)).key_async(never);
            rule.on_missing_key(MissingKey::Skip)
        });
        let mut builder = rules
            .into_iter()
            .fold(RateLimitLayer::builder(), RateLimitLayerBuilder::policy);
        if let Some(timeout) = timeout {
            builder = builder.lookup_timeout(timeout);
        }
        let app = built(builder).layer(service_fn(fine));
        let begun = time::Instant::now();
        assert_eq!(ask(&app).await.status(), 200);
        assert_eq!(begun.elapsed().as_millis(), expected);
    }
    let error = RateLimitLayer::builder()
        .policy(plan().key(Global))
        .lookup_timeout(Duration::ZERO)
        .build();
    assert_eq!(error.expect_err("no time").kind(), ErrorKind::InvalidConfig);
}

#[tokio::test(start_paused = true)]
async fn first_key_that_is_late_or_failed_is_logged_and_only_that() {
    logged();
    for (rule, said) in [
        (
            plan().key_async(never),
            "policy plan: a key was not looked up in time",
        ),
        (
            plan().key_async(fails),
            "policy plan: a key could not be looked up: the session store is away",
        ),
        (
            plan().key_async(nobody),
            "policy plan: closure is missing from a request",
        ),
    ] {
        let app = layer([rule.on_missing_key(MissingKey::Share)]).layer(service_fn(fine));
        for _ in 0..3 {
            ask(&app).await;
        }
        let lines = logged();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains(said), "{lines:?}");
    }
}

// === Dropped ===

async fn request_dropped_while_its_key_is_looked_up_is_charged_nothing(world: World) {
    let rules = [
        plan().key(Global),
        Policy::new("user", Quota::per_hour(9)).key_async(never),
    ];
    let inner = ConcurrencyLimit::new(service_fn(fine), 1);
    let mut app = world.layer(rules).layer(inner);
    for _ in 0..3 {
        // a permit that is not given back would never be there again
        let ready = time::timeout(PATIENCE, future::poll_fn(|context| app.poll_ready(context)));
        ready
            .await
            .expect("the permit is there")
            .expect("it is ready");
        let mut waiting = Box::pin(app.call(request("/")));
        assert!(poll(waiting.as_mut()).is_pending());
        assert!(format!("{waiting:?}").contains("finding"));
        drop(waiting);
    }
    assert_eq!(world.remaining(&plan()).await, 10);
}

#[tokio::test]
async fn service_that_was_polled_ready_is_called_when_the_key_is_there() {
    let (tell, told) = oneshot::channel();
    let told = Mutex::new(Some(told));
    let rule = plan().key_async(move |_: &Parts| {
        let told = told.lock().expect("nobody panics").take();
        async move { Ok::<_, oneshot::error::RecvError>(Some(told.expect("asked once").await?)) }
    });
    let (inner, mut handle) = mock::pair::<Request<()>, Response<Body>>();
    let mut app = layer([rule]).layer(inner);
    handle.allow(1);
    assert!(
        future::poll_fn(|context| app.poll_ready(context))
            .await
            .is_ok()
    );
    let mut answer = pin!(app.call(request("/")));
    assert!(poll(answer.as_mut()).is_pending());
    assert!(
        poll(pin!(handle.next_request())).is_pending(),
        "not before the key is there"
    );
    tell.send(Key::new("ada")).expect("it waits");
    assert!(poll(answer.as_mut()).is_pending());
    let (_, respond) = handle.next_request().await.expect("it is called");
    respond.send_response(Response::new(Body::empty()));
    assert_eq!(answer.await.expect("it answers").status(), 200);
}

// === Ways of counting that wait or hold ===

async fn queue_and_slots_work_behind_a_look_up(mut world: World) {
    let queue = Algorithm::LeakyQueue(Queue::new(3));
    let queue = Policy::new("queue", Quota::per_second(50)).algorithm(queue);
    let slots = Policy::concurrency("slots", 1);
    let gate = Arc::new(Notify::new());
    let open = Arc::clone(&gate);
    let rules: [Rule; 2] = [
        queue.key_async(at_once("ada")),
        slots.clone().key_async(at_once("ada")),
    ];
    let app = world
        .layer(rules)
        .layer(service_fn(move |request: Request<()>| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                fine(request).await
            }
        }));
    let first = tokio::spawn(app.clone().oneshot(request("/")));
    while world.usage(&slots, Key::new("ada")).await.remaining > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&app).await.status(), 429, "one is in flight");
    open.notify_one();
    let response = first.await.expect("it ends").expect("it answers");
    assert_eq!(response.status(), 200);
    drop(response);
    world.settled().await;
    assert_eq!(world.usage(&slots, Key::new("ada")).await.remaining, 1);
}

// === What they stand on ===

fn plan() -> Policy {
    Policy::new("plan", Quota::per_hour(10))
}

fn built(builder: RateLimitLayerBuilder) -> RateLimitLayer {
    builder.build().expect("it is well set up")
}

fn layer(rules: impl IntoIterator<Item = Rule>) -> RateLimitLayer {
    let builder = RateLimitLayer::builder();
    built(
        rules
            .into_iter()
            .fold(builder, RateLimitLayerBuilder::policy),
    )
}

fn at_once(key: &'static str) -> impl AsyncKeyExtractor {
    move |_: &Parts| future::ready(Ok::<_, Infallible>(Some(Key::new(key))))
}

fn never(_: &Parts) -> future::Pending<Result<Option<Key>, Infallible>> {
    future::pending()
}

fn fails(_: &Parts) -> future::Ready<Result<Option<Key>, io::Error>> {
    future::ready(Err(io::Error::other("the session store is away")))
}

fn nobody(_: &Parts) -> future::Ready<Result<Option<Key>, io::Error>> {
    future::ready(Ok(None))
}

/// Answers with the request's decision in the extensions, if there is one.
async fn fine(request: Request<()>) -> Result<Response<Body>, Infallible> {
    let mut response = Response::new(Body::empty());
    if let Some(decision) = request.extensions().get::<Decision>() {
        response.extensions_mut().insert(decision.clone());
    }
    Ok(response)
}

fn request(uri: &str) -> Request<()> {
    Request::builder().uri(uri).body(()).expect("a request")
}

async fn ask<S, B>(app: &S) -> Response<B>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
{
    at(app, "/").await
}

async fn at<S, B>(app: &S, uri: &str) -> Response<B>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
{
    let answer = time::timeout(PATIENCE, app.clone().oneshot(request(uri))).await;
    answer.expect("in time").expect("it answers")
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn now<F: Future>(future: F) -> Option<F::Output> {
    match poll(pin!(future)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

const PATIENCE: Duration = Duration::from_secs(10);

// Regression: a request that the rules of such a layer passed over looked to its handler as if there were no layer.
#[tokio::test]
async fn handler_of_a_request_that_is_passed_over_knows_of_the_layer() {
    for is_looked_up_first in [false, true] {
        let absent = |_: &Parts| future::ready(Ok::<_, Infallible>(None));
        let rule = plan().key_async(absent).on_missing_key(MissingKey::Skip);
        let rule = match is_looked_up_first {
            true => rule,
            false => rule.when(Path::new("/login")),
        };
        let layer = RateLimitLayer::builder().policy(rule).build();
        let info = get(async |info: RateLimitInfo| format!("{:?}", info.decisions().len()));
        let app = Router::new()
            .route("/", info)
            .layer(layer.expect("it is well set up"));
        let request = Request::new(Body::empty());
        let response = app.oneshot(request).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK, "{is_looked_up_first}");
    }
}
