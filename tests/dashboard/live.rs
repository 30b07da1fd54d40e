//! Streams of the state.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, extract::ConnectInfo};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tollgate::{
    clock::{Clock, Timestamp},
    dashboard::{Access, Dashboard},
};
use tower::ServiceExt;

use super::{READ, ask, call, guarded, layer};

#[tokio::test]
async fn stream_sends_the_state_at_once_and_then_each_change() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let mut stream = open(&router).await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    // A proxy such as nginx must not hold events back.
    assert_eq!(stream.headers()["x-accel-buffering"], "no");
    let first = next(&mut stream).await.expect("a state");
    assert_eq!(first["decisions"], Value::Array(Vec::new()));
    call(&layer, "ada").await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = next(&mut stream).await.expect("a state");
        if state["decisions"][0]["totals"][0] == 1 {
            break;
        }
        assert!(Instant::now() < deadline, "{state}");
    }
}

#[tokio::test]
async fn number_of_streams_is_bounded_and_a_dropped_one_makes_room() {
    let layer = layer();
    let builder = Dashboard::builder(&layer).max_clients(2);
    let router: Router = guarded(builder).router();
    let first = open(&router).await;
    let second = open(&router).await;
    let third = open(&router).await;
    assert_eq!(third.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(third.headers()["retry-after"], "5");
    drop(first);
    assert_eq!(open(&router).await.status(), StatusCode::OK);
    drop(second);
}

// Regression: one client with the read token could keep all others from following.
#[tokio::test]
async fn client_with_many_streams_gives_places_to_others_until_they_have_as_many() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let mut greedy = Vec::new();
    for _ in 0..16 {
        greedy.push(open_from(&router, 1).await);
    }
    assert!(greedy.iter().all(|it| it.status() == StatusCode::OK));
    assert_eq!(
        open_from(&router, 1).await.status(),
        503,
        "not its own places"
    );
    let mut others = Vec::new();
    for _ in 0..8 {
        let other = open_from(&router, 2).await;
        assert_eq!(other.status(), StatusCode::OK, "the {}th", others.len());
        others.push(other);
    }
    // They have the same number, and none takes one from the other.
    for client in [1, 2] {
        assert_eq!(open_from(&router, client).await.status(), 503);
    }
    // The oldest have ended.
    let (ended, rest) = greedy.split_at_mut(8);
    for stream in ended {
        while next(stream).await.is_some() {}
    }
    for stream in rest.iter_mut().chain(&mut others) {
        next(stream).await.expect("a state");
    }
    // A third one takes from those with most, in turn.
    for count in 0..5 {
        let third = open_from(&router, 3).await;
        assert_eq!(third.status(), StatusCode::OK, "the {count}th");
        others.push(third);
    }
    for client in 1..=3 {
        assert_eq!(open_from(&router, client).await.status(), 503);
    }
}

#[tokio::test]
async fn operators_that_the_application_names_have_places_of_their_own() {
    let layer = layer();
    let builder = Dashboard::builder(&layer).access_by_extension();
    let builder = builder.max_clients(3);
    let router: Router = builder.build().expect("a dashboard").router();
    let open = async |name: &str| {
        let request = Request::get("/api/live")
            .extension(Access::read_only().operator(name))
            .extension(ConnectInfo(SocketAddr::from(([10, 0, 0, 7], 50_000))));
        let request = request.body(Body::empty()).expect("a request");
        router.clone().oneshot(request).await.expect("infallible")
    };
    let mut adas = Vec::new();
    for _ in 0..3 {
        adas.push(open("ada").await);
    }
    assert_eq!(open("ada").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    let bob = open("bob").await;
    assert_eq!(bob.status(), StatusCode::OK);
    assert_eq!(open("bob").await.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn streams_end_when_the_dashboard_is_closed_or_dropped() {
    let layer = layer();
    let dashboard = guarded(Dashboard::builder(&layer));
    let router: Router = dashboard.router();
    let mut stream = open(&router).await;
    next(&mut stream).await.expect("a state");
    dashboard.close();
    while next(&mut stream).await.is_some() {}
    let refused = open(&router).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let body = refused.into_body().collect().await.expect("a body");
    let body: Value = serde_json::from_slice(&body.to_bytes()).expect("JSON");
    assert_eq!(body["error"], "closed");

    let dashboard = guarded(Dashboard::builder(&layer));
    let router: Router = dashboard.router();
    let mut stream = open(&router).await;
    drop((router, dashboard));
    while next(&mut stream).await.is_some() {}
}

#[tokio::test]
async fn client_that_stops_reading_loses_its_place_after_ten_minutes() {
    let layer = layer();
    let clock = Clock::manual(Timestamp::from_micros(1_800_000_000_000_000));
    let builder = Dashboard::builder(&layer)
        .clock(clock.clone())
        .max_clients(1);
    let router: Router = guarded(builder).router();
    let mut stalled = open(&router).await;
    clock.advance(Duration::from_secs(599));
    assert_eq!(
        open(&router).await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    clock.advance(Duration::from_secs(1));
    let mut second = open(&router).await;
    assert_eq!(second.status(), StatusCode::OK);
    // Its end does not free the place that the other one has now.
    assert!(next(&mut stalled).await.is_none());
    drop(stalled);
    next(&mut second).await.expect("a state");
    assert_eq!(
        open(&router).await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
}

/// Over real connections, whose buffers fill up: places, and not the number of connections, bound what is kept.
#[tokio::test]
async fn thousand_clients_that_do_not_read_leave_nothing_behind() {
    let layer = layer();
    let dashboard = guarded(Dashboard::builder(&layer).max_clients(1_000));
    let router: Router = dashboard.router();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let served = router.clone();
    tokio::spawn(async move { axum::serve(listener, served).await });
    let request = format!(
        "GET /api/live HTTP/1.1\r\nhost: dashboard\r\nauthorization: Bearer {READ}\r\n\r\n"
    );
    let mut clients = Vec::new();
    for _ in 0..1_000 {
        let mut client = TcpStream::connect(address).await.expect("connected");
        client.write_all(request.as_bytes()).await.expect("sent");
        let mut status = [0; 12];
        client.read_exact(&mut status).await.expect("a response");
        assert_eq!(&status, b"HTTP/1.1 200");
        clients.push(client);
    }
    assert_eq!(
        open(&router).await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    drop(clients);
    let deadline = Instant::now() + PATIENCE;
    let mut others = Vec::new();
    while others.len() < 1_000 {
        let stream = open(&router).await;
        if stream.status() == StatusCode::OK {
            others.push(stream);
        } else {
            assert!(
                Instant::now() < deadline,
                "{} places are free",
                others.len()
            );
            tokio::task::yield_now().await;
        }
    }
}

/// Opens a stream from an address.
async fn open_from(router: &Router, host: u8) -> Response<Body> {
    let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, host], 50_000)));
    let request = ask(Method::GET, "/api/live", READ).extension(peer);
    let request = request.body(Body::empty()).expect("a request");
    router.clone().oneshot(request).await.expect("infallible")
}

async fn open(router: &Router) -> Response<Body> {
    let request = ask(Method::GET, "/api/live", READ).body(Body::empty());
    let response = router.clone().oneshot(request.expect("a request")).await;
    response.expect("infallible")
}

/// Returns the next state; `None` at the end.
async fn next(stream: &mut Response<Body>) -> Option<Value> {
    let frame = tokio::time::timeout(PATIENCE, stream.body_mut().frame());
    let frame = frame.await.expect("in time")?.expect("infallible");
    let data = frame.into_data().expect("data");
    let text = std::str::from_utf8(&data).expect("text");
    let json = text.strip_prefix("event: state\ndata: ");
    let json = json.and_then(|rest| rest.strip_suffix("\n\n"));
    let state = serde_json::from_str(json.expect("an event"));
    Some(state.expect("JSON"))
}

const PATIENCE: Duration = Duration::from_secs(20);
