//! The pages for operators: the dashboard and the metrics, on an address of their own.

use std::time::Duration;

use axum::{Router, response::Redirect, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tollgate::{RateLimitLayer, config::reload::RulesHandle, dashboard::Dashboard};

use crate::{Failure, settings::Tokens};

/// Returns the dashboard of a layer.
pub(crate) fn dashboard(
    limit: &RateLimitLayer,
    rules: &RulesHandle,
    tokens: &Tokens,
) -> Result<Dashboard, Failure> {
    let dashboard = Dashboard::builder(limit)
        .rules(rules)
        .token(&tokens.read)
        .write_token(&tokens.write)
        .title("gateway");
    Ok(dashboard.build()?)
}

/// Returns the routes for operators.
pub(crate) fn routes(
    dashboard: &Dashboard,
    limit: &RateLimitLayer,
    prometheus: PrometheusHandle,
) -> Router {
    let limiter = limit.limiter().clone();
    let metrics = get(move || async move {
        limiter.record_gauges("gateway");
        prometheus.render()
    });
    Router::new()
        .nest(DASHBOARD, dashboard.router())
        // For people who type the address.
        .route("/", get(|| async { Redirect::to(DASHBOARD) }))
        .route("/ops/limits/", get(|| async { Redirect::to(DASHBOARD) }))
        .route("/metrics", metrics)
}

/// Collects the metrics of the process. Call it before the limits are built.
pub(crate) fn prometheus() -> Result<PrometheusHandle, Failure> {
    // Without buckets, histograms become summaries, which cannot be combined over gateways.
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_charges".to_owned()), &CHARGES)?
        .install_recorder()?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        // Otherwise samples of histograms take memory until the next scrape.
        let mut ticks = tokio::time::interval(Duration::from_secs(5));
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

/// Path of the dashboard.
const DASHBOARD: &str = "/ops/limits";
/// Bounds of the buckets: the deadline of a decision is 50 ms, and a call carries at most 64 charges.
const SECONDS: [f64; 10] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
];
const CHARGES: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
