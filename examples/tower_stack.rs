//! Run with
//!
//! ```sh
//! cargo run --example tower_stack
//! ```
//!
//! Where does the limit belong among other layers? Layers outside of it see every request, layers inside only the
//! admitted ones.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{
    error::Error,
    io::{IsTerminal, stdout},
    time::Duration,
};

use axum::{BoxError, Router, body::Body, error_handling::HandleErrorLayer, routing::get};
use http::{Request, Response, StatusCode};
use tokio::time::sleep;
use tollgate::{Policy, Quota, RateLimitLayer, extract::Global};
use tower::{
    ServiceBuilder, ServiceExt, limit::GlobalConcurrencyLimitLayer, load_shed::error::Overloaded,
    timeout::error::Elapsed,
};
use tower_http::trace::{DefaultMakeSpan, DefaultOnResponse, TraceLayer};
use tracing::Level;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_ansi(stdout().is_terminal())
        .without_time()
        .init();
    let app = app()?;

    println!("one quick and one slow request: the slow one times out, and is charged");
    print(get_path(&app, "/quick").await?);
    print(get_path(&app, "/slow").await?);

    println!(
        "three slow requests at once, of which two are admitted: the third is shed, and not charged"
    );
    let (first, second, third) = tokio::join!(
        get_path(&app, "/slow"),
        get_path(&app, "/slow"),
        get_path(&app, "/slow")
    );
    print(first?);
    print(second?);
    print(third?);

    println!("the last request of the quota, and one too many");
    print(get_path(&app, "/quick").await?);
    print(get_path(&app, "/quick").await?);
    Ok(())
}

fn app() -> Result<Router, tollgate::Error> {
    let limit = RateLimitLayer::builder()
        .policy(Policy::new("everybody", Quota::per_minute(5)).key(Global))
        .build()?;
    let logging = TraceLayer::new_for_http()
        .make_span_with(DefaultMakeSpan::new().level(Level::INFO))
        .on_response(DefaultOnResponse::new().level(Level::INFO))
        .on_failure(());
    let stack = ServiceBuilder::new()
        // Outside: logs every response, a 429 too.
        .layer(logging)
        // axum needs a response in place of each error of the layers below.
        .layer(HandleErrorLayer::new(error_response))
        // With two requests in flight, further ones get a 503 at once, before anything is charged.
        .load_shed()
        .layer(GlobalConcurrencyLimitLayer::new(2))
        .layer(limit)
        // Inside: limits the time of the handler, without that of the decision.
        .timeout(Duration::from_millis(50));
    Ok(Router::new()
        .route("/quick", get(|| async {}))
        .route("/slow", get(|| sleep(Duration::from_secs(5))))
        .layer(stack))
}

async fn error_response(error: BoxError) -> (StatusCode, String) {
    let status = if error.is::<Elapsed>() {
        StatusCode::GATEWAY_TIMEOUT
    } else if error.is::<Overloaded>() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    (status, error.to_string())
}

async fn get_path(
    app: &Router,
    path: &'static str,
) -> Result<(&'static str, Response<Body>), Box<dyn Error>> {
    let request = Request::get(path).body(Body::empty())?;
    Ok((path, app.clone().oneshot(request).await?))
}

fn print((path, response): (&str, Response<Body>)) {
    let left = response.headers().get("x-ratelimit-remaining");
    println!(
        "  {path:<8} {}, left: {}",
        response.status(),
        left.map_or("no header", |left| left.to_str().unwrap_or("?"))
    );
}
