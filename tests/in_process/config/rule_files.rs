//! Rule files: what they mean, and the faults they can have.

mod broken;

use std::{collections::BTreeSet, convert::Infallible, fs, net::SocketAddr, path::Path};

use axum::{body::Body, extract::ConnectInfo};
use http::{Request, Response, StatusCode};
use proptest::prelude::*;
use tollgate::{
    Decision, Key, RateLimitLayer, RateLimiter, RequestHead,
    clock::{Clock, Timestamp},
    config::{Fault, Format, RuleSet, RuleSetReader, RuleSetSpec},
    diagnosis::{Code, Warning},
    extract::HashSecret,
};
use tower::{Layer, ServiceExt, service_fn};

use broken::BROKEN;

/// Parses YAML. Returns its faults as text.
fn faults(yaml: &str) -> String {
    faults_in(Format::Yaml, yaml)
}

fn faults_in(format: Format, text: &str) -> String {
    match RuleSet::parse(format, text) {
        Ok(set) => panic!("it has no fault: {set:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn broken_files_show_the_place_the_rule_the_reason_and_the_remedy() {
    let mut wrong = Vec::new();
    for (format, text, expected) in BROKEN {
        let printed = faults_in(*format, text);
        let expected: Vec<_> = expected
            .iter()
            .map(|fault| format!("rules:{fault}"))
            .collect();
        let expected = expected.join("\n");
        if printed != expected {
            wrong.push(format!(
                "{text}\n  printed:\n{printed}\n  expected:\n{expected}"
            ));
        }
    }
    assert!(BROKEN.len() >= 30);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn faults_have_places_within_the_text_and_no_words_of_code() {
    for (format, text, _) in BROKEN {
        let error = RuleSet::parse(*format, text).expect_err("it is broken");
        for fault in error.faults() {
            let lines: Vec<_> = text.split('\n').collect();
            let line = lines.get(fault.line() - 1).expect("the line exists");
            assert!(
                fault.column() <= line.chars().count() + 1,
                "{text}\n{error}"
            );
            let said = format!("{}: {}", fault.reason(), fault.remedy());
            // A reader is code, and only code can register something.
            let is_code = said.contains("()")
                || said
                    .replace("2001:db8::", "")
                    .replace("2001:db8:1:2::", "")
                    .contains("::");
            assert!(!is_code || said.contains("RuleSetReader::"), "{said}");
        }
    }
}

#[test]
fn all_faults_of_a_file_are_listed_at_once_in_their_order() {
    let yaml = "rules:\n  - id: a\n    key: peerip\n    limit: ten/s\n    mod: shadow\n  - id: b\n    key: global\n    limit: 5/s\n    rollout: 200";
    let error = RuleSet::parse(Format::Yaml, yaml).expect_err("it is broken");
    let lines: Vec<usize> = error.faults().iter().map(Fault::line).collect();
    assert_eq!(lines, [3, 4, 5, 9], "{error}");
    let rules: Vec<_> = error.faults().iter().filter_map(Fault::rule).collect();
    assert_eq!(rules, ["a", "a", "a", "b"]);
    assert_eq!(error.faults()[2].remedy(), "write `mode`");
}

#[test]
fn too_many_policies_too_deep_and_too_large_files_are_refused() {
    let rule = |number| format!("- {{ id: r{number}, key: global, limit: 1/s, candidate: 2/s }}\n");
    let rules: String = (0..9).map(rule).collect();
    let too_many = "rules:10:3: more than 16 policies that count every request (a candidate is one too, and a reserve): add a `path`, \
                    `method` or `host`, or put some of the rules into another layer";
    assert_eq!(faults(&format!("rules:\n{rules}")), too_many);
    let broken = rules.replacen("1/s", "1/x", 1);
    let error = faults(&format!("rules:\n{broken}"));
    assert!(error.starts_with("rules:2:33: rule \"r0\""), "{error}");
    assert!(error.ends_with(too_many), "{error}");
    let endpoint =
        |number| format!("- {{ id: r{number}, key: global, limit: 1/s, path: /{number} }}\n");
    let endpoints = |count| format!("rules:\n{}", (0..count).map(endpoint).collect::<String>());
    assert!(RuleSet::parse(Format::Yaml, &endpoints(1_000)).is_ok());
    let too_many = "rules:1002:3: more than 1000 policies (a candidate is one too, and a reserve): put some of the rules into another layer";
    assert_eq!(faults(&endpoints(1_001)), too_many);
    let deep = format!("rules: {}{}", "[".repeat(200), "]".repeat(200));
    assert!(faults(&deep).contains("more than 32 levels"));
    let large = format!("rules: [] # {}", "x".repeat(1 << 20));
    assert!(faults(&large).contains("more than 1 MiB"));
    let faults_of_many: String = (0..300).map(|number| format!("x{number}: 1\n")).collect();
    assert!(faults(&faults_of_many).ends_with("and 201 more"));
}

#[test]
fn equal_rules_in_three_formats_are_equal_and_can_be_read_again() {
    let yaml = "rules:\n  - id: a\n    key: { header: x-user }\n    limit: 100/min\n    burst: 20\n    mode: off\n    rollout: 30%";
    let toml = "[[rules]]\nid = \"a\"\nkey = { header = \"x-user\" }\nlimit = \"100/min\"\nburst = 20\nmode = \"off\"\nrollout = 30.0";
    let json = r#"{"rules": [{"id": "a", "key": {"header": "x-user"}, "limit": "100/min", "burst": 20, "mode": "off", "rollout": 30}]}"#;
    let sets = [
        (Format::Yaml, yaml),
        (Format::Toml, toml),
        (Format::Json, json),
    ]
    .map(|(format, text)| RuleSet::parse(format, text).expect("no fault"));
    assert_eq!(sets[0], sets[1]);
    assert_eq!(sets[1], sets[2]);
    for file in examples() {
        let set = read(&file);
        let again = RuleSet::parse(Format::Json, &set.to_json()).expect("no fault");
        assert_eq!(set, again, "{file}");
    }
}

#[test]
fn json_schema_of_the_repository_is_that_of_the_types() {
    let schema = schemars::schema_for!(RuleSetSpec);
    let schema = serde_json::to_string_pretty(&schema).expect("it is JSON") + "\n";
    let path = "docs/rules.schema.json";
    if std::env::var_os("TOLLGATE_WRITE_SCHEMA").is_some() {
        fs::write(path, &schema).expect("it can be written");
    }
    let kept = fs::read_to_string(path).unwrap_or_default();
    assert_eq!(
        kept, schema,
        "write it again: TOLLGATE_WRITE_SCHEMA=1 cargo test --all-features --test in_process json_schema"
    );
}

#[test]
fn names_of_other_than_built_in_parts_come_from_code() {
    let reader = RuleSetReader::default()
        .extractor("tenant", |_: &RequestHead| Some(Key::new("t")))
        .tier_name("plan", |_, _| Some("pro".to_owned()));
    let yaml = |key: &str| {
        format!(
            "rules: [{{ id: a, key: {{ custom: {key} }}, limit: 5/min, tiers: {{ pro: 9/min }}, tier_from: {{ custom: plan }} }}]"
        )
    };
    assert!(reader.parse(Format::Yaml, &yaml("tenant")).is_ok());
    let error = reader
        .parse(Format::Yaml, &yaml("tennant"))
        .expect_err("unknown");
    assert_eq!(
        error.to_string(),
        "rules:1:33: rule \"a\": \"tennant\" is not registered: write `tenant`"
    );
}

#[test]
fn every_built_in_extractor_has_a_key() {
    let docs = fs::read_to_string("src/extract/mod.rs").expect("readable");
    let table = docs
        .split("| without a key |")
        .nth(1)
        .expect("the table of extractors");
    let rows = table
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("//! |"));
    let rows = rows.filter_map(|row| row.strip_prefix("//! | [`")?.split('`').next());
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() >= 13, "{rows:?}");
    for row in rows {
        let key = match row {
            "ApiKey" => "{ api_key: bearer }",
            "ClientIp" => "{ client_ip: { hops: 1 } }",
            "Cookie" => "{ cookie: session }",
            "FromBody" => "{ body: { json: /email } }",
            "Global" => "global",
            "Header" => "{ header: x-user }",
            "HostHeader" => "host",
            "PathParam" => "{ path_param: id }",
            "PeerIp" => "peer_ip",
            "QueryParam" => "{ query: tenant }",
            "Route" => "route",
            "RouteOrUnmatched" => "route_or_unmatched",
            // They have a closure.
            "Claim" | "ExtensionKey" => "{ custom: closure }",
            other => panic!("no key in rule files for {other}"),
        };
        let reader =
            RuleSetReader::default().extractor("closure", |_: &RequestHead| Some(Key::new("t")));
        let yaml = format!("rules: [{{ id: a, key: {key}, limit: 5/min }}]");
        let set = reader.parse(Format::Yaml, &yaml);
        assert!(set.is_ok(), "{row}: {set:?}");
    }
}

#[test]
fn fields_that_stand_in_the_schema_are_all_read_and_written_again() {
    let reader = RuleSetReader::default()
        .extractor("tenant", |_: &RequestHead| Some(Key::new("t")))
        .matcher("internal", |_: &RequestHead| false)
        .tier_name("plan", |_, _| None);
    let read = |format, text: &str| {
        let set = reader.parse(format, text);
        set.unwrap_or_else(|error| panic!("{error}"))
    };
    let set = read(Format::Yaml, EVERYTHING);
    let json = set.to_json();
    let again = read(Format::Json, &json);
    assert_eq!(set, again);
    let schema = serde_json::to_value(schemars::schema_for!(RuleSetSpec)).expect("it is JSON");
    let mut fields = Vec::new();
    let types = schema["$defs"].as_object().expect("types").values();
    for definition in types.chain([&schema]) {
        let own = definition["properties"].as_object().into_iter().flatten();
        fields.extend(own.map(|(name, _)| name.clone()));
    }
    fields.sort();
    fields.dedup();
    assert!(fields.len() > 35, "{fields:?}");
    for field in fields {
        assert!(
            json.contains(&format!("\"{field}\":")),
            "{field} is in no rule"
        );
    }
}

/// Each field at least once.
const EVERYTHING: &str = r#"
version: 1
defaults: { algorithm: fixed_window, outage: deny, mode: enforce, on_missing_key: reject, count_denied: true }
headers: [draft11, draft06]
shown_limit: per_period
retry_after_jitter: 12.5 %
forbid:
  - { path: [/admin, /root], method: [GET, PUT], host: "*.example.com", peer: [10.0.0.0/8, "fd00::/8"] }
skip: [{ preflight: true }, { custom: internal }, { client_ip: { behind: 10.0.0.0/8, header: forwarded, networks: 192.0.2.7 } }]
rules:
  - id: windows
    key: { or_else: [{ api_key: { header: x-key } }, { api_key: { query: key } }, { client_ip: { behind: 10.0.0.0/8, header: forwarded, ipv4_prefix: 24, ipv6_prefix: 56 } }] }
    path: "/users/{id}"
    method: POST
    host: api.example.com
    unless: [{ path: /users/me }, { preflight: true }, { client_ip: { hops: 2, networks: [192.0.2.0/24, "2001:db8::/32"] } }]
    limit: 100
    window: 1h30m
    window_start: first_hit
    cost: 2
    costs: [{ when: { method: [PUT, DELETE] }, units: 5 }]
    unit: tokens
    count_denied: false
    penalty: { denials: 10, within: 1m, ban: 5m, factor: 3, longest_ban: 1h30m, forgiven_after: 2d }
    on_missing_key: share
    mode: shadow
    rollout: 12.5
    candidate: { limit: 50, window: 1h, }
    outage: allow
  - id: queue
    key: { and: [{ cookie: { name: theme, plaintext: true } }, { header: x-user }] }
    algorithm: leaky_queue
    limit: 10/s
    queue: 50
    max_wait: 1m
    burst: 2
  - id: slots
    key: { client_ip: { hops: 2 } }
    algorithm: concurrency
    limit: 10
    lease: 10s
    reserve: { class: [critical, paid], part: 12.5%, lend: 2s }
    tiers: { pro: 20 }
    tier_from: { header: x-plan }
    overrides: [{ key: 192.0.2.7, tier: pro }, { key: 192.0.2.8, tier: 30 }]
  - id: custom
    key: { custom: tenant }
    limit: 5 per month
    window_start: month
    candidate: 40/month
    tiers: { free: 1/month, none: forbidden }
    tier_from: { custom: plan }
  - id: failures
    key: { header: x-user }
    limit: 5/min
    count: failures
    clear_on_success: true
    backoff: { first: 1s, longest: 15m, factor: 3, forgiven_after: 1h }
  - id: statuses
    key: { body: { json: /user/email, form: email, max_bytes: 65536, within: 3s, ignore_case: true, hashed: true } }
    limit: 5/min
    count_statuses: [401, 403]
  - id: tokens
    key: { api_key: bearer }
    limit: 100000/min
    cost: 500
    cost_field: { json: /max_tokens, form: max_tokens, max_bytes: 1048576, within: 4s }
  - id: leased
    key: global
    algorithm: token_bucket
    limit: 1000/s
    count_denied: false
    consistency: leased
  - id: delayed
    key: global
    algorithm: sliding_window
    limit: 1000/s
    count_denied: false
    consistency: delayed
    overshoot: 2.5%
outgoing:
  max_wait: 20s
  max_pause: 5m
  max_retries: 3
  retry_percent: 20
  retry_only_safe: true
  rules:
    - id: api
      key: { and: [host, { api_key: bearer }] }
      path: "/users/{id}"
      method: [GET, POST]
      host: "*.example.com"
      unless: { path: /health }
      algorithm: token_bucket
      limit: 100/s
      burst: 10
      cost: 2
      costs: [{ when: { method: POST }, units: 5 }]
      outage: deny
      skip_without_key: true
      never_paused: true
      reported_as: tokens
      adaptive: { floor: 5/s }
    - { id: found, key: global, algorithm: leaky_bucket, limit: 10, window: 1s, adaptive: true }
    - { id: parallel, key: host, algorithm: concurrency, limit: 20, lease: 10s, adaptive: false }
overload:
  classes: [critical, paid, normal]
  key: { api_key: bearer }
  priority_header: { name: x-priority, from: { peer: 10.0.0.0/8 } }
  priority: [{ when: { path: /pay }, class: paid }, { when: { path: /refund }, class: critical }]
  weights: { when: { path: /partner }, weight: 4 }
  skip: { path: /health }
  max_retry_after: 1m
  mode: shadow
"#;

#[test]
fn files_of_all_line_ends_marks_and_sizes_are_read() {
    let folder = std::env::temp_dir().join(format!("tollgate-rules-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let at = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("it can be written");
        RuleSet::from_file(&path).map_err(|error| {
            error
                .to_string()
                .split_off(path.display().to_string().len())
        })
    };
    let yaml = "\u{feff}rules:\r\n  - id: a\r\n    key: peer_ip\r\n    limit: 5/min\r\n";
    assert!(at("crlf.YML", yaml.as_bytes()).is_ok());
    let broken = yaml.replace("5/min", "5/mn");
    let error = at("crlf.yaml", broken.as_bytes()).expect_err("broken");
    assert!(error.starts_with(":4:12: rule \"a\": \"5/mn\""), "{error}");
    let error = at(
        "latin1.yaml",
        b"rules:\n  - id: a\n    key: { header: \xe9 }\n",
    );
    assert_eq!(
        error.expect_err("not text"),
        ":3:20: not UTF-8: save it as UTF-8"
    );
    let error = at("large.json", &vec![b' '; 3 << 20]).expect_err("too large");
    assert!(error.starts_with(":1:1: more than 1 MiB"), "{error}");
    fs::remove_dir_all(&folder).expect("it can be removed");
}

#[tokio::test]
async fn secret_of_the_reader_hashes_api_keys_and_cookies() {
    let secret = HashSecret::from_passphrase("of this fleet");
    for (key, name, value) in [
        ("{ api_key: { header: x-key } }", "x-key", "k-1"),
        ("{ cookie: session }", "cookie", "session=k-1"),
    ] {
        let yaml = format!("rules: [{{ id: a, key: {key}, limit: 5/min }}]");
        let set = RuleSetReader::default()
            .hash_secret(secret)
            .parse(Format::Yaml, &yaml);
        let set = set.expect("no fault");
        let limiter = RateLimiter::builder().build().expect("a limiter");
        let layer = RateLimitLayer::builder()
            .limiter(&limiter)
            .rules(&set)
            .build();
        send(&layer.expect("a layer"), "/", &[(name, value)]).await;
        let policy = set.rules()[0].policy();
        for (key, remaining) in [
            (Key::secret_with(&secret, "k-1"), 4),
            (Key::secret("k-1"), 5),
        ] {
            let decision = limiter
                .peek(&[policy.charge(key)])
                .await
                .expect("a decision");
            assert_eq!(
                decision.states()[0].usage().expect("counted").remaining,
                remaining
            );
        }
    }
}

#[tokio::test]
async fn override_of_an_address_applies_to_the_network_that_is_counted() {
    let yaml = "rules:
  - id: a
    key: { client_ip: { hops: 1, ipv4_prefix: 24 } }
    limit: 2/min
    overrides: [{ key: 192.0.2.0/24, tier: forbidden }, { key: '2001:db8:1:2::/64', tier: unlimited }]";
    let set = RuleSet::parse(Format::Yaml, yaml).expect("no fault");
    let layer = RateLimitLayer::builder()
        .rules(set)
        .build()
        .expect("a layer");
    let from = |address: &'static str| [("x-forwarded-for", address)];
    assert_eq!(admitted(&layer, "/", &from("198.51.100.1"), 5).await, 2);
    assert_eq!(admitted(&layer, "/", &from("2001:db8:1:2::77"), 5).await, 5);
    let response = send(&layer, "/", &from("192.0.2.77")).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn override_of_a_network_applies_to_each_of_its_addresses_and_the_longest_prefix_wins() {
    let yaml = "rules:
  - id: a
    key: { client_ip: { hops: 1 } }
    limit: 2/min
    overrides:
      - { key: 203.0.113.0/24, tier: forbidden }
      - { key: 203.0.113.64/26, tier: unlimited }
      - { key: 203.0.113.70, tier: 1/min }
      - { key: '::ffff:198.51.100.0/120', tier: forbidden }
      - { key: '2001:db8::/32', tier: forbidden }
      - { key: '2001:db8:1:2::/64', tier: unlimited }";
    let set = RuleSet::parse(Format::Yaml, yaml).expect("no fault");
    let again = RuleSet::parse(Format::Json, &set.to_json()).expect("no fault");
    assert_eq!(set, again);
    let layer = RateLimitLayer::builder().rules(set).build();
    let layer = layer.expect("a layer");
    for (address, expected) in [
        ("203.0.113.7", 0),
        ("203.0.113.64", 5),
        ("203.0.113.127", 5),
        ("203.0.113.128", 0),
        ("203.0.113.70", 1),
        ("203.0.112.255", 2),
        ("198.51.100.9", 0),
        ("::ffff:203.0.113.8", 0),
        ("2001:db8:1:3::7", 0),
        ("2001:db8:1:2::7", 5),
        ("2001:db9::7", 2),
    ] {
        let headers = [("x-forwarded-for", address)];
        assert_eq!(
            admitted(&layer, "/", &headers, 5).await,
            expected,
            "{address}"
        );
    }
}

#[tokio::test]
async fn override_applies_to_a_client_behind_nat64_by_its_ipv4_address() {
    let yaml = "rules:
  - id: a
    key: { client_ip: { hops: 1 } }
    limit: 2/min
    overrides:
      - { key: 203.0.113.7, tier: forbidden }
      - { key: '64:ff9b::203.0.113.8', tier: forbidden }
      - { key: 198.51.100.0/24, tier: forbidden }
      - { key: '64:ff9b::192.0.2.0/120', tier: forbidden }";
    let set = RuleSet::parse(Format::Yaml, yaml).expect("no fault");
    let layer = RateLimitLayer::builder().rules(set).build();
    let layer = layer.expect("a layer");
    for (address, expected) in [
        ("203.0.113.7", 0),
        ("64:ff9b::203.0.113.7", 0),
        ("203.0.113.8", 0),
        ("64:ff9b::203.0.113.8", 0),
        ("64:ff9b::198.51.100.9", 0),
        ("192.0.2.9", 0),
        ("64:ff9b::192.0.2.9", 0),
        ("64:ff9b::203.0.113.9", 2),
        // A neighbour of another IPv4 address, and a private one, which no translator makes.
        ("192.0.3.9", 2),
        ("64:ff9b::10.0.0.7", 2),
    ] {
        let headers = [("x-forwarded-for", address)];
        assert_eq!(
            admitted(&layer, "/", &headers, 5).await,
            expected,
            "{address}"
        );
    }
}

#[tokio::test]
async fn override_of_a_host_applies_however_the_host_is_written() {
    let yaml = "rules:
  - id: a
    key: host
    limit: 2/min
    overrides: [{ key: API.example.com, tier: forbidden }, { key: '[2001:db8::1]', tier: unlimited }]";
    let set = RuleSet::parse(Format::Yaml, yaml).expect("no fault");
    let layer = RateLimitLayer::builder().rules(set).build();
    let layer = layer.expect("a layer");
    for (host, expected) in [
        ("api.example.com", 0),
        ("api.EXAMPLE.com.:8080", 0),
        ("[2001:DB8::1]:443", 5),
        ("example.com", 2),
    ] {
        let headers = [("host", host)];
        assert_eq!(admitted(&layer, "/", &headers, 5).await, expected, "{host}");
    }
}

#[test]
fn tab_between_a_name_and_its_value_is_read_as_a_space() {
    let plain = "rules:\n- id: a\n  key: global\n  limit: 5/min\n  unless: { path: /a, host: b }\n";
    let tabs = plain.replace(": ", ":\t\t");
    assert_ne!(plain, tabs);
    let read = |text: &str| RuleSet::parse(Format::Yaml, text);
    assert_eq!(read(&tabs), read(plain));
    let quoted = "rules:\n- id: a\n  key: { header: x }\n  limit:\t5/min\n  overrides: [{ key: 'a:\tb', tier:\tforbidden }]\n";
    let set = read(quoted).expect("no fault");
    assert_eq!(set.spec().rules[0].overrides[0].key, "a:\tb");
    let wrong = read("rules:\n- id: a\n  (key):\tglobal\n").expect_err("not a name");
    let expected = "rules:3:10: a tab after `:`: write a space";
    assert!(wrong.to_string().starts_with(expected), "{wrong}");
}

// === Guide ===

/// Blocks of the guide in this language.
fn blocks(language: &str) -> Vec<String> {
    let guide = fs::read_to_string("docs/rules.md").expect("readable");
    let parts = guide.split("```").skip(1).step_by(2);
    let blocks = parts.filter_map(|part| part.strip_prefix(language)?.strip_prefix('\n'));
    blocks.map(str::to_owned).collect()
}

#[test]
fn faults_in_the_guide_are_those_of_its_file() {
    let error = RuleSet::parse(Format::Yaml, &blocks("yaml")[0]).expect_err("it is broken");
    let printed = error.to_string().replace("rules:", "rules.yaml:");
    assert_eq!(blocks("text")[0].trim_end(), printed);
}

#[test]
fn rules_in_the_guide_can_be_read() {
    let blocks: Vec<_> = blocks("yaml")
        .into_iter()
        .skip(1)
        .chain(blocks("text").into_iter().skip(1))
        .collect();
    assert_eq!(blocks.len(), 8);
    for block in blocks {
        // Beside the configuration of another limiter, ours begins in one column.
        let start = block
            .lines()
            .next()
            .and_then(|line| line.find("# tollgate"));
        let ours = block
            .lines()
            .map(|line| line.get(start.unwrap_or(0)..).unwrap_or_default());
        let ours = ours.collect::<Vec<_>>().join("\n");
        let read = RuleSet::parse(Format::Yaml, &ours);
        read.unwrap_or_else(|error| panic!("{error}\n{ours}"));
    }
}

// === Examples ===

fn examples() -> Vec<String> {
    let files = fs::read_dir("examples/rules").expect("the folder exists");
    let files = files.map(|file| file.expect("readable").path().display().to_string());
    let mut files: Vec<String> = files.collect();
    files.sort();
    files
}

fn read(file: &str) -> RuleSet {
    RuleSet::from_file(file).unwrap_or_else(|error| panic!("{error}"))
}

fn layer_of(file: &str) -> RateLimitLayer {
    layer_with(read(file))
}

fn layer_of_text(yaml: &str) -> RateLimitLayer {
    layer_with(RuleSet::parse(Format::Yaml, yaml).unwrap_or_else(|error| panic!("{error}")))
}

fn layer_with(rules: RuleSet) -> RateLimitLayer {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let layer = RateLimitLayer::builder().clock(clock).rules(rules);
    layer.build().expect("a layer")
}

async fn send(layer: &RateLimitLayer, path: &str, headers: &[(&str, &str)]) -> Response<()> {
    let method = if path.starts_with("/login") {
        "POST"
    } else {
        "GET"
    };
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let peer: SocketAddr = ([192, 0, 2, 1], 4_000).into();
    let request = request.extension(ConnectInfo(peer)).body(Body::empty());
    let service = layer.layer(service_fn(async |request: Request<Body>| {
        let mut response = Response::new(Body::empty());
        let decision = request.extensions().get::<Decision>().cloned();
        response.extensions_mut().insert(decision);
        Ok::<_, Infallible>(response)
    }));
    let response = service.oneshot(request.expect("a request")).await;
    response.expect("a response").map(drop)
}

#[tokio::test]
async fn headers_show_the_limit_that_the_file_chooses() {
    for (fields, limit) in [
        ("", "10"),
        ("shown_limit: at_once", "10"),
        ("shown_limit: per_period", "60"),
        ("shown_limit: per_period\nheaders: legacy", "60"),
    ] {
        let layer = layer_of_text(&format!(
            "{fields}\nrules: [{{ id: plan, key: global, limit: 60/min, burst: 10 }}]"
        ));
        let response = send(&layer, "/", &[]).await;
        assert_eq!(response.headers()["x-ratelimit-limit"], limit, "{fields}");
        assert_eq!(response.headers()["x-ratelimit-remaining"], "9", "{fields}");
    }
}

#[tokio::test]
async fn waits_are_spread_by_the_jitter_of_the_file() {
    for (field, expected) in [
        ("", 100..=100),
        ("retry_after_jitter: 0", 100..=100),
        ("retry_after_jitter: 30 %", 100..=130),
        ("retry_after_jitter: 7.5", 100..=108),
    ] {
        let layer = layer_of_text(&format!(
            "{field}\nrules: [{{ id: slow, key: global, limit: 1/100s }}]"
        ));
        assert_eq!(send(&layer, "/", &[]).await.status(), StatusCode::OK);
        let mut waits = BTreeSet::new();
        for _ in 0..200 {
            let denial = send(&layer, "/", &[]).await;
            let wait = denial.headers()["retry-after"].to_str().expect("text");
            waits.insert(wait.parse::<u32>().expect("a number"));
        }
        let range = (*waits.first().expect("one"), *waits.last().expect("one"));
        let (first, last) = expected.clone().into_inner();
        let spread = last - first;
        assert!(
            expected.contains(&range.0) && expected.contains(&range.1),
            "{field}: {waits:?}"
        );
        // of 200 draws
        assert!(
            range.0 <= first + spread / 5 && last - spread / 5 <= range.1,
            "{field}: {waits:?}"
        );
    }
}

// Regression: `peer` is the proxy there, so a client of a forbidden network got 200.
#[tokio::test]
async fn client_behind_a_proxy_is_forbidden_skipped_or_excepted_by_its_network() {
    let layer = layer_of_text(
        r#"
forbid: { client_ip: { behind: 192.0.2.0/24, networks: [203.0.113.0/24, "2001:db8:bad::/48"] } }
skip: { path: /status, client_ip: { hops: 1, networks: 198.51.100.0/24 } }
rules:
  - id: all
    key: global
    limit: 100/h
    unless: { client_ip: { behind: 192.0.2.1, header: x-real-ip, networks: 198.51.100.7 } }
    costs: { when: { client_ip: { hops: 1, networks: 198.51.100.8 } }, units: 10 }
"#,
    );
    let forwarded = |address| [("x-forwarded-for", address)];
    let mut left = Some(100);
    for (path, header, status, cost) in [
        ("/", forwarded("203.0.113.9"), 403, None),
        ("/", forwarded("2001:db8:bad::1"), 403, None),
        ("/", forwarded("203.0.113.9, 198.51.100.1"), 200, Some(1)),
        ("/", forwarded("203.0.113.9:80"), 403, None),
        ("/status", forwarded("198.51.100.1"), 200, None),
        ("/status", forwarded("192.0.2.99"), 200, Some(1)),
        ("/", forwarded("198.51.100.8"), 200, Some(10)),
        ("/", [("x-real-ip", "198.51.100.7")], 200, None),
        ("/", [("x-real-ip", "198.51.100.9")], 200, Some(1)),
    ] {
        let response = send(&layer, path, &header).await;
        assert_eq!(response.status(), status, "{path} {header:?}");
        let remaining = response.headers().get("x-ratelimit-remaining");
        let remaining =
            remaining.map(|value| value.to_str().expect("text").parse().expect("a number"));
        left = left.map(|left: u64| left - cost.unwrap_or(0));
        assert_eq!(remaining, cost.and(left), "{path} {header:?}");
    }
    assert!(layer.warnings().is_empty(), "{:?}", layer.warnings());
}

// Regression: the matchers of a rule file did not pass on what they had found, so nothing was reported.
#[tokio::test]
async fn list_of_peers_behind_a_proxy_is_reported() {
    for (field, lists) in [
        ("forbid", "forbid: { peer: 203.0.113.0/24 }"),
        ("skip", "skip: { method: GET, peer: 203.0.113.0/24 }"),
        (
            "forbid",
            "forbid: [{ path: /admin }, { peer: [203.0.113.0/24, 198.51.100.7] }]",
        ),
    ] {
        for header in [
            "x-forwarded-for",
            "forwarded",
            "x-real-ip",
            "cf-connecting-ip",
        ] {
            let layer = layer_of_text(&format!(
                "{lists}\nrules: [{{ id: all, key: global, limit: 100/h }}]"
            ));
            send(&layer, "/", &[]).await;
            assert!(layer.warnings().is_empty(), "{lists}");
            send(&layer, "/", &[(header, "203.0.113.9")]).await;
            let [warning] = &layer.warnings()[..] else {
                panic!("{lists} {header}: {:?}", layer.warnings());
            };
            assert_eq!(warning.code(), Code::ForwardedIgnored);
            for piece in [
                format!("a {field} list ignores it"),
                "client_ip in a rule file".to_owned(),
            ] {
                assert!(warning.to_string().contains(&piece), "{warning}");
            }
        }
    }
    let in_rule = r"rules: [{ id: all, key: global, limit: 100/h, unless: { peer: 10.0.0.0/8 } }]";
    let layer = layer_of_text(in_rule);
    send(&layer, "/", &[("x-forwarded-for", "203.0.113.9")]).await;
    let codes: Vec<Code> = layer.warnings().iter().map(Warning::code).collect();
    assert_eq!(codes, [Code::ForwardedIgnored]);
}

async fn admitted(
    layer: &RateLimitLayer,
    path: &str,
    headers: &[(&str, &str)],
    tries: usize,
) -> usize {
    let mut count = 0;
    for _ in 0..tries {
        count += usize::from(send(layer, path, headers).await.status() == StatusCode::OK);
    }
    count
}

#[tokio::test]
async fn public_api_of_the_examples_limits_by_key_plan_and_cost() {
    let layer = layer_of("examples/rules/public-api.yaml");
    let (free, pro) = (
        [("x-api-key", "a")],
        [("x-api-key", "b"), ("x-plan", "pro")],
    );
    assert_eq!(admitted(&layer, "/", &free, 30).await, 20);
    assert_eq!(admitted(&layer, "/", &pro, 100).await, 100);
    assert_eq!(
        admitted(&layer, "/reports/7", &[("x-api-key", "c")], 5).await,
        2
    );
    assert_eq!(admitted(&layer, "/health", &[], 700).await, 700, "skipped");
    let response = send(&layer, "/", &[]).await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn login_of_the_examples_limits_an_address_and_watches_resets() {
    let layer = layer_of("examples/rules/login.yaml");
    assert_eq!(
        admitted(&layer, "/login", &[("x-account", "ada")], 9).await,
        5
    );
    let unnamed = send(&layer_of("examples/rules/login.yaml"), "/login", &[]).await;
    assert_eq!(unnamed.status(), StatusCode::BAD_REQUEST, "no account");
    assert_eq!(
        admitted(&layer, "/password/reset", &[], 9).await,
        9,
        "only watched"
    );
    let response = send(&layer, "/password/forgot", &[]).await;
    let decision = response.extensions().get::<Option<Decision>>().cloned();
    let decision = decision.flatten().expect("a decision");
    assert_eq!(decision.would_deny().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn webhooks_of_the_examples_are_spaced_and_have_overrides() {
    let layer = layer_of("examples/rules/webhooks.yaml");
    let set = read("examples/rules/webhooks.yaml");
    assert_eq!(set.rules().len(), 2);
    assert_eq!(set.spec().rules[1].overrides.len(), 2);
    let response = send(&layer, "/", &[("x-receiver", "receiver-2")]).await;
    assert_eq!(response.status(), StatusCode::OK);
    let decision = response.extensions().get::<Option<Decision>>().cloned();
    let decision = decision.flatten().expect("a decision");
    let names: BTreeSet<_> = decision
        .states()
        .iter()
        .map(|state| state.policy().to_string())
        .collect();
    assert_eq!(
        names,
        BTreeSet::from(["even".to_owned()]),
        "unlimited under the other"
    );
}

#[tokio::test]
async fn rules_of_a_file_count_failures_or_some_statuses() {
    let layer = layer_of_text(
        r"
rules:
  - id: failures
    key: { header: x-user }
    limit: 2/h
    count: failures
    backoff: { first: 1h, longest: 2h }
  - id: forbidden
    key: global
    limit: 2/h
    count_statuses: 403
",
    );
    for (user, status, expected) in [
        ("ada", 200, 200),
        ("ada", 200, 200),
        ("ada", 200, 200),
        ("ada", 401, 401),
        ("ada", 200, 429),
        ("bob", 403, 403),
        ("eve", 403, 403),
        ("joe", 200, 429),
    ] {
        let service = layer.layer(service_fn(move |_: Request<()>| {
            let response = Response::builder().status(status).body(());
            std::future::ready(Ok::<_, Infallible>(response.expect("a response")))
        }));
        let request = Request::get("/").header("x-user", user).body(());
        let response = service.oneshot(request.expect("a request")).await;
        assert_eq!(
            response.expect("it answers").status(),
            expected,
            "{user} {status}"
        );
    }
}

#[test]
fn file_that_is_missing_or_has_no_known_format_is_a_fault_of_the_whole_file() {
    let error = RuleSet::from_file(Path::new("examples/rules/none.yaml")).expect_err("missing");
    assert!(
        error
            .to_string()
            .starts_with("examples/rules/none.yaml:1:1: "),
        "{error}"
    );
    let error = RuleSet::from_file("README.md").expect_err("no rules");
    assert_eq!(
        error.to_string(),
        "README.md:1:1: an unknown format: name it .yaml, .toml or .json"
    );
}

// === Any text ===

/// Texts that look like rule files, with anything in between.
fn any_text() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        "rules:",
        "rules",
        "\n",
        "  - ",
        "- ",
        "id: a",
        "key: ",
        "peer_ip",
        "{ header: x }",
        "limit: 5/min",
        "[",
        "]",
        "{",
        "}",
        ",",
        ": ",
        "\"",
        "'",
        "#",
        "&a ",
        "*a",
        "!!str ",
        "|",
        ">",
        "\t",
        "  ",
        "---",
        "...",
        "tiers:",
        "= ",
        "[[rules]]",
        "\u{feff}",
        "\0",
        "é",
        "99999999999999999999",
        "-1",
        "1e400",
        "unless:",
        "overrides:",
    ]);
    prop_oneof![
        prop::collection::vec(parts, 0..40).prop_map(|parts| parts.concat()),
        ".{0,200}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_text_panics_and_every_fault_has_a_place(text in any_text()) {
        for format in [Format::Yaml, Format::Toml, Format::Json] {
            if let Err(error) = RuleSet::parse(format, &text) {
                prop_assert!(!error.faults().is_empty());
                prop_assert!(error.faults().iter().all(|fault| fault.line() > 0 && fault.column() > 0));
            }
        }
    }
}

// === Any rules ===

/// A field of a rule with values that work, that do not, and that do only beside some others.
const FIELDS: [(&str, &[&str]); 27] = [
    (
        "key",
        &[
            "peer_ip",
            "global",
            "route",
            "{ header: x }",
            "{ api_key: bearer }",
            "{ api_key: {} }",
            "{ client_ip: { hops: 1 } }",
            "{ cookie: { plaintext: true } }",
            "nobody",
            "{ and: [host, peer_ip] }",
        ],
    ),
    (
        "limit",
        &[
            "5/min",
            "100/s",
            "3",
            "0/s",
            "1/month",
            "20_000/day",
            "ten",
            "10 per hour",
            "1000000000/s",
            "99999999999/us",
        ],
    ),
    ("window", &["1m", "0s", "31d", "soon", "100000w"]),
    ("burst", &["1", "0", "50", "-1", "18446744073709551615"]),
    (
        "algorithm",
        &[
            "token_bucket",
            "leaky_bucket",
            "leaky_queue",
            "fixed_window",
            "sliding_window",
            "sliding_log",
            "concurrency",
            "none",
        ],
    ),
    ("window_start", &["clock", "first_hit", "month"]),
    ("queue", &["0", "10", "1000000000000"]),
    ("max_wait", &["0s", "2s", "1000d"]),
    ("lease", &["1ms", "30s", "2d", "100us"]),
    ("path", &["/a", "b", "[/a, /b/*]", "[]"]),
    ("method", &["GET", "get", "[GET, POST]"]),
    ("host", &["example.com", "a/b"]),
    (
        "unless",
        &[
            "{ path: /x }",
            "{}",
            "[{ peer: 10.0.0.0/8 }]",
            "[]",
            "{ client_ip: { hops: 1, networks: 10.0.0.0/8 } }",
            "{ client_ip: { hops: 1 } }",
        ],
    ),
    ("cost", &["0", "1", "9", "1000"]),
    (
        "costs",
        &[
            "[{ when: { path: /x }, units: 3 }]",
            "[{ when: { path: /x }, units: 99 }]",
        ],
    ),
    ("unit", &["tokens", "two words"]),
    ("count_denied", &["true", "false"]),
    (
        "penalty",
        &[
            "{ denials: 3, within: 1m }",
            "{ denials: 3, within: 1m, ban: 2h, longest_ban: 2h, factor: 1 }",
            "{ denials: 3, within: 1m, ban: 2h }",
            "{ denials: 0, within: 1m }",
        ],
    ),
    (
        "backoff",
        &[
            "{ first: 1s, longest: 15m }",
            "{ first: 1s, longest: 15m, factor: 3, forgiven_after: 1h }",
            "{ first: 1h, longest: 15m }",
            "{ first: 1s }",
            "{ first: 0s, longest: 15m, factor: 0 }",
        ],
    ),
    ("count", &["failures", "all", "some"]),
    ("count_statuses", &["401", "[401, 403]", "[99]", "[]"]),
    ("clear_on_success", &["true", "false"]),
    (
        "tiers",
        &[
            "{ pro: 9/min }",
            "{ pro: 9 }",
            "{ pro: { limit: 9/min, burst: 2 } }",
            "{ pro: forbidden }",
            "{}",
        ],
    ),
    ("tier_from", &["{ header: x-plan }", "{ custom: plan }"]),
    (
        "overrides",
        &[
            "[{ key: a, tier: 9/min }]",
            "[{ key: 192.0.2.1, tier: pro }]",
            "[]",
        ],
    ),
    (
        "candidate",
        &["9/min", "2", "{ limit: 1/s, burst: 1 }", "0/s"],
    ),
    ("rollout", &["0", "33.3", "100%", "101"]),
];

/// A file with up to three rules, of which each field is there or not.
fn any_rules() -> impl Strategy<Value = String> {
    let field = |(name, values): (&'static str, &'static [&'static str])| {
        let value = prop_oneof![Just(values[0]), prop::sample::select(values)];
        let line = value.prop_map(move |value| format!("    {name}: {value}\n"));
        // Most fields are absent, and have their first value, so that many rules are without a fault.
        let is_there = if matches!(name, "key" | "limit") {
            0.99
        } else {
            0.07
        };
        prop::option::weighted(is_there, line).prop_map(Option::unwrap_or_default)
    };
    let fields: Vec<_> = FIELDS
        .into_iter()
        .map(|entry| field(entry).boxed())
        .collect();
    let id = prop::sample::select(vec!["a", "b", "c", "a.candidate"]);
    let rule = (id, fields).prop_map(|(id, fields)| format!("  - id: {id}\n{}", fields.concat()));
    let defaults = prop::sample::select(vec![
        "",
        "defaults: { algorithm: concurrency }\n",
        "defaults: { count_denied: true, mode: off }\n",
    ]);
    (defaults, prop::collection::vec(rule, 1..4))
        .prop_map(|(defaults, rules)| format!("{defaults}rules:\n{}", rules.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn file_without_a_fault_builds_a_layer_with_all_its_rules(text in any_rules()) {
        let ids = text.matches("- id:").count();
        match RuleSet::parse(Format::Yaml, &text) {
            Ok(set) => {
                prop_assert_eq!(set.rules().len(), ids);
                let layer = RateLimitLayer::builder().rules(&set).build();
                prop_assert!(layer.is_ok(), "{}\n{:?}", text, layer.err());
                let again = RuleSet::parse(Format::Json, &set.to_json());
                prop_assert_eq!(Ok(set), again);
            }
            Err(error) => prop_assert!(!error.faults().is_empty()),
        }
    }
}

#[test]
fn error_that_main_returns_shows_its_faults_as_lines() {
    let error = tollgate::config::RuleSet::parse(
        tollgate::config::Format::Yaml,
        "rules:\n  - id: api\n    limt: 5/s\n",
    );
    let error = error.expect_err("faults");
    let shown = format!("Error: {error:?}");
    assert_eq!(shown, format!("Error: RuleSetError:\n{error}\n"));
}
