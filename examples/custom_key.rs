//! Run with
//!
//! ```sh
//! cargo run --example custom_key
//! # serves the first of its limits, over HTTP/1.1 and HTTP/2:
//! cargo run --example custom_key -- 127.0.0.1:3000
//! curl -i --http2-prior-knowledge -H 'host: acme.example.com' http://127.0.0.1:3000/
//! ```
//!
//! How do I count by a key of my own? With a type, a closure, or a combination of two extractors.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use tokio::net::TcpListener;
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RequestHead,
    extract::{ApiKey, Extracted, HostHeader, KeyExtractor, PeerIp},
    rules::Rule,
};
use tower::ServiceExt;

/// The first label of the host name: `acme` of `acme.example.com`.
struct Tenant;

impl KeyExtractor for Tenant {
    fn extract(&self, head: &RequestHead) -> Extracted<Key> {
        // The host in lower case, from the `Host` header of HTTP/1.1 or the `:authority` of HTTP/2. `and_then` keeps an
        // ambiguous host ambiguous.
        HostHeader.extract(head).and_then(|host| {
            let tenant = host
                .as_str()
                .split_once('.')
                .map(|(tenant, _)| Key::new(tenant));
            tenant.into()
        })
    }

    fn label(&self) -> &'static str {
        "tenant"
    }

    fn missing_status(&self, _: &RequestHead) -> StatusCode {
        StatusCode::NOT_FOUND
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = app(two_a_minute("per-tenant").key(Tenant))?;
    if let Some(address) = env::args().nth(1) {
        return serve(&address, app).await;
    }

    println!("a type, with one quota per tenant");
    for host in [
        "acme.example.com",
        "ACME.example.com",
        "acme.example.com",
        "globex.example.com",
        "localhost",
    ] {
        send(
            &app,
            request().header("host", host).body(Body::empty())?,
            host,
        )
        .await?;
    }

    println!("a closure, with one quota per language");
    let by_language = |head: &RequestHead| {
        let language = head.headers.get("accept-language")?;
        Some(Key::new(language.as_bytes()))
    };
    let app = self::app(two_a_minute("per-language").key(by_language))?;
    for language in ["de", "de", "de", "fr"] {
        let request = request().header("accept-language", language);
        send(&app, request.body(Body::empty())?, language).await?;
    }

    println!(
        "the API key or else the address; an API key that looks like an address has its own quota"
    );
    let key_or_address = ApiKey::header("x-api-key").or_else(PeerIp);
    let app = self::app(two_a_minute("per-caller").key(key_or_address))?;
    for api_key in [None, None, None, Some("k-1"), Some("192.0.2.1")] {
        let mut request = request();
        if let Some(api_key) = api_key {
            request = request.header("x-api-key", api_key);
        }
        send(
            &app,
            request.body(Body::empty())?,
            api_key.unwrap_or("no key"),
        )
        .await?;
    }
    Ok(())
}

fn two_a_minute(name: &str) -> Policy {
    Policy::new(name, Quota::per_minute(2))
}

/// Clients choose the host, the language and the API key, and could send a new one each time: a limit per address stops
/// that.
fn app(rule: Rule) -> Result<Router, tollgate::Error> {
    let limit = RateLimitLayer::builder()
        .policy(rule)
        .policy(Policy::new("per-ip", Quota::per_minute(20)).key(PeerIp))
        .build()?;
    Ok(Router::new().route("/", get(|| async {})).layer(limit))
}

async fn serve(address: &str, app: Router) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(address).await?;
    println!(
        "listening on http://{}, with two requests a minute per tenant",
        listener.local_addr()?
    );
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

fn request() -> http::request::Builder {
    Request::get("/").extension(SocketAddr::from(([192, 0, 2, 1], 50_000)))
}

async fn send(app: &Router, request: Request<Body>, key: &str) -> Result<(), Box<dyn Error>> {
    let response = app.clone().oneshot(request).await?;
    println!("  {key:<20} {}", response.status());
    Ok(())
}
