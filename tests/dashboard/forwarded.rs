//! `X-Forwarded-*` in front of the guards, from trusted proxies and from others.

use std::net::SocketAddr;

use axum::{Router, extract::ConnectInfo};
use http::{Method, Request, StatusCode, request};
use tollgate::{
    ErrorKind,
    dashboard::{Dashboard, DashboardBuilder},
    extract::ClientIp,
    rules::RuleMode,
};

use super::{READ, WRITE, guarded, layer, send};

#[tokio::test]
async fn forwarded_host_counts_only_from_a_trusted_proxy() {
    let layer = layer();
    let trusting = || Dashboard::builder(&layer).trusted_proxies(ClientIp::behind(["10.0.0.0/8"]));
    for (builder, peer, status) in [
        (trusting(), Some([10, 0, 0, 7]), 204),
        (trusting(), Some([192, 0, 2, 1]), 403),
        (trusting(), None, 403),
        (Dashboard::builder(&layer), Some([10, 0, 0, 7]), 403),
        (Dashboard::builder(&layer), Some([127, 0, 0, 1]), 403),
    ] {
        let router: Router = guarded(builder).router();
        let request = post(peer)
            .header("host", "app:9000")
            .header("x-forwarded-host", "ops.example.com")
            .header("origin", "http://ops.example.com");
        let (head, _) = send(&router, request, r#"{"mode":"enforce"}"#).await;
        assert_eq!(head.status, status, "{peer:?}");
    }
}

#[tokio::test]
async fn pages_of_other_origins_are_refused_behind_a_trusted_proxy() {
    let layer = layer();
    let router = behind_proxy(Dashboard::builder(&layer));
    let own = "ops.example.com";
    for (headers, origin) in [
        (&[("x-forwarded-host", own)][..], "http://evil.example"),
        (
            &[("x-forwarded-host", own)],
            "http://ops.example.com.evil.example",
        ),
        (&[("x-forwarded-host", own)], "http://evil.ops.example.com"),
        (&[("x-forwarded-host", own)], "http://ops.example.com:8080"),
        (
            &[("x-forwarded-host", own)],
            "http://ops.example.com@evil.example",
        ),
        (
            &[("x-forwarded-host", own)],
            "http://evil.example/ops.example.com",
        ),
        (&[("x-forwarded-host", own)], "null"),
        (&[("x-forwarded-host", own)], "file://"),
        (&[("x-forwarded-host", own)], "ops.example.com"),
        (&[("x-forwarded-host", own)], ""),
        // The browser wrote the first one, the proxy the last one.
        (
            &[("x-forwarded-host", "evil.example, ops.example.com")],
            "http://evil.example",
        ),
        (
            &[
                ("x-forwarded-host", "evil.example"),
                ("x-forwarded-host", own),
            ],
            "http://evil.example",
        ),
        // Not what a proxy sends.
        (
            &[("x-forwarded-host", "evil.example@ops.example.com")],
            "http://evil.example",
        ),
        (
            &[("x-forwarded-host", "ops.example.com@evil.example")],
            "http://evil.example",
        ),
        (
            &[("x-forwarded-host", "evil.example:80:80")],
            "http://evil.example",
        ),
        (
            &[("x-forwarded-host", "evil.example/")],
            "http://evil.example",
        ),
        (&[("x-forwarded-host", "null")], "null"),
        (&[("x-forwarded-host", "")], "null"),
        (
            &[("x-forwarded-host", own), ("x-forwarded-proto", "https")],
            "http://ops.example.com",
        ),
        (
            &[("x-forwarded-host", own), ("x-forwarded-port", "8443")],
            "https://ops.example.com",
        ),
        (
            &[("x-forwarded-host", "ops.example.com:80")],
            "https://ops.example.com",
        ),
        // The header that browsers write wins over all others.
        (
            &[
                ("x-forwarded-host", "evil.example"),
                ("sec-fetch-site", "cross-site"),
            ],
            "http://evil.example",
        ),
        (
            &[
                ("x-forwarded-host", "evil.example"),
                ("sec-fetch-site", "same-site"),
            ],
            "http://evil.example",
        ),
    ] {
        let mut request = post(Some([10, 0, 0, 7]))
            .header("host", "app:9000")
            .header("origin", origin);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, reply) = send(&router, request, r#"{"mode":"off"}"#).await;
        assert_eq!(head.status, StatusCode::FORBIDDEN, "{origin} {headers:?}");
        assert!(reply.starts_with(r#"{"error":"cross_site""#), "{reply}");
    }
    assert_eq!(layer.mode(), RuleMode::Enforce);
}

#[tokio::test]
async fn default_port_of_the_scheme_equals_no_port() {
    let layer = layer();
    let router = behind_proxy(Dashboard::builder(&layer));
    for (host, port, origin, is_own) in [
        ("ops.example.com:443", "", "https://ops.example.com", true),
        ("ops.example.com:80", "", "http://ops.example.com", true),
        ("OPS.example.com", "", "http://ops.example.com", true),
        (
            "ops.example.com",
            "8443",
            "https://ops.example.com:8443",
            true,
        ),
        ("ops.example.com", "443", "https://ops.example.com", true),
        ("[::1]:8080", "", "http://[::1]:8080", true),
        ("ops.example.com:443", "", "http://ops.example.com", false),
        (
            "ops.example.com:8443",
            "443",
            "https://ops.example.com",
            false,
        ),
    ] {
        let mut request = post(Some([10, 0, 0, 7]))
            .header("host", host)
            .header("origin", origin);
        if !port.is_empty() {
            request = request.header("x-forwarded-port", port);
        }
        let (head, _) = send(&router, request, r#"{"mode":"enforce"}"#).await;
        let status = if is_own {
            StatusCode::NO_CONTENT
        } else {
            StatusCode::FORBIDDEN
        };
        assert_eq!(head.status, status, "{host} {port} {origin}");
    }
}

#[tokio::test]
async fn other_hosts_than_those_of_the_dashboard_get_421_everywhere() {
    let layer = layer();
    let hosts = ["ops.example.com", "*.internal.example"];
    let router = behind_proxy(Dashboard::builder(&layer).allowed_hosts(hosts));
    let ask = |path: &str, host: &str, forwarded: Option<&str>, peer| {
        let mut request = Request::get(path)
            .header("authorization", format!("Bearer {READ}"))
            .header("host", host)
            .extension(ConnectInfo(SocketAddr::from((peer, 50_000))));
        if let Some(forwarded) = forwarded {
            request = request.header("x-forwarded-host", forwarded);
        }
        request
    };
    let (proxy, other) = ([10, 0, 0, 7], [192, 0, 2, 1]);
    for path in [
        "/",
        "/?boot.js",
        "/assets/app.mjs",
        "/api/session",
        "/api/state",
        "/api/none",
    ] {
        for (host, forwarded, peer) in [
            ("evil.example", None, other),
            ("ops.example.com.evil.example", None, other),
            ("evil.example", Some("ops.example.com"), other),
            ("ops.example.com@evil.example", None, other),
            ("internal.example", None, other),
            ("", None, other),
            ("ops.example.com", Some("evil.example"), proxy),
            ("app:9000", Some("ops.example.com, evil.example"), proxy),
            ("app:9000", None, proxy),
        ] {
            let (head, reply) = send(&router, ask(path, host, forwarded, peer), "").await;
            assert_eq!(
                head.status,
                StatusCode::MISDIRECTED_REQUEST,
                "{path} {host} {forwarded:?}"
            );
            assert!(reply.starts_with(r#"{"error":"unknown_host""#), "{reply}");
            assert_eq!(head.headers["cache-control"], "no-store");
        }
        for (host, forwarded, peer) in [
            ("ops.example.com", None, other),
            ("OPS.example.com.:8443", None, other),
            ("a.b.internal.example", None, other),
            ("app:9000", Some("ops.example.com:8443"), proxy),
        ] {
            let (head, _) = send(&router, ask(path, host, forwarded, peer), "").await;
            let expected = if path == "/api/none" { 404 } else { 200 };
            assert_eq!(head.status, expected, "{path} {host} {forwarded:?}");
        }
    }
    // Two hosts, of which one is right.
    let twice = ask("/", "ops.example.com", None, other).header("host", "evil.example");
    assert_eq!(
        send(&router, twice, "").await.0.status,
        StatusCode::MISDIRECTED_REQUEST
    );
    let none = Request::get("/");
    assert_eq!(
        send(&router, none, "").await.0.status,
        StatusCode::MISDIRECTED_REQUEST
    );
}

#[tokio::test]
async fn wrong_tokens_are_counted_by_the_client_that_a_trusted_proxy_names() {
    let layer = layer();
    let router = behind_proxy(Dashboard::builder(&layer));
    let from = |client: &str, token: &str| {
        Request::get("/api/state")
            .header("authorization", format!("Bearer {token}"))
            .header("x-forwarded-for", client)
            .extension(ConnectInfo(SocketAddr::from(([10, 0, 0, 7], 50_000))))
    };
    for number in 0..11 {
        send(
            &router,
            from("192.0.2.1", &format!("wrong-{number:016}")),
            "",
        )
        .await;
    }
    let (head, _) = send(&router, from("192.0.2.1", READ), "").await;
    assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
    let (head, _) = send(&router, from("192.0.2.2", READ), "").await;
    assert_eq!(head.status, StatusCode::OK);
}

#[test]
fn proxies_and_hosts_with_a_fault_do_not_build() {
    let layer = layer();
    let builder = || Dashboard::builder(&layer).token(READ);
    for (builder, words) in [
        (
            builder().trusted_proxies(ClientIp::behind(["0.0.0.0/0"])),
            "trusts every address",
        ),
        (
            builder().allowed_hosts(Vec::<String>::new()),
            "allowed_hosts() without a host",
        ),
        (
            builder().allowed_hosts(["ops.example.com:80"]),
            "is not a host pattern",
        ),
        (
            builder().allowed_hosts(["https://ops.example.com"]),
            "is not a host pattern",
        ),
    ] {
        let error = builder.build().expect_err(words);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(words), "{error}");
    }
}

fn behind_proxy(builder: DashboardBuilder) -> Router {
    guarded(builder.trusted_proxies(ClientIp::behind(["10.0.0.0/8"]))).router()
}

/// What a page sends to change the mode, without the headers that name its origin.
fn post(peer: Option<[u8; 4]>) -> request::Builder {
    let request = Request::builder()
        .method(Method::POST)
        .uri("/api/mode")
        .header("authorization", format!("Bearer {WRITE}"))
        .header("content-type", "application/json")
        .header("x-tollgate-dashboard", "1");
    match peer {
        Some(peer) => request.extension(ConnectInfo(SocketAddr::from((peer, 50_000)))),
        None => request,
    }
}
