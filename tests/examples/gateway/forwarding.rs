//! The reverse proxy of the gateway, between a raw client and a raw backend.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};

use super::{PATIENCE, process::Gateway};

#[tokio::test]
async fn headers_of_one_connection_end_at_the_gateway() {
    let (gateway, backend) = gateway_and_backend(&[]).await;
    let mut client = client_sending(&gateway, "GET http://ignored.example/a%20b?x=1&y HTTP/1.1\r\nhost: shop.example\r\nconnection: x-one, close\r\n\
         x-one: 1\r\nkeep-alive: timeout=5\r\nte: trailers\r\ntrailer: x-sum\r\nupgrade: websocket\r\nproxy-authorization: Basic eA==\r\n\
         proxy-connection: close\r\nforwarded: for=192.0.2.9\r\nx-forwarded-host: forged.example\r\nx-two: 2\r\n\
         x-forwarded-for: 192.0.2.1\r\nx-forwarded-for: 192.0.2.2, 192.0.2.3\r\n\r\n").await;
    let (mut stream, head) = received(&backend, "\r\n\r\n").await;
    write(
        &mut stream,
        "HTTP/1.0 299 Fine\r\nconnection: x-three\r\nx-three: 3\r\nkeep-alive: timeout=9\r\nx-four: 4\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;

    assert!(head.starts_with("GET /a%20b?x=1&y HTTP/1.1\r\n"), "{head}");
    let mut lines: Vec<&str> = head.trim_end().lines().skip(1).collect();
    lines.sort_unstable();
    let host = format!("host: {}", backend.local_addr().expect("an address"));
    assert_eq!(
        lines,
        [
            host.as_str(),
            "via: 1.1 tollgate",
            "x-forwarded-for: 192.0.2.1, 192.0.2.2, 192.0.2.3, 127.0.0.1",
            // The one in the target wins over the header (RFC 9112, section 3.2.2).
            "x-forwarded-host: ignored.example",
            "x-forwarded-proto: http",
            "x-two: 2",
        ]
    );
    let response = read_until(&mut client, "ok").await;
    assert!(response.starts_with("HTTP/1.1 299 "), "{response}");
    assert!(response.contains("x-four: 4\r\n"), "{response}");
    for name in ["x-three", "keep-alive"] {
        assert!(!response.contains(name), "{response}");
    }
}

#[tokio::test]
async fn bodies_are_passed_on_while_they_are_sent() {
    let (gateway, backend) = gateway_and_backend(&[]).await;
    let mut client = client_sending(
        &gateway,
        "POST /upload HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n",
    )
    .await;
    let (mut stream, _) = backend.accept().await.expect("a connection");
    // The backend has the first piece before the client sends the second.
    let head = read_until(&mut stream, "first\r\n").await;
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    write(&mut client, "6\r\nsecond\r\n0\r\n\r\n").await;
    read_until(&mut stream, "second\r\n0\r\n\r\n").await;

    // The client has the first piece of the response before the backend sends the second.
    write(
        &mut stream,
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n",
    )
    .await;
    let head = read_until(&mut client, "one\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    write(&mut stream, "3\r\ntwo\r\n0\r\n\r\n").await;
    read_until(&mut client, "two\r\n0\r\n\r\n").await;
}

#[tokio::test]
async fn backend_that_is_down_is_502_until_it_is_back() {
    // Bound and not listening: nobody else can take the port, and connections are refused.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .expect("a port");
    let backend = format!("http://{}", socket.local_addr().expect("an address"));
    let gateway = Gateway::start(&["--backend", &backend]);
    gateway
        .until_logged(&format!(
            "the backend {backend}/ is not there yet (Connection refused"
        ))
        .await;
    let mut client = gateway.client().await;
    for _ in 0..3 {
        let reply = client.get("/").await;
        assert_eq!(reply.status, 502);
        assert_eq!(
            reply.body,
            r#"{"error":"bad_gateway","message":"the backend is not available"}"#
        );
    }
    let listener = socket.listen(8).expect("it listens");
    let served = tokio::spawn(async move {
        serve_one(&listener).await;
    });
    assert_eq!(client.get("/").await.status, 200);
    served.await.expect("it is asked");
    gateway.until_logged("the backend is back").await;
    let log = gateway.log();
    assert_eq!(log.matches("requests get 502 backend=").count(), 1, "{log}");
}

#[tokio::test]
async fn client_that_leaves_in_its_upload_does_not_make_the_backend_look_down() {
    let (gateway, backend) = gateway_and_backend(&[]).await;
    let mut stream = abandoned_upload(&gateway, &backend).await;
    // The gateway does not keep the connection of the broken upload.
    let rest = tokio::time::timeout(PATIENCE, stream.read(&mut [0])).await;
    assert!(matches!(rest.expect("closed in time"), Ok(0) | Err(_)));

    let mut client = gateway.client().await;
    let served = tokio::spawn(async move {
        serve_one(&backend).await;
    });
    assert_eq!(client.get("/").await.status, 200);
    served.await.expect("it is asked");
    assert!(
        !gateway.log().contains("not available"),
        "{}",
        gateway.log()
    );
}

pub(super) async fn gateway_and_backend(options: &[&str]) -> (Gateway, TcpListener) {
    let backend = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", backend.local_addr().expect("an address"));
    let gateway = Gateway::start(&[options, &["--backend", &url]].concat());
    // The probe at the start.
    let probe = tokio::time::timeout(Duration::from_secs(10), backend.accept()).await;
    probe
        .expect("it looks for the backend")
        .expect("a connection");
    (gateway, backend)
}

/// Serves all requests with a 200, once their bodies have ended.
pub(super) fn backend_of(listener: TcpListener) -> tokio::task::JoinHandle<()> {
    let app = axum::Router::new().fallback(async |body: axum::body::Bytes| body.len().to_string());
    tokio::spawn(async move { axum::serve(listener, app).await.expect("it serves") })
}

/// Connects to the gateway, and sends this.
pub(super) async fn client_sending(gateway: &Gateway, text: &str) -> TcpStream {
    let client = TcpStream::connect(gateway.address()).await;
    let mut client = client.expect("it listens");
    write(&mut client, text).await;
    client
}

/// Accepts a connection of the gateway, and reads until this text.
pub(super) async fn received(backend: &TcpListener, end: &str) -> (TcpStream, String) {
    let (mut stream, _) = backend.accept().await.expect("a connection");
    let text = read_until(&mut stream, end).await;
    (stream, text)
}

/// Sends half an upload, and hangs up. Returns the connection at the backend.
pub(super) async fn abandoned_upload(gateway: &Gateway, backend: &TcpListener) -> TcpStream {
    let head = "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\nhalf";
    let client = client_sending(gateway, head).await;
    let (stream, _) = received(backend, "half").await;
    drop(client);
    stream
}

/// Responds with 200 to the next request at the backend.
pub(super) async fn serve_one(backend: &TcpListener) -> TcpStream {
    let (mut stream, _) = received(backend, "\r\n\r\n").await;
    write(
        &mut stream,
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    stream
}

pub(super) async fn write(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.expect("it reads");
}

/// Reads until this text, which ends what is sent so far.
pub(super) async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    let mut bytes = [0; 4_096];
    while !text.ends_with(end) {
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut bytes)).await;
        let read = read.unwrap_or_else(|_| panic!("{end:?} does not come after {text:?}"));
        let read = read.expect("a connection");
        assert!(read > 0, "closed before {end:?}: {text}");
        text += std::str::from_utf8(&bytes[..read]).expect("text");
    }
    text
}
