//! Requests with faults, and requests whose headers claim what only a proxy knows.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    forwarding::{backend_of, client_sending, gateway_and_backend, received, write},
    process::Gateway,
};

#[tokio::test]
async fn headers_by_which_a_backend_trusts_a_proxy_are_not_taken_from_clients() {
    let (gateway, backend) = gateway_and_backend(&["--behind", "192.0.2.0/24"]).await;
    let forged = FORGED.map(|name| format!("{name}: forged\r\n")).concat();
    let request = format!(
        "GET /admin HTTP/1.1\r\nhost: shop.example\r\nx-request-id: 7\r\n{forged}\
         connection: host, x-forwarded-for, x-forwarded-host, cookie\r\ncookie: a=1\r\n\r\n"
    );
    let _client = client_sending(&gateway, &request).await;
    let (_stream, head) = received(&backend, "\r\n\r\n").await;
    let mut lines: Vec<&str> = head.trim_end().lines().skip(1).collect();
    lines.sort_unstable();
    println!("{head}");
    let host = format!("host: {}", backend.local_addr().expect("an address"));
    assert_eq!(
        lines,
        [
            host.as_str(),
            "via: 1.1 tollgate",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-host: shop.example",
            "x-forwarded-proto: http",
            "x-request-id: 7",
        ]
    );
}

#[tokio::test]
async fn trusted_proxy_names_the_client_and_its_scheme() {
    let (gateway, backend) = gateway_and_backend(&[]).await;
    for (sent, addresses, scheme) in [
        (
            "x-forwarded-for: 192.0.2.1\r\nx-forwarded-proto: https\r\n",
            "192.0.2.1, 127.0.0.1",
            "https",
        ),
        ("x-forwarded-proto: ftp\r\n", "127.0.0.1", "http"),
        (
            "x-forwarded-proto: https\r\nx-forwarded-proto: http\r\n",
            "127.0.0.1",
            "http",
        ),
    ] {
        let _client = client_sending(
            &gateway,
            &format!("GET / HTTP/1.1\r\nhost: test\r\nx-forwarded-port: 1\r\n{sent}\r\n"),
        )
        .await;
        let (_stream, head) = received(&backend, "\r\n\r\n").await;
        assert!(
            head.contains(&format!("x-forwarded-for: {addresses}\r\n")),
            "{head}"
        );
        assert!(
            head.contains(&format!("x-forwarded-proto: {scheme}\r\n")),
            "{head}"
        );
        assert!(!head.contains("x-forwarded-port"), "{head}");
    }
}

#[tokio::test]
async fn host_that_is_not_a_host_gets_400_and_does_not_reach_the_backend() {
    let (gateway, backend) = gateway_and_backend(&[]).await;
    for head in [
        "GET http://user:pass@shop.example/ HTTP/1.1\r\nhost: shop.example\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: user:pass@shop.example\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: shop.example\r\nhost: other.example\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: shop.example, other.example\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: shop.example/path\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: shop.example:80:80\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: shop.example:x\r\n\r\n",
        "GET / HTTP/1.1\r\nhost:\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
    ] {
        let status = status(&gateway, head).await;
        println!("{status} {head:?}");
        assert_eq!(status, "400", "{head:?}");
    }
    // The port belongs to it, and HTTP/1.0 has none. With an API key, since the address has no quota left.
    for (head, host) in [
        (
            "GET / HTTP/1.1\r\nhost: [::1]:8080\r\nx-api-key: demo-internal-jobs\r\n\r\n",
            Some("[::1]:8080"),
        ),
        (
            "GET / HTTP/1.0\r\nx-api-key: demo-internal-jobs\r\n\r\n",
            None,
        ),
    ] {
        let _client = client_sending(&gateway, head).await;
        let (_stream, head) = received(&backend, "\r\n\r\n").await;
        let found = head
            .lines()
            .find_map(|line| line.strip_prefix("x-forwarded-host: "));
        assert_eq!(found, host);
    }
}

// Regression: they got a 502, which blames the backend.
#[tokio::test]
async fn upload_with_a_fault_gets_400() {
    let (gateway, backend) = gateway_and_backend(&[]).await;
    let address = gateway.address();
    drop(backend_of(backend));
    let chunked =
        "POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
    let trailer = "x".repeat(20_000);
    for (request, is_cut) in [
        (format!("{chunked}zz\r\n"), false),
        (format!("{chunked}5\r\nsecond\r\n"), false),
        (format!("{chunked}ffffffffffffffffff\r\n"), false),
        (format!("{chunked}5;{}\r\n", "x".repeat(20_000)), false),
        (format!("{chunked}0\r\nbad trailer\r\n\r\n"), false),
        (format!("{chunked}0\r\nx-a: {trailer}\r\n\r\n"), false),
        (format!("{chunked}3\r\nab"), true),
        (
            "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\nhalf".to_owned(),
            true,
        ),
    ] {
        let shown = request.get(..110).unwrap_or(&request).to_owned();
        let mut client = TcpStream::connect(address).await.expect("it listens");
        write(&mut client, &request).await;
        if is_cut {
            client.shutdown().await.expect("the end");
        }
        let mut response = Vec::new();
        let read = tokio::time::timeout(super::PATIENCE, client.read_to_end(&mut response)).await;
        let _ = read.expect("a response, or the end");
        let response = String::from_utf8_lossy(&response);
        println!("{:.100} for {shown:?}", response.replace("\r\n", " | "));
        // A client that has closed its side may get nothing.
        let is_gone = is_cut && response.is_empty();
        assert!(
            is_gone || response.starts_with("HTTP/1.1 400 "),
            "{shown:?}: {response}"
        );
    }
    assert!(
        !gateway.log().contains("not available"),
        "{}",
        gateway.log()
    );
}

#[tokio::test]
async fn other_faults_of_clients_are_not_reported_as_faults_of_the_server() {
    let (gateway, backend) = gateway_and_backend(&[]).await;
    drop(backend_of(backend));
    let long = "x".repeat(70_000);
    for request in [
        format!("GET /{long} HTTP/1.1\r\nhost: test\r\n\r\n"),
        format!(
            "GET / HTTP/1.1\r\nhost: test\r\n{}\r\n",
            "x-a: 1\r\n".repeat(200)
        ),
        "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: -1\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"
            .to_owned(),
        "POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: gzip\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nhost: test\r\nx a: 1\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\nhost: test\r\n\r\n".to_owned(),
    ] {
        let status = status(&gateway, &request).await;
        println!("{status} {:.60}", request.replace("\r\n", " | "));
        assert!(!status.starts_with('5'), "{status} {request:.60}");
    }
}

/// Returns the status of the response to what a client sends.
async fn status(gateway: &Gateway, request: &str) -> String {
    let mut client = TcpStream::connect(gateway.address())
        .await
        .expect("it listens");
    // It may close before it has read everything.
    let _ = client.write_all(request.as_bytes()).await;
    let mut start = [0; 12];
    let read = tokio::time::timeout(super::PATIENCE, client.read_exact(&mut start)).await;
    read.expect("in time").expect("a response");
    String::from_utf8_lossy(&start[9..]).into_owned()
}

const FORGED: [&str; 33] = [
    "forwarded",
    "proxy",
    "x-forwarded",
    "x-forwarded-for",
    "x_forwarded_for",
    "x-forwarded_for",
    "x.forwarded.for",
    "x-forwarded-host",
    "x_forwarded_host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x_forwarded_proto",
    "x-forwarded-server",
    "x-forwarded-ssl",
    "x-forwarded-user",
    "x-forwarded-client-cert",
    "x-real-ip",
    "x_real_ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "cloudfront-viewer-address",
    "fly-client-ip",
    "remote-user",
    "x-remote-user",
    "x-original-url",
    "x-rewrite-url",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x_http_method_override",
];
