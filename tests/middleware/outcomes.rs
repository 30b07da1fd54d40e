//! Limits that count how requests end: guesses at a login, their delays, and how an attacker could get around them.

use std::{convert::Infallible, future, time::Duration};

use futures_util::future::join_all;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use tokio::{
    sync::{mpsc, watch},
    time,
};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer,
    extract::{Global, Header, KeyExtractor},
    middleware::{ActualCost, ResponseBody},
    policy::Backoff,
    rejection::Rejection,
    rules::{RequestOutcome, Rule},
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{
    fleet::shares::{until_acquainted, until_degraded, until_merged},
    middleware::witness::{PATIENCE, World, everywhere},
    support::{Mode, Proxy, Server},
};

everywhere! {
    parallel_guesses_are_no_more_than_the_limit
    success_gives_its_unit_back
    failures_are_responses_from_400_to_499
    client_that_hangs_up_has_failed
    panic_counts_as_a_failure
    closure_chooses_the_responses_that_count
    cost_that_the_handler_sets_takes_precedence
    success_clears_what_has_failed
    reading_the_login_page_clears_nothing
    condition_chooses_the_responses_that_clear
    delay_grows_with_each_failure_and_ends_with_a_success
    denial_during_a_delay_does_not_prolong_it
    response_that_nobody_reads_postpones_no_delay
    parallel_failures_lead_to_the_delay_of_as_many_in_turn
    owner_logs_in_while_another_address_guesses_at_the_name
    success_with_an_own_account_does_not_clear_the_address
    failure_under_a_policy_that_only_shadows_denies_nothing
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

async fn parallel_guesses_are_no_more_than_the_limit(world: World) {
    let layer = world.layer([login().key(user()).count_failures()]);
    let (held, mut running) = holding();
    let service = layer.layer(held);
    let guesses = (0..50).map(|_| service.clone().oneshot(guess("ada", "home")));
    let guesses = tokio::spawn(join_all(guesses));
    for _ in 0..5 {
        running.started().await;
    }
    running.finish();
    let answers = guesses.await.expect("no panic").into_iter();
    let statuses = answers.map(|answer| answer.expect("it answers").status());
    let denied = statuses.filter(|status| *status == StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.count(), 45);
    assert!(running.started.try_recv().is_err(), "a sixth guess ran");
}

async fn success_gives_its_unit_back(mut world: World) {
    let layer = world.layer([login().key(user()).count_failures()]);
    for _ in 0..20 {
        assert_eq!(ask(&layer, 200, guess("ada", "home")).await.status(), 200);
        world.settled().await;
    }
}

async fn failures_are_responses_from_400_to_499(mut world: World) {
    let policy = login();
    let layer = world.layer([policy.clone().key(user()).count_failures()]);
    let mut left = 5;
    for (status, counts) in [
        (200, false),
        (302, false),
        (400, true),
        (401, true),
        (403, true),
        (422, true),
        (500, false),
        (503, false),
    ] {
        ask(&layer, status, guess("ada", "home")).await;
        world.settled().await;
        left -= u64::from(counts);
        let usage = world.usage(&policy, Key::new("ada")).await;
        assert_eq!(usage.remaining, left, "{status}");
    }
}

async fn client_that_hangs_up_has_failed(mut world: World) {
    let policy = login();
    let layer = world.layer([policy.clone().key(user()).count_failures()]);
    let (held, mut running) = holding();
    let service = layer.layer(held);
    for _ in 0..5 {
        let call = tokio::spawn(service.clone().oneshot(guess("ada", "home")));
        running.started().await;
        call.abort();
        world.settled().await;
    }
    assert_eq!(world.usage(&policy, Key::new("ada")).await.remaining, 0);
    assert_eq!(ask(&layer, 200, guess("ada", "home")).await.status(), 429);
}

async fn panic_counts_as_a_failure(mut world: World) {
    let policy = login();
    let layer = world.layer([policy.clone().key(user()).count_failures()]);
    let service = layer.layer(service_fn(
        async |_: Request<()>| -> Result<Response<&'static str>, Infallible> {
            std::panic::resume_unwind(Box::new(()))
        },
    ));
    let call = tokio::spawn(service.oneshot(guess("ada", "home")));
    assert!(call.await.expect_err("it panics").is_panic());
    world.settled().await;
    assert_eq!(world.usage(&policy, Key::new("ada")).await.remaining, 4);
}

async fn closure_chooses_the_responses_that_count(mut world: World) {
    let policy = login();
    let rule = policy.clone().key(user()).count_when(|request| {
        matches!(request.outcome, RequestOutcome::Responded { headers, .. } if headers.contains_key("x-failed"))
    });
    let layer = world.layer([rule]);
    ask(&layer, 401, guess("ada", "home")).await;
    world.settled().await;
    assert_eq!(world.usage(&policy, Key::new("ada")).await.remaining, 5);
    let service = layer.layer(service_fn(async |_: Request<()>| {
        let mut marked = response(200);
        let mark = HeaderValue::from_static("1");
        marked.headers_mut().insert("x-failed", mark);
        Ok::<_, Infallible>(marked)
    }));
    drop(
        service
            .oneshot(guess("ada", "home"))
            .await
            .expect("it answers"),
    );
    world.settled().await;
    assert_eq!(world.usage(&policy, Key::new("ada")).await.remaining, 4);
}

async fn cost_that_the_handler_sets_takes_precedence(mut world: World) {
    let policy = login().backoff(Backoff::doubling(SECOND, MINUTE));
    let rule = policy.clone().key(user()).count_failures();
    let layer = world.layer([rule]);
    for (status, cost, left) in [(200, 1, 4), (401, 0, 4)] {
        world.clock.advance(SECOND);
        let service = layer.layer(service_fn(move |request: Request<()>| {
            let actual = ActualCost::from_extensions(request.extensions());
            actual.expect("the rule settles").set("login", cost);
            future::ready(Ok::<_, Infallible>(response(status)))
        }));
        drop(
            service
                .oneshot(guess("ada", "home"))
                .await
                .expect("it answers"),
        );
        world.settled().await;
        if cost > 0 {
            assert_eq!(world.changed().await, "login failed");
        }
        let usage = world.usage(&policy, Key::new("ada")).await;
        assert_eq!(usage.remaining, left, "{status}");
    }
}

async fn success_clears_what_has_failed(mut world: World) {
    let policy = login();
    let layer = world.layer([policy
        .clone()
        .key(user())
        .count_failures()
        .clear_on_success()]);
    for _ in 0..4 {
        ask(&layer, 401, guess("ada", "home")).await;
        world.settled().await;
    }
    assert_eq!(world.usage(&policy, Key::new("ada")).await.remaining, 1);
    ask(&layer, 200, guess("ada", "home")).await;
    world.settled().await;
    assert_eq!(world.changed().await, "login reset");
    assert_eq!(world.usage(&policy, Key::new("ada")).await.remaining, 5);
    // A failure clears nothing, and a failure of the service neither.
    ask(&layer, 401, guess("ada", "home")).await;
    world.settled().await;
    ask(&layer, 500, guess("ada", "home")).await;
    world.settled().await;
    assert_eq!(world.usage(&policy, Key::new("ada")).await.remaining, 4);
}

async fn reading_the_login_page_clears_nothing(mut world: World) {
    let policy = login();
    let layer = world.layer([policy
        .clone()
        .key(user())
        .count_failures()
        .clear_on_success()]);
    ask(&layer, 401, guess("ada", "home")).await;
    world.settled().await;
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE] {
        let mut page = guess("ada", "home");
        *page.method_mut() = method;
        ask(&layer, 200, page).await;
        world.settled().await;
    }
    assert_eq!(world.usage(&policy, Key::new("ada")).await.remaining, 4);
}

async fn condition_chooses_the_responses_that_clear(mut world: World) {
    let policy = login();
    let rule = policy.clone().key(user()).count_failures();
    let layer = world.layer([rule.clear_when(|request| {
        matches!(request.outcome, RequestOutcome::Responded { status, .. } if status == StatusCode::CREATED)
    })]);
    ask(&layer, 401, guess("ada", "home")).await;
    world.settled().await;
    ask(&layer, 200, guess("ada", "home")).await;
    world.settled().await;
    assert_eq!(world.usage(&policy, Key::new("ada")).await.remaining, 4);
    ask(&layer, 201, guess("ada", "home")).await;
    assert_eq!(world.changed().await, "login reset");
    assert_eq!(world.usage(&policy, Key::new("ada")).await.remaining, 5);
}

async fn delay_grows_with_each_failure_and_ends_with_a_success(mut world: World) {
    let layer = world.layer([delayed()]);
    for seconds in [1, 2, 4, 8, 8] {
        assert_eq!(ask(&layer, 401, guess("ada", "home")).await.status(), 401);
        assert_eq!(world.changed().await, "delayed failed");
        let denied = ask(&layer, 200, guess("ada", "home")).await;
        assert_eq!(retry_after(&denied), seconds * SECOND);
        assert_eq!(denied.headers()["retry-after"], seconds.to_string());
        // Another name has no delay.
        assert_eq!(ask(&layer, 500, guess("bob", "home")).await.status(), 500);
        world.clock.advance(seconds * SECOND);
    }
    assert_eq!(ask(&layer, 200, guess("ada", "home")).await.status(), 200);
    assert_eq!(world.changed().await, "delayed reset");
    ask(&layer, 401, guess("ada", "home")).await;
    assert_eq!(world.changed().await, "delayed failed");
    let denied = ask(&layer, 200, guess("ada", "home")).await;
    assert_eq!(retry_after(&denied), SECOND);
}

async fn denial_during_a_delay_does_not_prolong_it(mut world: World) {
    let layer = world.layer([delayed()]);
    ask(&layer, 401, guess("ada", "home")).await;
    assert_eq!(world.changed().await, "delayed failed");
    world.clock.advance(SECOND / 2);
    for _ in 0..20 {
        let denied = ask(&layer, 401, guess("ada", "home")).await;
        assert_eq!(retry_after(&denied), SECOND / 2);
    }
    world.clock.advance(SECOND / 2);
    assert_eq!(ask(&layer, 200, guess("ada", "home")).await.status(), 200);
}

// Regression: the delay began at the end of the response, and a client that did not read it had no delay.
async fn response_that_nobody_reads_postpones_no_delay(mut world: World) {
    let layer = world.layer([delayed()]);
    let mut unread = Vec::new();
    for seconds in [1, 2] {
        let service = layer.layer(service_fn(|_: Request<()>| {
            future::ready(Ok::<_, Infallible>(response(401)))
        }));
        let answer: Response<ResponseBody<&'static str>> = service
            .oneshot(guess("ada", "home"))
            .await
            .expect("it answers");
        assert_eq!(answer.status(), 401);
        unread.push(answer);
        assert_eq!(world.changed().await, "delayed failed");
        let denied = ask(&layer, 200, guess("ada", "home")).await;
        assert_eq!(retry_after(&denied), seconds * SECOND);
        world.clock.advance(seconds * SECOND);
    }
    // Their ends count no failure a second time.
    for answer in unread {
        drop(answer);
        world.settled().await;
    }
    assert!(!world.has_changed());
    assert_eq!(ask(&layer, 401, guess("ada", "home")).await.status(), 401);
    assert_eq!(world.changed().await, "delayed failed");
    let denied = ask(&layer, 200, guess("ada", "home")).await;
    assert_eq!(retry_after(&denied), 4 * SECOND);
}

async fn parallel_failures_lead_to_the_delay_of_as_many_in_turn(mut world: World) {
    let layer = world.layer([delayed()]);
    let (held, mut running) = holding();
    let service = layer.layer(held);
    let guesses = (0..3).map(|_| service.clone().oneshot(guess("ada", "home")));
    let guesses = tokio::spawn(join_all(guesses));
    for _ in 0..3 {
        running.started().await;
    }
    running.finish();
    for answer in guesses.await.expect("no panic") {
        drop(answer.expect("it answers"));
        assert_eq!(world.changed().await, "delayed failed");
    }
    let denied = ask(&layer, 200, guess("ada", "home")).await;
    assert_eq!(retry_after(&denied), 4 * SECOND);
}

async fn owner_logs_in_while_another_address_guesses_at_the_name(mut world: World) {
    let layer = world.layer(recipe());
    let (mut reached, mut denied) = (0, 0);
    for _ in 0..60 {
        for _ in 0..3 {
            let answer = ask(&layer, 401, guess("ada", "attacker")).await;
            if answer.status() == 429 {
                denied += 1;
            } else {
                reached += 1;
                assert_eq!(world.changed().await, "login failed");
            }
        }
        assert_eq!(ask(&layer, 200, guess("ada", "home")).await.status(), 200);
        assert_eq!(world.changed().await, "login reset");
        world.clock.advance(SECOND);
    }
    // At 0, 1, 3, 7, 15 and 31 s.
    assert_eq!((reached, denied), (6, 174));
}

async fn success_with_an_own_account_does_not_clear_the_address(mut world: World) {
    let layer = world.layer(recipe());
    let mut reached = 0;
    for number in 0..60 {
        let victim = format!("victim{number}");
        if ask(&layer, 401, guess(&victim, "attacker")).await.status() != 429 {
            reached += 1;
            assert_eq!(world.changed().await, "login failed");
        }
        if ask(&layer, 200, guess("mallory", "attacker"))
            .await
            .status()
            != 429
        {
            assert_eq!(world.changed().await, "login reset");
        }
    }
    assert_eq!(reached, 20);
}

async fn failure_under_a_policy_that_only_shadows_denies_nothing(mut world: World) {
    let layer = world.layer([delayed().mode(tollgate::rules::RuleMode::Shadow)]);
    assert_eq!(ask(&layer, 401, guess("ada", "home")).await.status(), 401);
    assert_eq!(world.changed().await, "delayed failed");
    // What would be denied is not counted.
    for _ in 0..20 {
        assert_eq!(ask(&layer, 401, guess("ada", "home")).await.status(), 401);
    }
    world.clock.advance(SECOND);
    assert_eq!(ask(&layer, 401, guess("ada", "home")).await.status(), 401);
    assert_eq!(world.changed().await, "delayed failed");
    assert!(!world.has_changed());
}

// === Tools ===

/// Five failures a minute.
fn login() -> Policy {
    Policy::new("login", Quota::per_minute(5))
}

/// Failures lead to delays of 1, 2, 4 and 8 s, and a success ends them.
fn delayed() -> Rule {
    let policy = Policy::new("delayed", Quota::per_minute(1_000));
    let rule = policy
        .key(user())
        .backoff(Backoff::doubling(SECOND, 8 * SECOND));
    rule.count_failures().clear_on_success()
}

/// As docs/guide/login.md has it.
fn recipe() -> [Rule; 3] {
    let delay = Backoff::doubling(SECOND, 15 * MINUTE);
    let both = user().and(Header::new("x-address"));
    let policy = |name: &str, count| Policy::new(name, Quota::per_minute(count));
    [
        policy("login", 5)
            .backoff(delay)
            .key(both)
            .count_failures()
            .clear_on_success(),
        policy("name", 100).key(user()).count_failures(),
        policy("address", 20)
            .key(Header::new("x-address"))
            .count_failures(),
    ]
}

fn user() -> Header {
    Header::new("x-user")
}

fn guess(user: &str, address: &str) -> Request<()> {
    let request = Request::post("/login");
    let request = request.header("x-user", user).header("x-address", address);
    request.body(()).expect("it is well formed")
}

fn response(status: u16) -> Response<&'static str> {
    let response = Response::builder().status(status).body("done");
    response.expect("it is well formed")
}

/// Sends a request to a service that responds with this status. Its response has ended.
async fn ask(layer: &RateLimitLayer, status: u16, request: Request<()>) -> Response<()> {
    let service = layer.layer(service_fn(move |_: Request<()>| {
        future::ready(Ok::<_, Infallible>(response(status)))
    }));
    let answer: Response<ResponseBody<&'static str>> =
        service.oneshot(request).await.expect("it answers");
    let (parts, body) = answer.into_parts();
    drop(body);
    Response::from_parts(parts, ())
}

fn retry_after(denied: &Response<()>) -> Duration {
    assert_eq!(denied.status(), 429);
    let rejection = denied.extensions().get::<Rejection>();
    let decision = rejection.and_then(Rejection::decision);
    let wait = decision.and_then(tollgate::Decision::retry_after);
    wait.expect("a denial with a wait")
}

/// A service that responds with 401 once the test lets it.
fn holding() -> (
    impl Service<Request<()>, Response = Response<&'static str>, Error = Infallible, Future: Send>
    + Clone
    + Send,
    Running,
) {
    let (tell, started) = mpsc::unbounded_channel();
    let (end, ended) = watch::channel(false);
    let service = service_fn(move |_: Request<()>| {
        let (tell, mut ended) = (tell.clone(), ended.clone());
        async move {
            let _ = tell.send(());
            let _ = ended.wait_for(|ended| *ended).await;
            Ok::<_, Infallible>(response(401))
        }
    });
    (service, Running { started, end })
}

/// The requests that such a service runs.
struct Running {
    started: mpsc::UnboundedReceiver<()>,
    end: watch::Sender<bool>,
}

impl Running {
    async fn started(&mut self) {
        let started = time::timeout(PATIENCE, self.started.recv()).await;
        started
            .expect("it starts in time")
            .expect("the service lives");
    }

    fn finish(&self) {
        self.end.send_replace(true);
    }
}

// === Settings that cannot work ===

#[test]
fn settings_about_outcomes_that_cannot_work_fail_when_the_layer_is_built() {
    let backoff = Backoff::doubling(SECOND, MINUTE);
    for (rule, words) in [
        (
            login().key(Global).clear_on_success(),
            "add count_failures()",
        ),
        (login().backoff(backoff).key(Global), "add count_failures()"),
        (
            Policy::concurrency("login", 5).key(Global).count_failures(),
            "remove what counts",
        ),
        (
            Policy::concurrency("login", 5)
                .key(Global)
                .clear_on_success(),
            "remove what counts or clears",
        ),
        (
            Policy::concurrency("login", 5).backoff(backoff).key(Global),
            "and backoff()",
        ),
        (
            login().cost(0).key(Global).count_failures(),
            "only a charge can be settled",
        ),
        (
            login()
                .backoff(Backoff::doubling(MINUTE, SECOND))
                .key(Global)
                .count_failures(),
            "longest delay of a backoff is shorter",
        ),
        (
            login()
                .backoff(backoff.factor(0))
                .key(Global)
                .count_failures(),
            "factor from 1 to 100",
        ),
        (
            login()
                .backoff(Backoff::doubling(Duration::ZERO, SECOND))
                .key(Global)
                .count_failures(),
            "times of a backoff",
        ),
    ] {
        let error = RateLimitLayer::builder().policy(rule).build();
        let error = error.expect_err("it cannot work").to_string();
        assert!(
            error.contains("\"login\"") && error.contains(words),
            "{error}"
        );
    }
}

/// Redis cannot be reached between the guesses of an attacker, who asks three instances in turn.
#[tokio::test]
async fn guesses_before_an_outage_and_in_it_are_no_more_than_the_limit() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let instance = || {
        let login = Policy::new("login", Quota::per_hour(6));
        let builder = RateLimitLayer::builder().redis(proxy.url());
        let builder = builder.policy(login.key(user()).count_failures());
        builder
            .deadline(PATIENCE)
            .build()
            .expect("it is well set up")
    };
    let instances = [instance(), instance(), instance()];
    let fleet = instances.each_ref().map(|layer| layer.limiter().clone());
    until_acquainted(&fleet).await;
    let guesses = async |each: usize| {
        let mut reached = 0;
        for layer in &instances {
            for _ in 0..each {
                let answer = ask(layer, 401, guess("ada", "home")).await;
                reached += usize::from(answer.status() == 401);
            }
        }
        reached
    };
    assert_eq!(guesses(1).await, 3);
    proxy.set(Mode::Refuse);
    until_degraded(&fleet).await;
    assert_eq!(guesses(20).await, 3);
    proxy.set(Mode::Pass);
    until_merged(&fleet).await;
    assert_eq!(guesses(20).await, 0);
}
