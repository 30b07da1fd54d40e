//! Rule files: what they mean, and the faults they can have.

use std::{collections::BTreeSet, convert::Infallible, fs, net::SocketAddr, path::Path};

use axum::{body::Body, extract::ConnectInfo};
use http::{Request, Response, StatusCode};
use proptest::prelude::*;
use tollgate::{
    Decision, Key, RateLimitLayer,
    clock::{Clock, Timestamp},
    config::{Fault, Format, RuleSet, RuleSetReader, RuleSetSpec},
};
use tower::{Layer, ServiceExt, service_fn};

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

/// Broken files, and what each of them prints.
const BROKEN: &[(&str, &str)] = &[
    ("", "rules:1:1: no rules: begin with `rules:`"),
    (
        "rules: 5",
        "rules:1:8: this is not a list: write `- id: ..` for each rule",
    ),
    (
        "rules: []",
        "rules:1:1: no rules: write `- id: ..` for each rule",
    ),
    ("[]", "rules:1:1: this is a list: begin with `rules:`"),
    (
        "rulez: []",
        "rules:1:1: `rules` is missing: add a list of rules\nrules:1:1: unknown field `rulez`: write `rules`",
    ),
    (
        "version: 2\nrules: [{ id: a, key: global, limit: 1/s }]",
        "rules:1:10: version 2: write `version: 1`",
    ),
    (
        "rules:\n  - id: a\n    key: global\n    limt: 1/s",
        "rules:2:5: rule \"a\": `limit` is missing: add a rate, such as `limit: 100/min`\n\
         rules:4:5: rule \"a\": unknown field `limt`: write `limit`",
    ),
    (
        "rules:\n  - key: global\n    limit: 1/s",
        "rules:2:5: `id` is missing: add a name for the rule",
    ),
    (
        "rules: [{ id: a, limit: 1/s }]",
        "rules:1:9: rule \"a\": `key` is missing: add the caller to count, such as `key: peer_ip`",
    ),
    (
        "rules: [{ id: a b, key: global, limit: 1/s }]",
        "rules:1:15: \"a b\" is not a name: use 1 to 39 of A-Z a-z 0-9 . _ -",
    ),
    (
        "rules:\n- { id: a, key: global, limit: 1/s }\n- { id: a, key: host, limit: 1/s }",
        "rules:3:9: rule \"a\": the id \"a\" is used in line 2: give each rule another one",
    ),
    (
        "rules: [{ id: a, key: peer-ip, limit: 1/s }]",
        "rules:1:23: rule \"a\": unknown key `peer-ip`: write `peer_ip`",
    ),
    (
        "rules: [{ id: a, key: header, limit: 1/s }]",
        "rules:1:23: rule \"a\": the key `header` needs a setting: write `{ header: .. }`",
    ),
    (
        "rules: [{ id: a, key: { peer_ip: true }, limit: 1/s }]",
        "rules:1:25: rule \"a\": the key `peer_ip` has no setting: write `peer_ip` alone",
    ),
    (
        "rules: [{ id: a, key: { header: x, query: y }, limit: 1/s }]",
        "rules:1:23: rule \"a\": a key of several kinds: join them: `and: [..]` or `or_else: [..]`",
    ),
    (
        "rules: [{ id: a, key: { header: \"a b\" }, limit: 1/s }]",
        "rules:1:23: rule \"a\": this key cannot work: \"a b\" is not a header name",
    ),
    (
        "rules: [{ id: a, key: { and: [global] }, limit: 1/s }]",
        "rules:1:30: rule \"a\": this is a list: write a list of two or more keys",
    ),
    (
        "rules: [{ id: a, key: { custom: tenant }, limit: 1/s }]",
        "rules:1:33: rule \"a\": \"tenant\" is not registered: register it by RuleSetReader::extractor()",
    ),
    (
        "rules: [{ id: a, key: { client_ip: {} }, limit: 1/s }]",
        "rules:1:36: rule \"a\": no proxies: name their networks with `behind`, count them with `hops`, or use `peer_ip`",
    ),
    (
        "rules: [{ id: a, key: { client_ip: { behind: [10.0.0.0/99] } }, limit: 1/s }]",
        "rules:1:23: rule \"a\": this key cannot work: \"10.0.0.0/99\" is not a network: write it as \"10.0.0.0/8\", \
         \"2001:db8::/32\" or \"192.0.2.7\"",
    ),
    (
        "rules: [{ id: a, key: { client_ip: { behind: [0.0.0.0/0] } }, limit: 1/s }]",
        "rules:1:23: rule \"a\": this key cannot work: behind(0.0.0.0/0) trusts every address, so clients can choose \
         theirs: name the proxies' networks, or count the proxies with `hops`",
    ),
    (
        "rules: [{ id: a, key: global, limit: 100 }]",
        "rules:1:38: rule \"a\": a count without a period: write a rate such as `100/min`, or add `window`",
    ),
    (
        "rules: [{ id: a, key: global, limit: 100/parsec }]",
        "rules:1:38: rule \"a\": \"100/parsec\" is not a rate: `parsec` is not a unit of time: write `ms`, `s`, `min`, `h`, \
         `d`, `week` or `month`",
    ),
    (
        "rules: [{ id: a, key: global, limit: 1.5/s }]",
        "rules:1:38: rule \"a\": \"1.5/s\" is not a rate: write a rate such as `100/min`, `5 per second`, `10/30s` or \
         `1_000/hour`",
    ),
    (
        "rules: [{ id: a, key: global, limit: 0/s }]",
        "rules:1:38: rule \"a\": the algorithm cannot count this limit: quota of 0: write at least 1",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5, window: 30 }]",
        "rules:1:49: rule \"a\": this is a number: write a duration such as `30s`, `1m30s`, `500ms`, `2h` or `1d`",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5, window: 30s1m }]",
        "rules:1:49: rule \"a\": \"30s1m\" is not a duration: write each unit once, from the largest to the smallest: `1m30s`",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/s, window: 1m }]",
        "rules:1:51: rule \"a\": `window` beside a rate: leave it out, or write a count as `limit`",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, burst: -1 }]",
        "rules:1:52: rule \"a\": a number below 0: write a whole number from 0",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, burst: 9, algorithm: sliding_log }]",
        "rules:1:38: rule \"a\": the algorithm cannot count this limit: a window has no burst: remove `burst`, or use the token bucket",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, cost: 9 }]",
        "rules:1:51: rule \"a\": this cannot work: a request costs 9 but the burst is 5, so every request would be denied: \
         raise the burst or lower the cost",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, algorithm: gcra }]",
        "rules:1:56: rule \"a\": unknown value `gcra`: write one of `concurrency`, `fixed_window`, `leaky_bucket`, \
         `leaky_queue`, `sliding_log`, `sliding_window`, `token_bucket`",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, algorithm: leaky_queue }]",
        "rules:1:56: rule \"a\": `queue` is missing: add the length of the queue, in units",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, queue: 7 }]",
        "rules:1:52: rule \"a\": `queue` is only for `algorithm: leaky_queue`: leave it out, or choose that algorithm",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, mode: shadwo }]",
        "rules:1:51: rule \"a\": unknown value `shadwo`: write `shadow`",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, rollout: 130 }]",
        "rules:1:54: rule \"a\": a rollout of 130 %: write a number from 0 to 100",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, candidate: 0/min }]",
        "rules:1:56: rule \"a\": this cannot work: quota of 0: write at least 1",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, path: users }]",
        "rules:1:51: rule \"a\": this pattern cannot work: ",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, method: [GET, post] }]",
        "rules:1:59: rule \"a\": `post` is not a method: write `POST`",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, unless: {} }]",
        "rules:1:53: rule \"a\": no condition: write `path`, `method`, `host`, `peer`, `preflight` or `custom`",
    ),
    (
        "rules: [{ id: a, key: { header: x }, limit: 5/min, tiers: { pro: 9/min } }]",
        "rules:1:59: rule \"a\": nothing chooses these tiers: add `tier_from` or `overrides`",
    ),
    (
        "rules: [{ id: a, key: { header: x }, limit: 5/min, overrides: [{ key: y, tier: pro }] }]",
        "rules:1:80: rule \"a\": unknown tier `pro`: write one of `unlimited`, `forbidden`, or a rate",
    ),
    (
        "rules: [{ id: a, key: { api_key: bearer }, limit: 5/min, overrides: [{ key: y, tier: 9/min }] }]",
        "rules:1:77: rule \"a\": this key has no override: this key is a secret, which must not stand in a file: choose the \
         tier by `tier_from`",
    ),
    (
        "forbid: [{ peer: 10.0.0.0/33 }]\nrules: [{ id: a, key: global, limit: 5/min }]",
        "rules:1:18: this pattern cannot work: \"10.0.0.0/33\" is not a network",
    ),
    (
        "headers: draft7\nrules: [{ id: a, key: global, limit: 5/min }]",
        "rules:1:10: unknown value `draft7`: write `draft06`",
    ),
    ("rules:\n  - id: a\n   key: global", "rules:3:"),
    ("a: &x 5\nrules: *x", "rules:1:4: an anchor: leave it out"),
    (
        "rules: [{ id: a, id: b, key: global, limit: 5/min }]",
        "rules:1:18: rule \"a\": `id` is there twice: keep one of them",
    ),
    (
        "rules: [{ id: a, key: global, limit: 5/min, count_denied: yes }]",
        "rules:1:59: rule \"a\": this is text: write `true` or `false`",
    ),
];

#[test]
fn broken_files_show_the_place_the_rule_the_reason_and_the_remedy() {
    let mut wrong = Vec::new();
    for (yaml, expected) in BROKEN {
        let printed = faults(yaml);
        println!("{yaml}\n    {}\n", printed.replace('\n', "\n    "));
        let is_prefix = !expected.ends_with(char::is_alphanumeric) || !printed.contains('\n');
        if !(printed == *expected || is_prefix && printed.starts_with(expected)) {
            wrong.push(format!(
                "{yaml}\n  printed  {printed}\n  expected {expected}"
            ));
        }
    }
    assert!(BROKEN.len() >= 30);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn faults_of_toml_and_json_have_their_places_too() {
    let toml = "[[rules]]\nid = \"a\"\nkey = { header = \"x\" }\nlimit = \"5/min\"\nbrust = 7\n\n\
                [[rules]]\nid = \"b\"\nkey = \"globl\"\nlimit = 5\nwindow = \"1m\"\n";
    assert_eq!(
        faults_in(Format::Toml, toml),
        "rules:5:1: rule \"a\": unknown field `brust`: write `burst`\n\
         rules:9:7: rule \"b\": unknown key `globl`: write `global`"
    );
    let json = "{\"rules\": [\n  {\"id\": \"a\", \"key\": \"global\", \"limit\": \"5/mn\"}\n]}";
    assert_eq!(
        faults_in(Format::Json, json),
        "rules:2:41: rule \"a\": \"5/mn\" is not a rate: `mn` is not a unit of time: write `ms`, `s`, `min`, `h`, `d`, \
         `week` or `month`"
    );
    let syntax = faults_in(Format::Toml, "[[rules]\nid = ");
    assert!(syntax.starts_with("rules:1:"), "{syntax}");
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
    let error = faults(&format!("rules:\n{rules}"));
    assert_eq!(
        error,
        "rules:10:3: more than 16 policies (a candidate is one too): put some of the rules into another layer"
    );
    let deep = format!("rules: {}{}", "[".repeat(200), "]".repeat(200));
    assert!(faults(&deep).contains("more than 32 levels"));
    let large = format!("rules: [] # {}", "x".repeat(1 << 20));
    assert!(faults(&large).contains("write at most 1 MiB"));
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
        "write it again: TOLLGATE_WRITE_SCHEMA=1 cargo test --all-features --test suite json_schema"
    );
}

#[test]
fn names_of_other_than_built_in_parts_come_from_code() {
    let reader = RuleSetReader::default()
        .extractor("tenant", |_: &http::request::Parts| Some(Key::new("t")))
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
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let layer = RateLimitLayer::builder().clock(clock).rules(&read(file));
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
