//! The dashboard behind a real nginx that changes the path, the host and the scheme.

use std::net::SocketAddr;

use axum::Router;
use http::Method;
use tokio::{net::TcpListener, task::block_in_place};
use tollgate::{RateLimitLayer, dashboard::Dashboard, extract::ClientIp, rules::RuleMode};

use super::{
    READ, WRITE, guarded, layer,
    site::{confirm, sign_in},
};
use crate::support::{Browser, Client, Nginx, Reply};

/// What nginx does with each request, the page in the browser, and its scheme there.
const SITES: [(&str, &str, &str); 6] = [
    // The same path, and the host as it was.
    (
        "location / { proxy_pass http://{app}; proxy_set_header Host $http_host; }",
        "/ops/limits",
        "http",
    ),
    // Another path, and the host of the application.
    (
        "location /tools/quotas/ { proxy_pass http://{app}/ops/limits/; {forwarded} }",
        "/tools/quotas/",
        "http",
    ),
    (
        "location /tools/quotas { proxy_pass http://{app}/ops/limits; {forwarded} }",
        "/tools/quotas",
        "http",
    ),
    (
        "location / { proxy_pass http://{app}/ops/limits/; {forwarded} }",
        "/",
        "http",
    ),
    // The host without its port, as many sites have it.
    (
        "location /x { proxy_pass http://{app}/ops/limits; proxy_set_header Host $host; \
         proxy_set_header X-Forwarded-Port $server_port; proxy_set_header X-Forwarded-Proto $scheme; }",
        "/x",
        "http",
    ),
    // TLS ends before.
    (
        "location /x/ { proxy_pass http://{app}/ops/limits/; proxy_set_header X-Forwarded-Host $http_host; \
         proxy_set_header X-Forwarded-Proto https; }",
        "/x/",
        "https",
    ),
];

#[tokio::test]
async fn links_and_requests_of_the_page_arrive_behind_a_proxy_that_changes_path_and_host() {
    for (locations, page, scheme) in SITES {
        let (layer, nginx) = site(locations).await;
        let html = get(nginx.address(), page).await;
        assert_eq!(html.status, 200, "{locations}");
        let links: Vec<&str> = html.body.split("=\"?").skip(1).collect();
        assert_eq!(links.len(), 3, "a style sheet, a script and an icon");
        for link in links {
            // As a browser resolves it.
            let link = link.split('"').next().expect("a link");
            let file = get(nginx.address(), &format!("{page}?{link}")).await;
            assert_eq!(file.status, 200, "{locations}: {link}");
            let content_type = file.header("content-type").expect("a type");
            assert!(
                !content_type.starts_with("text/html"),
                "{locations}: {link}"
            );
        }

        // Without `sec-fetch-site`, as over plain HTTP.
        let api = format!("{}/api", page.trim_end_matches('/'));
        let host = nginx.address();
        let own = format!("{scheme}://{host}");
        let foreign = [
            format!("{scheme}://evil.example"),
            format!("{scheme}://{}", host.ip()),
            format!("{scheme}://evil.example:{}", host.port()),
            format!("ftp://{host}"),
            "null".to_owned(),
        ];
        for origin in &foreign {
            let reply = set_mode(host, &api, origin, "off").await;
            assert_eq!(reply.status, 403, "{locations}: {origin}");
        }
        assert_eq!(layer.mode(), RuleMode::Enforce);
        let reply = set_mode(host, &api, &own, "shadow").await;
        assert_eq!(reply.status, 204, "{locations}: {}", reply.body);
        assert_eq!(layer.mode(), RuleMode::Shadow);
    }
}

#[tokio::test]
async fn proxy_that_names_a_scheme_has_no_pages_of_the_other_one() {
    let (layer, nginx) = site(SITES[5].0).await;
    let host = nginx.address();
    let reply = set_mode(host, "/x/api", &format!("http://{host}"), "off").await;
    assert_eq!(reply.status, 403);
    assert_eq!(layer.mode(), RuleMode::Enforce);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_uses_the_page_behind_a_proxy_over_plain_http() {
    for (locations, page) in [
        (SITES[1].0, "/tools/quotas/"),
        (SITES[2].0, "/tools/quotas"),
    ] {
        let (layer, nginx) = site(locations).await;
        block_in_place(|| {
            let mut browser = Browser::start();
            browser.show_on(1_280, 900, "light");
            // Not an address of this machine: browsers send `sec-fetch-site` there, as over TLS.
            browser.open(&format!("http://ops.test:{}{page}", nginx.address().port()));
            browser.until("!login.hidden");
            assert_eq!(browser.evaluate("isSecureContext"), false);
            sign_in(&mut browser, WRITE);
            browser.until("!main.hidden && connection.dataset.state === 'live'");
            browser.evaluate(
                "(() => { const select = document.getElementById('layer-mode'); select.value = 'off'; \
                 select.dispatchEvent(new Event('change')); })()",
            );
            confirm(&mut browser);
            browser.until(
                "document.getElementById('status-text').textContent.startsWith('Limits are off')",
            );
            assert_eq!(layer.mode(), RuleMode::Off);
            browser.evaluate("leave.click()");
            browser.until("main.hidden");
            sign_in(&mut browser, READ);
            browser.until("!main.hidden && connection.dataset.state === 'live'");
            // A window without TLS ignores `cross-origin-opener-policy`, and says so.
            let complaints = browser.complaints().into_iter();
            let complaints: Vec<String> = complaints
                .filter(|text| !text.contains("Cross-Origin-Opener-Policy"))
                .collect();
            assert_eq!(complaints, Vec::<String>::new());
        });
    }
}

/// Serves a dashboard behind an nginx.
async fn site(locations: &str) -> (RateLimitLayer, Nginx) {
    let layer = layer();
    let builder = Dashboard::builder(&layer)
        .trusted_proxies(ClientIp::behind(["127.0.0.1"]))
        .allowed_hosts(["127.0.0.1", "ops.test"]);
    let routes: Router = guarded(builder).router();
    let app: Router = Router::new().nest_service("/ops/limits", routes);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let locations = locations
        .replace("{app}", &address.to_string())
        .replace("{forwarded}", FORWARDED);
    (layer, Nginx::start(&locations))
}

async fn get(host: SocketAddr, path: &str) -> Reply {
    let mut client = Client::connect(host).await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n");
    client.send(&request).await;
    client.receive().await
}

/// Sends what the page of an origin sends to change the mode.
async fn set_mode(host: SocketAddr, api: &str, origin: &str, mode: &str) -> Reply {
    let body = format!(r#"{{"mode":"{mode}"}}"#);
    let request = format!(
        "{} {api}/mode HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\nauthorization: Bearer {WRITE}\r\n\
         content-type: application/json\r\nx-tollgate-dashboard: 1\r\ncontent-length: {}\r\n\r\n{body}",
        Method::POST,
        body.len()
    );
    let mut client = Client::connect(host).await;
    client.send(&request).await;
    client.receive().await
}

const FORWARDED: &str = "proxy_set_header X-Forwarded-Host $http_host; proxy_set_header X-Forwarded-Proto $scheme; \
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;";
