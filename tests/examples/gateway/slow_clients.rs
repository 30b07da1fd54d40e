//! Clients that stop reading or sending, and clients that hang up, and the slots that they hold.

use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::{
    PATIENCE,
    forwarding::{abandoned_upload, client_sending, read_until, received, serve_one, write},
    get_as,
    process::Gateway,
};
use crate::support::Folder;

#[tokio::test]
async fn customer_that_reads_nothing_over_http_2_leaves_slots_for_others() {
    let gateway = Gateway::start(&["--no-load"]);
    let mut client = deaf_client(&gateway).await;
    let mut held = Vec::new();
    let mut denied = 0;
    for _ in 0..110 {
        let response = get(&mut client, "/items/1", "demo-internal-jobs").await;
        match response.status() {
            StatusCode::OK => held.push(response),
            _ => denied += 1,
        }
    }
    let other = get_as(&mut gateway.client().await, "demo-free-ada").await;
    println!(
        "{} held, {denied} denied, {} for the other",
        held.len(),
        other.status
    );
    assert_eq!(other.status, 200, "{} slots are held", held.len());
    assert_eq!(held.len(), 20);
}

#[tokio::test]
async fn unread_response_over_http_2_is_ended_and_its_connection_stays() {
    let (_folder, gateway) = gateway_with_one_slot(&[]);
    let mut client = deaf_client(&gateway).await;
    let mut held = get(&mut client, "/items/1", "x").await;
    assert_eq!(held.status(), StatusCode::OK);
    let begin = Instant::now();
    assert_eq!(status_of(&gateway).await, 429);
    until_free(&gateway).await;
    println!("the slot is free after {:?}", begin.elapsed());
    let ended = timeout(PATIENCE, held.body_mut().frame()).await;
    let ended = ended.expect("in time").expect("an end");
    assert!(ended.is_err(), "the response is cut");
    // A response without a body needs no window.
    let next = get(&mut client, "/none", "x").await;
    assert_eq!(next.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn unread_response_over_http_1_is_ended_and_the_backend_is_left() {
    let (_folder, gateway, backend) = gateway_with_one_slot_and_backend().await;
    let _deaf = client_sending(&gateway, "GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    let (mut stream, _) = received(&backend, "\r\n\r\n").await;
    write(
        &mut stream,
        "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n",
    )
    .await;
    let cut = async {
        let piece = vec![b'x'; 65_536];
        while stream.write_all(&piece).await.is_ok() {}
    };
    timeout(PATIENCE, cut)
        .await
        .expect("the exchange with the backend ends");
    until_free_at(&gateway, &backend).await;
}

// Regression: the slot was free again at once, and the backend got any number of requests at the same time.
#[tokio::test]
async fn client_that_hangs_up_keeps_its_slot_until_the_backend_responds() {
    let (_folder, gateway, backend) = gateway_with_one_slot_and_backend().await;
    let mut working = Vec::new();
    let mut denied = 0;
    for _ in 0..20 {
        let mut client = client_sending(&gateway, "GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
        tokio::select! {
            accepted = backend.accept() => {
                let (mut stream, _) = accepted.expect("a connection");
                read_until(&mut stream, "\r\n\r\n").await;
                working.push(stream);
            }
            _ = read_until(&mut client, "}") => denied += 1,
        }
        drop(client);
        // Long enough for the gateway to notice.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{} requests at the backend, {denied} denied", working.len());
    assert_eq!(
        working.len(),
        1,
        "requests at the backend at a limit of one"
    );
    let stream = &mut working[0];
    write(
        stream,
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    until_free_at(&gateway, &backend).await;
}

#[tokio::test]
async fn client_that_hangs_up_in_its_upload_frees_its_slot() {
    let (_folder, gateway, backend) = gateway_with_one_slot_and_backend().await;
    let mut stream = abandoned_upload(&gateway, &backend).await;
    until_closed(&mut stream).await;
    until_free_at(&gateway, &backend).await;
}

#[tokio::test]
async fn upload_that_stops_gets_408_and_frees_its_slot() {
    let (_folder, gateway, backend) = gateway_with_one_slot_and_backend().await;
    for (head, sent) in [
        (
            "transfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n",
            "first\r\n",
        ),
        ("content-length: 100\r\n\r\nhalf", "half"),
        (
            "expect: 100-continue\r\ncontent-length: 100\r\n\r\n",
            "\r\n\r\n",
        ),
    ] {
        let mut client = client_sending(
            &gateway,
            &format!("POST / HTTP/1.1\r\nhost: test\r\n{head}"),
        )
        .await;
        let (mut stream, _) = received(&backend, sent).await;
        let response = read_until(&mut client, "}").await;
        let response = response
            .strip_prefix("HTTP/1.1 100 Continue\r\n\r\n")
            .unwrap_or(&response);
        println!("{response}");
        assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
        until_closed(&mut stream).await;
    }
    until_free_at(&gateway, &backend).await;
}

#[tokio::test]
async fn connection_without_a_whole_request_is_closed() {
    let gateway = Gateway::start(&["--no-load", "--client-timeout", "1"]);
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = "\0\0\0\x04\0\0\0\0\0";
    // The head of a request whose headers do not end.
    let headers = "\0\0\x01\x01\0\0\0\0\x01\x02";
    for sent in [
        String::new(),
        "PRI * HT".to_owned(),
        "GET / HT".to_owned(),
        "GET / HTTP/1.1\r\nhost: te".to_owned(),
        "GET /items/1 HTTP/1.1\r\nhost: test\r\n\r\n".to_owned(),
        format!("{preface}{settings}"),
        format!("{preface}{settings}{headers}"),
    ] {
        let mut client = client_sending(&gateway, &sent).await;
        let begin = Instant::now();
        until_closed(&mut client).await;
        println!("{sent:?} is closed after {:?}", begin.elapsed());
    }
}

// === Helpers ===

/// One request at a time, and a second in which a client has to do something.
fn gateway_with_one_slot(options: &[&str]) -> (Folder, Gateway) {
    let folder = Folder::new();
    let rules = "rules: [{ id: in-flight, key: global, algorithm: concurrency, limit: 1 }]";
    let path = folder.write("rules.yaml", rules);
    let file = path.to_str().expect("text");
    let own = ["--no-load", "--client-timeout", "1", "--rules", file];
    let gateway = Gateway::start(&[&own, options].concat());
    (folder, gateway)
}

async fn gateway_with_one_slot_and_backend() -> (Folder, Gateway, TcpListener) {
    let backend = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", backend.local_addr().expect("an address"));
    let (folder, gateway) = gateway_with_one_slot(&["--backend", &url]);
    let probe = timeout(PATIENCE, backend.accept()).await;
    probe
        .expect("it looks for the backend")
        .expect("a connection");
    (folder, gateway, backend)
}

/// Connects by HTTP/2 with a window of 0: bodies of responses have to wait.
async fn deaf_client(gateway: &Gateway) -> SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(gateway.address())
        .await
        .expect("it listens");
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let connected = builder
        .initial_stream_window_size(0)
        .handshake(TokioIo::new(stream))
        .await;
    let (client, connection) = connected.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    client
}

async fn get(
    client: &mut SendRequest<Empty<Bytes>>,
    path: &str,
    api_key: &str,
) -> Response<Incoming> {
    let request = Request::get(format!("http://test{path}")).header("x-api-key", api_key);
    let request = request.body(Empty::new()).expect("a request");
    let response = timeout(PATIENCE, client.send_request(request)).await;
    response.expect("in time").expect("a response")
}

async fn status_of(gateway: &Gateway) -> u16 {
    gateway.client().await.get("/items/1").await.status
}

/// Waits until the only slot is free.
async fn until_free(gateway: &Gateway) {
    let deadline = Instant::now() + PATIENCE;
    while status_of(gateway).await == 429 {
        assert!(Instant::now() < deadline, "the slot is held");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// As [`until_free`], by a request that reaches the backend.
async fn until_free_at(gateway: &Gateway, backend: &TcpListener) {
    tokio::join!(until_free(gateway), timeout(PATIENCE, serve_one(backend)))
        .1
        .expect("it is asked");
}

/// Reads until the connection is closed.
async fn until_closed(stream: &mut TcpStream) {
    let mut bytes = [0; 4_096];
    let closed = async { while matches!(stream.read(&mut bytes).await, Ok(1..)) {} };
    timeout(PATIENCE, closed)
        .await
        .expect("it is closed in time");
}
