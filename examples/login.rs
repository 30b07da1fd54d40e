//! Run with
//!
//! ```sh
//! cargo run --example login --features body
//! # PORT=0 takes any free port; with REDIS_URL, several processes share the count
//! PORT=3001 REDIS_URL=redis://127.0.0.1/ cargo run --example login --features body
//! ```
//!
//! How are guesses at passwords limited, so that nobody can lock an owner out?

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{Json, Router, http::StatusCode, routing::post};
use serde_json::Value;
use tokio::net::TcpListener;
use tollgate::{
    Policy, Quota, RateLimitLayer,
    builder::RateLimitLayerBuilder,
    extract::{FromBody, KeyExtractor, PeerIp},
    policy::Backoff,
};

/// Per minute 5 failures by name and address, with delays of 1, 2, 4 s and so on, 100 by name, and 20 by address.
fn limits() -> RateLimitLayerBuilder {
    let name = || FromBody::json("/name").or_form("name").ignore_case();
    let policy = |id: &str, failures| Policy::new(id, Quota::per_minute(failures));
    let delay = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(900));
    RateLimitLayer::builder()
        .policy(
            policy("login", 5)
                .backoff(delay)
                .key(name().and(PeerIp))
                .count_failures()
                .clear_on_success(),
        )
        .policy(policy("name", 100).key(name()).count_failures())
        .policy(policy("address", 20).key(PeerIp).count_failures())
}

async fn login(Json(request): Json<Value>) -> StatusCode {
    match (request["name"].as_str(), request["password"].as_str()) {
        (Some("ada"), Some("analytical")) | (Some("mallory"), Some("own")) => StatusCode::OK,
        _ => StatusCode::UNAUTHORIZED,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut limit = limits();
    if let Ok(url) = env::var("REDIS_URL") {
        // A login can wait. After the default of 50 ms, each process would count on its own for a moment.
        limit = limit.redis(url).deadline(Duration::from_secs(2));
    }
    let app = Router::new()
        .route("/login", post(login))
        .layer(limit.build()?);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, guess until you have to wait:");
    println!(
        "  curl -i http://{address}/login -H 'content-type: application/json' -d '{{\"name\":\"ada\",\"password\":\"1\"}}'"
    );
    // `PeerIp` reads the peer address from here; without it every request gets a 500.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}
