//! Streams of the state.

use std::time::{Duration, Instant};

use axum::{Router, body::Body};
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tollgate::{
    clock::{Clock, Timestamp},
    dashboard::Dashboard,
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
