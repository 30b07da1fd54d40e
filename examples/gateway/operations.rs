//! The pages for operators: the dashboard and the metrics, on an address of their own.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::Request,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{StatusCode, header::LOCATION};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tollgate::{
    RateLimitLayer, RequestHead,
    config::reload::RulesHandle,
    dashboard::Dashboard,
    matching::{HostPattern, Match, Matcher as _},
};

use crate::{Failure, settings::Tokens};

/// Returns the dashboard of a layer.
pub(crate) fn dashboard(
    limit: &RateLimitLayer,
    rules: &RulesHandle,
    tokens: &Tokens,
) -> Result<Dashboard, Failure> {
    let dashboard = Dashboard::builder(limit)
        .rules(rules)
        .token(&tokens.read.secret)
        .write_token(&tokens.write.secret)
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
    // Relative, since a proxy may have the page below another path. For people who type the address.
    let to_dashboard = (StatusCode::SEE_OTHER, [(LOCATION, "ops/limits")]);
    Router::new()
        .nest_service("/ops/limits", dashboard.router::<()>())
        .route("/", get(async move || to_dashboard))
        .route("/metrics", metrics)
}

/// Adds a check of the host that was asked for. Without names, a loopback address is reached by itself and by `localhost`, and
/// any other address by all names.
///
/// Otherwise a web page could make its own host name resolve to this machine, and would be of the same origin here (DNS
/// rebinding).
pub(crate) fn with_hosts(
    routes: Router,
    names: &[String],
    address: IpAddr,
) -> Result<Router, Failure> {
    let hosts: Arc<[HostPattern]> = match (names, address) {
        ([], IpAddr::V4(own)) if own.is_loopback() => of_this_machine(own.to_string()),
        ([], IpAddr::V6(own)) if own.is_loopback() => of_this_machine(format!("[{own}]")),
        ([], _) => return Ok(routes),
        (names, _) => names.iter().map(HostPattern::new).collect(),
    };
    for host in &*hosts {
        host.validate()?;
    }
    let check = move |request: Request, next: Next| check_host(hosts.clone(), request, next);
    Ok(routes.layer(from_fn(check)))
}

fn of_this_machine(address: String) -> Arc<[HostPattern]> {
    ["localhost".to_owned(), address]
        .map(HostPattern::new)
        .into()
}

async fn check_host(hosts: Arc<[HostPattern]>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if hosts
        .iter()
        .any(|host| host.matches(&RequestHead::from(&parts)) == Match::Exact)
    {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let message = "unknown host: list it in --operations-hosts\n";
    (StatusCode::MISDIRECTED_REQUEST, message).into_response()
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

/// Bounds of the buckets: the deadline of a decision is 50 ms, and a call carries at most 64 charges.
const SECONDS: [f64; 10] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
];
const CHARGES: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
