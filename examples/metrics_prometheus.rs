//! Run with
//!
//! ```sh
//! cargo run --example metrics_prometheus --features metrics
//! # PORT=0 takes any free port; REDIS_URL also shows the metrics of Redis
//! PORT=3001 REDIS_URL=redis://127.0.0.1/ cargo run --example metrics_prometheus --features metrics
//! ```
//!
//! How does Prometheus get the metrics? `examples/prometheus/alerts.yml` has alerts for them.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::{net::TcpListener, time::interval};
use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let prometheus = install_prometheus()?;

    let mut limit =
        RateLimitLayer::builder().policy(Policy::new("per-ip", Quota::per_minute(3)).key(PeerIp));
    if let Ok(url) = env::var("REDIS_URL") {
        limit = limit.redis(url.as_str());
    }
    let limit = limit.build()?;

    let limiter = limit.limiter().clone();
    let metrics = get(move || async move {
        limiter.record_gauges("web");
        prometheus.render()
    });
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(limit)
        // Below the layer, so that scrapes are not limited.
        .route("/metrics", metrics);

    let port = env::var("PORT").unwrap_or_else(|_| "3000".to_owned());
    let listener = TcpListener::bind(("127.0.0.1", port.parse()?)).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try");
    println!("  for i in $(seq 5); do curl http://{address}/; done");
    println!("  curl http://{address}/metrics");
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

fn install_prometheus() -> Result<PrometheusHandle, Box<dyn Error>> {
    // Without buckets, histograms become summaries, which cannot be combined over instances.
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_charges".to_owned()), &CHARGES)?
        .set_buckets_for_metric(
            Matcher::Full("tollgate_turn_wait_seconds".to_owned()),
            &WAITS,
        )?
        .install_recorder()?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        // Otherwise samples of histograms take memory until the next scrape.
        let mut ticks = interval(Duration::from_secs(5));
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

/// Bounds of the buckets: the deadline of a decision is 50 ms, and a call carries at most 64 charges.
const SECONDS: [f64; 10] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
];
/// Callers wait for their turn for up to 30 s.
const WAITS: [f64; 9] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0];
const CHARGES: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
