//! Run with
//!
//! ```sh
//! cargo run --example axum_handlers
//! ```
//!
//! How does a handler read the remaining quota, and how does an outer layer see rejections?

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{error::Error, net::SocketAddr};

use axum::{
    Router,
    body::{Body, to_bytes},
    middleware::map_response,
    response::Response,
    routing::get,
};
use http::Request;
use tollgate::{
    Policy, Quota, RateLimitLayer,
    extract::{PeerIp, Route},
    middleware::RateLimitInfo,
    rejection::Rejection,
};
use tower::ServiceExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let everything = RateLimitLayer::builder()
        .policy(Policy::new("per-ip", Quota::per_minute(4)).key(PeerIp))
        .build()?;
    let reports = RateLimitLayer::builder()
        .policy(Policy::new("reports", Quota::per_hour(2)).key(Route))
        .build()?;

    // `route_layer` limits only the routes before it, so `/api/status` is not counted as a report.
    let api = Router::new()
        .route("/reports/{id}", get(report))
        .route_layer(reports)
        .route("/status", get(status));
    let app = Router::new()
        .nest("/api", api)
        .layer(everything.clone())
        .layer(map_response(log_rejection))
        .route("/health", get(health));

    for path in [
        "/api/reports/1",
        "/api/reports/2",
        "/api/reports/3",
        "/api/status",
        "/api/status",
        "/health",
    ] {
        let request = Request::get(path)
            .extension(SocketAddr::from(([192, 0, 2, 1], 50_000)))
            // Sent by proxies. `PeerIp` does not read it, so the layer warns.
            .header("x-forwarded-for", "198.51.100.7")
            .body(Body::empty())?;
        let response = app.clone().oneshot(request).await?;
        let status = response.status().as_u16();
        let text = to_bytes(response.into_body(), 1_000).await?;
        println!("{path:<15} {status} {}", String::from_utf8_lossy(&text));
    }
    for warning in everything.warnings() {
        println!("{}: {warning}", warning.code());
    }
    Ok(())
}

/// Inside of two layers: the info contains the policies of both.
async fn report(info: RateLimitInfo) -> String {
    let remaining = |policy| Some(info.state(policy)?.usage()?.remaining);
    format!(
        "reports left: {}, requests left: {}, least: {}",
        remaining("reports").unwrap_or(0),
        remaining("per-ip").unwrap_or(0),
        info.remaining().unwrap_or(0),
    )
}

async fn status(info: RateLimitInfo) -> String {
    format!("requests left: {}", info.remaining().unwrap_or(0))
}

/// Outside of both layers: without `Option`, the response would be a 500.
async fn health(info: Option<RateLimitInfo>) -> &'static str {
    match info {
        Some(_) => "limited",
        None => "not limited",
    }
}

/// Outside of the layers, so it sees every response.
async fn log_rejection(response: Response) -> Response {
    if let Some(rejection) = response.extensions().get::<Rejection>() {
        println!("  rejected: {}", rejection.message());
    }
    response
}
