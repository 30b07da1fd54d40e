//! Header names of each family of rate limit headers.
//!
//! The families that this crate writes are in `src/headers/`. These are the names that other APIs send.

use super::limit::ResetKind;

/// Headers that describe one limit, or limits that have names.
#[derive(Debug)]
pub(super) struct Family {
    pub reset_kind: ResetKind,
    /// Whether a remaining of zero only counts beside a limit. Azure OpenAI sends zero for unknown.
    pub zero_needs_limit: bool,
    /// How names of limits begin in this family.
    names: &'static str,
    /// Names in lower case, and what the value is. A `*` is the name of the limit.
    headers: &'static [(&'static str, Part)],
}

/// The part of a limit that a header contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A span beside [`Refill`](Self::Refill), in seconds.
    Interval,
    Limit,
    /// The limit, and perhaps policies after it, as in drafts 00 to 06.
    LimitAndPolicies,
    /// A list of limits, each with what remains and its reset.
    Limits,
    /// When some units come back, which may be earlier than the reset.
    NextUnits,
    /// A list of quotas and windows.
    Policies,
    /// Units that come back in each interval.
    Refill,
    Remaining,
    /// A list such as `A;197,B;1297`.
    RemainingByName,
    Reset,
    ResetMillis,
    /// `rejected` if nothing remains.
    Status,
    Used,
    /// Such as `32/40`.
    UsedOfLimit,
    WindowMillis,
}

/// A header of a family.
#[derive(Debug)]
pub(super) struct Found<'a> {
    /// Index in [`FAMILIES`].
    pub family: usize,
    pub part: Part,
    /// The name of the limit, from the name of the header.
    pub name: Option<&'a str>,
}

/// Looks a header up by its name in lower case.
pub(super) fn find(header: &str) -> Option<Found<'_>> {
    // All names contain it, and few other headers do.
    if !header.contains("limit") {
        return None;
    }
    FAMILIES.iter().enumerate().find_map(|(family, found)| {
        found.headers.iter().find_map(|(pattern, part)| {
            let name = matched(pattern, header)?;
            let part = *part;
            let name = (!name.is_empty()).then_some(name);
            let is_of_family = name.unwrap_or_default().starts_with(found.names);
            is_of_family.then_some(Found { family, part, name })
        })
    })
}

/// Returns the text in place of the `*`, without hyphens at its ends. Empty if the pattern has none.
fn matched<'a>(pattern: &str, header: &'a str) -> Option<&'a str> {
    let Some((start, end)) = pattern.split_once('*') else {
        return (pattern == header).then_some("");
    };
    let name = header.strip_prefix(start)?.strip_suffix(end)?;
    Some(name.trim_matches('-'))
}

/// The first match of a name counts, so names without a `*` come first.
pub(super) static FAMILIES: [Family; 9] = [
    // The IETF drafts. GitLab and Twitch use the same names with other values, and Atlassian those with `beta`.
    Family {
        headers: &[
            ("beta-ratelimit", Part::Limits),
            ("beta-ratelimit-policy", Part::Policies),
            ("ratelimit", Part::Limits),
            ("ratelimit-limit", Part::LimitAndPolicies),
            ("ratelimit-observed", Part::Used),
            ("ratelimit-policy", Part::Policies),
            ("ratelimit-remaining", Part::Remaining),
            ("ratelimit-reset", Part::Reset),
            ("ratelimit-resettime", Part::Reset),
        ],
        ..WINDOWS
    },
    // GitHub, Discord, Reddit, Atlassian, Rocket.Chat, Akamai, Confluence and many others.
    Family {
        headers: &[
            ("x-ratelimit-fillrate", Part::Refill),
            ("x-ratelimit-interval-seconds", Part::Interval),
            ("x-ratelimit-limit", Part::Limit),
            ("x-ratelimit-next", Part::NextUnits),
            ("x-ratelimit-remaining", Part::Remaining),
            ("x-ratelimit-reset", Part::Reset),
            ("x-ratelimit-reset-after", Part::NextUnits),
            ("x-ratelimit-used", Part::Used),
        ],
        ..WINDOWS
    },
    // X, Zendesk and BigCommerce.
    Family {
        headers: &[
            ("x-rate-limit", Part::Limit),
            ("x-rate-limit-limit", Part::Limit),
            ("x-rate-limit-remaining", Part::Remaining),
            ("x-rate-limit-requests-left", Part::Remaining),
            ("x-rate-limit-requests-quota", Part::Limit),
            ("x-rate-limit-reset", Part::Reset),
            ("x-rate-limit-time-reset-ms", Part::ResetMillis),
            ("x-rate-limit-time-window-ms", Part::WindowMillis),
        ],
        ..WINDOWS
    },
    // Zendesk, by endpoint.
    Family {
        headers: &[("zendesk-ratelimit-*", Part::Limits)],
        ..WINDOWS
    },
    // OpenAI and those that copy it, such as Azure OpenAI. Kong also has these names, with units of time.
    Family {
        headers: &[
            ("x-ratelimit-limit-*", Part::Limit),
            ("x-ratelimit-remaining-*", Part::Remaining),
            ("x-ratelimit-reset-*", Part::Reset),
        ],
        zero_needs_limit: true,
        ..BUCKETS
    },
    // Anthropic, for subscriptions.
    Family {
        headers: &[
            ("anthropic-ratelimit-*-reset", Part::Reset),
            ("anthropic-ratelimit-*-status", Part::Status),
        ],
        names: "unified",
        ..WINDOWS
    },
    // Anthropic.
    Family {
        headers: &[
            ("anthropic-ratelimit-*-limit", Part::Limit),
            ("anthropic-ratelimit-*-remaining", Part::Remaining),
            ("anthropic-ratelimit-*-reset", Part::Reset),
        ],
        ..BUCKETS
    },
    // Shopify, and reports of Akamai.
    Family {
        headers: &[
            ("akamai-*ratelimit-limit", Part::Limit),
            ("akamai-*ratelimit-next", Part::NextUnits),
            ("akamai-*ratelimit-remaining", Part::Remaining),
            ("akamai-*ratelimit-reset", Part::Reset),
            ("x-shopify-shop-api-call-limit", Part::UsedOfLimit),
        ],
        ..BUCKETS
    },
    // Azure Resource Manager.
    Family {
        headers: &[
            ("x-ms-ratelimit-remaining-resource", Part::RemainingByName),
            ("x-ms-ratelimit-remaining-*", Part::Remaining),
        ],
        ..WINDOWS
    },
];

const WINDOWS: Family = Family {
    reset_kind: ResetKind::WindowEnd,
    zero_needs_limit: false,
    names: "",
    headers: &[],
};
const BUCKETS: Family = Family {
    reset_kind: ResetKind::FullAgain,
    ..WINDOWS
};
