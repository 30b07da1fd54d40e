//! Run with
//!
//! ```sh
//! cargo run --manifest-path examples/opentelemetry/Cargo.toml
//! ```
//!
//! How do metrics and decisions reach OpenTelemetry? Metrics go through a recorder for the `metrics` facade. Each decision
//! becomes an event of the span that it was made in. This example prints both; a service exports them by OTLP instead.

use std::error::Error;

use metrics_opentelemetry::{OpenTelemetryMetrics, OpenTelemetryRecorder};
use opentelemetry::{metrics::MeterProvider as _, trace::TracerProvider as _};
use opentelemetry_sdk::{
    metrics::{PeriodicReader, SdkMeterProvider},
    trace::SdkTracerProvider,
};
use tollgate::{Key, Policy, Quota, RateLimiter};
use tracing::{Instrument, Level, info_span, level_filters::LevelFilter};
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let meters = install_metrics()?;
    let tracers = install_tracing()?;

    let jobs = Policy::new("jobs", Quota::per_minute(2));
    let limiter = RateLimiter::builder().policy(jobs.clone()).build()?;
    for _ in 0..3 {
        // In process, `check` decides before its future is polled, so it must be called within the span.
        let job = async { limiter.check(&[jobs.charge(Key::new("ada"))]).await };
        job.instrument(info_span!("job")).await?;
    }

    // A service calls it in an interval that is shorter than that of its reader.
    limiter.record_gauges("jobs");
    meters.shutdown()?;
    tracers.shutdown()?;
    Ok(())
}

fn install_metrics() -> Result<SdkMeterProvider, Box<dyn Error>> {
    let exporter = opentelemetry_stdout::MetricExporter::default();
    let reader = PeriodicReader::builder(exporter).build();
    let meters = SdkMeterProvider::builder().with_reader(reader).build();
    let mut recorder = OpenTelemetryRecorder::new(OpenTelemetryMetrics::new(meters.meter("app")));
    recorder.set_histogram_bounds_mut(
        [
            "tollgate_redis_queue_seconds",
            "tollgate_redis_round_trip_seconds",
        ]
        .into_iter(),
        &[
            0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
        ],
    );
    metrics::set_global_recorder(recorder).map_err(|error| error.to_string())?;
    Ok(meters)
}

fn install_tracing() -> Result<SdkTracerProvider, Box<dyn Error>> {
    let exporter = opentelemetry_stdout::SpanExporter::default();
    let tracers = SdkTracerProvider::builder()
        .with_simple_exporter(exporter)
        .build();
    // Decisions are events at DEBUG, so this target needs a level of its own.
    let levels = Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("tollgate::decision", Level::DEBUG);
    let spans = tracing_opentelemetry::layer().with_tracer(tracers.tracer("app"));
    let subscriber = tracing_subscriber::registry().with(spans.with_filter(levels));
    tracing::subscriber::set_global_default(subscriber)?;
    Ok(tracers)
}
