//! The fields of a rule file, as they are written.
//!
//! The JSON Schema and the serialised form come from these types; `decode.rs` reads them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::names::{
    AlgorithmName, ConsistencyName, CountName, HeaderFamily, ModeName, OnMissingKeyName,
    OutageName, ShownLimitName, WindowStartName,
};

/// Mappings of a file: `field: type` must be there, and `field?: type` may be absent.
macro_rules! mappings {
    ($($(#[$about:meta])* pub struct $name:ident {
        $($(#[$doc:meta])* $field:ident $(?: $optional:ty)? $(: $required:ty)?,)*
    })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
        #[schemars(deny_unknown_fields)]
        #[non_exhaustive]
        pub struct $name {$(
            $(#[$doc])*
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$optional>,
            )?
            $(pub $field: $required,)?
        )*}
    )*};
}

mappings! {
    /// A whole rule file.
    #[derive(Default)]
    pub struct RuleSetSpec {
        /// Version of the format: 1. Default: 1.
        version?: u64,
        /// Settings of all rules that do not have their own.
        #[serde(skip_serializing_if = "DefaultsSpec::is_empty")]
        #[schemars(default)]
        defaults: DefaultsSpec,
        /// Families of response headers. Default: `legacy`.
        headers?: OneOrMany<HeaderFamily>,
        /// The limit of a bucket in response headers: its burst, or the units of its period. Default: `at_once`.
        shown_limit?: ShownLimitName,
        /// By how much the wait of each denied request is longer at random, at most: 0 to 30, in percent of it, such as `10` or `10%`.
        /// Default: 0.
        #[schemars(with = "Option<Percentage>")]
        retry_after_jitter?: f64,
        /// Requests that get 403 and are not charged.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(default, with = "OneOrMany<RequestSpec>")]
        forbid: Vec<RequestSpec>,
        /// Requests that are not limited.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(default, with = "OneOrMany<RequestSpec>")]
        skip: Vec<RequestSpec>,
        /// The rules. All rules that match a request decide on it together. Required unless there is `outgoing` or `overload`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(default)]
        rules: Vec<RuleSpec>,
        /// Limits of calls that go out.
        outgoing?: OutgoingSpec,
        /// When requests are shed, and whose, for an `Overload`.
        overload?: OverloadSpec,
    }

    /// Settings of all rules that do not have their own.
    #[derive(Default)]
    pub struct DefaultsSpec {
        /// Algorithm. Default: `token_bucket`.
        algorithm?: AlgorithmName,
        /// Choice while Redis is unavailable. Default: `local`.
        outage?: OutageName,
        /// Mode. Default: `enforce`.
        mode?: ModeName,
        /// Choice for requests without a key. Default: that of the extractor.
        on_missing_key?: OnMissingKeyName,
        /// Whether denied requests consume quota as well. Default: false.
        count_denied?: bool,
    }
}

impl DefaultsSpec {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

mappings! {
    /// One rule: a policy, the requests that it counts, and their key.
    #[derive(Default)]
    pub struct RuleSpec {
        /// Name of the policy: 1 to 39 of `A-Z a-z 0-9 . _ -`, at most 29 with a candidate, 28 with a reserve.
        id: String,
        /// The caller that a request is counted for.
        key: KeySpec,
        /// Paths, such as `/users/{id}` or `/static/*`. Default: all.
        path?: OneOrMany<String>,
        /// Methods, such as `POST`. Default: all.
        method?: OneOrMany<String>,
        /// Hosts, such as `api.example.com` or `*.example.com`. Default: all.
        host?: OneOrMany<String>,
        /// Requests that the rule does not count.
        unless?: OneOrMany<RequestSpec>,
        /// A rate such as `100/min`, or a count whose period is `window`. For `concurrency` the requests in flight.
        limit: LimitSpec,
        /// Period of a `limit` that is a count, such as `1m30s`.
        window?: String,
        /// Units that an idle key can take at once. Default: the count for a token bucket, 1 for a leaky bucket and queue.
        burst?: u64,
        /// Algorithm. Default: that of `defaults`, else `token_bucket`.
        algorithm?: AlgorithmName,
        /// Start of a fixed window. Default: `clock`.
        window_start?: WindowStartName,
        /// Length of a leaky queue, in units.
        queue?: u64,
        /// The longest wait in a leaky queue, such as `2s`: shorter than the time after which clients give up.
        max_wait?: String,
        /// Time after which the slots of a crashed process are free again (`concurrency`). Default: `30s`.
        lease?: String,
        /// Units of a request. Default: 1.
        cost?: u64,
        /// Units of some requests, by the first entry that matches.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(default, with = "OneOrMany<CostSpec>")]
        costs: Vec<CostSpec>,
        /// Field of the body whose number is the cost, such as `{ json: /max_tokens }`. Without it, and at least, `cost`.
        cost_field?: BodyFieldSpec,
        /// Unit of the quota, such as `tokens`. Default: requests.
        unit?: String,
        /// Whether denied requests consume quota as well. Default: false.
        count_denied?: bool,
        /// When a key is banned that is denied again and again. Default: never.
        penalty?: PenaltySpec,
        /// How long a key is denied after each failure, longer each time. Needs `count` or `count_statuses`. Default: not at all.
        backoff?: BackoffSpec,
        /// Requests that count, by how they end. Default: `all`.
        count?: CountName,
        /// Statuses of responses that count, such as `[401, 403]`. Requests without a response count too. Default: all.
        count_statuses?: OneOrMany<u16>,
        /// Whether a success clears what has counted for the key. Default: false.
        clear_on_success?: bool,
        /// Choice for requests without a key. Default: that of the extractor.
        on_missing_key?: OnMissingKeyName,
        /// Other quotas for some callers, by name.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        #[schemars(default)]
        tiers: BTreeMap<String, QuotaSpec>,
        /// Header that holds the name of the caller's tier, or `{ custom: name }` for a function registered in code.
        tier_from?: TierSourceSpec,
        /// Quotas of single keys.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(default, with = "OneOrMany<OverrideSpec>")]
        overrides: Vec<OverrideSpec>,
        /// `off`, `shadow` or `enforce`. Default: `enforce`.
        mode?: ModeName,
        /// Percentage of keys for which the rule denies requests, 0 to 100, such as `30` or `30%`. Default: 100.
        #[schemars(with = "Option<Percentage>")]
        rollout?: f64,
        /// A quota that is tried beside the rule's own.
        candidate?: QuotaSpec,
        /// The part of the limit that only some classes of requests may use. Default: none.
        reserve?: ReserveSpec,
        /// Choice while Redis is unavailable. Default: `local`.
        outage?: OutageName,
        /// Whether each request asks Redis. Default: `strict`.
        consistency?: ConsistencyName,
        /// With `consistency: delayed`, by how much the limit may be exceeded: 0.1 to 100, in percent of the burst or of the limit
        /// of a window, such as `2` or `2%`.
        #[schemars(with = "Option<Percentage>")]
        overshoot?: f64,
    }
}

mappings! {
    /// Settings of an overload limit.
    #[derive(Default)]
    pub struct OverloadSpec {
        /// The classes in order, those that are shed last first. Default: `[critical, normal, sheddable]`.
        classes?: OneOrMany<String>,
        /// Whose requests share the places of a class. Default: only the class counts.
        key?: KeySpec,
        /// A header with the class, of requests that are trusted. It decides before `priority`. Default: none.
        priority_header?: TrustedHeaderSpec,
        /// Classes of requests, by the first entry that matches. Default: all are `normal`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(default, with = "OneOrMany<PrioritySpec>")]
        priority: Vec<PrioritySpec>,
        /// Weights of keys, by the first entry that matches. Default: all are 1.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(default, with = "OneOrMany<WeightSpec>")]
        weights: Vec<WeightSpec>,
        /// Requests that are neither counted nor shed.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(default, with = "OneOrMany<RequestSpec>")]
        skip: Vec<RequestSpec>,
        /// The longest `Retry-After`, 1 s to 24 h. Default: `10s`.
        max_retry_after?: String,
        /// `off`, `shadow` or `enforce`. Default: `enforce`.
        mode?: ModeName,
    }

    /// The class of requests that match.
    pub struct PrioritySpec {
        /// The requests.
        when: RequestSpec,
        /// Their class, such as `critical`.
        class: String,
    }

    /// The weight of the keys of requests that match.
    pub struct WeightSpec {
        /// The requests.
        when: RequestSpec,
        /// Their weight, 1 to 1,000.
        weight: u64,
    }

    /// A header in which some clients state the class.
    pub struct TrustedHeaderSpec {
        /// Its name, such as `x-priority`.
        name: String,
        /// The requests whose header counts, such as `{ peer: 10.0.0.0/8 }`.
        from: OneOrMany<RequestSpec>,
    }
}

mappings! {
    /// Limits of calls that go out, for an `OutgoingLayer`.
    #[derive(Default)]
    pub struct OutgoingSpec {
        /// The longest time from a call to the start of its last attempt. Default: `30s`.
        max_wait?: String,
        /// The longest pause of a key after a refusal. Default: `10m`.
        max_pause?: String,
        /// How often a request is sent again at most. Default: 2.
        max_retries?: u64,
        /// How many retries 100 calls to a key pay for, at most 1,000. Default: 10.
        retry_percent?: u64,
        /// Whether only requests that are safe to repeat are retried after a refusal. Default: false.
        retry_only_safe?: bool,
        /// The rules. A call waits until all that count it admit it together.
        rules: Vec<OutgoingRuleSpec>,
    }

    /// One rule for calls that go out: a policy, the requests that it counts, and their key.
    #[derive(Default)]
    pub struct OutgoingRuleSpec {
        /// Name of the policy: 1 to 39 of `A-Z a-z 0-9 . _ -`.
        id: String,
        /// The account or host that a call is counted for, such as `host` or `{ api_key: bearer }`.
        key: KeySpec,
        /// Paths, such as `/users/{id}` or `/static/*`. Default: all.
        path?: OneOrMany<String>,
        /// Methods, such as `POST`. Default: all.
        method?: OneOrMany<String>,
        /// Hosts, such as `api.example.com` or `*.example.com`. Default: all.
        host?: OneOrMany<String>,
        /// Requests that the rule does not count.
        unless?: OneOrMany<RequestSpec>,
        /// A rate such as `100/min`, or a count whose period is `window`. For `concurrency` the calls in flight.
        limit: LimitSpec,
        /// Period of a `limit` that is a count, such as `1m30s`.
        window?: String,
        /// Units that an idle key can take at once. Default: the count for a token bucket, 1 for a leaky bucket or an adaptive rate.
        burst?: u64,
        /// Algorithm. Default: that of `defaults`, else `token_bucket`.
        algorithm?: AlgorithmName,
        /// Start of a fixed window. Default: `clock`.
        window_start?: WindowStartName,
        /// Length of a leaky queue, in units. Calls that wait do not use it.
        queue?: u64,
        /// The longest wait in a leaky queue. Calls that wait do not use it.
        max_wait?: String,
        /// Time after which the slots of a crashed process are free again (`concurrency`). Default: `30s`.
        lease?: String,
        /// Units of a request. Default: 1.
        cost?: u64,
        /// Units of some requests, by the first entry that matches.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(default, with = "OneOrMany<CostSpec>")]
        costs: Vec<CostSpec>,
        /// Choice while Redis is unavailable. Default: `local`.
        outage?: OutageName,
        /// Whether requests without a key are not counted. Default: false, so they share one key.
        skip_without_key?: bool,
        /// Whether a refusal does not pause the key. Default: false.
        never_paused?: bool,
        /// Name of the limit of the API that this rule follows, such as `tokens`. Default: the only one that it shows.
        reported_as?: String,
        /// Finds the rate of an API that shows no limit: `true`, or `{ floor: 5/s }`. The limit is the highest rate. Default: false.
        adaptive?: AdaptiveSpec,
    }

    /// A rate that adapts, with its settings.
    pub struct AdaptiveFloorSpec {
        /// The lowest rate, such as `5/s`. Default: 1 % of the limit, and at least one unit in 10 s.
        floor: LimitSpec,
    }
}

/// Whether a rate adapts.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[non_exhaustive]
pub enum AdaptiveSpec {
    /// With the default floor, or not at all.
    Switch(bool),
    /// With a floor.
    With(AdaptiveFloorSpec),
}

/// A rate, or a count.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[non_exhaustive]
pub enum LimitSpec {
    /// Units, whose period is `window`.
    Count(u64),
    /// A count and a period: `100/min`, `5 per second`, `10/30s`.
    Rate(String),
}

impl Default for LimitSpec {
    fn default() -> Self {
        Self::Count(0)
    }
}

/// One value, or a list of them.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[non_exhaustive]
pub enum OneOrMany<T> {
    /// One value.
    One(T),
    /// Several: one of them is enough.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// Returns values that were written as a list, or as one value. `None` if there are none.
    pub(super) fn of(mut values: Vec<T>, is_list: bool) -> Option<Self> {
        match (is_list, values.len()) {
            (_, 0) => None,
            (false, _) => Some(Self::One(values.swap_remove(0))),
            (true, _) => Some(Self::Many(values)),
        }
    }

    /// Returns the values.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

mappings! {
    /// Conditions on a request; all of them must hold.
    #[derive(Default)]
    pub struct RequestSpec {
        /// Paths, such as `/users/{id}`.
        path?: OneOrMany<String>,
        /// Methods, such as `POST`.
        method?: OneOrMany<String>,
        /// Hosts, such as `*.example.com`.
        host?: OneOrMany<String>,
        /// Networks of the peer, such as `10.0.0.0/8`. Behind a proxy use `client_ip`.
        peer?: OneOrMany<String>,
        /// Networks of the client, behind proxies.
        client_ip?: ClientNetworksSpec,
        /// Whether it is a CORS preflight request.
        preflight?: bool,
        /// A matcher registered in code, by name.
        custom?: String,
    }

    /// Networks of clients behind proxies. Either `behind` or `hops` is required.
    pub struct ClientNetworksSpec {
        /// The proxies.
        #[serde(flatten)]
        proxies: ProxiesSpec,
        /// Networks of the clients, such as `203.0.113.0/24`.
        networks: OneOrMany<String>,
    }

    /// The units of requests that match.
    pub struct CostSpec {
        /// The requests.
        when: RequestSpec,
        /// Their units.
        units: u64,
    }

    /// A field of the body of a request. `json` or `form` is required, and with both the `Content-Type` chooses.
    pub struct BodyFieldSpec {
        /// Pointer to the field of a JSON document (RFC 6901), such as `/user/email`.
        json?: String,
        /// Name of the field of a form.
        form?: String,
        /// The most bytes of the body; a larger one gets 413. Default: 16384.
        max_bytes?: u64,
        /// Time in which the body must arrive; a slower one gets 408. Default: `5s`.
        within?: String,
    }

    /// A key from the body of a request. `json` or `form` is required, and with both the `Content-Type` chooses.
    pub struct BodyKeySpec {
        /// The field with the key.
        #[serde(flatten)]
        field: BodyFieldSpec,
        /// Whether spellings in upper and lower case are one key. Default: false.
        ignore_case?: bool,
        /// Whether only the hash of the value leaves the process. Default: false.
        hashed?: bool,
    }

    /// How long a key is denied after each failure.
    pub struct BackoffSpec {
        /// Delay after the first failure, such as `1s`.
        first: String,
        /// The longest delay, such as `15m`.
        longest: String,
        /// How many times as long each further delay is, 1 to 100. Default: 2.
        factor?: u64,
        /// Time after the last delay until the next one is as short as the first. Default: that of the longest delay.
        forgiven_after?: String,
    }

    /// The part of a limit that only some classes of requests may use.
    pub struct ReserveSpec {
        /// The classes, such as `critical`.
        class: OneOrMany<String>,
        /// The part, 0.1 to 99.9, such as `20` or `20%`.
        #[schemars(with = "Percentage")]
        part: f64,
        /// Lends it to other classes while it is not needed, all but a twentieth of the limit: the longest time until what is lent has
        /// come back, such as `200ms`. Default: lends nothing.
        lend?: String,
    }

    /// When a key is banned that is denied again and again, and for how long.
    pub struct PenaltySpec {
        /// Denials that lead to a ban, 1 to 1,000,000.
        denials: u64,
        /// Time within which they are counted together, such as `1m`.
        within: String,
        /// Length of the first ban. Default: `1m`.
        ban?: String,
        /// How many times as long each further ban is, 1 to 100. Default: 2.
        factor?: u64,
        /// Length of the longest ban. Default: `1h`.
        longest_ban?: String,
        /// Time after the last denial, or after the end of the ban, until the next ban is as short as the first. Default: `1h`.
        forgiven_after?: String,
    }
}

/// The caller that a request is counted for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KeySpec {
    /// Both keys together.
    And(Vec<KeySpec>),
    /// API key or bearer token; hashed.
    ApiKey(ApiKeySpec),
    /// One field of the body.
    Body(BodyKeySpec),
    /// Client's address behind proxies.
    ClientIp(ClientIpSpec),
    /// One cookie.
    Cookie(CookieSpec),
    /// An extractor registered in code, by name.
    Custom(String),
    /// All requests together.
    #[default]
    Global,
    /// One header.
    Header(String),
    /// Authority or `Host` header.
    Host,
    /// The first of them that a request has.
    OrElse(Vec<KeySpec>),
    /// One parameter of the route.
    PathParam(String),
    /// Address of the peer. Behind a proxy use `client_ip`.
    PeerIp,
    /// One query parameter.
    Query(String),
    /// Method and route.
    Route,
    /// Method and route, or the method alone.
    RouteOrUnmatched,
}

/// The place of an API key.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ApiKeySpec {
    /// `Authorization: Bearer ..`
    Bearer,
    /// A header.
    Header(String),
    /// A query parameter.
    Query(String),
}

/// The proxies in front of the service. Either `behind` or `hops` is required.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ProxiesSpec {
    /// Networks of trusted proxies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<OneOrMany<String>>,
    /// Number of proxies, 1 to 32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<u64>,
    /// The header that they set. Default: `x-forwarded-for`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<AddressHeaderSpec>,
}

mappings! {
    /// The key of a client behind proxies. Either `behind` or `hops` is required.
    #[derive(Default)]
    pub struct ClientIpSpec {
        /// The proxies.
        #[serde(flatten)]
        proxies: ProxiesSpec,
        /// Leading bits of an IPv4 address that make the key, 8 to 32. Default: 32.
        ipv4_prefix?: u64,
        /// Leading bits of an IPv6 address that make the key, 48 to 128. Default: 64.
        ipv6_prefix?: u64,
    }
}

/// Name of the header with the client's address: `x-forwarded-for`, `forwarded`, or one with a single address.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(transparent)]
#[non_exhaustive]
pub struct AddressHeaderSpec(pub String);

/// A cookie.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[non_exhaustive]
pub enum CookieSpec {
    /// The name of a cookie whose value is hashed.
    Name(String),
    /// A cookie with settings.
    #[non_exhaustive]
    With {
        /// Its name.
        name: String,
        /// Whether its value is not a secret, and stays readable in Redis. Default: false.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        #[schemars(default)]
        plaintext: bool,
    },
}

/// The quota of a tier or a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[non_exhaustive]
pub enum QuotaSpec {
    /// A rate such as `5000/min`; for a tier also `unlimited` or `forbidden`; for `concurrency` the requests in flight.
    Limit(LimitSpec),
    /// A limit with its settings.
    With(LimitSettingsSpec),
}

mappings! {
    /// A limit with its settings, as a rule has them.
    pub struct LimitSettingsSpec {
        /// A rate, or a count whose period is `window`.
        limit: LimitSpec,
        /// Period of a `limit` that is a count.
        window?: String,
        /// Units that an idle key can take at once.
        burst?: u64,
    }
}

/// A percentage as a file can have it, for the schema.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum Percentage {
    Number(f64),
    Text(String),
}

/// Where the name of a caller's tier comes from.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TierSourceSpec {
    /// A function registered in code, by name.
    Custom(String),
    /// A header that a gateway sets. Clients must not be able to send it.
    Header(String),
}

mappings! {
    /// The tier of a single key.
    pub struct OverrideSpec {
        /// The key, as a request has it; an address, or a network of callers. Not for keys that are secret: choose their tier by `tier_from`.
        key: String,
        /// The name of one of the rule's tiers, `unlimited`, `forbidden`, or a quota.
        tier: QuotaSpec,
    }
}
