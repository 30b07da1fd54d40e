//! Run with
//!
//! ```sh
//! cargo run --example tiers
//! ```
//!
//! How do paying customers get a larger quota, and what happens if the database of their plans is down? Plans are looked
//! up by API key and cached for a minute.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{
    error::Error,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use axum::{Router, body::Body, routing::get};
use http::Request;
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RequestHead,
    extract::{ApiKey, PeerIp},
    matching::PathPattern,
    tiers::{Tier, TierCache},
};
use tower::ServiceExt;

/// In place of a database of customers.
#[derive(Debug, Default)]
struct Database {
    is_down: AtomicBool,
    lookups: AtomicU32,
}

impl Database {
    async fn plan(&self, api_key: &str) -> Result<Option<&'static str>, io::Error> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        if self.is_down.load(Ordering::Relaxed) {
            return Err(io::Error::other("the database is down"));
        }
        Ok(api_key.starts_with("pro-").then_some("pro"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database = Arc::new(Database::default());
    let pro = Tier::new("pro", Quota::per_minute(1_000))?;
    let customers = Arc::clone(&database);
    let plans = TierCache::builder(move |head: &RequestHead, _: &Key| {
        let (customers, pro) = (Arc::clone(&customers), pro.clone());
        // The key is a hash, so the API key itself is read from the request head.
        let api_key = head.headers.get("x-api-key");
        let api_key = api_key.and_then(|value| value.to_str().ok().map(str::to_owned));
        async move {
            let Some(api_key) = api_key else {
                return Ok(None);
            };
            let plan = customers.plan(&api_key).await?;
            Ok::<_, io::Error>(plan.map(|_| pro))
        }
    })
    .build()?;

    let limit = RateLimitLayer::builder()
        .skip("/health")
        // Clients can make up API keys, each with its own count: the limit per address bounds that.
        .policy(Policy::new("per-ip", Quota::per_minute(3_000)).key(PeerIp))
        .policy(
            Policy::new("api", Quota::per_minute(60))
                .key(ApiKey::header("x-api-key"))
                .tier_cache(plans.clone())
                .cost_when(PathPattern::prefix("/reports"), 20),
        )
        .build()?;
    let app = Router::new()
        .route("/health", get(|| async { "healthy" }))
        .route("/users", get(|| async { "users" }))
        .route("/reports/{id}", get(|| async { "a report" }))
        .layer(limit);

    get_path(&app, "free-1", "/users").await?;
    get_path(&app, "pro-1", "/users").await?;
    get_path(&app, "pro-1", "/reports/7").await?;
    get_path(&app, "pro-1", "/Reports/7").await?;
    get_path(&app, "pro-1", "/health").await?;
    println!("{} lookups", database.lookups.load(Ordering::Relaxed));

    println!("the database goes down");
    database.is_down.store(true, Ordering::Relaxed);
    get_path(&app, "pro-1", "/users").await?;
    get_path(&app, "pro-2", "/users").await?;
    Ok(())
}

async fn get_path(app: &Router, api_key: &str, path: &str) -> Result<(), Box<dyn Error>> {
    let request = Request::get(path)
        .header("x-api-key", api_key)
        .extension(SocketAddr::from(([192, 0, 2, 1], 50_000)));
    let response = app.clone().oneshot(request.body(Body::empty())?).await?;
    let header = |name| {
        response
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let limit = header("x-ratelimit-limit").unwrap_or("none");
    let left = header("x-ratelimit-remaining").unwrap_or("-");
    println!(
        "  {api_key:<7} {path:<11} {}  limit {limit:<5} left {left}",
        response.status()
    );
    Ok(())
}
