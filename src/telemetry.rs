//! Log lines, for transitions and mistakes only: never one per request.

use std::fmt;

/// Something got worse, or is set up wrongly.
pub(crate) fn warn(message: fmt::Arguments<'_>) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tollgate", "{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = message;
}

/// Something got better.
#[cfg_attr(
    not(feature = "redis"),
    expect(dead_code, reason = "only the Redis store recovers")
)]
pub(crate) fn info(message: fmt::Arguments<'_>) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: "tollgate", "{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = message;
}
