//! Rate limit headers of responses.
//!
//! [`Headers`] chooses the families: `X-RateLimit-*` by default, the IETF drafts' `RateLimit`, Discord's, several or none.
//! No other module contains the names of these headers.
//!
//! | file | role |
//! |---|---|
//! | `choice` | the families and their options |
//! | `pending` | numbers of an admitted request's headers, until its response is there |
//! | `families` | header names and values of each family |
//! | `writer` | the order in which headers are written |
//! | `merge` | headers that the inner service or an inner layer has set |
//! | `drafts`, `terms` | the drafts' lists of policies, and the quota and window of each policy |
//! | `numbers` | numbers as header values |
//! | `value_buffer` | text of the drafts' lists |

mod choice;
mod drafts;
mod families;
mod merge;
mod numbers;
mod pending;
mod terms;
mod value_buffer;
mod writer;

pub use self::choice::{DiscordHeaders, DiscordScope, Headers, LegacyHeaders, ResetFormat};
pub(crate) use self::pending::PendingHeaders;
pub(crate) use self::terms::PolicyTerms;
pub(crate) use self::writer::HeaderWriter;
