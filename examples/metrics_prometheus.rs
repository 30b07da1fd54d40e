//! How does Prometheus scrape the metrics of a service?
//!
//! Run with `cargo run --example metrics_prometheus --features metrics`, then
//!
//! ```sh
//! for i in $(seq 12); do curl -s -o /dev/null -w "%{http_code} " localhost:3000/; done
//! curl localhost:3000/metrics
//! ```
//!
//! The last responses are 429, and `tollgate_decisions_total` shows how many. `examples/prometheus` has alerts.

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::{net::TcpListener, time::interval};
use tollgate::{Policy, Quota, RateLimitLayer, RateLimiter, extract::PeerIp};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Without buckets, the exporter makes summaries, which cannot be added up over instances.
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_charges".to_owned()), &CHARGES)?
        .install_recorder()?;

    // Over Redis, add `.redis("redis://127.0.0.1/")`.
    let limiter = RateLimiter::builder().build()?;
    let limit = RateLimitLayer::builder()
        .limiter(&limiter)
        .policy(Policy::new("per-ip", Quota::per_minute(60).burst(8)).key(PeerIp))
        .build()?;

    // Frees what the exporter keeps of histograms between two scrapes.
    let upkeep = recorder.clone();
    tokio::spawn(async move {
        let mut ticks = interval(Duration::from_secs(5));
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });

    let metrics = move || async move {
        limiter.record_gauges("web");
        recorder.render()
    };
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(limit)
        // After the layer: scrapes are not limited.
        .route("/metrics", get(metrics));
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}

/// Bounds of the buckets, in seconds: a decision has 50 ms by default.
const SECONDS: [f64; 9] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
];
/// A call carries 64 charges at most.
const CHARGES: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
