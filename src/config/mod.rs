//! Rules in files: YAML, TOML or JSON (feature `rules`).
//!
//! A [`RuleSet`] is read and checked as a whole. If anything in it cannot work, [`RuleSetError`] lists every fault with its
//! line and column, and what to write instead.
//!
//! # Examples
//!
//! ```
//! use tollgate::{RateLimitLayer, config::{Format, RuleSet}};
//!
//! let rules = RuleSet::parse(Format::Yaml, "
//! rules:
//!   - id: login
//!     path: /login
//!     method: POST
//!     key: peer_ip
//!     limit: 5/min
//!   - id: api
//!     key: { api_key: { header: x-api-key } }
//!     limit: 600/min
//!     burst: 50
//!     unless: { path: /login }
//! ")?;
//! let layer = RateLimitLayer::builder().rules(rules).build()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The guide to all fields is `docs/rules.md`; `docs/rules.schema.json` is a JSON Schema for editors.
//!
//! With the feature `reload`, rules change while the service runs: see `config::reload`.
//!
//! # Bounds
//!
//! A file has at most 1 MiB, 150,000 values, 32 levels and 1,000 policies (a candidate is a policy too), of which at most 16
//! count a request. `and` and `or_else` join at most 16 keys. Tiers and overrides have at most 10,000 quotas. A text in YAML
//! or TOML has at most 80,000 separators, such as `,` and `[`. YAML anchors and aliases are refused, so a small file cannot
//! become a large one. The first 100 faults are listed, and the others are counted.
//!
//! So reading a file takes at most 64 MB, whatever it contains. Text of a file in a fault is on one line of bounded length,
//! for example `\n` for a line break.

mod body_field;
mod classes;
mod decode;
mod fault;
mod fields;
mod from_json;
mod from_toml;
mod from_yaml;
mod keys;
mod lines;
mod named_key;
mod names;
mod network_tiers;
mod node;
mod outcomes;
#[cfg(feature = "client")]
mod outgoing;
#[cfg(feature = "client")]
mod outgoing_layer;
mod overload;
mod overload_layer;
mod penalty;
mod policy_steps;
mod proxies;
mod quota;
mod reading;
mod registry;
#[cfg(feature = "reload")]
pub mod reload;
mod requests;
mod rule;
mod rule_list;
mod rule_set;
mod size;
mod spec;
mod tiers;
mod units;

pub use self::fault::{Fault, RuleSetError};
pub use self::rule_set::{Format, RuleSet, RuleSetReader};

// The fields of a file, for the tests of this package. A rule set is read from text and written as JSON.
#[doc(hidden)]
pub use self::names::{
    AlgorithmName, ConsistencyName, CountName, HeaderFamily, ModeName, OnMissingKeyName,
    OutageName, ShownLimitName, WindowStartName,
};
#[doc(hidden)]
pub use self::spec::{
    AdaptiveFloorSpec, AdaptiveSpec, AddressHeaderSpec, ApiKeySpec, BackoffSpec, BodyFieldSpec,
    BodyKeySpec, ClientIpSpec, ClientNetworksSpec, CookieSpec, CostSpec, DefaultsSpec, KeySpec,
    LimitSettingsSpec, LimitSpec, OneOrMany, OutgoingRuleSpec, OutgoingSpec, OverrideSpec,
    PenaltySpec, ProxiesSpec, QuotaSpec, RequestSpec, RuleSetSpec, RuleSpec, TierSourceSpec,
};
