//! Broken rule files and the faults that each of them prints.
//!
//! All faults of a file are listed, in the order of their places.

use tollgate::config::Format::{self, Json, Toml, Yaml};

/// Format, text, and what is printed: `line:column: rule "id": reason: remedy`, one line for each fault.
pub(crate) const BROKEN: &[(Format, &str, &[&str])] = &[
    // === The file ===
    (Yaml, "", &["1:1: no rules: begin with `rules:`"]),
    (
        Yaml,
        "rules: 5",
        &["1:8: this is a number: write `- id: ..` for each rule, and in TOML `[[rules]]`"],
    ),
    (
        Yaml,
        "rules: []",
        &["1:8: no rules: write `- id: ..` for each rule, and in TOML `[[rules]]`"],
    ),
    (Yaml, "[]", &["1:1: this is a list: begin with `rules:`"]),
    (
        Yaml,
        "rulez: []",
        &[
            "1:1: `rules` is missing: add a list of rules",
            "1:1: unknown field `rulez`: write `rules`",
        ],
    ),
    (
        Yaml,
        concat!(
            "version: 2\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &["1:10: version 2: write `version: 1`"],
    ),
    (
        Yaml,
        concat!(
            "headers: draft7\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &["1:10: unknown value `draft7`: write `draft06`"],
    ),
    (
        Yaml,
        concat!(
            "shown_limit: period\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &["1:14: unknown value `period`: write one of `at_once`, `per_period`"],
    ),
    (
        Yaml,
        concat!(
            "retry_after_jitter: 50%\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &["1:21: a jitter of 50 %: write a number from 0 to 30"],
    ),
    (
        Yaml,
        concat!(
            "retry_after_jitter: a little\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &["1:21: this is text: write a percentage from 0 to 30, such as `10%`"],
    ),
    (
        Yaml,
        concat!(
            "headers: [legacy, legacy, none]\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &[
            "1:19: a family that is there twice: keep one of them",
            "1:27: `none` beside other families: leave it out",
        ],
    ),
    (
        Yaml,
        concat!(
            "defaults:\n",
            "  burst: 5\n",
            "  outage: closed\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &[
            "2:3: unknown field `burst`: write one of `algorithm`, `outage`, `mode`, `on_missing_key`, `count_denied`",
            "3:11: unknown value `closed`: write one of `allow`, `local`, `deny`",
        ],
    ),
    (
        Yaml,
        concat!(
            "defaults: enforce\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &["1:11: this is text: write a mapping"],
    ),
    (
        Yaml,
        concat!(
            "forbid:\n",
            "  - peer:\n",
            "      - 10.0.0.0/8\n",
            "      - 10.0.0.0/33\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &[
            "4:9: \"10.0.0.0/33\" is not a network: write it as \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\"",
        ],
    ),
    (
        Yaml,
        concat!(
            "forbid:\n",
            "  - client_ip: 10.0.0.0/8\n",
            "  - client_ip: { networks: 203.0.113.0/24 }\n",
            "  - client_ip: { behind: 10.0.0.0/8, hops: 1, networks: 203.0.113.0/24 }\n",
            "  - client_ip: { behind: 10.0.0.0/8 }\n",
            "  - client_ip: { hops: 1, networks: [203.0.113.0/24, everybody] }\n",
            "  - client_ip: { hops: 0, header: \"a b\", networks: 203.0.113.0/24, ipv4_prefix: 8 }\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &[
            "2:16: this is text: write `{ behind: [networks of proxies], networks: [networks of clients] }`",
            "3:16: no proxies: name their networks with `behind`, count them with `hops`, or use `peer`",
            "4:16: both `behind` and `hops`: keep one of them",
            "5:16: `networks` is missing: add those of the clients",
            "6:54: \"everybody\" is not a network: write it as \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\"",
            "7:24: `hops`: use 1 to 32, or `peer_ip` without a proxy",
            "7:35: \"a b\" is not a header name: write it as `x-real-ip`",
            "7:68: unknown field `ipv4_prefix`: write one of `behind`, `hops`, `header`, `networks`",
        ],
    ),
    (
        Yaml,
        concat!(
            "skip: [{}]\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &[
            "1:8: no condition: write `path`, `method`, `host`, `peer`, `client_ip`, `preflight` or `custom`",
        ],
    ),
    (
        Yaml,
        concat!(
            "skip: /health\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &["1:7: this is text: write `{ path: .. }`, `{ method: .. }` or `{ peer: .. }`"],
    ),
    // === The parts of a rule that must be there ===
    (
        Yaml,
        concat!("rules:\n", "  - login\n",),
        &["2:5: this is text: write a rule: `id`, `key`, `limit`"],
    ),
    (
        Yaml,
        concat!("rules:\n", "  - key: peer_ip\n", "    limit: 5/min\n",),
        &["2:5: `id` is missing: add a name for the rule"],
    ),
    (
        Yaml,
        concat!("rules:\n", "  - id: a\n", "    limit: 5/min\n",),
        &["2:5: rule \"a\": `key` is missing: add the caller to count, such as `key: peer_ip`"],
    ),
    (
        Yaml,
        concat!("rules:\n", "  - id: a\n", "    key: peer_ip\n",),
        &["2:5: rule \"a\": `limit` is missing: add a rate, such as `limit: 100/min`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limt: 5/min\n",
        ),
        &[
            "2:5: rule \"a\": `limit` is missing: add a rate, such as `limit: 100/min`",
            "4:5: rule \"a\": unknown field `limt`: write `limit`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    rate: 5/min\n",
        ),
        &[
            "2:5: rule \"a\": `limit` is missing: add a rate, such as `limit: 100/min`",
            "4:5: rule \"a\": unknown field `rate`: write `limit`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a b\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &["2:9: \"a b\" is not a name: use 1 to 39 of A-Z a-z 0-9 . _ -"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: 42\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &["2:9: this is a number: write text, in quotes if it looks like a number"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "  - id: a\n",
            "    key: host\n",
            "    limit: 5/min\n",
        ),
        &["5:9: rule \"a\": the id \"a\" is used in line 2: give each rule another one"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    id: b\n",
            "    key: host\n",
            "    limit: 5/min\n",
        ),
        &["3:5: rule \"a\": `id` is there twice: keep one of them"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    skip: [{ path: /health }]\n",
        ),
        &["5:5: rule \"a\": unknown field `skip`: write `unless`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    peer: 10.0.0.0/8\n",
            "    headers: none\n",
        ),
        &[
            "5:5: rule \"a\": unknown field `peer`: write one of `id`, `key`, `algorithm`, `window`, `burst`, `limit`, `window_start`, `queue`, `max_wait`, `lease`, `cost`, `outage`, `unit`, `count_denied`, `penalty`, `backoff`, `reserve`, `consistency`, `overshoot`, `path`, `method`, `host`, `unless`, `tiers`, `overrides`, `tier_from`, `costs`, `cost_field`, `count`, `count_statuses`, `clear_on_success`, `on_missing_key`, `mode`, `rollout`, `candidate`",
            "6:5: rule \"a\": unknown field `headers`: write one of `id`, `key`, `algorithm`, `window`, `burst`, `limit`, `window_start`, `queue`, `max_wait`, `lease`, `cost`, `outage`, `unit`, `count_denied`, `penalty`, `backoff`, `reserve`, `consistency`, `overshoot`, `path`, `method`, `host`, `unless`, `tiers`, `overrides`, `tier_from`, `costs`, `cost_field`, `count`, `count_statuses`, `clear_on_success`, `on_missing_key`, `mode`, `rollout`, `candidate`",
        ],
    ),
    // === Keys ===
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer-ip\n",
            "    limit: 5/min\n",
        ),
        &["3:10: rule \"a\": unknown key `peer-ip`: write `peer_ip`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: ip\n",
            "    limit: 5/min\n",
        ),
        &["3:10: rule \"a\": unknown key `ip`: write `peer_ip`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: user\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:10: rule \"a\": unknown key `user`: write one of `global`, `host`, `peer_ip`, `route`, `route_or_unmatched`, `and`, `api_key`, `body`, `client_ip`, `cookie`, `custom`, `header`, `or_else`, `path_param`, `query`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    cost_field: /max_tokens\n",
            "  - id: b\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    cost_field: { within: 1s, hashed: true }\n",
            "  - id: c\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    cost_field: { json: max_tokens }\n",
        ),
        &[
            "5:17: rule \"a\": this is text: write `{ json: /max_tokens }` or `{ form: items }`",
            "9:17: rule \"b\": no field of the body: write `{ json: /max_tokens }` or `{ form: items }`",
            "9:31: rule \"b\": unknown field `hashed`: write one of `json`, `form`, `max_bytes`, `within`",
            "13:17: rule \"c\": \"max_tokens\" is not a JSON pointer to a field: write one such as \"/user/email\"",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: header\n",
            "    limit: 5/min\n",
        ),
        &["3:10: rule \"a\": the key `header` needs a setting: write `{ header: .. }`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { peer_ip: true }\n",
            "    limit: 5/min\n",
        ),
        &["3:12: rule \"a\": the key `peer_ip` has no setting: write `peer_ip` alone"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { header: x, query: y }\n",
            "    limit: 5/min\n",
        ),
        &["3:10: rule \"a\": a key of several kinds: join them: `and: [..]` or `or_else: [..]`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { header: \"a b\" }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:10: rule \"a\": \"a b\" is not a header name: use letters, digits and -, as in \"x-api-key\"",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { and: [peer_ip] }\n",
            "    limit: 5/min\n",
        ),
        &["3:17: rule \"a\": fewer than two keys: write a list of two or more keys"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { and: [peer_ip, rout, { header: 5 }] }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:27: rule \"a\": unknown key `rout`: write `route`",
            "3:43: rule \"a\": this is a number: write text, in quotes if it looks like a number",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { and: [host, host, host, host, host, host, host, host, { or_else: [host, host, host, host, host, host, host, host, host] }] }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:17: rule \"a\": more than 16 keys are joined: join fewer, or register an extractor by RuleSetReader::extractor()",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { custom: tenant }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:20: rule \"a\": \"tenant\" is not registered: register it by RuleSetReader::extractor()",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { client_ip: {} }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:23: rule \"a\": no proxies: name their networks with `behind`, count them with `hops`, or use `peer_ip`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { client_ip: { hops: 1, behind: [10.0.0.0/8] } }\n",
            "    limit: 5/min\n",
        ),
        &["3:23: rule \"a\": both `behind` and `hops`: keep one of them"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { client_ip: { behind: [0.0.0.0/0] } }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:33: rule \"a\": `behind` trusts every address, so clients can choose theirs: name the proxies' networks, or count the proxies with `hops`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { client_ip: { behind: [10.0.0.0/99, x], ipv4_prefix: 4, header: 'a b' } }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:34: rule \"a\": \"10.0.0.0/99\" is not a network: write it as \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\"",
            "3:47: rule \"a\": \"x\" is not a network: write it as \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\"",
            "3:64: rule \"a\": `ipv4_prefix`: use 8 to 32 bits",
            "3:75: rule \"a\": \"a b\" is not a header name: write it as `x-real-ip`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { client_ip: { hops: 0, ipv6_prefix: 200 } }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:31: rule \"a\": `hops`: use 1 to 32, or `peer_ip` without a proxy",
            "3:47: rule \"a\": `ipv6_prefix`: use 48 to 128 bits",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { client_ip: { hops: 1, header: x-forwarded-for } , custom: x }\n",
            "    limit: 5/min\n",
        ),
        &["3:10: rule \"a\": a key of several kinds: join them: `and: [..]` or `or_else: [..]`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { api_key: {} }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:21: rule \"a\": no place of the API key: write `bearer`, `{ header: name }` or `{ query: name }`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { api_key: { header: x, query: y } }\n",
            "    limit: 5/min\n",
        ),
        &["3:21: rule \"a\": an API key in two places: join two keys by `or_else`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { api_key: barer }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:21: rule \"a\": this is text: write `bearer`, `{ header: name }` or `{ query: name }`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { cookie: 'a b' }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:10: rule \"a\": \"a b\" is not the name of a cookie: use letters, digits, - and _, as in \"session\"",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { cookie: { plain: true } }\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:20: rule \"a\": `name` is missing: add the name of the cookie",
            "3:22: rule \"a\": unknown field `plain`: write one of `name`, `plaintext`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { query: '' }\n",
            "    limit: 5/min\n",
        ),
        &["3:19: rule \"a\": an empty text: write a value"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: 5\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:10: rule \"a\": this is a number: write a key such as `peer_ip` or `{ header: x-user }`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: [peer_ip, host]\n",
            "    limit: 5/min\n",
        ),
        &[
            "3:10: rule \"a\": this is a list: write a key such as `peer_ip` or `{ header: x-user }`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key:\n",
            "      client_ip:\n",
            "        behind:\n",
            "          - 10.0.0.0/8\n",
            "          - 300.0.0.0/8\n",
            "        ipv6_prefix: 20\n",
            "    limit: 5/min\n",
        ),
        &[
            "7:13: rule \"a\": \"300.0.0.0/8\" is not a network: write it as \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\"",
            "8:22: rule \"a\": `ipv6_prefix`: use 48 to 128 bits",
        ],
    ),
    // === Limits ===
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 100\n",
        ),
        &[
            "4:12: rule \"a\": a count without a period: write a rate such as `100/min`, or add `window`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 100/parsec\n",
        ),
        &[
            "4:12: rule \"a\": \"100/parsec\" is not a rate: `parsec` is not a unit of time: write `ms`, `s`, `min`, `h`, `d`, `week` or `month`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    algorithm: concurency\n",
            "    limit: 100\n",
        ),
        &["4:16: rule \"a\": unknown value `concurency`: write `concurrency`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    tier_from: { header: x-tier }\n",
            "    tiers: { pro: unlimted }\n",
        ),
        &[
            "6:19: rule \"a\": \"unlimted\" is not a quota: write a rate such as `100/min`, or `unlimited` or `forbidden`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 1.5/s\n",
        ),
        &[
            "4:12: rule \"a\": \"1.5/s\" is not a rate: write whole numbers: `3/2s` in place of `1.5/s`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 10k/day\n",
        ),
        &["4:12: rule \"a\": \"10k/day\" is not a rate: write the number in full: `10_000`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 0/s\n",
        ),
        &["4:12: rule \"a\": quota of 0: write at least 1"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/M\n",
        ),
        &["4:12: rule \"a\": \"5/M\" is not a rate: write `min` for minutes, or `month`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: five per minute\n",
        ),
        &[
            "4:12: rule \"a\": \"five per minute\" is not a rate: write a rate such as `100/min`, `5 per second`, `10/30s` or `1_000/hour`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: { rate: 5 }\n",
        ),
        &[
            "4:12: rule \"a\": this is a mapping: write a rate such as `100/min`, or a count beside `window`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: -5\n",
        ),
        &["4:12: rule \"a\": a number below 0: write a whole number from 0"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 99999999999999999999999/s\n",
        ),
        &["4:12: rule \"a\": \"99999999999999999999999/s\" is not a rate: write a smaller number"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/0s\n",
        ),
        &[
            "4:12: rule \"a\": period of 0: make it at least a microsecond; `algorithm: concurrency` limits requests in flight",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5\n",
            "    window: 30\n",
        ),
        &[
            "5:13: rule \"a\": this is a number: write a duration such as `30s`, `1m30s`, `500ms`, `2h` or `1d`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5\n",
            "    window: 30s1m\n",
        ),
        &[
            "5:13: rule \"a\": \"30s1m\" is not a duration: write each unit once, from the largest to the smallest: `1m30s`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5\n",
            "    window: 1.5h\n",
        ),
        &[
            "5:13: rule \"a\": \"1.5h\" is not a duration: write the unit: `30s`, `1m30s`, `500ms`, `2h` or `1d`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    window: 1m\n",
        ),
        &["5:13: rule \"a\": `window` beside a rate: leave it out, or write a count as `limit`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5\n",
            "    window: 0s\n",
        ),
        &[
            "5:13: rule \"a\": period of 0: make it at least a microsecond; `algorithm: concurrency` limits requests in flight",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    burst: -1\n",
        ),
        &["5:12: rule \"a\": a number below 0: write a whole number from 0"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    burst: 99999999999999999999\n",
        ),
        &["5:12: rule \"a\": a number above 2^64: write a smaller one"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    burst: 0\n",
        ),
        &["5:12: rule \"a\": burst of 0 admits nothing: set a burst of at least 1"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    burst: 9\n",
            "    algorithm: sliding_log\n",
        ),
        &["5:12: rule \"a\": a window has no burst: remove `burst`, or use the token bucket"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 20_000/min\n",
            "    algorithm: sliding_log\n",
        ),
        &[
            "4:12: rule \"a\": the count of a sliding log must be at most 10,000: use a sliding window, or divide the count and the cost",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    algorithm: gcra\n",
        ),
        &["5:16: rule \"a\": unknown value `gcra`: write `token_bucket`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    algorithm: bucket\n",
        ),
        &[
            "5:16: rule \"a\": unknown value `bucket`: write one of `concurrency`, `fixed_window`, `leaky_bucket`, `leaky_queue`, `sliding_log`, `sliding_window`, `token_bucket`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    algorithm: fixed_window\n",
            "    window_start: month\n",
        ),
        &[
            "6:19: rule \"a\": windows by calendar month need a quota per month: use `limit: 100/month`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    algorithm: leaky_queue\n",
        ),
        &[
            "5:16: rule \"a\": `queue` is missing: add the length of the queue, in units",
            "5:16: rule \"a\": `max_wait` is missing: add the longest wait, shorter than the time after which clients give up",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    algorithm: leaky_queue\n",
            "    queue: 0\n",
            "    max_wait: 0s\n",
        ),
        &[
            "6:12: rule \"a\": queue length or max_wait of 0: set both above 0, or use `algorithm: leaky_bucket`",
            "7:15: rule \"a\": queue length or max_wait of 0: set both above 0, or use `algorithm: leaky_bucket`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    queue: 7\n",
            "    max_wait: 2s\n",
        ),
        &[
            "5:12: rule \"a\": `queue` is only for `algorithm: leaky_queue`: leave it out, or choose that algorithm",
            "6:15: rule \"a\": `max_wait` is only for `algorithm: leaky_queue`: leave it out, or choose that algorithm",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    algorithm: concurrency\n",
        ),
        &[
            "4:12: rule \"a\": a rate of requests in flight: write how many may be in flight at once, such as `10`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5\n",
            "    algorithm: concurrency\n",
            "    window: 1m\n",
            "    lease: 5ms\n",
            "    count_denied: true\n",
            "    unit: tokens\n",
        ),
        &[
            "6:13: rule \"a\": requests in flight have no window: leave it out, or choose another `algorithm`",
            "7:12: rule \"a\": this cannot work: the lease must be a whole number of milliseconds, from 100 ms to 24 h",
            "8:19: rule \"a\": denied requests are not in flight and cannot be counted: remove `count_denied`",
            "9:11: rule \"a\": the unit of a concurrency policy is always concurrent-requests: remove `unit`",
        ],
    ),
    // === Penalties ===
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    penalty: 10\n",
        ),
        &["5:14: rule \"a\": this is a number: write `{ denials: 10, within: 1m }`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    penalty: {}\n",
        ),
        &[
            "5:14: rule \"a\": `denials` is missing: add the denials that lead to a ban",
            "5:14: rule \"a\": `within` is missing: add the time within which denials are counted together",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    penalty:\n",
            "      denials: ten\n",
            "      within: 1mn\n",
            "      ban: 30\n",
            "      longest_ban: 1.5h\n",
            "      forgiven_after: 1M\n",
        ),
        &[
            "6:16: rule \"a\": this is text: write a whole number",
            "7:15: rule \"a\": \"1mn\" is not a duration: `mn` is not a unit of time: write `ms`, `s`, `min`, `h`, `d`, `week` or `month`",
            "8:12: rule \"a\": this is a number: write a duration such as `30s`, `1m30s`, `500ms`, `2h` or `1d`",
            "9:20: rule \"a\": \"1.5h\" is not a duration: write the unit: `30s`, `1m30s`, `500ms`, `2h` or `1d`",
            "10:23: rule \"a\": \"1M\" is not a duration: write `min` for minutes, or `month`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    penalty:\n",
            "      denials: 0\n",
            "      within: 0s\n",
            "      ban: 0s\n",
            "      factor: 0\n",
            "      longest_ban: 0s\n",
            "      forgiven_after: 0s\n",
        ),
        &[
            "6:16: rule \"a\": a penalty after 0 or over 1,000,000 denials: set another number",
            "7:15: rule \"a\": the times of a penalty are from 1 ms to 366 days, in whole microseconds: set others",
            "8:12: rule \"a\": the times of a penalty are from 1 ms to 366 days, in whole microseconds: set others",
            "9:15: rule \"a\": bans of a penalty grow by a factor from 1 to 100: with 1 all are equally long",
            "10:20: rule \"a\": the times of a penalty are from 1 ms to 366 days, in whole microseconds: set others",
            "11:23: rule \"a\": the times of a penalty are from 1 ms to 366 days, in whole microseconds: set others",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    penalty:\n",
            "      denials: 1_000_001\n",
            "      within: 367d\n",
            "      ban: 999us\n",
            "      factor: 101\n",
            "      longest_ban: 99999w\n",
            "      forgiven_after: 367d\n",
        ),
        &[
            "6:16: rule \"a\": a penalty after 0 or over 1,000,000 denials: set another number",
            "7:15: rule \"a\": the times of a penalty are from 1 ms to 366 days, in whole microseconds: set others",
            "8:12: rule \"a\": the times of a penalty are from 1 ms to 366 days, in whole microseconds: set others",
            "9:15: rule \"a\": bans of a penalty grow by a factor from 1 to 100: with 1 all are equally long",
            "10:20: rule \"a\": the times of a penalty are from 1 ms to 366 days, in whole microseconds: set others",
            "11:23: rule \"a\": the times of a penalty are from 1 ms to 366 days, in whole microseconds: set others",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    penalty: { denials: 5000000000, within: 1m, factor: 5000000000 }\n",
        ),
        &[
            "5:25: rule \"a\": a penalty after 0 or over 1,000,000 denials: set another number",
            "5:57: rule \"a\": bans of a penalty grow by a factor from 1 to 100: with 1 all are equally long",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 12/h\n",
            "    count_denied: true\n",
            "    penalty: { denials: 3, within: 1m, ban: 1s, longest_ban: 1m }\n",
        ),
        &[
            "6:14: rule \"a\": the longest ban lasts 60s, but a denied request that counts has a wait of 300s or more, so no ban has an effect: lengthen the bans or remove the penalty",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    penalty: { denials: 3, within: 1m, ban: 2h, longest_ban: 1h }\n",
        ),
        &["5:62: rule \"a\": the longest ban, 1h, is shorter than the first, 2h: lengthen it"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    penalty: { denials: 3, within: 1m, ban: 2h }\n",
        ),
        &[
            "5:45: rule \"a\": the longest ban, 1h, the default, is shorter than the first, 2h: add a longer `longest_ban`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    penalty: { denials: 3, within: 1m, longest_ban: 30s }\n",
        ),
        &[
            "5:53: rule \"a\": the longest ban, 30s, is shorter than the first, 1m: add a shorter `ban`, whose default is `1m`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    penalty:\n",
            "      denials: 3\n",
            "      after: 5\n",
            "      with_in: 1m\n",
            "      bann: 1m\n",
            "      factr: 2\n",
            "      longest: 1h\n",
            "      forgiven: 1h\n",
        ),
        &[
            "6:7: rule \"a\": `within` is missing: add the time within which denials are counted together",
            "7:7: rule \"a\": unknown field `after`: write `denials`",
            "8:7: rule \"a\": unknown field `with_in`: write `within`",
            "9:7: rule \"a\": unknown field `bann`: write `ban`",
            "10:7: rule \"a\": unknown field `factr`: write `factor`",
            "11:7: rule \"a\": unknown field `longest`: write `longest_ban`",
            "12:7: rule \"a\": unknown field `forgiven`: write one of `denials`, `within`, `ban`, `factor`, `longest_ban`, `forgiven_after`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    penalties: { denials: 3, within: 1m }\n",
        ),
        &["5:5: rule \"a\": unknown field `penalties`: write `penalty`"],
    ),
    (
        Yaml,
        concat!(
            "defaults: { penalty: { denials: 3, within: 1m } }\n",
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
        ),
        &[
            "1:13: unknown field `penalty`: write one of `algorithm`, `outage`, `mode`, `on_missing_key`, `count_denied`",
        ],
    ),
    // === Costs and units ===
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    cost: 9\n",
        ),
        &[
            "5:11: rule \"a\": a request costs 9 but the burst is 5, so every request would be denied: raise the burst or lower the cost",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    costs:\n",
            "      - when: { path: /reports }\n",
            "        units: 50\n",
            "      - units: 2\n",
            "      - when: { path: reports }\n",
        ),
        &[
            "7:16: rule \"a\": `costs` sets 50 units and the limit is 5, so such a request is always denied: raise the burst, or reject it with `forbid`",
            "8:9: rule \"a\": `when` is missing: add the requests that cost so much",
            "9:9: rule \"a\": `units` is missing: add the units of such a request",
            "9:23: rule \"a\": path pattern \"reports\": a path starts with /",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    unit: two words\n",
        ),
        &[
            "5:11: rule \"a\": quota unit name \"two words\" is invalid: use 1 to 39 of A-Z a-z 0-9 . _ -",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    cost: 1.5\n",
        ),
        &["5:11: rule \"a\": this is a fraction: write a whole number"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    costs: [{ when: { path: /x }, units: 10 }]\n",
            "  - id: b\n",
            "    key: host\n",
            "    limit: 5/min\n",
            "    costs: [{ when: { path: /x }, units: 10 }]\n",
        ),
        &[
            "5:42: rule \"a\": `costs` sets 10 units and the limit is 5, so such a request is always denied: raise the burst, or reject it with `forbid`",
            "9:42: rule \"b\": `costs` sets 10 units and the limit is 5, so such a request is always denied: raise the burst, or reject it with `forbid`",
        ],
    ),
    // === Requests ===
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    path: users\n",
        ),
        &["5:11: rule \"a\": path pattern \"users\": a path starts with /"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    path:\n",
            "      - /ok\n",
            "      - users/*\n",
            "      - \"/{*rest}/x\"\n",
            "      - /:id\n",
        ),
        &[
            "7:9: rule \"a\": path pattern \"users/*\": a path starts with /",
            "8:9: rule \"a\": path pattern \"/{*rest}/x\": {*rest} must be the last segment",
            "9:9: rule \"a\": path pattern \"/:id\": write a parameter as {name}, as in /users/{id}, and the rest of a path as {*name}; a literal : or < at the start of a segment as %3A or %3C",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    method: [GET, post]\n",
        ),
        &["5:19: rule \"a\": \"post\" is not a method: write `POST`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    method: G T\n",
        ),
        &["5:13: rule \"a\": \"G T\" is not a method: write one such as `GET` or `POST`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    method: []\n",
        ),
        &["5:13: rule \"a\": an empty list: write a value, or leave the field out"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    host: https://example.com\n",
        ),
        &[
            "5:11: rule \"a\": \"https://example.com\" is not a host pattern: write \"api.example.com\" or \"*.example.com\", without a port",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    unless: {}\n",
        ),
        &[
            "5:13: rule \"a\": no condition: write `path`, `method`, `host`, `peer`, `client_ip`, `preflight` or `custom`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    unless: { paht: /x }\n",
        ),
        &["5:15: rule \"a\": unknown field `paht`: write `path`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    unless:\n",
            "      - path: x\n",
            "        method: get\n",
            "        custom: internal\n",
        ),
        &[
            "6:15: rule \"a\": path pattern \"x\": a path starts with /",
            "7:17: rule \"a\": \"get\" is not a method: write `GET`",
            "8:17: rule \"a\": \"internal\" is not registered: register it by RuleSetReader::matcher()",
        ],
    ),
    // === Tiers and overrides ===
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    tiers: { pro: 9/min }\n",
        ),
        &["5:12: rule \"a\": nothing chooses these tiers: add `tier_from` or `overrides`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    tier_from: { header: x-plan }\n",
        ),
        &["5:16: rule \"a\": `tier_from` without `tiers`: add the tiers by name"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    tiers: { pro: 0/min, free: ten, unlimited: 5/min }\n",
            "    tier_from: { heder: x }\n",
        ),
        &[
            "5:19: rule \"a\": the rule cannot have this tier: quota of 0: to reject its callers, use `forbidden`; otherwise allow at least 1",
            "5:32: rule \"a\": \"ten\" is not a quota: write a rate such as `100/min`, or `unlimited` or `forbidden`",
            "5:37: rule \"a\": `unlimited` is not a name for a tier: choose another one",
            "6:16: rule \"a\": not one source: write `{ header: name }` or `{ custom: name }`",
            "6:18: rule \"a\": unknown field `heder`: write `header`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    tiers:\n",
            "      pro: { limit: 9, burst: 3 }\n",
            "      pro: 9/min\n",
            "    tier_from: { header: 'a b' }\n",
        ),
        &[
            "6:21: rule \"a\": a count without a period: write a rate such as `100/min`, or add `window`",
            "7:7: rule \"a\": `pro` is there twice: keep one of them",
            "8:26: rule \"a\": \"a b\" is not a header name: write it as `x-plan`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    tiers: { pro: 2/min }\n",
            "    tier_from: { custom: plan }\n",
            "    cost: 3\n",
        ),
        &[
            "5:19: rule \"a\": the rule cannot have this tier: a request costs 3 but the burst is 2, so every request would be denied: raise the burst or lower the cost",
            "6:26: rule \"a\": \"plan\" is not registered: register it by RuleSetReader::tier_name()",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { header: x }\n",
            "    limit: 5/min\n",
            "    overrides: [{ key: y, tier: pro }]\n",
        ),
        &["5:33: rule \"a\": unknown tier `pro`: write one of `unlimited`, `forbidden`, or a rate"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { header: x }\n",
            "    limit: 5/min\n",
            "    tiers: { pro: 9/min }\n",
            "    overrides:\n",
            "      - { key: y, tier: por }\n",
            "      - { key: y, tier: 9/mn }\n",
            "      - { key: 42, tier: pro }\n",
            "      - { tier: pro }\n",
        ),
        &[
            "7:25: rule \"a\": unknown tier `por`: write `pro`, or a rate",
            "8:25: rule \"a\": \"9/mn\" is not a rate: `mn` is not a unit of time: write `ms`, `s`, `min`, `h`, `d`, `week` or `month`",
            "9:16: rule \"a\": this is a number: write text, in quotes if it looks like a number",
            "10:9: rule \"a\": `key` is missing: add the value of the key",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { header: x }\n",
            "    limit: 5/min\n",
            "    overrides: [{ key: y, tier: 9/min }, { key: y, tier: 8/min }]\n",
        ),
        &["5:49: rule \"a\": the key \"y\" is there twice: keep one of them"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { api_key: bearer }\n",
            "    limit: 5/min\n",
            "    overrides: [{ key: y, tier: 9/min }]\n",
        ),
        &[
            "5:24: rule \"a\": this key has no override: this key is a secret, which must not stand in a file: choose the tier by `tier_from`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: global\n",
            "    limit: 5/min\n",
            "    overrides: [{ key: y, tier: 9/min }]\n",
        ),
        &[
            "5:24: rule \"a\": this key has no override: keys of this kind cannot be written in a file: choose the tier by `tier_from`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    overrides:\n",
            "      - { key: ada, tier: unlimited }\n",
            "      - { key: \"2001:db8::7\", tier: unlimited }\n",
        ),
        &[
            "6:16: rule \"a\": this key has no override: write an address such as `192.0.2.7`, or a network such as `192.0.2.0/24`",
            "7:16: rule \"a\": this key has no override: its callers are networks: write `2001:db8::/64`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { client_ip: { hops: 1, ipv4_prefix: 24 } }\n",
            "    limit: 5/min\n",
            "    overrides: [{ key: 192.0.2.7, tier: unlimited }]\n",
        ),
        &[
            "5:24: rule \"a\": this key has no override: its callers are networks: write `192.0.2.0/24`",
        ],
    ),
    // === Modes, rollouts, candidates, outages ===
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    mode: shadwo\n",
        ),
        &["5:11: rule \"a\": unknown value `shadwo`: write `shadow`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    mode: true\n",
        ),
        &["5:11: rule \"a\": this is true or false: write one of `off`, `shadow`, `enforce`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    rollout: 130\n",
        ),
        &["5:14: rule \"a\": a rollout of 130 %: write a number from 0 to 100"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 100/min\n",
            "    consistency: delayed\n",
        ),
        &[
            "5:18: rule \"a\": `overshoot` is missing: add by how much the limit may be exceeded, such as `overshoot: 2%`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 100/min\n",
            "    consistency: leased\n",
            "    overshoot: 2\n",
        ),
        &[
            "6:16: rule \"a\": an overshoot of a rule that is not delayed: remove it, or add `consistency: delayed`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 100/min\n",
            "    consistency: delayed\n",
            "    overshoot: 0.01%\n",
        ),
        &["6:16: rule \"a\": an overshoot of 0.01 %: write a number from 0.1 to 100"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 100/min\n",
            "    consistency: delayed\n",
            "    overshoot: much\n",
        ),
        &["6:16: rule \"a\": this is text: write a percentage from 0.1 to 100, such as `2%`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    rollout: a third\n",
        ),
        &["5:14: rule \"a\": this is text: write a percentage from 0 to 100, such as `30`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    candidate: 0/min\n",
        ),
        &["5:16: rule \"a\": the rule cannot have this candidate: quota of 0: write at least 1"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    candidate: { limit: 9/min, burts: 3 }\n",
        ),
        &["5:32: rule \"a\": unknown field `burts`: write `burst`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a-rule-with-a-name-of-some-length\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    candidate: 9/min\n",
        ),
        &[
            "5:16: rule \"a-rule-with-a-name-of-some-length\": the rule cannot have this candidate: with .candidate its name would be too long: use at most 29 characters",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: global\n",
            "    limit: 10/min\n",
            "    reserve: { class: critical, part: 20% }\n",
            "  - id: a.unreserved\n",
            "    key: host\n",
            "    limit: 5/min\n",
        ),
        &[
            "5:14: rule \"a\": a policy of the reserve is named \"a.unreserved\", as the rule in line 6: give that rule another id",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: global\n",
            "    limit: 10/min\n",
            "    reserve: 20%\n",
        ),
        &["5:14: rule \"a\": this is text: write `{ class: critical, part: 20% }`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: global\n",
            "    limit: 10/min\n",
            "    reserve: { class: \"very paid\", part: 100% }\n",
        ),
        &[
            "5:23: rule \"a\": \"very paid\" is not the name of a class: write `critical`, `normal`, `sheddable`, or 1 to 39 of A-Z a-z 0-9 . _ -",
            "5:42: rule \"a\": a reserve of 100 %: write a number from 0.1 to 99.9",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: global\n",
            "    limit: 10/min\n",
            "    reserve: { class: [], part: 20% }\n",
        ),
        &["5:23: rule \"a\": an empty list: write a class, such as `critical`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: global\n",
            "    limit: 10/min\n",
            "    reserve: { class: critical, part: 95 }\n",
        ),
        &[
            "5:14: rule \"a\": the reserve leaves nothing to the other classes: raise the limit, or reserve less",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: global\n",
            "    limit: 10/min\n",
            "    count_denied: true\n",
            "    reserve: { class: critical, part: 20% }\n",
        ),
        &[
            "6:14: rule \"a\": denied requests of other classes would use up the reserve: remove `count_denied`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: global\n",
            "    limit: 10\n",
            "    algorithm: concurrency\n",
            "    reserve: { clas: critical, part: 20% }\n",
        ),
        &[
            "6:14: rule \"a\": `class` is missing: add the class that it is for",
            "6:16: rule \"a\": unknown field `clas`: write `class`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: global\n",
            "    limit: 100/min\n",
            "    reserve: { class: critical, part: 20%, lend: 5s }\n",
            "  - id: b\n",
            "    key: global\n",
            "    limit: 100/min\n",
            "    algorithm: fixed_window\n",
            "    reserve: { class: critical, part: 20%, lend: soon }\n",
            "  - id: c\n",
            "    key: global\n",
            "    limit: 100/min\n",
            "    algorithm: fixed_window\n",
            "    reserve: { class: critical, part: 20%, lend: 1m }\n",
        ),
        &[
            "5:14: rule \"a\": what is lent takes 9s to come back, and `lend` allows 5s: allow 9s, or lower the burst",
            "10:50: rule \"b\": \"soon\" is not a duration: write a duration such as `30s`, `1m30s`, `500ms`, `2h` or `1d`",
            "15:14: rule \"c\": what a window lends comes back only when it ends: use a token bucket, or remove `lend`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    candidate: 9/min\n",
            "  - id: a.candidate\n",
            "    key: host\n",
            "    limit: 5/min\n",
        ),
        &[
            "5:16: rule \"a\": a policy of the candidate is named \"a.candidate\", as the rule in line 6: give that rule another id",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    outage: open\n",
        ),
        &["5:13: rule \"a\": unknown value `open`: write one of `allow`, `local`, `deny`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    on_missing_key: skipp\n",
        ),
        &["5:21: rule \"a\": unknown value `skipp`: write `skip`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    count_denied: yes\n",
        ),
        &["5:19: rule \"a\": this is text: write `true` or `false`"],
    ),
    // === Many faults, all of them at once ===
    (
        Yaml,
        concat!(
            "version: 1\n",
            "defaults: { mode: shadwo }\n",
            "rules:\n",
            "  - id: login\n",
            "    key: peerip\n",
            "    limit: 5/mn\n",
            "    path: login\n",
            "    method: post\n",
            "    cost: -1\n",
            "    tiers: { pro: 0/min }\n",
            "    tier_from: { header: \"\" }\n",
            "    overrides: [{ key: 7, tier: gold }]\n",
            "    candidate: ten\n",
            "    mod: off\n",
            "  - id: login\n",
            "    key: { api_key: {} }\n",
            "    limit: 0/s\n",
            "    burst: 0\n",
            "    unit: two words\n",
            "    unless: { path: health }\n",
        ),
        &[
            "2:19: unknown value `shadwo`: write `shadow`",
            "5:10: rule \"login\": unknown key `peerip`: write `peer_ip`",
            "6:12: rule \"login\": \"5/mn\" is not a rate: `mn` is not a unit of time: write `ms`, `s`, `min`, `h`, `d`, `week` or `month`",
            "7:11: rule \"login\": path pattern \"login\": a path starts with /",
            "8:13: rule \"login\": \"post\" is not a method: write `POST`",
            "9:11: rule \"login\": a number below 0: write a whole number from 0",
            "10:19: rule \"login\": the rule cannot have this tier: quota of 0: to reject its callers, use `forbidden`; otherwise allow at least 1",
            "11:26: rule \"login\": an empty text: write a value",
            "12:24: rule \"login\": this is a number: write text, in quotes if it looks like a number",
            "12:33: rule \"login\": unknown tier `gold`: write one of `pro`, `unlimited`, `forbidden`, or a rate",
            "13:16: rule \"login\": \"ten\" is not a rate: write a rate such as `100/min`, `5 per second`, `10/30s` or `1_000/hour`",
            "14:5: rule \"login\": unknown field `mod`: write `mode`",
            "15:9: rule \"login\": the id \"login\" is used in line 4: give each rule another one",
            "16:21: rule \"login\": no place of the API key: write `bearer`, `{ header: name }` or `{ query: name }`",
            "17:12: rule \"login\": quota of 0: write at least 1",
            "18:12: rule \"login\": burst of 0 admits nothing: set a burst of at least 1",
            "19:11: rule \"login\": quota unit name \"two words\" is invalid: use 1 to 39 of A-Z a-z 0-9 . _ -",
            "20:21: rule \"login\": path pattern \"health\": a path starts with /",
        ],
    ),
    // === Syntax of YAML ===
    (
        Yaml,
        concat!("rules:\n", "  - id: a\n", "   key: peer_ip\n",),
        &[
            "3:4: while parsing a block collection, did not find expected '-' indicator: correct the syntax",
        ],
    ),
    (
        Yaml,
        concat!("rules:\n", "\t- id: a\n",),
        &["2:2: tabs disallowed within this context (block indentation): correct the syntax"],
    ),
    (
        Yaml,
        "rules: [",
        &["1:9: while parsing a node, did not find expected node content: correct the syntax"],
    ),
    (Yaml, "rules: &all []", &["1:8: an anchor: leave it out"]),
    (
        Yaml,
        "rules: *all",
        &["1:8: while parsing node, found unknown anchor: correct the syntax"],
    ),
    (Yaml, "rules: !!seq []", &["1:8: a tag: leave it out"]),
    (
        Yaml,
        concat!("rules: []\n", "---\n", "rules: []\n",),
        &["2:1: a second document: write all rules into the first one"],
    ),
    (
        Yaml,
        concat!("? [a]\n", ": b\n",),
        &["1:3: a field whose name is not plain text: write `name: value`"],
    ),
    (
        Yaml,
        "rules: \"a",
        &[
            "1:8: while scanning a quoted scalar, found unexpected end of stream: correct the syntax",
        ],
    ),
    (
        Yaml,
        concat!(
            "a: &a [x, x]\n",
            "b: &b [*a, *a]\n",
            "c: &c [*b, *b]\n",
            "rules: *c\n",
        ),
        &["1:4: an anchor: leave it out"],
    ),
    (
        Yaml,
        "? ",
        &[
            "1:1: `rules` is missing: add a list of rules",
            "1:3: unknown field ``: write one of `version`, `defaults`, `headers`, `shown_limit`, `retry_after_jitter`, `forbid`, `skip`, `rules`, `outgoing`, `overload`",
        ],
    ),
    // === TOML ===
    (Toml, "", &["1:1: `rules` is missing: add a list of rules"]),
    (
        Toml,
        concat!(
            "[[rules]]\n",
            "id = \"a\"\n",
            "key = \"peer_ip\"\n",
            "limit = \"5/min\"\n",
            "brust = 7\n",
            "\n",
            "[[rules]]\n",
            "id = \"b\"\n",
            "key = \"globl\"\n",
            "limit = 5\n",
            "window = \"1m\"\n",
            "lease = 3\n",
        ),
        &[
            "5:1: rule \"a\": unknown field `brust`: write `burst`",
            "9:7: rule \"b\": unknown key `globl`: write `global`",
            "12:9: rule \"b\": this is a number: write a duration such as `30s`, `1m30s`, `500ms`, `2h` or `1d`",
            "12:9: rule \"b\": `lease` is only for `algorithm: concurrency`: leave it out, or choose that algorithm",
        ],
    ),
    (
        Toml,
        concat!("[[rules]]\n", "id = \"a\"\n", "id = \"b\"\n", "key = \n",),
        &[
            "3:1: duplicate key: correct the syntax",
            "4:7: string values must be quoted, expected literal string: correct the syntax",
        ],
    ),
    (
        Toml,
        "[[rules]",
        &["1:9: unclosed array table, expected `]`: correct the syntax"],
    ),
    (
        Toml,
        "rules = 5",
        &["1:9: this is a number: write `- id: ..` for each rule, and in TOML `[[rules]]`"],
    ),
    (
        Toml,
        concat!(
            "[[rules]]\n",
            "id = \"a\"\n",
            "key.client_ip.behind = [\"10.0.0.0/8\", \"10.0.0.0/40\"]\n",
            "limit = \"5/min\"\n",
            "rollout = nan\n",
        ),
        &[
            "3:39: rule \"a\": \"10.0.0.0/40\" is not a network: write it as \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\"",
            "5:11: rule \"a\": a rollout of NaN %: write a number from 0 to 100",
        ],
    ),
    (
        Toml,
        concat!(
            "[[rules]]\n",
            "id = \"é\"\n",
            "key = \"peer_ip\"\n",
            "limit = 2024-01-01\n",
            "[rules.tiers]\n",
            "pro = \"x\"\n",
        ),
        &[
            "2:6: \"é\" is not a name: use 1 to 39 of A-Z a-z 0-9 . _ -",
            "4:9: \"2024-01-01\" is not a rate: write a rate such as `100/min`, `5 per second`, `10/30s` or `1_000/hour`",
            "5:1: nothing chooses these tiers: add `tier_from` or `overrides`",
            "6:7: \"x\" is not a quota: write a rate such as `100/min`, or `unlimited` or `forbidden`",
        ],
    ),
    (
        Toml,
        concat!(
            "[[rules]]\n",
            "id = \"a\"\n",
            "key = { header = \"x\", header = \"y\" }\n",
        ),
        &["3:23: duplicate key: correct the syntax"],
    ),
    // === JSON ===
    (
        Json,
        "",
        &["1:1: EOF while parsing a value: correct the syntax"],
    ),
    (
        Json,
        concat!(
            "{\"rules\": [\n",
            "  {\"id\": \"a\", \"key\": \"global\", \"limit\": \"5/mn\"}\n",
            "]}\n",
        ),
        &[
            "2:41: rule \"a\": \"5/mn\" is not a rate: `mn` is not a unit of time: write `ms`, `s`, `min`, `h`, `d`, `week` or `month`",
        ],
    ),
    (
        Json,
        concat!(
            "{\n",
            "\t\"rules\": [\n",
            "\t\t{\"id\": \"a\", \"key\": \"peer_ip\", \"limit\": \"5/min\", \"brust\": 7}\n",
            "\t]\n",
            "}\n",
        ),
        &["3:51: rule \"a\": unknown field `brust`: write `burst`"],
    ),
    (
        Json,
        "{\"rules\": [{\"id\": \"a\", \"id\": \"b\", \"key\": \"peer_ip\", \"limit\": \"5/min\"}]}",
        &["1:24: rule \"a\": `id` is there twice: keep one of them"],
    ),
    (
        Json,
        "rules: [{ id: a, key: peer_ip, limit: 5/min }]",
        &["1:1: expected value: correct the syntax"],
    ),
    (
        Json,
        "{\"rules\": [{\"id\": \"a\",}]}",
        &["1:23: key must be a string: correct the syntax"],
    ),
    (
        Json,
        concat!(
            "{\"rules\": [\n",
            "  {\"id\": \"a\", \"key\": \"\\ud800\", \"limit\": 1e2}\n",
            "]}\n",
        ),
        &["2:29: unexpected end of hex escape: correct the syntax"],
    ),
    (
        Json,
        "{\"rules\": []} {}",
        &["1:15: trailing characters: correct the syntax"],
    ),
    (
        Json,
        "[1, 2",
        &["1:5: EOF while parsing a list: correct the syntax"],
    ),
    (
        Json,
        "{\"rules\": [{\"id\": \"a\", \"\\u006bey\": \"peer-ip\", \"limit\": 10, \"window\": 1e400, \"burst\": 18446744073709551616}]}",
        &[
            "1:36: rule \"a\": unknown key `peer-ip`: write `peer_ip`",
            "1:70: rule \"a\": this is a fraction: write a duration such as `30s`, `1m30s`, `500ms`, `2h` or `1d`",
            "1:86: rule \"a\": a number above 2^64: write a smaller one",
        ],
    ),
    (
        Json,
        "{\"rules\": [{\"id\": null, \"key\": \"peer_ip\", \"limit\": \"5/min\"}]}",
        &["1:12: `id` is missing: add a name for the rule"],
    ),
    // === Overrides ===
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { header: x-user }\n",
            "    limit: 5/min\n",
            "    overrides: [{ key: 'evil ', tier: forbidden }, { key: \"a\\nb\", tier: forbidden }]\n",
            "  - id: b\n",
            "    key: { cookie: { name: plan, plaintext: true } }\n",
            "    limit: 5/min\n",
            "    overrides: [{ key: '\"evil\"', tier: forbidden }]\n",
            "  - id: c\n",
            "    key: host\n",
            "    limit: 5/min\n",
            "    overrides:\n",
            "      - { key: 'example.com:443', tier: forbidden }\n",
            "      - { key: EXAMPLE.com, tier: forbidden }\n",
            "      - { key: example.com., tier: forbidden }\n",
        ),
        &[
            "5:24: rule \"a\": this key has no override: headers arrive without spaces at their ends: write `evil`",
            "5:59: rule \"a\": this key has no override: write the value of a header, without control characters",
            "9:24: rule \"b\": this key has no override: cookies arrive without quotes around them: write `evil`",
            "14:16: rule \"c\": this key has no override: write a host without port, such as `api.example.com`",
            "16:16: rule \"c\": the key \"example.com.\" is there twice: keep one of them",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: { client_ip: { behind: [010.0.0.0/8, 10.0.0.0/08, 10.0.0.0/+8] } }\n",
            "    limit: 5/min\n",
            "  - id: b\n",
            "    key: peer_ip\n",
            "    limit: 5/min\n",
            "    overrides:\n",
            "      - { key: 203.0.113.7/24, tier: forbidden }\n",
            "      - { key: 010.0.0.1, tier: forbidden }\n",
            "      - { key: '2001:db8:1:2::7', tier: forbidden }\n",
            "      - { key: '::ffff:192.0.2.7/128', tier: forbidden }\n",
            "      - { key: 192.0.2.7, tier: forbidden }\n",
            "      - { key: '::ffff:192.0.2.0/120', tier: forbidden }\n",
            "      - { key: 192.0.2.0/24, tier: forbidden }\n",
        ),
        &[
            "3:34: rule \"a\": \"010.0.0.0/8\" is not a network: write it as \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\"",
            "3:47: rule \"a\": \"10.0.0.0/08\" is not a network: write it as \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\"",
            "3:60: rule \"a\": \"10.0.0.0/+8\" is not a network: write it as \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\"",
            "9:16: rule \"b\": this key has no override: this is an address in a network: write `203.0.113.0/24`",
            "10:16: rule \"b\": this key has no override: write an address such as `192.0.2.7`, or a network such as `192.0.2.0/24`",
            "11:16: rule \"b\": this key has no override: its callers are networks: write `2001:db8:1:2::/64`",
            "13:16: rule \"b\": the key \"192.0.2.7\" is there twice: keep one of them",
            "15:16: rule \"b\": the key \"192.0.2.0/24\" is there twice: keep one of them",
        ],
    ),
    // === Calls that go out ===
    (
        Yaml,
        "outgoing: []",
        &["1:11: this is a list: begin with `rules:`"],
    ),
    (
        Yaml,
        "outgoing: { max_retry: 3 }",
        &[
            "1:11: `rules` is missing: add a list of rules",
            "1:13: unknown field `max_retry`: write `max_retries`",
        ],
    ),
    (
        Yaml,
        concat!(
            "outgoing:\n",
            "  max_wait: soon\n",
            "  max_retries: 5000\n",
            "  retry_percent: 1001\n",
            "  retry_only_safe: yes\n",
            "  rules: []\n",
        ),
        &[
            "2:13: \"soon\" is not a duration: write a duration such as `30s`, `1m30s`, `500ms`, `2h` or `1d`",
            "3:16: `max_retries` of 5000: write a number from 0 to 1000",
            "4:18: `retry_percent` of 1001: write a number from 0 to 1000",
            "5:20: this is text: write `true` or `false`",
            "6:10: no rules: write `- id: ..` for each rule, and in TOML `[[rules]]`",
        ],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - { id: a, key: peer_ip, limit: 5/min }\n",
            "outgoing:\n",
            "  rules:\n",
            "    - id: a\n",
            "      key: host\n",
            "      limit: 5/min\n",
            "    - id: b\n",
            "      key: { or_else: [host, peer_ip] }\n",
            "      limit: 5/mn\n",
            "    - id: c\n",
            "      key: host\n",
            "      limit: 5/min\n",
            "      mode: shadow\n",
            "      cost: 6\n",
        ),
        &[
            "5:11: rule \"a\": the id \"a\" is used in line 2: give each rule another one",
            "9:12: rule \"b\": calls that go out have no such key: write one such as `host`, `{ api_key: bearer }`, `{ header: x-tenant }` or `global`",
            "10:14: rule \"b\": \"5/mn\" is not a rate: `mn` is not a unit of time: write `ms`, `s`, `min`, `h`, `d`, `week` or `month`",
            "14:7: rule \"c\": unknown field `mode`: write one of `id`, `key`, `algorithm`, `window`, `burst`, `limit`, `window_start`, `queue`, `max_wait`, `lease`, `cost`, `outage`, `path`, `method`, `host`, `unless`, `costs`, `skip_without_key`, `never_paused`, `reported_as`, `adaptive`",
            "15:13: rule \"c\": a request costs 6 but the burst is 5, so every request would be denied: raise the burst or lower the cost",
        ],
    ),
    (
        Yaml,
        concat!(
            "outgoing:\n",
            "  rules:\n",
            "    - { id: a, key: host, limit: 5/s, adaptive: { floor: 6/s } }\n",
            "    - { id: b, key: host, limit: 5/s, algorithm: sliding_log, adaptive: true }\n",
            "    - { id: c, key: host, limit: 5/s, adaptive: {} }\n",
            "    - { id: d, key: host, limit: 5/s, adaptive: 5/s }\n",
            "    - { id: e, key: host, limit: 5/s, adaptive: { floor: 5 } }\n",
        ),
        &[
            "3:49: rule \"a\": the floor of its adaptive rate is above its quota: lower the floor",
            "4:73: rule \"b\": this cannot work: only a token bucket or a leaky bucket can be adaptive",
            "5:49: rule \"c\": `floor` is missing: add the lowest rate, such as `floor: 5/s`",
            "6:49: rule \"d\": this is text: write `true`, or `{ floor: 5/s }`",
            "7:58: rule \"e\": a count without a period: write a rate such as `100/min`, or add `window`",
        ],
    ),
    // === What breaks lines ===
    (
        Yaml,
        concat!(
            "\"x\\r\\nINFO well\\e[2J\": 1\n",
            "rules:\n",
            "  - id: a\n",
            "    key: \"peer\\u2028ip\"\n",
            "    limit: 5/min\n",
            "  - id: b\n",
            "    key: { header: x }\n",
            "    limit: 5/min\n",
            "    tiers: { \"go\\eld\": 9/min }\n",
            "    overrides: [{ key: u, tier: gold }]\n",
        ),
        &[
            "1:1: unknown field `x\\r\\nINFO well\\u{1b}[2J`: write one of `version`, `defaults`, `headers`, `shown_limit`, `retry_after_jitter`, `forbid`, `skip`, `rules`, `outgoing`, `overload`",
            "4:10: rule \"a\": unknown key `peer\\u{2028}ip`: write `peer_ip`",
            "9:24: rule \"b\": the rule cannot have this tier: tier name \"go\\u{1b}ld\" is invalid: use 1 to 39 of A-Z a-z 0-9 . _ -",
            "10:33: rule \"b\": unknown tier `gold`: write `go\\u{1b}ld`, or a rate",
        ],
    ),
    // === What looks like other things ===
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - id: a\n",
            "    key: peer_ip\n",
            "    limit: 18446744073709551616/s\n",
            "    path: burst(x)/behind(y)\n",
            "  - id: b\n",
            "    key: peer_ip\n",
            "    limit: 1000000000000000000000000000000000000000\n",
            "    window: 1s\n",
            "    cost: -1000000000000000000000000000000000000000\n",
        ),
        &[
            "4:12: rule \"a\": \"18446744073709551616/s\" is not a rate: write a smaller number",
            "5:11: rule \"a\": path pattern \"burst(x)/behind(y)\": a path starts with /",
            "8:12: rule \"b\": a number above 2^64: write a smaller one",
            "10:11: rule \"b\": a number below 0: write a whole number from 0",
        ],
    ),
    (
        Toml,
        "[[rules]]\nid = \"a\"\nkey = \"peer_ip\"\nlimit = \"5/min\"\nburst = 1000000000000000000000000000000000000000\n",
        &["5:9: rule \"a\": a number above 2^64: write a smaller one"],
    ),
    (
        Yaml,
        "overload: yes\n",
        &["1:11: this is text: write settings such as `key: peer_ip`, or `{}` for none"],
    ),
    (
        Yaml,
        concat!("overload:\n", "  classes: [critical, critical]\n",),
        &["2:3: `normal` is not one of the classes: add it, for requests without a class"],
    ),
    (
        Yaml,
        concat!(
            "overload:\n",
            "  priority: { when: { path: /pay }, class: paid }\n",
        ),
        &[
            "2:44: \"paid\" is not one of the classes: write one of `critical`, `normal`, `sheddable`, or list it in `classes`",
        ],
    ),
    (
        Yaml,
        concat!(
            "overload:\n",
            "  priority: { when: { path: /pay }, class: critcal }\n",
        ),
        &["2:44: \"critcal\" is not one of the classes: write `critical`, or list it in `classes`"],
    ),
    (
        Yaml,
        concat!(
            "rules:\n",
            "  - { id: a, key: peer_ip, limit: 10/s, reserve: { class: crit, part: 20% } }\n",
            "  - { id: b, key: peer_ip, limit: 10/s, reserve: { class: [critical, payd], part: 20% } }\n",
            "overload:\n",
            "  priority: { when: { path: /pay }, class: normel }\n",
            "  classes: [critical, paid, normal]\n",
        ),
        &[
            "2:59: rule \"a\": \"crit\" is not one of the `classes` of `overload`: write one of `critical`, `paid`, `normal`",
            "3:70: rule \"b\": \"payd\" is not one of the `classes` of `overload`: write `paid`",
            "5:44: \"normel\" is not one of the `classes` of `overload`: write `normal`",
        ],
    ),
    (
        Yaml,
        concat!(
            "overload:\n",
            "  priority: { path: /pay, class: critical }\n",
        ),
        &[
            "2:13: `when` is missing: add the requests of the class",
            "2:15: unknown field `path`: write one of `when`, `class`",
        ],
    ),
    (
        Yaml,
        concat!(
            "overload:\n",
            "  priority_header: { name: \"x priority\", from: { peer: 10.0.0.0/33 } }\n",
        ),
        &[
            "2:28: \"x priority\" is not the name of a header: write one such as `x-priority`",
            "2:56: \"10.0.0.0/33\" is not a network: write it as \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\"",
        ],
    ),
    (
        Yaml,
        concat!(
            "overload:\n",
            "  priority_header: { name: x-priority, from: [] }\n",
        ),
        &["2:46: an empty list: write requests, such as `{ peer: 10.0.0.0/8 }`"],
    ),
    (
        Yaml,
        "overload: { key: { body: { json: /user } }, max_retry_after: 100ms, mod: off }\n",
        &["1:69: unknown field `mod`: write `mode`"],
    ),
    (
        Yaml,
        "overload: { weights: [{ when: { path: / }, weight: 0 }] }\n",
        &["1:11: a weight of 0: set 1 to 1000, for example 4"],
    ),
    (
        Yaml,
        "overload: { weights: { when: { path: /a }, weigth: 4 } }\n",
        &[
            "1:22: `weight` is missing: add their weight, such as `4`",
            "1:44: unknown field `weigth`: write `weight`",
        ],
    ),
    (
        Yaml,
        "overload: { max_retry_after: 100ms }\n",
        &["1:11: max_retry_after of 100ms: set 1 s to 24 h, for example 10 s"],
    ),
];
