//! Which requests a policy counts, by which key, and at what cost.
//!
//! `Policy::new(..).key(PeerIp)` makes a [`Rule`]. Its methods choose the requests it counts, their cost, the callers'
//! [tiers](crate::tiers), and what a request really cost once it has ended.

#[cfg(feature = "body")]
mod body_cost;
mod charging;
mod closures;
mod completed;
mod filter;
mod mode;
#[cfg(not(feature = "body"))]
mod no_body_cost;
mod on_missing_key;
mod outcome;
mod policy_settings;
mod price;
mod rule;
mod setup_check;

pub(crate) use self::charging::Caller;
pub use self::completed::{BodyOutcome, CompletedRequest, RequestOutcome};
pub(crate) use self::filter::RequestFilter;
#[cfg(feature = "client")]
pub(crate) use self::filter::RuleMatchers;
pub use self::mode::RuleMode;
pub(crate) use self::mode::{ModeSetting, ModeSwitch};
pub use self::on_missing_key::OnMissingKey;
pub(crate) use self::rule::KeySource;
pub use self::rule::Rule;
