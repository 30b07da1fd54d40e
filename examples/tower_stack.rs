//! Run with
//!
//! ```sh
//! cargo run --example tower_stack
//! ```
//!
//! Where does the limit stand among other layers? What stands outside of it sees every request, what stands inside
//! sees those that passed.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

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

    println!("one quick, one slow: the slow one ends in time, and was charged");
    tell(ask(&app, "/quick").await?);
    tell(ask(&app, "/slow").await?);

    println!(
        "three slow ones at once, where two have room: the third is shed, and was not charged"
    );
    let (first, second, third) =
        tokio::join!(ask(&app, "/slow"), ask(&app, "/slow"), ask(&app, "/slow"));
    tell(first?);
    tell(second?);
    tell(third?);

    println!("the last one of the quota, and one too many");
    tell(ask(&app, "/quick").await?);
    tell(ask(&app, "/quick").await?);
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
        // Outside: logs every answer, a 429 too.
        .layer(logging)
        // axum wants answers: it makes one of each error below.
        .layer(HandleErrorLayer::new(answer_to))
        // Over two at work: 503 at once, before anything is charged.
        .load_shed()
        .layer(GlobalConcurrencyLimitLayer::new(2))
        .layer(limit)
        // Inside: the time for the handler alone, without that for the decision.
        .timeout(Duration::from_millis(50));
    Ok(Router::new()
        .route("/quick", get(|| async {}))
        .route("/slow", get(|| sleep(Duration::from_secs(5))))
        .layer(stack))
}

async fn answer_to(error: BoxError) -> (StatusCode, String) {
    let status = if error.is::<Elapsed>() {
        StatusCode::GATEWAY_TIMEOUT
    } else if error.is::<Overloaded>() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    (status, error.to_string())
}

async fn ask(
    app: &Router,
    path: &'static str,
) -> Result<(&'static str, Response<Body>), Box<dyn Error>> {
    let request = Request::get(path).body(Body::empty())?;
    Ok((path, app.clone().oneshot(request).await?))
}

fn tell((path, response): (&str, Response<Body>)) {
    let left = response.headers().get("x-ratelimit-remaining");
    println!(
        "  {path:<8} {}, left: {}",
        response.status(),
        left.map_or("no header", |left| left.to_str().unwrap_or("?"))
    );
}
