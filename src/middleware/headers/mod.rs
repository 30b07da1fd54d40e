//! The only place that knows the names of rate limit headers: which ones answers carry, and what they say.
//!
//! [`Headers`] says which; a plan made of it and of a layer's policies says what, once per decision.

mod choice;
mod drafts;
mod fields;
mod merge;
mod plan;
mod terms;
mod text;

pub(crate) use self::plan::Plan;

pub(super) use self::fields::{Fields, whole_seconds};
pub(super) use self::terms::Terms;

pub use self::choice::{DiscordHeaders, DiscordScope, Headers, LegacyHeaders, ResetFormat};
