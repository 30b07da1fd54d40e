//! Run with
//!
//! ```sh
//! cargo run --example custom_key
//! # the first of its limits, for clients of your own, over HTTP/1.1 or HTTP/2:
//! cargo run --example custom_key -- 127.0.0.1:3000
//! curl -i --http2-prior-knowledge -H 'host: acme.example.com' http://127.0.0.1:3000/
//! ```
//!
//! How do I count by something of my own? By a type, by a closure, or by two extractors of which one steps in.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode, request::Parts};
use tokio::net::TcpListener;
use tollgate::{
    Key, Policy, Quota, RateLimitLayer,
    extract::{ApiKey, Extracted, HostHeader, KeyExtractor, PeerIp},
    rules::Rule,
};
use tower::ServiceExt;

/// The first label of the host name: `acme` of `acme.example.com`.
struct Tenant;

impl KeyExtractor for Tenant {
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        // In lower case, from the `Host` header of HTTP/1.1 or the `:authority` of HTTP/2. Two that contradict each other
        // are ambiguous, and stay so.
        HostHeader.extract(parts).and_then(|host| {
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

    fn missing_status(&self, _: &Parts) -> StatusCode {
        StatusCode::NOT_FOUND
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = app(two_a_minute("per-tenant").key(Tenant))?;
    if let Some(address) = env::args().nth(1) {
        return serve(&address, app).await;
    }

    println!("a type: one quota per tenant");
    for host in [
        "acme.example.com",
        "ACME.example.com",
        "acme.example.com",
        "globex.example.com",
        "localhost",
    ] {
        ask(
            &app,
            request().header("host", host).body(Body::empty())?,
            host,
        )
        .await?;
    }

    println!("a closure: one quota per language");
    let by_language = |parts: &Parts| {
        let language = parts.headers.get("accept-language")?;
        Some(Key::new(language.as_bytes()))
    };
    let app = self::app(two_a_minute("per-language").key(by_language))?;
    for language in ["de", "de", "de", "fr"] {
        let request = request().header("accept-language", language);
        ask(&app, request.body(Body::empty())?, language).await?;
    }

    println!("an API key, else the address: a key that reads like an address is not that address");
    let key_or_address = ApiKey::header("x-api-key").or_else(PeerIp);
    let app = self::app(two_a_minute("per-caller").key(key_or_address))?;
    for api_key in [None, None, None, Some("k-1"), Some("192.0.2.1")] {
        let mut request = request();
        if let Some(api_key) = api_key {
            request = request.header("x-api-key", api_key);
        }
        ask(
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

/// Clients choose the host, the language and the API key, and could choose a new one each time: their address limits that.
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
        "listening on http://{}, for two requests a minute per tenant",
        listener.local_addr()?
    );
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

fn request() -> http::request::Builder {
    Request::get("/").extension(SocketAddr::from(([192, 0, 2, 1], 50_000)))
}

async fn ask(app: &Router, request: Request<Body>, who: &str) -> Result<(), Box<dyn Error>> {
    let response = app.clone().oneshot(request).await?;
    println!("  {who:<20} {}", response.status());
    Ok(())
}
