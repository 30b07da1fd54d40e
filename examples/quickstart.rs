//! Run with
//!
//! ```sh
//! cargo run --example quickstart
//! # PORT=0 takes any free port; with REDIS_URL, several processes share the count
//! PORT=3001 REDIS_URL=redis://127.0.0.1/ cargo run --example quickstart
//! ```
//!
//! How is a route limited to 10 requests a minute per address?

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{
    env,
    error::Error,
    io::{IsTerminal, stdout},
    net::SocketAddr,
};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_ansi(stdout().is_terminal())
        .init();

    let mut limit =
        RateLimitLayer::builder().policy(Policy::new("per-ip", Quota::per_minute(10)).key(PeerIp));
    let redis_url = env::var("REDIS_URL").ok();
    if let Some(url) = &redis_url {
        limit = limit.redis(url.as_str());
    }
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(limit.build()?);

    let listener = listen(port()?).await?;
    let address = listener.local_addr()?;
    let counted = redis_url.map_or("in this process", |_| "in Redis");
    println!("listening on http://{address}, counting {counted}; try");
    println!("  curl -i http://{address}/");
    println!(
        "  for i in $(seq 15); do curl -s -o /dev/null -w '%{{http_code}} ' http://{address}/; done; echo"
    );
    // `PeerIp` reads the peer address from here; without it every request gets a 500.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

fn port() -> Result<u16, String> {
    let Ok(text) = env::var("PORT") else {
        return Ok(3000);
    };
    text.parse()
        .map_err(|_| format!("PORT={text} is not a port: use a number from 0 to 65535"))
}

async fn listen(port: u16) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    listener.map_err(|error| {
        format!("cannot listen on port {port}: {error}; use PORT=0 for any free port")
    })
}
