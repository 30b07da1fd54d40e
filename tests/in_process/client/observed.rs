//! Rate limits of other APIs: responses as the documentation of each API shows them, and hostile ones.

use std::{
    convert::Infallible,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use tollgate::{
    Policy, Quota, RateLimitLayer,
    client::{Observed, ObservedLimit, Refusal, ResetKind},
    extract::Global,
    headers::{Headers, ResetFormat},
};
use tonic::Code;
use tonic_types::{ErrorDetails, StatusExt};
use tower::{Layer, ServiceExt, service_fn};

// === Responses of APIs ===

/// A response, and what is read of it.
struct Example {
    /// The documentation or report that shows the headers.
    source: &'static str,
    /// Seconds since the epoch at which it arrives.
    now: u64,
    status: u16,
    headers: &'static str,
    /// As [`shown`] writes it.
    read: &'static str,
}

const NOW: u64 = 1_770_000_000;

#[test]
fn responses_are_read_as_their_apis_document_them() {
    let mut wrong = Vec::new();
    for example in EXAMPLES {
        let headers = headers(example.headers);
        let status = StatusCode::from_u16(example.status).expect("a status");
        let read = shown(&Observed::read(status, &headers, at(example.now)));
        if read != example.read {
            let Example {
                source, headers, ..
            } = example;
            wrong.push(format!(
                "{source}{headers}\n  read:     {read}\n  expected: {}",
                example.read
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

const EXAMPLES: &[Example] = &[
    // ## Retry-After
    Example {
        source: "RFC 9110, 10.2.3: seconds",
        now: NOW,
        status: 503,
        headers: "retry-after: 120",
        read: "overloaded for 120s",
    },
    Example {
        source: "RFC 9110, 10.2.3: a date",
        now: 946_684_700,
        status: 503,
        headers: "retry-after: Fri, 31 Dec 1999 23:59:59 GMT",
        read: "overloaded for 99s",
    },
    Example {
        source: "RFC 850 date, RFC 9110, 5.6.7",
        now: 784_111_717,
        status: 429,
        headers: "retry-after: Sunday, 06-Nov-94 08:49:37 GMT",
        read: "limited for 60s",
    },
    Example {
        source: "asctime date, RFC 9110, 5.6.7",
        now: 784_111_717,
        status: 429,
        headers: "retry-after: Sun Nov  6 08:49:37 1994",
        read: "limited for 60s",
    },
    Example {
        source: "docs.slack.dev/apis/web-api/rate-limits",
        now: NOW,
        status: 429,
        headers: "retry-after: 30",
        read: "limited for 30s",
    },
    // ## IETF drafts
    Example {
        source: "draft-polli-ratelimit-headers-04",
        now: NOW,
        status: 200,
        headers: "
            ratelimit-limit: 100, 100;w=60, 1000;w=3600;comment=\"sliding, not fixed\"
            ratelimit-remaining: 50
            ratelimit-reset: 30",
        read: "- 50 of 100 per 60s, ends in 30s | - ? of 1000 per 3600s",
    },
    Example {
        source: "draft-ietf-httpapi-ratelimit-headers-06",
        now: NOW,
        status: 429,
        headers: "
            ratelimit-limit: 10
            ratelimit-policy: 10;w=1, 50;w=60
            ratelimit-remaining: 0
            ratelimit-reset: 1",
        read: "limited for 1s | - 0 of 10 per 1s, ends in 1s | - ? of 50 per 60s",
    },
    Example {
        source: "draft-ietf-httpapi-ratelimit-headers-07",
        now: NOW,
        status: 200,
        headers: "
            ratelimit: limit=100, remaining=50, reset=30
            ratelimit-policy: 100;w=60",
        read: "- 50 of 100 per 60s, ends in 30s",
    },
    Example {
        source: "draft-ietf-httpapi-ratelimit-headers-08",
        now: NOW,
        status: 200,
        headers: "
            ratelimit-policy: \"burst\";q=100;w=60,\"daily\";q=1000;w=86400
            ratelimit: \"burst\";r=50;t=30",
        read: "burst 50 of 100 per 60s, ends in 30s | daily ? of 1000 per 86400s",
    },
    Example {
        source: "draft-ietf-httpapi-ratelimit-headers-11: units and partitions",
        now: NOW,
        status: 200,
        headers: "
            ratelimit-policy: \"peruser\";q=65535;qu=\"content-bytes\";w=10;pk=:sdfjLJUOUH==:
            ratelimit: \"peruser\";r=30000;t=5;pk=:sdfjLJUOUH==:",
        read: "peruser 30000 of 65535 content-bytes per 10s, ends in 5s",
    },
    Example {
        source: "an early text of draft 08: a token, and other parameters",
        now: NOW,
        status: 200,
        headers: "
            ratelimit-policy: default;l=100;w=60
            ratelimit: default;r=50;w=30",
        read: "default 50 of 100 per 60s, ends in 30s",
    },
    Example {
        source: "ietf-wg-httpapi/ratelimit-headers, PR 166: renamed parameters",
        now: NOW,
        status: 429,
        headers: "
            ratelimit-policy: \"default\";q=100;w=60
            ratelimit: \"default\";a=0;w=30;c=1",
        read: "limited for 30s | default 0 of 100 per 60s, ends in 30s",
    },
    // ## GitHub and GitLab
    Example {
        source: "docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api: primary",
        now: NOW,
        status: 403,
        headers: "
            x-ratelimit-limit: 60
            x-ratelimit-remaining: 0
            x-ratelimit-used: 60
            x-ratelimit-reset: 1770000600
            x-ratelimit-resource: core",
        read: "limited for 600s | - 0 of 60, ends in 600s | bucket core",
    },
    Example {
        source: "docs.github.com, as above: secondary",
        now: NOW,
        status: 403,
        headers: "
            retry-after: 60
            x-ratelimit-limit: 5000
            x-ratelimit-remaining: 4990
            x-ratelimit-reset: 1770000600
            x-ratelimit-resource: graphql",
        read: "limited for 60s | - 4990 of 5000, ends in 600s | bucket graphql",
    },
    Example {
        source: "docs.github.com, as above: a missing permission",
        now: NOW,
        status: 403,
        headers: "
            x-ratelimit-limit: 5000
            x-ratelimit-remaining: 4990
            x-ratelimit-reset: 1770000600",
        read: "- 4990 of 5000, ends in 600s",
    },
    Example {
        source: "docs.gitlab.com, user and IP rate limits",
        now: 1_609_844_370,
        status: 429,
        headers: "
            ratelimit-limit: 60
            ratelimit-name: throttle_authenticated_web
            ratelimit-observed: 67
            ratelimit-remaining: 0
            ratelimit-reset: 1609844400
            ratelimit-resettime: Tue, 05 Jan 2021 11:00:00 GMT
            retry-after: 30",
        read: "limited for 30s | - 0 of 60, ends in 30s | bucket throttle_authenticated_web",
    },
    // ## Language models
    Example {
        source: "platform.openai.com/docs/guides/rate-limits",
        now: NOW,
        status: 200,
        headers: "
            x-ratelimit-limit-requests: 60
            x-ratelimit-limit-tokens: 150000
            x-ratelimit-remaining-requests: 59
            x-ratelimit-remaining-tokens: 149984
            x-ratelimit-reset-requests: 1s
            x-ratelimit-reset-tokens: 6m0s",
        read: "requests 59 of 60, full in 1s | tokens 149984 of 150000, full in 360s",
    },
    Example {
        source: "openai-python _base_client.py: waits in milliseconds first",
        now: NOW,
        status: 429,
        headers: "
            retry-after: 2
            retry-after-ms: 1240
            x-ratelimit-limit-tokens_usage_based: 40000
            x-ratelimit-remaining-tokens_usage_based: 0
            x-ratelimit-reset-tokens_usage_based: 12ms",
        read: "limited for 1.24s | tokens_usage_based 0 of 40000, full in 12ms",
    },
    Example {
        source: "community.openai.com/t/535297: no wait, but a bucket",
        now: NOW,
        status: 429,
        headers: "
            x-ratelimit-limit-requests: 60
            x-ratelimit-remaining-requests: 0
            x-ratelimit-reset-requests: 1h2m3s",
        // 3,723 s until 60 requests are back.
        read: "limited for 62.05s | requests 0 of 60, full in 3723s",
    },
    Example {
        source: "openai-python _base_client.py: should_retry",
        now: NOW,
        status: 429,
        headers: "x-should-retry: false",
        read: "limited | no retry",
    },
    Example {
        source: "learn.microsoft.com/answers/questions/5625878: Azure OpenAI, unknown values",
        now: NOW,
        status: 429,
        headers: "
            retry-after: 7
            x-ratelimit-limit-requests: -1
            x-ratelimit-remaining-requests: 0
            x-ratelimit-reset-requests: 60
            x-ratelimit-limit-tokens: 20000
            x-ratelimit-remaining-tokens: 19913
            x-ratelimit-remaining-images: 0",
        read: "limited for 7s | requests ? of ?, full in 60s | tokens 19913 of 20000",
    },
    Example {
        source: "docs.anthropic.com/en/api/rate-limits, response headers",
        now: 1_736_951_000,
        status: 429,
        headers: "
            retry-after: 12
            anthropic-ratelimit-requests-limit: 4000
            anthropic-ratelimit-requests-remaining: 3999
            anthropic-ratelimit-requests-reset: 2025-01-15T14:24:00Z
            anthropic-ratelimit-input-tokens-limit: 400000
            anthropic-ratelimit-input-tokens-remaining: 0
            anthropic-ratelimit-input-tokens-reset: 2025-01-15T14:23:20.5Z",
        read: "limited for 12s | requests 3999 of 4000, full in 40s | input-tokens 0 of 400000, full in 500ms",
    },
    Example {
        source: "anthropics/claude-code, headers for subscriptions",
        now: 1_775_450_000,
        status: 429,
        headers: "
            anthropic-ratelimit-unified-status: rejected
            anthropic-ratelimit-unified-reset: 1775455200
            anthropic-ratelimit-unified-5h-status: rejected
            anthropic-ratelimit-unified-5h-reset: 1775455200
            anthropic-ratelimit-unified-7d-status: allowed
            anthropic-ratelimit-unified-7d-reset: 1775973600
            anthropic-ratelimit-unified-7d-utilization: 0.17",
        read: "limited for 5200s | unified 0 of ?, ends in 5200s | unified-5h 0 of ?, ends in 5200s \
               | unified-7d ? of ?, ends in 523600s",
    },
    Example {
        source: "docs.anthropic.com/en/api/errors: overloaded_error",
        now: NOW,
        status: 529,
        headers: "x-should-retry: true",
        read: "overloaded",
    },
    // ## Chat and social networks
    Example {
        source: "docs.discord.com/developers/topics/rate-limits: headers",
        now: 1_470_173_022,
        status: 200,
        headers: "
            x-ratelimit-limit: 5
            x-ratelimit-remaining: 0
            x-ratelimit-reset: 1470173023
            x-ratelimit-reset-after: 1
            x-ratelimit-bucket: abcd1234",
        read: "- 0 of 5, ends in 1s | bucket abcd1234",
    },
    Example {
        source: "docs.discord.com, as above: a bucket is exceeded",
        now: 1_470_172_959,
        status: 429,
        headers: "
            retry-after: 65
            x-ratelimit-limit: 10
            x-ratelimit-remaining: 0
            x-ratelimit-reset: 1470173023.123
            x-ratelimit-reset-after: 64.57
            x-ratelimit-bucket: abcd1234
            x-ratelimit-scope: user",
        read: "limited for 65s | - 0 of 10, ends in 64.57s | bucket abcd1234 | scope user",
    },
    Example {
        source: "docs.discord.com, as above: the global limit, without the newer scope",
        now: NOW,
        status: 429,
        headers: "
            retry-after: 65
            x-ratelimit-global: true",
        read: "limited for 65s | scope global",
    },
    Example {
        source: "docs.discord.com, as above: a missing permission",
        now: NOW,
        status: 403,
        headers: "
            x-ratelimit-limit: 5
            x-ratelimit-remaining: 0
            x-ratelimit-reset-after: 1
            x-ratelimit-bucket: abcd1234",
        read: "- 0 of 5, ends in 1s | bucket abcd1234",
    },
    Example {
        source: "docs.x.com/fundamentals/rate-limits",
        now: NOW,
        status: 429,
        headers: "
            x-rate-limit-limit: 900
            x-rate-limit-remaining: 0
            x-rate-limit-reset: 1770000872",
        read: "limited for 872s | - 0 of 900, ends in 872s",
    },
    Example {
        source: "github.com/reddit-archive/reddit/wiki/API",
        now: NOW,
        status: 200,
        headers: "
            x-ratelimit-used: 4
            x-ratelimit-remaining: 596.0
            x-ratelimit-reset: 360",
        read: "- 596 of 600, ends in 360s",
    },
    Example {
        source: "dev.twitch.tv/docs/api/guide",
        now: NOW,
        status: 200,
        headers: "
            ratelimit-limit: 800
            ratelimit-remaining: 799
            ratelimit-reset: 1770000001",
        read: "- 799 of 800, ends in 1s",
    },
    Example {
        source: "developer.rocket.chat, rate limiting of the REST API",
        now: 1_570_000_000,
        status: 200,
        headers: "
            x-ratelimit-limit: 10
            x-ratelimit-remaining: 9
            x-ratelimit-reset: 1570000060000",
        read: "- 9 of 10, ends in 60s",
    },
    // ## Shops and payments
    Example {
        source: "docs.stripe.com/rate-limits",
        now: NOW,
        status: 429,
        headers: "
            stripe-rate-limited-reason: endpoint-concurrency
            stripe-should-retry: false",
        read: "limited | scope endpoint-concurrency | no retry",
    },
    Example {
        source: "shopify.dev/docs/api/admin-rest/usage/rate-limits",
        now: NOW,
        status: 200,
        headers: "x-shopify-shop-api-call-limit: 32/40",
        read: "- 8 of 40",
    },
    Example {
        source: "shopify.dev, as above: a denial",
        now: NOW,
        status: 429,
        headers: "
            x-shopify-shop-api-call-limit: 40/40
            retry-after: 2.0",
        read: "limited for 2s | - 0 of 40",
    },
    Example {
        source: "docs.bigcommerce.com, API rate limits",
        now: NOW,
        status: 200,
        headers: "
            x-rate-limit-requests-left: 447
            x-rate-limit-requests-quota: 450
            x-rate-limit-time-reset-ms: 20649
            x-rate-limit-time-window-ms: 30000",
        read: "- 447 of 450 per 30s, ends in 20.649s",
    },
    Example {
        source: "docs.bigcommerce.com, as above: a denial",
        now: NOW,
        status: 429,
        headers: "x-rate-limit-time-reset-ms: 15000",
        read: "limited for 15s | - ? of ?, ends in 15s",
    },
    // ## Clouds
    Example {
        source: "docs.aws.amazon.com/sdkref, retry behavior",
        now: NOW,
        status: 400,
        headers: "
            x-amzn-errortype: ThrottlingException:http://internal.amazon.com/coral/com.amazon.coral.availability/
            x-amz-retry-after: 1500",
        read: "limited for 1.5s",
    },
    Example {
        source: "docs.aws.amazon.com, DynamoDB: errors with a namespace",
        now: NOW,
        status: 400,
        headers: "x-amzn-errortype: com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
        read: "limited",
    },
    Example {
        source: "docs.aws.amazon.com: an invalid request",
        now: NOW,
        status: 400,
        headers: "
            x-amzn-errortype: ValidationException
            x-amz-retry-after: 1500",
        read: "",
    },
    Example {
        source: "learn.microsoft.com .. request-limits-and-throttling: the subscription",
        now: NOW,
        status: 200,
        headers: "x-ms-ratelimit-remaining-subscription-reads: 11999",
        read: "subscription-reads 11999 of ?",
    },
    Example {
        source: "learn.microsoft.com .. troubleshooting-throttling-errors: compute",
        now: NOW,
        status: 429,
        headers: "
            x-ms-ratelimit-remaining-resource: Microsoft.Compute/HighCostGet3Min;46
            x-ms-ratelimit-remaining-resource: Microsoft.Compute/DeleteVM3Min;107,Microsoft.Compute/HighCostGet30Min;0
            retry-after: 1200",
        read: "limited for 1200s | Microsoft.Compute/HighCostGet3Min 46 of ? \
               | Microsoft.Compute/DeleteVM3Min 107 of ? | Microsoft.Compute/HighCostGet30Min 0 of ?",
    },
    Example {
        source: "learn.microsoft.com, Azure Cosmos DB: request rate too large",
        now: NOW,
        status: 429,
        headers: "x-ms-retry-after-ms: 104",
        read: "limited for 104ms",
    },
    Example {
        source: "techdocs.akamai.com, rate limiting: the time of the next request",
        now: 1_747_146_497,
        status: 429,
        headers: "
            x-ratelimit-limit: 60
            x-ratelimit-remaining: 0
            x-ratelimit-next: 2025-05-13T14:28:19.4732Z",
        read: "limited for 2.4732s | - 0 of 60, ends in 2.4732s",
    },
    Example {
        source: "techdocs.akamai.com/reporting/v2/reference/rate-limiting",
        now: 1_747_146_480,
        status: 200,
        headers: "
            akamai-sync-ratelimit-limit: 120
            akamai-sync-ratelimit-remaining: 119
            akamai-sync-ratelimit-refill: 10
            akamai-sync-ratelimit-reset: 2025-05-13T14:28:20+00:00",
        read: "sync 119 of 120, full in 20s",
    },
    // ## gRPC
    Example {
        source: "gRFC A6: a pushback",
        now: NOW,
        status: 200,
        headers: "
            content-type: application/grpc
            grpc-status: 14
            grpc-retry-pushback-ms: 1500",
        read: "overloaded for 1.5s",
    },
    Example {
        source: "gRFC A6: no retry",
        now: NOW,
        status: 200,
        headers: "
            grpc-status: 8
            grpc-retry-pushback-ms: -1",
        read: "limited | no retry",
    },
    Example {
        source: "gRFC A6: a pushback that cannot be parsed",
        now: NOW,
        status: 200,
        headers: "
            grpc-status: 14
            grpc-retry-pushback-ms: soon",
        read: "overloaded | no retry",
    },
    Example {
        source: "grpc.github.io/grpc/core/md_doc_statuscodes.html: a connection that broke",
        now: NOW,
        status: 200,
        headers: "grpc-status: 14",
        read: "",
    },
    // ## Work
    Example {
        source: "developer.zendesk.com/api-reference/introduction/rate-limits",
        now: NOW,
        status: 200,
        headers: "
            x-rate-limit: 700
            ratelimit-limit: 700
            x-rate-limit-remaining: 699
            ratelimit-remaining: 699
            ratelimit-reset: 41
            zendesk-ratelimit-tickets-index: total=100; remaining=99; resets=41",
        read: "- 699 of 700, ends in 41s | tickets-index 99 of 100, ends in 41s",
    },
    Example {
        source: "developer.atlassian.com/cloud/jira/platform/rate-limiting: the requests of a second",
        now: 1_774_540_795,
        status: 429,
        headers: "
            retry-after: 5
            x-ratelimit-limit: 350
            x-ratelimit-remaining: 0
            x-ratelimit-reset: 2026-03-26T16:00Z
            x-ratelimit-nearlimit: true
            ratelimit-reason: jira-burst-based",
        read: "limited for 5s | - 0 of 350, ends in 5s | scope jira-burst-based",
    },
    Example {
        source: "community.developer.atlassian.com/t/97828: the points of an hour, and a reset in the past",
        now: 1_774_542_328,
        status: 429,
        headers: "
            beta-ratelimit: \"tenant-app-quota\";r=0;t=2788
            beta-ratelimit-policy: \"tenant-app-quota\";q=100100;w=3600
            x-beta-ratelimit-reason: jira-quota-tenant-based
            x-beta-ratelimit-reset: 2026-03-26T16:00Z
            x-ratelimit-limit: 400
            x-ratelimit-remaining: 399",
        read: "limited for 2788s | - 399 of 400 | tenant-app-quota 0 of 100100 per 3600s, ends in 2788s \
               | scope jira-quota-tenant-based",
    },
    Example {
        source: "confluence.atlassian.com/doc/_ratelimiting_httpheaders-992678779.html",
        now: NOW,
        status: 200,
        headers: "
            x-ratelimit-limit: 100
            x-ratelimit-remaining: 75
            x-ratelimit-interval-seconds: 60
            x-ratelimit-fillrate: 10
            retry-after: 0",
        read: "- 75 of 100 per 600s, full in 180s",
    },
    Example {
        source: "community.atlassian.com .. qaq-p/3125730: no limit, and the longest wait of Java",
        now: NOW,
        status: 429,
        headers: "
            x-ratelimit-limit: 0
            x-ratelimit-remaining: 0
            x-ratelimit-fillrate: 0
            x-ratelimit-interval-seconds: 1
            retry-after: 9223372036854775807",
        read: "limited",
    },
    Example {
        source: "developer.lemlist.com .. rate-limits: a date of JavaScript, and a wait without a denial",
        now: 1_613_462_560,
        status: 200,
        headers: "
            retry-after: 2
            x-ratelimit-limit: 20
            x-ratelimit-remaining: 7
            x-ratelimit-reset: Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)",
        read: "- 7 of 20, ends in 2s",
    },
    Example {
        source: "docs.konghq.com, Rate Limiting plugin",
        now: NOW,
        status: 429,
        headers: "
            x-ratelimit-limit-minute: 10
            x-ratelimit-remaining-minute: 0
            ratelimit-limit: 10
            ratelimit-remaining: 0
            ratelimit-reset: 49",
        read: "limited for 49s | minute 0 of 10 | - 0 of 10, ends in 49s",
    },
];

// === Refusals ===

#[test]
fn wait_is_read_of_every_sane_value_and_of_no_other() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let millis = |millis| Some(Duration::from_millis(millis));
    let values: &[(&str, Option<Duration>)] = &[
        ("1", seconds(1)),
        ("1.5", millis(1_500)),
        ("0.020", millis(20)),
        ("0", millis(100)),
        ("0.000", millis(100)),
        ("999999999", seconds(999_999_999)),
        ("1770000030", seconds(30)),
        ("1770000030.25", millis(30_250)),
        ("1770000030500", millis(30_500)),
        ("1769999999", millis(100)),
        // In 2001, by milliseconds.
        ("1000000000000", millis(100)),
        ("9999999999", seconds(9_999_999_999 - NOW)),
        ("100000000000000", None),
        ("18446744073709551616", None),
        ("Mon, 02 Feb 2026 02:40:42 GMT", seconds(42)),
        ("Mon, 02 Feb 2026 02:39:42 GMT", millis(100)),
        ("2026-02-02T02:40:42Z", seconds(42)),
        ("2026-02-02t02:40:42.5z", millis(42_500)),
        ("2026-02-02 03:40:42+01:00", seconds(42)),
        ("2026-02-01T21:10:42-0530", seconds(42)),
        ("2026-02-02T02:41", seconds(60)),
        ("2024-02-29T00:00:00Z", millis(100)),
        ("30s", seconds(30)),
        ("1h2m3s", seconds(3_723)),
        ("7.66s", millis(7_660)),
        ("1d", seconds(86_400)),
        ("3, 7", seconds(7)),
        ("-5", None),
        ("-1", None),
        ("-1484742195", None),
        ("+5", None),
        ("NaN", None),
        ("inf", None),
        ("1e3", None),
        ("0x10", None),
        ("", None),
        (" ", None),
        (".", None),
        ("5.", None),
        (".5", None),
        ("1.2.3", None),
        ("5 minutes", None),
        ("99999999999999999999h", None),
        ("soon", None),
        ("2026-02-02T02:40:60Z", seconds(60)),
        ("2026-02-02T02:40:61Z", None),
        ("2026-13-02T02:40:42Z", None),
        ("2026-02-02T25:40:42Z", None),
        ("2026-02-02T02:40:42+1", None),
        ("99999-02-02T02:40:42Z", None),
        ("0000-00-00T00:00:00Z", None),
        ("1969-12-31T23:59:59Z", None),
        ("Foo, 99 Bar 9999 99:99:99 GMT", None),
        ("🦀", None),
        ("1🦀", None),
    ];
    for (value, wait) in values {
        let observed = read(429, [("retry-after", *value)]);
        assert_eq!(observed.refusal(), Some(Refusal::Limited), "{value:?}");
        assert_eq!(observed.retry_after(), *wait, "{value:?}");
        // The same reader has the resets, but for the shortest wait.
        let reset = read(200, [("x-ratelimit-reset", *value)]);
        let reset = reset.limits().first().and_then(ObservedLimit::reset);
        let is_same = match wait {
            Some(wait) if *wait == Duration::from_millis(100) => reset == Some(Duration::ZERO),
            wait => reset == *wait,
        };
        assert!(is_same, "{value:?}: {reset:?}");
    }
}

#[test]
fn wait_in_milliseconds_may_be_a_time_too() {
    let wait = |value| read(429, [("x-amz-retry-after", value)]).retry_after();
    assert_eq!(wait("1500"), Some(Duration::from_millis(1_500)));
    assert_eq!(wait("0"), Some(Duration::from_millis(100)));
    assert_eq!(wait("1770000000"), Some(Duration::from_secs(1_770_000)));
    assert_eq!(wait("1770000001500"), Some(Duration::from_millis(1_500)));
    for absurd in ["100000000000000", "-5", "1s", "soon"] {
        assert_eq!(wait(absurd), None, "{absurd}");
    }
}

#[test]
fn value_above_a_kilobyte_is_ignored() {
    let long = format!("{}1", "0".repeat(10_000));
    let just_right = format!("{}1", "0".repeat(1_023));
    assert_eq!(read(429, [("retry-after", &long)]).retry_after(), None);
    assert_eq!(
        read(429, [("retry-after", &just_right)]).retry_after(),
        Some(Duration::from_secs(1))
    );
    let limits = format!("\"{}\";r=1", "a".repeat(10_000));
    assert_eq!(read(200, [("ratelimit", &limits)]).limits(), []);
}

#[test]
fn longer_one_of_two_waits_counts() {
    let observed = read(429, [("retry-after", "3"), ("retry-after", "7")]);
    assert_eq!(observed.retry_after(), Some(Duration::from_secs(7)));
    let observed = read(
        429,
        [
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "90"),
            ("x-ratelimit-reset", "30"),
            ("x-ratelimit-remaining", "5"),
            ("x-ratelimit-limit", "100, 200"),
            ("x-ratelimit-limit", "300"),
        ],
    );
    assert_eq!(
        shown(&observed),
        "limited for 90s | - 0 of 100, ends in 90s"
    );
}

#[test]
fn limits_of_two_families_are_one_if_they_agree() {
    let one = [
        ("x-ratelimit-limit", "100"),
        ("x-ratelimit-remaining", "50"),
        ("ratelimit-remaining", "50"),
        ("ratelimit-reset", "60"),
    ];
    assert_eq!(shown(&read(200, one)), "- 50 of 100, ends in 60s");
    let other_remaining = [
        ("x-ratelimit-limit", "100"),
        ("x-ratelimit-remaining", "50"),
        ("ratelimit-limit", "100"),
        ("ratelimit-remaining", "0"),
    ];
    assert_eq!(
        shown(&read(200, other_remaining)),
        "- 50 of 100 | - 0 of 100"
    );
    let other_limit = [
        ("x-ratelimit-limit", "100"),
        ("ratelimit-limit", "5"),
        ("ratelimit-reset", "1"),
    ];
    assert_eq!(
        shown(&read(200, other_limit)),
        "- ? of 100 | - ? of 5, ends in 1s"
    );
    // A policy has as many limits as there are partitions.
    let partitions = "\"a\";r=1;t=5;pk=:YQ==:, \"a\";r=1;t=9;pk=:Yg==:";
    let partitions = [
        ("ratelimit", partitions),
        ("ratelimit-policy", "\"a\";q=3;w=10"),
    ];
    assert_eq!(
        shown(&read(200, partitions)),
        "a 1 of 3 per 10s, ends in 5s | a 1 of 3 per 10s, ends in 9s"
    );
}

#[test]
fn missing_numbers_are_taken_from_others_or_left_out() {
    let policy = [
        ("ratelimit", "remaining=50, reset=30"),
        ("ratelimit-policy", "100;w=60, 1000;w=3600"),
    ];
    assert_eq!(
        shown(&read(200, policy)),
        "- 50 of 100 per 60s, ends in 30s | - ? of 1000 per 3600s"
    );
    let unknown = [("x-ratelimit-limit", "-1"), ("x-ratelimit-remaining", "0")];
    assert_eq!(shown(&read(429, unknown)), "limited");
    let refilled = [
        ("x-ratelimit-limit", "100"),
        ("x-ratelimit-fillrate", "10"),
        ("x-ratelimit-interval-seconds", "60"),
    ];
    assert_eq!(shown(&read(200, refilled)), "- ? of 100 per 600s");
    let with_reset = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "6")];
    assert_eq!(
        shown(&read(200, refilled.into_iter().chain(with_reset))),
        "- 0 of 100 per 600s, ends in 6s"
    );
    let flag = [("ratelimit", "\"a\";r=5;flag;t=3")];
    assert_eq!(shown(&read(200, flag)), "a 5 of ?, ends in 3s");
    let used = [("x-ratelimit-limit", "100"), ("x-ratelimit-used", "101")];
    assert_eq!(shown(&read(200, used)), "- 0 of 100");
}

#[test]
fn wait_of_a_denial_is_that_of_the_exhausted_limits() {
    let observed = read(
        429,
        [
            (
                "ratelimit",
                "\"day\";r=0;t=600, \"burst\";r=0;t=2, \"month\";r=5;t=90000",
            ),
            ("x-ratelimit-reset", "99"),
            ("x-ratelimit-remaining", "1"),
        ],
    );
    assert_eq!(observed.retry_after(), Some(Duration::from_secs(600)));
    // Without an exhausted limit there is no wait.
    let observed = read(429, [("ratelimit", "\"day\";r=3;t=600")]);
    assert_eq!(observed.refusal(), Some(Refusal::Limited));
    assert_eq!(observed.retry_after(), None);
}

#[test]
fn status_without_a_mark_is_no_refusal() {
    for status in [
        200, 201, 202, 400, 401, 402, 403, 404, 409, 500, 502, 503, 504,
    ] {
        assert_eq!(read(status, [("x-ratelimit-limit", "5")]).refusal(), None);
    }
    for status in [200, 201, 202, 401, 404, 500, 502] {
        let headers = [("retry-after", "5"), ("x-ratelimit-remaining", "0")];
        let observed = read(status, headers);
        assert_eq!(observed.refusal(), None, "{status}");
        assert_eq!(observed.retry_after(), None, "{status}");
        assert_eq!(observed.limits().len(), 1, "{status}");
    }
    let exhausted = [("x-ratelimit-remaining", "0")];
    assert_eq!(read(503, exhausted).refusal(), Some(Refusal::Overloaded));
    assert_eq!(read(403, exhausted).refusal(), Some(Refusal::Limited));
}

#[test]
fn cached_response_and_redirect_show_nothing() {
    let headers = [("retry-after", "5"), ("x-ratelimit-remaining", "0")];
    for status in [301, 302, 304, 307] {
        assert_eq!(read(status, headers), Observed::default(), "{status}");
    }
    for (age, is_ignored) in [("0", false), ("1", true), ("86400", true), ("old", false)] {
        let headers = headers.into_iter().chain([("age", age)]);
        let observed = read(429, headers);
        assert_eq!(observed == Observed::default(), is_ignored, "age {age}");
    }
}

// === Time ===

#[test]
fn absolute_time_counts_against_the_date_of_the_response() {
    let reset = |date: &str| {
        let headers = [
            ("x-ratelimit-reset", "1770000060"),
            ("retry-after", "Mon, 02 Feb 2026 02:41:00 GMT"),
            ("date", date),
        ];
        let observed = read(429, headers);
        assert_eq!(observed.retry_after(), observed.limits()[0].reset());
        observed.retry_after().expect("a wait").as_secs()
    };
    // Our clock shows 02:40:00.
    assert_eq!(reset("Mon, 02 Feb 2026 02:40:00 GMT"), 60);
    assert_eq!(reset("Mon, 02 Feb 2026 02:40:20 GMT"), 40);
    assert_eq!(reset("Mon, 02 Feb 2026 02:39:30 GMT"), 90);
    // A day is believed, and no more.
    assert_eq!(reset("Sun, 01 Feb 2026 02:40:00 GMT"), 86_460);
    assert_eq!(reset("Sun, 01 Feb 2026 02:39:59 GMT"), 60);
    assert_eq!(reset("Thu, 01 Jan 1970 00:00:00 GMT"), 60);
    assert_eq!(reset("yesterday"), 60);
}

#[test]
fn wall_clock_is_the_time_if_none_is_given() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let until = now.expect("a clock after 1970").as_secs() + 600;
    let response = Response::builder()
        .status(429)
        .header("x-ratelimit-remaining", "0")
        .header("x-ratelimit-reset", until)
        .body("denied");
    let response = response.expect("a response");
    for observed in [
        Observed::from(&response),
        Observed::from_response(&response),
        Observed::from_parts(response.status(), response.headers()),
    ] {
        let wait = observed.retry_after().expect("a wait").as_secs();
        assert!((500..=600).contains(&wait), "{wait}");
    }
}

#[test]
fn unit_of_a_bucket_is_back_before_the_bucket_is_full() {
    let next = |remaining: &str, reset: &str| {
        let headers = [
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", remaining),
            ("x-ratelimit-reset-requests", reset),
        ];
        read(200, headers).limits()[0].next_unit()
    };
    assert_eq!(next("0", "60s"), Some(Duration::from_secs(1)));
    assert_eq!(next("30", "60s"), Some(Duration::from_secs(2)));
    assert_eq!(next("60", "0s"), Some(Duration::ZERO));
    // Rounded up, and more than the limit is not below zero.
    assert_eq!(next("57", "10s"), Some(Duration::from_nanos(3_333_333_334)));
    assert_eq!(next("61", "5s"), Some(Duration::from_secs(5)));
    let window = read(
        200,
        [("x-ratelimit-limit", "60"), ("x-ratelimit-reset", "60")],
    );
    assert_eq!(
        window.limits()[0].next_unit(),
        Some(Duration::from_secs(60))
    );
}

// === Other implementations ===

/// The headers of this crate are read with the numbers that it wrote.
#[tokio::test]
async fn denial_of_this_crate_is_read_in_each_family() {
    let millis = Headers::legacy().reset(ResetFormat::EpochMillis);
    let delta = Headers::legacy().reset(ResetFormat::DeltaSeconds);
    let families: [(Headers, &str); 6] = [
        (Headers::legacy().into(), "- 0 of 2, ends in"),
        (millis.into(), "- 0 of 2, ends in"),
        (delta.into(), "- 0 of 2, ends in"),
        (Headers::draft06(), "- 0 of 2 per 3600s, ends in"),
        (Headers::draft11(), "all 0 of 2 per 3600s, ends in"),
        (Headers::discord().into(), "- 0 of 2, ends in"),
    ];
    for (headers, limit) in families {
        let name = format!("{headers:?}");
        let layer = RateLimitLayer::builder()
            .policy(Policy::new("all", Quota::per_hour(2)).key(Global))
            .headers(headers)
            .build()
            .expect("it is well set up");
        let handler = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
        let service = layer.layer(handler);
        for _ in 0..2 {
            let Ok(response) = service.clone().oneshot(Request::new(())).await;
            assert_eq!(Observed::from(&response).refusal(), None, "{name}");
        }
        let Ok(response) = service.oneshot(Request::new(())).await;
        let observed = Observed::from(&response);
        assert_eq!(observed.refusal(), Some(Refusal::Limited), "{name}");
        let wait = observed.retry_after().expect("a wait").as_secs();
        assert!((1_700..=1_800).contains(&wait), "{name}: {wait}");
        let shown = shown(&observed);
        assert!(shown.contains(limit), "{name}: {shown}");
    }
}

/// `tonic-types` encodes the details.
#[test]
fn retry_info_of_grpc_is_the_wait() {
    let details = |details: ErrorDetails| {
        let status =
            tonic::Status::with_error_details(Code::ResourceExhausted, "slow down", details);
        let response = status.into_http::<String>();
        assert_eq!(response.status(), 200);
        Observed::from(&response)
    };
    let wait = Duration::new(86_400, 250_000_000);
    let retry = ErrorDetails::with_retry_info(Some(wait));
    let observed = details(retry.clone());
    assert_eq!(observed.refusal(), Some(Refusal::Limited));
    assert_eq!(observed.retry_after(), Some(wait));

    let mut among_others = retry;
    among_others.set_quota_failure(vec![]);
    among_others.add_quota_failure_violation("project:1", "too many requests");
    among_others.set_error_info(
        "RATE_LIMIT_EXCEEDED",
        "googleapis.com",
        [("service".to_owned(), "vision".to_owned())],
    );
    among_others.add_help_link(
        "more",
        format!("https://cloud.google.com/{}", "a".repeat(1_500)),
    );
    assert_eq!(details(among_others).retry_after(), Some(wait));

    let none = details(ErrorDetails::with_retry_info(None));
    assert_eq!(none.retry_after(), None);
    let other = details(ErrorDetails::with_help_link(
        "more",
        "https://cloud.google.com",
    ));
    assert_eq!(
        (other.refusal(), other.retry_after()),
        (Some(Refusal::Limited), None)
    );
    for broken in ["?", "CA", "//////////8", "Gv//////////fw", "GgA", ""] {
        let observed = read(
            200,
            [("grpc-status", "8"), ("grpc-status-details-bin", broken)],
        );
        assert_eq!(shown(&observed), "limited", "{broken}");
    }
}

#[test]
fn limits_and_values_of_a_response_are_bounded() {
    let list: Vec<_> = (0..100).map(|index| format!("{index};r=1")).collect();
    assert_eq!(
        read(200, [("ratelimit", &list.join(","))]).limits().len(),
        32
    );
    let names: Vec<_> = (0..1_000)
        .map(|index| format!("x-ratelimit-limit-{index}"))
        .collect();
    let headers = names.iter().map(|name| (name.as_str(), "5"));
    assert_eq!(read(200, headers).limits().len(), 32);
    let unread = (0..32).map(|_| ("x-ratelimit-limit", "soon"));
    let unread = unread.chain([("x-ratelimit-remaining", "7")]);
    assert_eq!(read(200, unread).limits(), []);
    let waits = (0..100).map(|index| ("retry-after", index.to_string()));
    assert_eq!(
        read(429, waits).retry_after(),
        Some(Duration::from_secs(31))
    );
}

// === Properties ===

proptest! {
    #[test]
    fn bytes_of_any_kind_neither_panic_nor_make_endless_waits(
        status in 100_u16..1_000,
        now in any::<u32>(),
        headers in prop::collection::vec((prop::sample::select(NAMES), value()), 0..40),
    ) {
        let status = StatusCode::from_u16(status).expect("three digits");
        let headers = headers.into_iter().filter_map(|(name, value)| {
            Some((HeaderName::from_static(name), HeaderValue::from_bytes(&value).ok()?))
        });
        let mut map = HeaderMap::new();
        map.extend(headers);
        let observed = Observed::read(status, &map, at(u64::from(now)));
        prop_assert!(observed.limits().len() <= 32);
        let limits = observed.limits().iter();
        let spans = limits.flat_map(|limit| [limit.reset(), limit.window(), limit.next_unit()]);
        for span in spans.chain([observed.retry_after()]).flatten() {
            prop_assert!(span <= Duration::from_secs(315_576_000_000), "{span:?}");
            prop_assert!(at(u64::from(now)).checked_add(span).is_some());
        }
        for limit in observed.limits() {
            prop_assert!(limit.next_unit() <= limit.reset());
        }
        if let Some(wait) = observed.retry_after() {
            prop_assert!(!wait.is_zero() && observed.refusal().is_some());
        }
    }

    /// `sfv` parses the same list.
    #[test]
    fn lists_are_read_as_structured_fields(
        items in prop::collection::vec(("[ -~]{0,12}", 0_u64..1_000, 0_u64..1_000), 1..5),
    ) {
        let items = items.iter().map(|(name, remaining, reset)| {
            let name = name.replace('\\', "\\\\").replace('"', "\\\"");
            format!("\"{name}\";r={remaining};pk=:YWI7LGM=:;t={reset}")
        });
        let text = items.collect::<Vec<_>>().join(", ");
        let parsed: List = Parser::new(&text).parse().expect("a list");
        let parsed: Vec<_> = parsed.iter().map(|entry| {
            let ListEntry::Item(item) = entry else { panic!("no inner list") };
            let BareItem::String(name) = &item.bare_item else { panic!("a string") };
            let number = |name: &str| {
                let BareItem::Integer(number) = &item.params[name] else { panic!("a number") };
                u64::try_from(*number).expect("not negative")
            };
            (Some(name.as_str().to_owned()), Some(number("r")), Some(Duration::from_secs(number("t"))))
        }).collect();
        let observed = read(200, [("ratelimit", &text)]);
        let read: Vec<_> = observed.limits().iter().map(|limit| {
            (limit.name().map(str::to_owned), limit.remaining(), limit.reset())
        }).collect();
        prop_assert_eq!(read, parsed);
    }
}

/// Names of each family, and of all other headers that are read.
const NAMES: &[&str] = &[
    "age",
    "akamai-sync-ratelimit-next",
    "anthropic-ratelimit-tokens-limit",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset",
    "anthropic-ratelimit-unified-status",
    "date",
    "grpc-retry-pushback-ms",
    "grpc-status",
    "grpc-status-details-bin",
    "ratelimit",
    "ratelimit-limit",
    "ratelimit-name",
    "ratelimit-policy",
    "ratelimit-remaining",
    "ratelimit-reset",
    "retry-after",
    "retry-after-ms",
    "x-amzn-errortype",
    "x-ms-ratelimit-remaining-reads",
    "x-ms-ratelimit-remaining-resource",
    "x-rate-limit-time-reset-ms",
    "x-rate-limit-time-window-ms",
    "x-ratelimit-fillrate",
    "x-ratelimit-interval-seconds",
    "x-ratelimit-limit",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "x-ratelimit-reset-requests",
    "x-ratelimit-scope",
    "x-ratelimit-used",
    "x-should-retry",
    "x-shopify-shop-api-call-limit",
    "zendesk-ratelimit-search",
];

/// Bytes, and texts that resemble what APIs send.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let texts = "(-?[0-9]{1,20}(\\.[0-9]{0,12})?(ms|s|m|h|d)?){1,3}"
        .prop_union("[0-9]{1,5}-[0-9]{1,3}-[0-9]{1,3}T[0-9]{1,3}:[0-9]{2}(:[0-9]{2})?[Z+-]?([0-9]{2}:?[0-9]{2})?")
        .or("[A-Z][a-z]{2},? [A-Z0-9][a-z0-9]{1,2} [0-9]{1,4} [0-9]{1,4} ?[0-9:]{0,9} GMT[+-]?[0-9]{0,5}")
        .or("(\"?[a-z0-9]{0,3}\"?(;[qrtwlac]=[0-9]{1,20}){0,3}[,/]?){1,4}")
        .or("[A-Za-z0-9+/]{0,200}={0,2}")
        .prop_map(String::into_bytes);
    prop_oneof![texts, prop::collection::vec(any::<u8>(), 0..1_100)]
}

// === Tools ===

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Parses lines of `name: value`.
fn headers(text: &str) -> HeaderMap {
    let lines = text.lines().map(str::trim);
    map(lines.filter_map(|line| line.split_once(": ")))
}

fn map(pairs: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<[u8]>)>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name: HeaderName = name.as_ref().parse().expect("a name");
        let value = HeaderValue::from_bytes(value.as_ref()).expect("a value");
        headers.append(name, value);
    }
    headers
}

/// Reads a response that arrives at [`NOW`].
fn read(
    status: u16,
    pairs: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<[u8]>)>,
) -> Observed {
    let status = StatusCode::from_u16(status).expect("a status");
    Observed::read(status, &map(pairs), at(NOW))
}

/// Writes all that was read, for example `limited for 30s | - 0 of 60 per 60s, ends in 30s`.
fn shown(observed: &Observed) -> String {
    let refusal = observed.refusal().map(|refusal| {
        let refusal = format!("{refusal:?}").to_lowercase();
        match observed.retry_after() {
            Some(wait) => format!("{refusal} for {wait:?}"),
            None => refusal,
        }
    });
    let named = |name, value: Option<&str>| value.map(|value| format!("{name} {value}"));
    let last = [
        named("bucket", observed.bucket()),
        named("scope", observed.scope()),
        observed.must_not_retry().then(|| "no retry".to_owned()),
    ];
    let limits = observed.limits().iter().map(shown_limit);
    let parts = refusal
        .into_iter()
        .chain(limits)
        .chain(last.into_iter().flatten());
    parts.collect::<Vec<_>>().join(" | ")
}

fn shown_limit(limit: &ObservedLimit) -> String {
    let number = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
    let (remaining, total) = (number(limit.remaining()), number(limit.limit()));
    let mut text = format!("{} {remaining} of {total}", limit.name().unwrap_or("-"));
    if let Some(unit) = limit.unit() {
        text += &format!(" {unit}");
    }
    if let Some(window) = limit.window() {
        text += &format!(" per {window:?}");
    }
    if let Some(reset) = limit.reset() {
        let kind = match limit.reset_kind() {
            ResetKind::FullAgain => "full",
            ResetKind::WindowEnd => "ends",
            _ => "unknown",
        };
        text += &format!(", {kind} in {reset:?}");
    }
    text
}
