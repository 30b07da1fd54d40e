//! Log events, for transitions and misconfigurations only: never one per request. `telemetry` has the event per decision.

/// Logs an event with the target `tollgate`: a fixed message, then fields, each formatted with `Display`
/// on one line of a bounded length: they may be text from outside.
///
/// Without the feature `tracing`, logs nothing.
macro_rules! event {
    ($level:ident, $message:literal $(, $field:ident = $value:expr)* $(,)?) => {{
        #[cfg(feature = "tracing")]
        tracing::event!(
            target: "tollgate",
            tracing::Level::$level,
            $($field = %$crate::diagnosis::outside_text::Logged(&$value),)*
            $message
        );
        #[cfg(not(feature = "tracing"))]
        {
            $(let _ = &$value;)*
        }
    }};
}

pub(crate) use event;
