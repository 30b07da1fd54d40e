//! Rate limit headers of responses.
//!
//! [`Headers`] chooses the families: `X-RateLimit-*` by default, the IETF drafts' `RateLimit`, Discord's, several or none.
//! No other module knows the names of these headers.

mod choice;
mod drafts;
mod merge;
mod terms;
mod value_buffer;
mod values;
mod writer;

pub use self::choice::{DiscordHeaders, DiscordScope, Headers, LegacyHeaders, ResetFormat};
pub(crate) use self::terms::PolicyTerms;
pub(crate) use self::values::PendingHeaders;
pub(crate) use self::writer::HeaderWriter;
