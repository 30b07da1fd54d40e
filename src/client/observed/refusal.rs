//! Whether an API refused a call, and for how long.
//!
//! # Why is not every 403 a refusal?
//!
//! GitHub and others send 403 both for a limit and for a missing permission. So a 403 only counts with a mark of a limit: a wait,
//! or a limit of which nothing remains. Discord sends 429 for limits, and its limits on each 403 as well. There, a 403 that takes
//! the last unit is a missing permission, and a retry would bring the client closer to a ban.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header::RETRY_AFTER};

use super::{limit::ObservedLimit, retry_info::retry_delay, values::texts, waits::SentAt};

/// The reason for which an API refused a call before doing the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The client exceeded a limit.
    ///
    /// That is a 429, a 403 with a wait or an exhausted limit, a throttling error of AWS with any status, or `RESOURCE_EXHAUSTED`
    /// of gRPC.
    Limited,
    /// The API has too much to do, whichever client sends it.
    ///
    /// That is a 529, a 503 with a wait or an exhausted limit, or `UNAVAILABLE` of gRPC with a wait or a pushback.
    Overloaded,
}

impl Refusal {
    pub(super) fn of(
        status: StatusCode,
        headers: &HeaderMap,
        limits: &[ObservedLimit],
        has_wait: bool,
    ) -> Option<Self> {
        let is_marked = has_wait || limits.iter().any(|limit| limit.remaining == Some(0));
        match (status.as_u16(), texts(headers, GRPC_STATUS).next()) {
            (_, Some("8")) | (429, _) => Some(Self::Limited),
            (400..=599, _) if is_throttling(headers) => Some(Self::Limited),
            (403, _) if is_marked && !headers.contains_key(DISCORD_BUCKET) => Some(Self::Limited),
            (_, Some("14")) if has_wait || headers.contains_key(PUSHBACK) => Some(Self::Overloaded),
            (503, _) if is_marked => Some(Self::Overloaded),
            (529, _) => Some(Self::Overloaded),
            _ => None,
        }
    }
}

/// Returns the wait that the headers ask for, and the header that has it. The most precise one counts, and of its values the
/// longest.
pub(super) fn requested_wait(
    headers: &HeaderMap,
    sent: SentAt,
) -> Option<(Duration, &'static str)> {
    let millis = WAITS_IN_MILLIS.iter().flat_map(|name| {
        let waits = texts(headers, name).filter_map(|text| sent.wait_millis(text));
        waits.map(|wait| (wait, *name))
    });
    let seconds = texts(headers, RETRY_AFTER.as_str()).filter_map(|text| sent.wait(text));
    millis
        .max()
        .or_else(|| Some((retry_delay(headers)?, "grpc-status-details-bin")))
        .or_else(|| Some((seconds.max()?, "retry-after")))
}

/// Returns the longest wait for a unit of an exhausted limit.
pub(super) fn wait_for_units(limits: &[ObservedLimit]) -> Option<Duration> {
    let exhausted = limits.iter().filter(|limit| match limit.remaining {
        Some(remaining) => remaining == 0,
        // BigCommerce shows only the reset on a denial.
        None => limit.name.is_none(),
    });
    exhausted.filter_map(ObservedLimit::next_unit).max()
}

/// Returns whether the headers forbid a retry.
pub(super) fn forbids_retry(headers: &HeaderMap) -> bool {
    // By gRFC A6, a pushback that cannot be read forbids it as well.
    let mut pushbacks = texts(headers, PUSHBACK).map(str::parse::<i32>);
    let mut choices = SHOULD_RETRY.iter().flat_map(|name| texts(headers, name));
    pushbacks.any(|millis| !matches!(millis, Ok(0..)))
        || choices.any(|choice| choice.eq_ignore_ascii_case("false"))
}

/// Returns whether an error type of AWS is one of throttling. The status of such errors differs by service.
fn is_throttling(headers: &HeaderMap) -> bool {
    // `com.amazonaws.dynamodb#ThrottlingException:http://..`, with or without what surrounds the code.
    texts(headers, "x-amzn-errortype").any(|text| {
        let code = text.split(':').next().unwrap_or_default();
        let code = code.rsplit('#').next().unwrap_or_default();
        THROTTLING_ERRORS.contains(&code)
    })
}

const DISCORD_BUCKET: &str = "x-ratelimit-bucket";
const GRPC_STATUS: &str = "grpc-status";
const PUSHBACK: &str = "grpc-retry-pushback-ms";
/// OpenAI and Anthropic, and Stripe.
const SHOULD_RETRY: [&str; 2] = ["x-should-retry", "stripe-should-retry"];
/// The codes after which SDKs of AWS slow down.
const THROTTLING_ERRORS: [&str; 14] = [
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionInProgressException",
];
const WAITS_IN_MILLIS: [&str; 4] = [
    "retry-after-ms",
    "x-ms-retry-after-ms",
    "x-amz-retry-after",
    PUSHBACK,
];
