//! Names that a rule file can have for a choice, and what they mean.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    algorithm::WindowStart,
    headers::ShownLimit,
    policy::OnOutage,
    rules::{OnMissingKey, RuleMode},
};

/// Values that have names in files.
pub(super) trait Names: Copy + 'static {
    /// All values with their names.
    const ALL: &'static [(&'static str, Self)];
}

macro_rules! names {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl Names for $name {
            const ALL: &'static [(&'static str, Self)] = &[$(($text, Self::$variant),)*];
        }
    };
}

names! {
    /// Algorithm that counts the requests.
    AlgorithmName {
        /// Requests in flight.
        Concurrency = "concurrency",
        /// Consecutive windows.
        FixedWindow = "fixed_window",
        /// Evenly spaced, without waiting.
        LeakyBucket = "leaky_bucket",
        /// Evenly spaced, by waiting.
        LeakyQueue = "leaky_queue",
        /// Exact times.
        SlidingLog = "sliding_log",
        /// Two weighted windows.
        SlidingWindow = "sliding_window",
        /// A burst, then the sustained rate.
        TokenBucket = "token_bucket",
    }
}

names! {
    /// The start of a fixed window.
    WindowStartName {
        /// By the clock, in UTC.
        Clock = "clock",
        /// With the first request.
        FirstHit = "first_hit",
        /// With the calendar month, in UTC.
        Month = "month",
    }
}

names! {
    /// Requests that count, by how they end.
    CountName {
        /// All requests.
        All = "all",
        /// Those with a status of 400 to 499, and those without a response.
        Failures = "failures",
    }
}

names! {
    /// Mode of a rule.
    ModeName {
        /// Does nothing.
        Off = "off",
        /// Counts, and denies nothing.
        Shadow = "shadow",
        /// Denies requests over the limit.
        Enforce = "enforce",
    }
}

names! {
    /// Choice for requests while Redis is unavailable.
    OutageName {
        /// Admits uncounted.
        Allow = "allow",
        /// Counts in this process.
        Local = "local",
        /// Responds with 503.
        Deny = "deny",
    }
}

names! {
    /// Whether each request asks Redis.
    ConsistencyName {
        /// As `leased`, but the limit may be exceeded by the `overshoot`.
        Delayed = "delayed",
        /// Busy keys are decided by units that this instance has leased.
        Leased = "leased",
        /// Each request asks Redis.
        Strict = "strict",
    }
}

names! {
    /// Choice for requests without a key.
    OnMissingKeyName {
        /// Rejects the request.
        Reject = "reject",
        /// Counts all such requests together.
        Share = "share",
        /// Does not count the request.
        Skip = "skip",
    }
}

names! {
    /// A family of response headers.
    HeaderFamily {
        /// Those of Discord.
        Discord = "discord",
        /// Draft 6 of the IETF.
        Draft06 = "draft06",
        /// Draft 11 of the IETF.
        Draft11 = "draft11",
        /// `X-RateLimit-*`.
        Legacy = "legacy",
        /// None; `Retry-After` stays.
        None = "none",
    }
}

names! {
    /// The limit of a bucket in response headers.
    ShownLimitName {
        /// The burst.
        AtOnce = "at_once",
        /// The units of a period.
        PerPeriod = "per_period",
    }
}

// === What the names mean ===

macro_rules! meanings {
    ($($name:ident => $meaning:ident { $($variant:ident),* })*) => {$(
        impl From<$name> for $meaning {
            fn from(name: $name) -> Self {
                match name { $($name::$variant => Self::$variant,)* }
            }
        }
    )*};
}

meanings! {
    ModeName => RuleMode { Enforce, Off, Shadow }
    OnMissingKeyName => OnMissingKey { Reject, Share, Skip }
    OutageName => OnOutage { Allow, Deny, Local }
    ShownLimitName => ShownLimit { AtOnce, PerPeriod }
    WindowStartName => WindowStart { Clock, FirstHit, Month }
}
