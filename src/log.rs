//! Log events, for transitions and mistakes only: never one per request.

/// Logs an event under the target `tollgate`: a fixed message, then fields that are formatted with `Display`.
///
/// Compiles to nothing without the feature `tracing`.
macro_rules! event {
    ($level:ident, $message:literal $(, $field:ident = $value:expr)* $(,)?) => {{
        #[cfg(feature = "tracing")]
        tracing::event!(
            target: "tollgate",
            tracing::Level::$level,
            $($field = %$value,)*
            $message
        );
        #[cfg(not(feature = "tracing"))]
        {
            $(let _ = &$value;)*
        }
    }};
}

pub(crate) use event;
