//! Metrics and events about decisions.

#[cfg(feature = "metrics")]
mod catalog;
mod decisions;
#[cfg(feature = "metrics")]
pub(crate) mod gauges;
#[cfg(feature = "metrics")]
mod per_recorder;
#[cfg(feature = "metrics")]
mod series;
#[cfg(feature = "redis")]
mod servers;
mod tiers;

pub(crate) use self::decisions::DecisionObserver;
#[cfg(feature = "redis")]
pub(crate) use self::servers::BreakerMetrics;
#[cfg(all(feature = "metrics", feature = "redis"))]
pub(crate) use self::servers::CallMetrics;
pub(crate) use self::tiers::TierMetrics;
