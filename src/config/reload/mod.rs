//! Rules that change while the service runs (feature `reload`).
//!
//! [`build_reloading`](crate::builder::RateLimitLayerBuilder::build_reloading) builds a layer with rules from a
//! [`RuleSource`], and returns a [`RulesHandle`] to see and change them.
//!
//! ```text
//! file, Redis, handle ──> Reloader: read, check, build ──> swapped: the next request gets the new rules
//!                                                    └───> refused: an error in the log and in RulesState, the old rules stay
//! ```
//!
//! # Guarantees
//!
//! - A request ends under the rules that it began with, with its headers, slots and settlements. No request fails or waits
//!   because of a swap: it reads the current rules without a lock.
//! - Counts stay. A limit that changes neither locks a key out nor lets it off: what a key has used is converted, as the
//!   [algorithm](crate::algorithm) describes.
//! - A set is taken as a whole or refused as a whole. A refused one is reported once, with the text of
//!   [`RuleSetError`](crate::config::RuleSetError), and the current rules stay.
//! - A new text is parsed on a thread for blocking work, one at a time. Neither requests nor calls of the handle that look at
//!   the rules wait for that. Stored rules that are too long, or cannot be read, leave the current rules.
//! - A mode or rollout that was [set while the service runs](crate::RateLimitLayer::set_rule_mode) stays, unless the new set
//!   has another one written than the old set. The mode of the layer always stays.
//!
//! # Rules of a fleet
//!
//! With [`RuleSource::redis`], all instances have the rules that are stored in Redis. Whichever of them
//! [pushes](RulesHandle::push) a set, all take it within a second: the push is announced to a connection that listens. Where no
//! announcement can be received, an instance reads twice a second. Every [`poll_interval`](RuleSource::poll_interval) (5 s) it
//! reads anyway; if a connection dies in silence, a new set is taken within that interval and 5 seconds more.
//!
//! A push replaces the version that its author has seen, or fails with a [conflict](ReloadError::Conflict). While Redis is down,
//! nothing can be pushed and the current rules stay. They also stay if Redis loses them, until the next push.
//!
//! # What begins anew
//!
//! A rule whose algorithm or `id` changes counts from zero, since the counts of another algorithm mean something else.
//! A request that was charged before a change of the rule's window, and is refunded after it, is not refunded.
//!
//! # Examples
//!
//! ```no_run
//! use tollgate::{RateLimitLayer, config::reload::RuleSource};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let (layer, rules) = RateLimitLayer::builder().build_reloading(RuleSource::file("rules.yaml"))?;
//!
//! let mut changes = rules.subscribe();
//! while changes.changed().await.is_ok() {
//!     let state = changes.borrow_and_update().clone();
//!     match state.last_error() {
//!         Some(error) => println!("refused: {error}"),
//!         None => println!("version {} is current", state.version().number()),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod build;
mod error;
mod file_watch;
mod handle;
mod new_rules;
mod reloader;
#[cfg(feature = "redis")]
mod shared_rules;
#[cfg(feature = "redis")]
mod shared_watch;
mod source;
mod state;
mod target;

pub use self::error::ReloadError;
pub use self::handle::RulesHandle;
pub use self::new_rules::NewRules;
pub use self::source::RuleSource;
pub use self::state::{RuleVersion, RulesState};
