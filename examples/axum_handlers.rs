//! Run with
//!
//! ```sh
//! cargo run --example axum_handlers
//! ```
//!
//! How does a handler know what is left, and how do layers around see who was refused?

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

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

    // Only the routes before it: `/api/status` is not a report.
    let api = Router::new()
        .route("/reports/{id}", get(report))
        .route_layer(reports)
        .route("/status", get(status));
    let app = Router::new()
        .nest("/api", api)
        .layer(everything.clone())
        .layer(map_response(note))
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
            // As a proxy sends it: nobody here looks at it.
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

/// Behind two layers: the info tells of both.
async fn report(info: RateLimitInfo) -> String {
    let left = |policy| Some(info.state(policy)?.usage()?.remaining);
    format!(
        "reports left: {:?}, requests left: {:?}, narrowest: {:?}",
        left("reports").unwrap_or(0),
        left("per-ip").unwrap_or(0),
        info.remaining().unwrap_or(0),
    )
}

async fn status(info: RateLimitInfo) -> String {
    format!("requests left: {:?}", info.remaining().unwrap_or(0))
}

/// Without a layer around it: `RateLimitInfo` itself would be answered with 500.
async fn health(info: Option<RateLimitInfo>) -> &'static str {
    match info {
        Some(_) => "limited",
        None => "not limited",
    }
}

/// Outside: sees every answer, and who was refused.
async fn note(response: Response) -> Response {
    if let Some(rejection) = response.extensions().get::<Rejection>() {
        println!("  refused: {}", rejection.message());
    }
    response
}
