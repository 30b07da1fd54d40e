//! The [`Store`] trait: implement it to keep counts elsewhere.

#[cfg(feature = "dashboard")]
mod durations;
mod future;
mod health;
mod local_view;
mod stats;
mod store;
#[cfg(feature = "reload")]
mod stored_rules;
pub(crate) mod waited;

#[cfg(all(feature = "dashboard", feature = "redis"))]
pub(crate) use self::durations::DurationCounter;
#[cfg(feature = "dashboard")]
pub(crate) use self::durations::DurationCounts;
pub(crate) use self::future::PendingResult;
pub use self::future::StoreFuture;
#[cfg(feature = "redis")]
pub(crate) use self::health::MergeCounts;
pub use self::health::{Health, Mode, Outage};
pub use self::local_view::{KeyLease, LocalView};
#[cfg(feature = "dashboard")]
pub(crate) use self::stats::CallLatency;
pub use self::stats::{ServerStats, Stats};
#[cfg(feature = "reload")]
pub use self::store::RuleStore;
pub use self::store::{OnSlotMessage, SlotMessage, Store};
#[cfg(feature = "reload")]
pub use self::stored_rules::{RulesId, RulesText};
pub(crate) use self::waited::{StoreId, TimeLeft};
