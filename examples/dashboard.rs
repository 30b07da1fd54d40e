//! Run with
//!
//! ```sh
//! cargo run --example dashboard --features dashboard
//! # PORT=0 takes any free port; with REDIS_URL, the page shows Redis too
//! PORT=3001 REDIS_URL=redis://127.0.0.1/ cargo run --example dashboard --features dashboard
//! ```
//!
//! How do operators see and steer the limits? The example makes requests of its own, so that there is something to see.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{Router, body::Body, routing::get};
use http::Request;
use tokio::net::TcpListener;
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RequestHead, dashboard::Dashboard, extract::ApiKey,
    rules::RuleMode, tiers::Tier,
};
use tower::ServiceExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limit = limits()?;

    // In a real service, both come from its configuration. The first gives read access only.
    let (token, write_token) = (random()?, random()?);
    let dashboard = Dashboard::builder(&limit)
        .token(&token)
        .write_token(&write_token)
        // A page of another site could make its own host name resolve to this machine.
        .allowed_hosts(["127.0.0.1", "localhost"])
        .title("example shop")
        .build()?;

    let app = Router::new()
        .route("/search", get(|| async { "found\n" }))
        .route("/login", get(|| async { "welcome\n" }))
        .layer(limit);
    tokio::spawn(demo_load(app.clone()));
    // Below the layer, so that operators are not limited.
    let app = app.nest_service("/ops/limits", dashboard.router::<()>());

    let port = env::var("PORT").unwrap_or_else(|_| "3000".to_owned());
    let listener = TcpListener::bind(("127.0.0.1", port.parse()?)).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, open");
    println!("  http://{address}/ops/limits");
    println!("and sign in with {token} or {write_token}");
    // The dashboard counts wrong tokens by the address of the client.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}

/// Returns 128 random bits, in hexadecimal digits.
fn random() -> Result<String, Box<dyn Error>> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

fn limits() -> Result<RateLimitLayer, Box<dyn Error>> {
    let key = || ApiKey::header("x-api-key");
    let pro = Tier::new("pro", Quota::per_second(40))?;
    let tier = move |head: &RequestHead, _: &Key| {
        let key = head.headers.get("x-api-key")?;
        key.as_bytes().starts_with(b"pro-").then(|| pro.clone())
    };
    let search = Policy::new("search", Quota::per_second(10).burst(20));
    let login = Policy::new("login", Quota::per_minute(30));
    let exports = Policy::new("exports", Quota::per_minute(60));
    let mut limit = RateLimitLayer::builder()
        .policy(search.key(key()).tier_by(tier).when("/search"))
        .policy(login.key(key()).when("/login"))
        // Not enforced yet: the page shows what it would deny.
        .policy(exports.key(key()).mode(RuleMode::Shadow));
    if let Ok(url) = env::var("REDIS_URL") {
        limit = limit.redis(url.as_str());
    }
    Ok(limit.build()?)
}

/// Makes requests of eight clients, more at some times than at others.
async fn demo_load(app: Router) {
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    for tick in 0_u32.. {
        ticks.tick().await;
        let is_busy = tick / 300 % 3 == 1;
        for client in 0..if is_busy { 8 } else { 3 } {
            let kind = if client % 2 == 0 { "pro" } else { "free" };
            let path = if tick % 20 == 0 { "/login" } else { "/search" };
            let request = Request::get(path).header("x-api-key", format!("{kind}-{client}"));
            let request = request.body(Body::empty()).expect("a valid request");
            // A router does not fail.
            let _ = app.clone().oneshot(request).await;
        }
    }
}
