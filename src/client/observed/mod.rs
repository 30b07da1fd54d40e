//! Reads the rate limits that another API shows in its responses.
//!
//! | file | role |
//! |---|---|
//! | `observed` | the result for one response |
//! | `limit` | one limit of the result |
//! | `refusal` | whether the API refused the call, and for how long |
//! | `retry_info` | the wait in the error details of gRPC |
//! | `collector` | the limits, from all headers of the response |
//! | `families` | the header names of each family |
//! | `drafts` | lists with parameters, as in the IETF drafts |
//! | `waits` | times until a limit is reset |
//! | `dates` | dates in the formats that APIs send |
//! | `numbers` | numbers, and spans such as `1m30s` |
//! | `values` | header values as text |
//!
//! # Bounds
//!
//! At most 32 values are read of a response, and 32 limits kept. A value above 1 KiB is ignored (error details of gRPC: 8 KiB),
//! as is one that is not visible ASCII. Nothing in a response makes the reader panic.

mod collector;
mod dates;
mod drafts;
mod families;
mod limit;
mod numbers;
mod observed;
mod refusal;
mod retry_info;
mod values;
mod waits;

pub use self::limit::{ObservedLimit, ResetKind};
pub use self::observed::Observed;
pub use self::refusal::Refusal;
