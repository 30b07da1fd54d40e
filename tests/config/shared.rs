//! Rules that all instances share in Redis, on real servers.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    time::{Duration, Instant},
};

use axum::body::Body;
use deadpool_redis::{Config, Runtime};
use http::{Request, Response, StatusCode};
use tokio::sync::watch;
use tollgate::{
    ErrorKind, RateLimitLayer, RateLimiter,
    config::{
        Format, RuleSet,
        reload::{NewRules, ReloadError, RuleSource, RuleVersion, RulesHandle, RulesState},
    },
    overload::Overload,
    remote::{RedisStore, RedisStoreBuilder, Script, Sentinel},
    rules::RuleMode,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    remote::servers::{OPTIONAL_RIGHTS, REGISTRATION_RIGHTS, RIGHTS},
    support::{Cluster, Mode, Proxy, Sentinels, Server, logged},
};

/// Longer than anything here takes on a loaded machine.
const HUNG: Duration = Duration::from_secs(30);
/// So long that nothing is found by a poll.
const NEVER: Duration = Duration::from_secs(3_600);

fn rule(limit: &str) -> String {
    format!("rules: [{{ id: api, key: {{ header: x-user }}, {limit} }}]")
}

fn new(limit: &str) -> NewRules {
    NewRules::new(Format::Yaml, rule(limit)).author("ada")
}

/// An instance of the fleet.
struct Instance {
    layer: RateLimitLayer,
    rules: RulesHandle,
    states: watch::Receiver<RulesState>,
}

impl Instance {
    /// Starts with a limit of 4 an hour, and learns of pushes by their announcement alone.
    fn start(store: impl Into<RedisStoreBuilder>) -> Self {
        Self::polling(store, NEVER)
    }

    fn polling(store: impl Into<RedisStoreBuilder>, interval: Duration) -> Self {
        let initial = rule("limit: 4/h, algorithm: fixed_window, window_start: first_hit");
        let initial = RuleSet::parse(Format::Yaml, &initial).expect("rules without a fault");
        let source = RuleSource::redis(initial).poll_interval(interval);
        let store = store.into().deadline(HUNG).connect_timeout(HUNG);
        let builder = RateLimitLayer::builder().redis(store);
        let (layer, rules) = builder.build_reloading(source).expect("the rules fit");
        let states = rules.subscribe();
        Self {
            layer,
            rules,
            states,
        }
    }

    async fn until(&mut self, is_reached: impl Fn(&RulesState) -> bool) -> RulesState {
        let reached = tokio::time::timeout(HUNG, self.states.wait_for(is_reached)).await;
        let reached = reached.unwrap_or_else(|_| panic!("not reached: {:?}", self.rules.state()));
        reached.expect("the layer is there").clone()
    }

    async fn until_version(&mut self, number: u64) -> RulesState {
        self.until(|state| state.version().number() == number && state.last_error().is_none())
            .await
    }

    async fn status(&self, user: &str) -> StatusCode {
        let service = self.layer.layer(service_fn(async |_: Request<Body>| {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }));
        let request = Request::get("/").header("x-user", user).body(Body::empty());
        let response = service.oneshot(request.expect("a request")).await;
        response.expect("a response").status()
    }

    /// Sends requests until one is denied. Returns how many were admitted.
    async fn drain(&self, user: &str) -> u64 {
        let mut admitted = 0;
        while self.status(user).await == StatusCode::OK {
            admitted += 1;
        }
        admitted
    }
}

fn numbers(history: &[RuleVersion]) -> Vec<u64> {
    history.iter().map(RuleVersion::number).collect()
}

/// Waits until a condition is true that no event reports.
async fn until(is_reached: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_reached() {
        assert!(started.elapsed() < HUNG, "not reached");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn query<T: redis::FromRedisValue>(server: &Server, words: &[&str]) -> T {
    redis::from_redis_value(server.command(words)).expect("a reply of this type")
}

fn listeners(server: &Server, prefix: &str) -> i64 {
    let channel = format!("{prefix}:{{!}}:rules");
    let (_, count): (String, i64) = query(server, &["PUBSUB", "NUMSUB", &channel]);
    count
}

#[tokio::test]
async fn rules_that_one_instance_pushes_are_taken_by_all_and_the_counts_in_redis_stay() {
    let server = Server::start();
    let mut all = [
        Instance::start(server.url()),
        Instance::start(server.url()),
        Instance::start(server.url()),
    ];
    until(|| listeners(&server, "tollgate") == 3).await;
    for instance in &all[..2] {
        assert_eq!(instance.status("eve").await, StatusCode::OK);
    }
    let started = Instant::now();
    let limit = "limit: 9/h, algorithm: fixed_window, window_start: first_hit";
    let pushed = all[0].rules.push(new(limit).comment("more")).await;
    let pushed = pushed.expect("pushed");
    for instance in &mut all {
        let state = instance.until_version(1).await;
        assert_eq!(state.version().text(), rule(limit));
        assert_eq!(state.version().format(), Format::Yaml);
        assert_eq!(state.version().author(), Some("ada"));
        assert_eq!(state.version().comment(), Some("more"));
        assert_eq!(state.version().time(), pushed.time());
    }
    println!(
        "three instances took a set {:?} after the push began",
        started.elapsed()
    );
    // Two of nine are used.
    assert_eq!(all[2].drain("eve").await, 7);
    assert_eq!(all[0].status("eve").await, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn instance_that_starts_later_begins_with_the_stored_rules_once_it_has_reloaded() {
    let server = Server::start();
    let first = Instance::start(server.url());
    first.rules.push(new("limit: 9/h")).await.expect("pushed");
    let proxy = Proxy::start(server.address()).await;
    // The task that watches could be faster than the assertion.
    proxy.set(Mode::Truncate);
    let later = Instance::start(proxy.url().as_str());
    assert_eq!(later.rules.version().number(), 0);
    proxy.set(Mode::Pass);
    later.rules.reload().await.expect("stored rules");
    assert_eq!(later.rules.version(), first.rules.version());
}

#[tokio::test]
async fn of_pushes_at_the_same_time_one_is_stored_and_the_others_get_a_conflict() {
    let server = Server::start();
    let instances = [Instance::start(server.url()), Instance::start(server.url())];
    for round in 1..=5 {
        let pushes = (0..8).map(|number| {
            let rules = instances[number % 2].rules.clone();
            let limit = format!("limit: {}/h", 100 * round + number as u64);
            tokio::spawn(async move { rules.push(new(&limit).replacing(round - 1)).await })
        });
        let pushes: Vec<_> = pushes.collect();
        let mut stored = Vec::new();
        for push in pushes {
            match push.await.expect("no panic") {
                Ok(version) => stored.push(version),
                Err(ReloadError::Conflict { stored, .. }) => assert_eq!(stored, round),
                Err(error) => panic!("{error}"),
            }
        }
        let [version] = &stored[..] else {
            panic!("one is stored: {stored:?}");
        };
        assert_eq!(version.number(), round);
        let history = instances[0].rules.history().await.expect("a history");
        assert_eq!(history.last(), Some(version));
        for instance in &instances {
            instance.rules.reload().await.expect("stored rules");
            assert_eq!(instance.rules.version(), *version);
        }
    }
}

#[tokio::test]
async fn history_of_ten_is_the_same_for_all_and_any_of_it_is_rolled_back_to() {
    let server = Server::start();
    let (one, mut other) = (Instance::start(server.url()), Instance::start(server.url()));
    assert_eq!(one.rules.history().await.expect("a history"), []);
    for limit in 1..=12 {
        let pushed = new(&format!("limit: {limit}/h, algorithm: fixed_window"));
        one.rules
            .push(pushed.comment(format!("{limit}")))
            .await
            .expect("pushed");
    }
    let history = other.rules.history().await.expect("a history");
    assert_eq!(numbers(&history), (3..=12).collect::<Vec<_>>());
    assert_eq!(history, one.rules.history().await.expect("a history"));
    assert!(history.windows(2).all(|two| two[0].time() <= two[1].time()));
    assert_eq!(history[0].comment(), Some("3"));
    other.until_version(12).await;
    let back = other.rules.roll_back(3, "bob").await.expect("rolled back");
    assert_eq!((back.number(), back.author()), (13, Some("bob")));
    assert_eq!(back.text(), history[0].text());
    let mut one = one;
    assert_eq!(one.until_version(13).await.version(), &back);
    assert_eq!(one.drain("eve").await, 3);
    assert!(one.rules.roll_back(3, "bob").await.is_err());
    let fields: BTreeMap<String, String> = query(&server, &["HGETALL", "tollgate:{!}:rules"]);
    assert_eq!(fields.len(), 2 + 10 * 5, "older versions are removed");
    let ttl: i64 = query(&server, &["PTTL", "tollgate:{!}:rules"]);
    assert_eq!(ttl, -1, "rules do not expire");
}

#[tokio::test]
async fn faulty_rules_are_not_stored_and_those_that_another_version_stored_are_refused() {
    let server = Server::start();
    let (one, mut other) = (Instance::start(server.url()), Instance::start(server.url()));
    until(|| listeners(&server, "tollgate") == 2).await;
    let text = "rules: [{ id: api, key: peer_ip, limt: 5/h }]";
    let error = one.rules.push(NewRules::new(Format::Yaml, text)).await;
    let parsed = RuleSet::parse(Format::Yaml, text)
        .expect_err("broken")
        .to_string();
    let expected = parsed.replace("rules:1", "redis:1");
    assert_eq!(error.expect_err("broken").to_string(), expected);
    assert_eq!(server.keys(), [""; 0]);
    // As an instance does that knows more fields.
    let mut command = redis::cmd("EVAL");
    command
        .arg(Script::RULES.source())
        .arg(1)
        .arg("tollgate:{!}:rules");
    command
        .arg(0)
        .arg(0)
        .arg("yaml")
        .arg(text)
        .arg("eve")
        .arg("");
    let reply: Vec<u64> = command.query(&mut server.connection()).expect("stored");
    assert_eq!(reply[..2], [1, 1]);
    let refused = other.until(|state| state.last_error().is_some()).await;
    assert_eq!(refused.last_error().expect("refused").to_string(), expected);
    assert_eq!(refused.version().number(), 0);
    let again = other.rules.reload().await.expect_err("it is still stored");
    assert_eq!(again.to_string(), expected);
    // A push over them needs no other word, since its author has seen them.
    let pushed = other.rules.push(new("limit: 9/h")).await.expect("pushed");
    assert_eq!(pushed.number(), 2);
    assert!(other.rules.last_error().is_none());
}

/// Stores a text as an instance of another version does.
fn store_as(server: &Server, replaced: u64, format: &str, text: &str) {
    let mut command = redis::cmd("EVAL");
    command.arg(Script::RULES.source()).arg(1);
    command.arg("tollgate:{!}:rules").arg(replaced).arg(0);
    command.arg(format).arg(text).arg("eve").arg("");
    let reply: Vec<u64> = command.query(&mut server.connection()).expect("stored");
    assert_eq!(reply[..2], [1, replaced + 1]);
}

// Regression: one version in a format of a later tollgate made the whole history unreadable, and so every roll back.
#[tokio::test]
async fn version_in_an_unknown_format_is_refused_and_an_earlier_one_is_rolled_back_to() {
    let server = Server::start();
    let mut one = Instance::start(server.url());
    one.rules.push(new("limit: 9/h")).await.expect("pushed");
    store_as(&server, 1, "ron", "(rules: [])");
    one.until(|state| state.last_error().is_some()).await;
    assert_eq!(one.rules.version().number(), 1);
    let history = one.rules.history().await.expect("a history");
    assert_eq!(numbers(&history), [1]);
    let again = one.rules.reload().await.expect_err("it is still stored");
    assert!(again.to_string().contains("unknown format"), "{again}");
    let back = one.rules.roll_back(1, "ada").await.expect("rolled back");
    assert_eq!((back.number(), back.text()), (3, history[0].text()));
    assert!(one.rules.last_error().is_none());
}

// Regression: a roll back replaced the current version, and so was a conflict with the refused one after it.
#[tokio::test]
async fn refused_version_is_rolled_back_from() {
    let server = Server::start();
    let mut one = Instance::start(server.url());
    one.rules.push(new("limit: 9/h")).await.expect("pushed");
    store_as(&server, 1, "yaml", "rules: [{ id: api, limt: 5/h }]");
    one.until(|state| state.last_error().is_some()).await;
    let back = one.rules.roll_back(1, "ada").await.expect("rolled back");
    assert_eq!((back.number(), back.text()), (3, &*rule("limit: 9/h")));
    assert!(one.rules.last_error().is_none());
}

// Regression: a field that tollgate did not write made the history unreadable and a push fail after it was stored.
#[tokio::test]
async fn fields_that_tollgate_did_not_write_are_ignored() {
    let server = Server::start();
    let mut one = Instance::start(server.url());
    let key = "tollgate:{!}:rules";
    for field in [
        "note",
        "x:text",
        ":text",
        "9e400:text",
        "nan:text",
        "-1:text",
    ] {
        server.command(&["HSET", key, field, "garbage"]);
    }
    let mut command = redis::cmd("HSET");
    command
        .arg(key)
        .arg(b"\xff:text".as_slice())
        .arg(b"\xff".as_slice());
    command.exec(&mut server.connection()).expect("stored");
    for number in 1..=12 {
        let pushed = one.rules.push(new(&format!("limit: {number}/h"))).await;
        assert_eq!(pushed.expect("pushed").number(), number);
    }
    let history = one.rules.history().await.expect("a history");
    assert_eq!(numbers(&history), (3..=12).collect::<Vec<_>>());
    one.until_version(12).await;
    server.command(&["HSET", key, "version", "garbage"]);
    let Err(ReloadError::Source(error)) = one.rules.push(new("limit: 1/h")).await else {
        panic!("it is not known what is replaced");
    };
    assert_eq!(error.kind(), ErrorKind::ForeignValue);
    assert_eq!(one.rules.version().number(), 12);
}

#[tokio::test]
async fn thousand_pushes_of_several_instances_far_from_redis_end_in_one_version_everywhere() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    proxy.set(Mode::RoundTrip(Duration::from_millis(5)));
    let instances: Vec<_> = (0..3).map(|_| Instance::start(proxy.url())).collect();
    let pushing = (0..12).map(|task| {
        let rules = instances[task % 3].rules.clone();
        tokio::spawn(async move {
            let mut stored = 0;
            for number in 0..84 {
                match rules.push(new(&format!("limit: {}/h", 1 + number))).await {
                    Ok(_) => stored += 1,
                    Err(ReloadError::Conflict { .. }) => rules.reload().await.expect("read"),
                    Err(error) => panic!("{error}"),
                }
            }
            stored
        })
    });
    let pushing: Vec<_> = pushing.collect();
    let mut stored = 0;
    for push in pushing {
        stored += push.await.expect("no panic");
    }
    for mut instance in instances {
        let state = instance.until_version(stored).await;
        let history = instance.rules.history().await.expect("a history");
        assert_eq!(history.last(), Some(state.version()));
        assert_eq!(history.len(), 10);
    }
}

#[tokio::test]
async fn slots_of_a_policy_that_a_push_removed_or_renamed_are_given_back() {
    let server = Server::start();
    let mut one = Instance::start(server.url());
    let slots = |id: &str| {
        let text = format!(
            "rules: [{{ id: {id}, key: {{ header: x-user }}, algorithm: concurrency, limit: 2 }}]"
        );
        NewRules::new(Format::Yaml, text)
    };
    one.rules.push(slots("first")).await.expect("pushed");
    one.until_version(1).await;
    let (end, ended) = watch::channel(false);
    let service = one.layer.layer(service_fn(move |_: Request<Body>| {
        let mut ended = ended.clone();
        async move {
            ended.wait_for(|ended| *ended).await.expect("it ends");
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    }));
    let request = || {
        Request::get("/")
            .header("x-user", "eve")
            .body(Body::empty())
    };
    let held = tokio::spawn(service.clone().oneshot(request().expect("a request")));
    let key = |id: &str| format!("tollgate:{{eve}}:{id}#c");
    until(|| server.keys().contains(&key("first"))).await;
    one.rules.push(slots("second")).await.expect("pushed");
    one.until_version(2).await;
    let other = tokio::spawn(service.clone().oneshot(request().expect("a request")));
    until(|| server.keys().contains(&key("second"))).await;
    one.rules.push(new("limit: 9/h")).await.expect("pushed");
    one.until_version(3).await;
    end.send_replace(true);
    for response in [held, other] {
        let response = response.await.expect("no panic").expect("a response");
        assert_eq!(response.status(), StatusCode::OK);
    }
    until(|| !server.keys().iter().any(|key| key.ends_with("#c"))).await;
}

#[tokio::test]
async fn rules_stay_while_redis_is_down_and_new_ones_are_taken_when_it_is_back() {
    logged();
    let mut server = Server::start();
    let (mut one, mut other) = (Instance::start(server.url()), Instance::start(server.url()));
    one.rules.push(new("limit: 9/h")).await.expect("pushed");
    other.until_version(1).await;
    server.kill();
    for instance in [&mut one, &mut other] {
        let state = instance
            .until(|state| matches!(state.last_error(), Some(ReloadError::Source(_))))
            .await;
        assert_eq!(state.version().number(), 1);
    }
    let refused = one.rules.push(new("limit: 10/h")).await;
    assert!(
        matches!(refused, Err(ReloadError::Source(_))),
        "{refused:?}"
    );
    assert!(one.rules.history().await.is_err());
    let unreachable = |lines: &[String]| {
        let lines = lines.iter();
        lines
            .filter(|line| line.contains("rules cannot be read, the current rules stay"))
            .count()
    };
    assert_eq!(unreachable(&logged()), 2, "once for each layer");
    // It has lost the rules, and they stay current.
    server.restart();
    for instance in [&mut one, &mut other] {
        assert_eq!(
            instance.until_version(1).await.version().text(),
            rule("limit: 9/h")
        );
    }
    until(|| listeners(&server, "tollgate") == 2).await;
    // Version 1 is in use, so the next one is 2 although nothing is stored.
    let shown = one.rules.version().number();
    let pushed = one.rules.push(new("limit: 10/h").replacing(shown)).await;
    assert_eq!(pushed.expect("pushed").number(), 2);
    assert_eq!(
        other.until_version(2).await.version().text(),
        rule("limit: 10/h")
    );
}

#[tokio::test]
async fn rules_that_redis_lost_unnoticed_are_replaced_by_the_next_push() {
    let server = Server::start();
    let (mut one, mut other) = (Instance::start(server.url()), Instance::start(server.url()));
    one.rules.push(new("limit: 9/h")).await.expect("pushed");
    other.until_version(1).await;
    // No connection breaks, so nobody notices.
    server.command(&["FLUSHALL"]);
    let pushed = one.rules.push(new("limit: 10/h")).await;
    assert_eq!(pushed.expect("pushed").number(), 2);
    other.until_version(2).await;
    server.command(&["FLUSHALL"]);
    let shown = other.rules.version().number();
    let pushed = other.rules.push(new("limit: 11/h").replacing(shown)).await;
    assert_eq!(pushed.expect("pushed").number(), 3);
    one.until_version(3).await;
    server.command(&["FLUSHALL"]);
    let old = one.rules.push(new("limit: 12/h").replacing(1)).await;
    assert!(matches!(old, Err(ReloadError::Conflict { .. })), "{old:?}");
}

#[tokio::test]
async fn push_is_taken_after_the_connections_were_lost() {
    let server = Server::start();
    let (one, mut other) = (Instance::start(server.url()), Instance::start(server.url()));
    for number in 1..=3 {
        until(|| listeners(&server, "tollgate") == 2).await;
        server.close_connections();
        let limit = format!("limit: {number}/h");
        // The first attempt may find its connection closed.
        let started = Instant::now();
        while let Err(error) = one.rules.push(new(&limit)).await {
            assert!(started.elapsed() < HUNG, "{error}");
        }
        other
            .until(|state| state.version().text() == rule(&limit))
            .await;
    }
}

#[tokio::test]
async fn user_that_may_not_listen_reads_twice_a_second() {
    let server = Server::start();
    let user = [
        "ACL",
        "SETUSER",
        "deaf",
        "on",
        ">secret",
        "~*",
        "resetchannels",
        "+@all",
    ];
    server.command(&user);
    let deaf = format!("redis://deaf:secret@{}", server.address());
    let (one, mut deaf) = (
        Instance::start(server.url()),
        Instance::start(deaf.as_str()),
    );
    for number in 1..=3 {
        one.rules
            .push(new(&format!("limit: {number}/h")))
            .await
            .expect("pushed");
        deaf.until_version(number).await;
    }
    assert_eq!(listeners(&server, "tollgate"), 1);
    // What cannot be announced is not stored.
    let refused = deaf.rules.push(new("limit: 9/h")).await;
    assert!(
        matches!(refused, Err(ReloadError::Source(_))),
        "{refused:?}"
    );
    assert_eq!(
        numbers(&one.rules.history().await.expect("a history")),
        [1, 2, 3]
    );
}

/// The rights for rules, beside those of a decision.
const RULE_RIGHTS: [&str; 9] = [
    "&tollgate:*",
    "+subscribe",
    "+publish",
    "+hget",
    "+hset",
    "+hmget",
    "+hstrlen",
    "+hkeys",
    "+hdel",
];

#[tokio::test]
async fn documented_rights_are_enough_for_rules_and_each_is_needed() {
    let server = Server::start();
    let docs = include_str!("../../src/remote/mod.rs");
    let rights: String = RULE_RIGHTS.join(" ");
    let documented = docs.replace("\n//!", "").replace("    ", "");
    assert!(documented.contains(&rights), "{rights}");
    let mut user = vec![
        "ACL",
        "SETUSER",
        "limiter",
        "on",
        ">secret",
        "~tollgate:*",
        "resetchannels",
    ];
    user.extend(RIGHTS);
    user.extend(REGISTRATION_RIGHTS);
    user.extend(OPTIONAL_RIGHTS);
    user.extend(RULE_RIGHTS);
    server.command(&user);
    let url = format!("redis://limiter:secret@{}", server.address());
    let (one, mut other) = (Instance::start(url.as_str()), Instance::start(url.as_str()));
    until(|| listeners(&server, "tollgate") == 2).await;
    for limit in 1..=11 {
        let limit = format!("limit: {limit}/h");
        one.rules.push(new(&limit)).await.expect("enough rights");
    }
    other.until_version(11).await;
    other.rules.history().await.expect("enough rights");
    for right in &RULE_RIGHTS[2..] {
        server.command(&["ACL", "SETUSER", "limiter", &right.replace('+', "-")]);
        let results = [
            one.rules.push(new("limit: 5/h")).await.err(),
            one.rules.reload().await.err(),
            one.rules.history().await.err(),
        ];
        assert!(results.iter().any(Option::is_some), "{right} is not needed");
        server.command(&["ACL", "SETUSER", "limiter", right]);
        one.rules.reload().await.expect("enough rights");
    }
}

#[tokio::test]
async fn instances_of_a_cluster_share_rules_through_any_node() {
    let cluster = Cluster::shared(3);
    let prefix = "instances_of_a_cluster_share_rules";
    let mut all: Vec<Instance> = cluster
        .nodes
        .iter()
        .map(|node| Instance::start(RedisStore::builder(node.url()).prefix(prefix)))
        .collect();
    for (number, pusher) in (1..=6).zip([0, 1, 2].into_iter().cycle()) {
        let limit = format!("limit: {number}/h");
        let pushed = all[pusher].rules.push(new(&limit)).await.expect("pushed");
        assert_eq!(pushed.number(), number);
        for instance in &mut all {
            instance.until_version(number).await;
        }
    }
    assert_eq!(all[1].rules.history().await.expect("a history").len(), 6);
}

#[tokio::test]
async fn pool_and_sentinels_share_rules_too() {
    let watched = Sentinels::shared();
    let sentinels = watched.sentinels().iter();
    let sentinel = sentinels.fold(Sentinel::new(Sentinels::NAME), |all, sentinel| {
        all.address("127.0.0.1", sentinel.port())
    });
    let primary = watched
        .servers
        .iter()
        .find(|server| Sentinels::is_primary(server));
    let primary = primary.expect("a primary");
    let prefix = "pool_and_sentinels_share_rules";
    let pool = Config::from_url(primary.url()).create_pool(Some(Runtime::Tokio1));
    let pool = RedisStoreBuilder::over_pool(pool.expect("a pool"));
    let mut all = [
        Instance::start(RedisStoreBuilder::over_sentinel(sentinel).prefix(prefix)),
        Instance::start(pool.prefix(prefix)),
    ];
    for number in 1..=4 {
        let limit = format!("limit: {number}/h");
        let pusher = &all[number as usize % 2];
        pusher.rules.reload().await.expect("stored rules");
        pusher.rules.push(new(&limit)).await.expect("pushed");
        for instance in &mut all {
            instance.until_version(number).await;
        }
    }
    assert_eq!(listeners(primary, prefix), 1, "a pool is polled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hundred_rule_sets_neither_block_nor_free_a_client_of_a_fleet_under_load() {
    let server = Server::start();
    let mut instances = [Instance::start(server.url()), Instance::start(server.url())];
    let limits = [500, 1_000]
        .map(|limit| format!("limit: {limit}/h, algorithm: fixed_window, window_start: first_hit"));
    instances[0]
        .rules
        .push(new(&limits[0]))
        .await
        .expect("pushed");
    let (stop, is_over) = watch::channel(false);
    let tasks = (0..8).map(|number| {
        let (layer, rules) = (
            instances[number % 2].layer.clone(),
            instances[number % 2].rules.clone(),
        );
        let instance = Instance {
            states: rules.subscribe(),
            layer,
            rules,
        };
        let is_over = is_over.clone();
        tokio::spawn(async move {
            let user = format!("user-{}", number / 2);
            let mut admitted = 0;
            while !*is_over.borrow() {
                match instance.status(&user).await {
                    StatusCode::OK => admitted += 1,
                    StatusCode::TOO_MANY_REQUESTS => {}
                    status => panic!("a request got {status}"),
                }
            }
            admitted
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for number in 1..=100_u64 {
        let pushed = new(&limits[number as usize % 2]).replacing(number);
        let pusher = &instances[number as usize % 2];
        pusher.rules.reload().await.expect("stored rules");
        pusher.rules.push(pushed).await.expect("pushed");
    }
    instances[0]
        .rules
        .push(new(&limits[1]))
        .await
        .expect("pushed");
    for instance in &mut instances {
        instance.until_version(102).await;
    }
    stop.send_replace(true);
    let mut admitted = [0; 4];
    for (number, task) in tasks.into_iter().enumerate() {
        admitted[number / 2] += task.await.expect("no request failed");
    }
    for (number, admitted) in admitted.iter_mut().enumerate() {
        *admitted += instances[0].drain(&format!("user-{number}")).await;
    }
    assert_eq!(admitted, [1_000; 4]);
}

#[tokio::test]
async fn task_and_connection_end_with_the_layer() {
    let server = Server::start();
    let instance = Instance::start(server.url());
    instance
        .rules
        .push(new("limit: 9/h"))
        .await
        .expect("pushed");
    until(|| listeners(&server, "tollgate") == 1).await;
    let Instance {
        layer,
        rules,
        mut states,
    } = instance;
    drop(layer);
    let closed = async { while states.changed().await.is_ok() {} };
    tokio::time::timeout(HUNG, closed)
        .await
        .expect("the task has ended");
    until(|| listeners(&server, "tollgate") == 0).await;
    assert_eq!(rules.version().number(), 1);
    assert!(rules.push(new("limit: 9/h")).await.is_err());
}

#[test]
fn rules_in_redis_need_a_redis_store_but_no_runtime() {
    let initial = || RuleSet::parse(Format::Yaml, &rule("limit: 4/h")).expect("rules");
    let in_process = RateLimitLayer::builder().build_reloading(RuleSource::redis(initial()));
    let error = in_process.expect_err("no redis").to_string();
    assert!(error.contains("call redis()"), "{error}");
    let limiter = RateLimiter::builder().redis("redis://127.0.0.1:1/").build();
    let without_runtime = RateLimitLayer::builder()
        .limiter(&limiter.expect("a limiter"))
        .build_reloading(RuleSource::redis(initial()));
    without_runtime.expect("a thread of the store watches");
}

#[tokio::test]
async fn overload_has_the_settings_that_another_instance_has_pushed() {
    let server = Server::start();
    let initial = || RuleSet::parse(Format::Yaml, "overload: {}").expect("no fault");
    let instance = || {
        let limiter = RateLimiter::builder().redis(server.url()).build();
        let overload = Overload::adaptive().limiter(&limiter.expect("a limiter"));
        let source = RuleSource::redis(initial()).poll_interval(NEVER);
        overload.build_reloading(source).expect("the settings fit")
    };
    let ((_first, author), (overload, rules)) = (instance(), instance());
    let mut states = rules.subscribe();
    let off = NewRules::new(Format::Yaml, "overload: { mode: off }");
    author.push(off).await.expect("pushed");
    let is_taken = states.wait_for(|state| state.version().number() == 1);
    let taken = tokio::time::timeout(HUNG, is_taken).await;
    taken.expect("in time").expect("it is watched");
    assert_eq!(overload.mode(), RuleMode::Off);

    let alone = Overload::adaptive().build_reloading(RuleSource::redis(initial()));
    let error = alone.expect_err("no redis").to_string();
    assert!(error.contains("limiter()"), "{error}");
}

// === The script ===

fn push(server: &Server, [replaced, floor]: [u64; 2], text: &str, now: u64) -> Vec<u64> {
    let mut command = redis::cmd("EVAL");
    command.arg(Script::RULES.source()).arg(1).arg("rules");
    command
        .arg(replaced)
        .arg(floor)
        .arg("yaml")
        .arg(text)
        .arg("ada")
        .arg("first");
    command.arg(1_700_000_000_000_000 + now);
    command.query(&mut server.connection()).expect("a reply")
}

#[test]
fn script_stores_the_next_version_unless_another_one_was_stored_meanwhile() {
    let server = Server::start();
    let at = |micros: u64| 1_700_000_000_000_000 + micros;
    // The example in the file.
    assert_eq!(push(&server, [0, 0], "rules: []", 1), [1, 1, at(1)]);
    assert_eq!(push(&server, [1, 1], "rules: 2", 2), [1, 2, at(2)]);
    assert_eq!(push(&server, [1, 1], "rules: 3", 3), [0, 2]);
    let fields: BTreeMap<String, String> = query(&server, &["HGETALL", "rules"]);
    let expected = [
        ("1:author", "ada"),
        ("1:comment", "first"),
        ("1:format", "yaml"),
        ("1:text", "rules: []"),
        ("1:time", "1700000000000001"),
        ("2:author", "ada"),
        ("2:comment", "first"),
        ("2:format", "yaml"),
        ("2:text", "rules: 2"),
        ("2:time", "1700000000000002"),
        ("time", "1700000000000002"),
        ("version", "2"),
    ];
    let expected = expected.map(|(field, value)| (field.to_owned(), value.to_owned()));
    assert_eq!(fields, BTreeMap::from(expected));
    // A version that is in use is not given again, and the latest ten stay whatever their numbers.
    assert_eq!(push(&server, [2, 98], "rules: 99", 4), [1, 99, at(4)]);
    for version in 99..=107 {
        assert_eq!(
            push(&server, [version, 0], "rules: x", 5),
            [1, version + 1, at(5)]
        );
    }
    let keys: Vec<String> = query(&server, &["HKEYS", "rules"]);
    let versions = keys.iter().filter_map(|key| key.strip_suffix(":text"));
    let mut versions: Vec<u64> = versions
        .map(|text| text.parse().expect("a number"))
        .collect();
    versions.sort_unstable();
    assert_eq!(versions, (99..=108).collect::<Vec<_>>());
    assert_eq!(keys.len(), 2 + 10 * 5);
}

// === Faults ===

#[tokio::test]
async fn announcement_that_is_lost_is_made_up_for_by_a_poll() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let one = Instance::start(server.url());
    let mut other = Instance::polling(proxy.url().as_str(), Duration::from_millis(100));
    until(|| listeners(&server, "tollgate") == 2).await;
    one.rules.push(new("limit: 8/h")).await.expect("pushed");
    other.until_version(1).await;
    // The connections stay open, and nothing comes through any more.
    proxy.set(Mode::BlackHole);
    one.rules.push(new("limit: 9/h")).await.expect("pushed");
    other.until(|state| state.last_error().is_some()).await;
    assert_eq!(other.rules.version().number(), 1);
    proxy.set(Mode::Pass);
    other.until_version(2).await;
}

#[tokio::test]
async fn stored_rules_are_taken_also_if_another_call_connects_before_the_watch() {
    let server = Server::start();
    let one = Instance::start(server.url());
    one.rules.push(new("limit: 8/h")).await.expect("pushed");
    let mut other = Instance::start(server.url());
    // The task that watches has not run yet.
    let history = other.rules.history().await.expect("a history");
    assert_eq!(numbers(&history), [1]);
    other.until_version(1).await;
}

#[tokio::test]
async fn push_that_was_made_while_an_instance_was_cut_off_is_taken_when_it_is_back() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let one = Instance::start(server.url());
    let mut other = Instance::start(proxy.url().as_str());
    until(|| listeners(&server, "tollgate") == 2).await;
    for number in 1..=3 {
        proxy.set(Mode::Refuse);
        other.until(|state| state.last_error().is_some()).await;
        let limit = format!("limit: {number}/h");
        one.rules.push(new(&limit)).await.expect("pushed");
        proxy.set(Mode::Pass);
        other.until_version(number).await;
    }
}

#[tokio::test]
async fn rules_are_found_at_the_replica_that_took_over_from_the_node_that_had_them() {
    let mut cluster = Cluster::start(3, 1);
    let owner = cluster.primary_of("!");
    let others = (0..3).filter(|primary| *primary != owner);
    let others: Vec<_> = others.map(|primary| cluster.nodes[primary].url()).collect();
    let (mut one, mut other) = (
        Instance::start(others[0].as_str()),
        Instance::start(others[1].as_str()),
    );
    one.rules.push(new("limit: 8/h")).await.expect("pushed");
    other.until_version(1).await;
    // It has reached the replica by then.
    cluster.nodes[owner].command(&["WAIT", "1", "30000"]);
    cluster.nodes[owner].kill();
    for instance in [&mut one, &mut other] {
        let state = instance.until(|state| state.last_error().is_some()).await;
        assert_eq!(state.version().number(), 1);
    }
    other.until_version(1).await;
    one.until_version(1).await;
    one.rules.push(new("limit: 9/h")).await.expect("pushed");
    other.until_version(2).await;
    assert_eq!(
        numbers(&other.rules.history().await.expect("a history")),
        [1, 2]
    );
}

#[tokio::test]
async fn longest_text_is_shared_and_the_script_is_sent_again_when_it_was_flushed() {
    let server = Server::start();
    let (one, mut other) = (Instance::start(server.url()), Instance::start(server.url()));
    let comment = "# ".repeat((1 << 20) / 2 - 100);
    for number in 1..=2 {
        server.command(&["SCRIPT", "FLUSH"]);
        let text = format!("{}\n{comment}\n", rule(&format!("limit: {number}/h")));
        one.rules
            .push(NewRules::new(Format::Yaml, text.as_str()))
            .await
            .expect("pushed");
        assert_eq!(other.until_version(number).await.version().text(), text);
    }
    let text = "# ".repeat(1 << 20);
    let too_long = one.rules.push(NewRules::new(Format::Yaml, text)).await;
    assert!(matches!(too_long, Err(ReloadError::Rules(_))));
}

/// Writes a version as another program does.
fn write_version(server: &Server, version: u64, fields: &[(&str, &str)]) {
    let key = "tollgate:{!}:rules";
    for (field, value) in fields {
        server.command(&["HSET", key, &format!("{version}:{field}"), value]);
    }
    server.command(&["HSET", key, &format!("{version}:time"), "1700000000000000"]);
    let version = version.to_string();
    server.command(&["HSET", key, "version", &version, "time", "1700000000000000"]);
}

// Regression: the author of a version in Redis wrote log lines, of any length.
#[tokio::test]
async fn author_and_format_in_redis_cannot_write_log_lines_of_their_own() {
    // Before the instance starts: what watches may take a version, and logs it then.
    logged();
    let server = Server::start();
    let mut instance = Instance::start(server.url());
    let forged = "ada\r\n2026-01-01T00:00:00Z  INFO tollgate: all is well\u{1b}[2J";
    let long = forged.repeat(10);
    let text = rule("limit: 7/h");
    for (version, author, shown) in [
        (
            1,
            forged,
            "ada\\r\\n2026-01-01T00:00:00Z  INFO tollgate: all is well\\u{1b}[2J",
        ),
        (
            2,
            long.as_str(),
            "ada\\r\\n2026-01-01T00:00:00Z  INFO tollgate: all is well\\u{1b}[2Jada",
        ),
    ] {
        let fields = [
            ("format", "yaml"),
            ("text", &text),
            ("author", author),
            ("comment", forged),
        ];
        write_version(&server, version, &fields);
        instance.rules.reload().await.expect("usable rules");
        let state = instance.until_version(version).await;
        let author = state.version().author().expect("an author").to_owned();
        assert!(author.starts_with(shown) && author.len() < 400, "{author}");
        assert!(!author.chars().any(char::is_control), "{author:?}");
        let comment = state.version().comment().expect("a comment").to_owned();
        assert!(!comment.chars().any(char::is_control), "{comment:?}");
        let lines = logged();
        let [line] = &lines[..] else {
            panic!("one line: {lines:?}")
        };
        assert!(
            line.ends_with(&format!("rules=1 author={author}")),
            "{line}"
        );
    }
    let format = "x\r\ny\u{1b}".repeat(3_000);
    write_version(&server, 3, &[("format", &format[..15]), ("text", &text)]);
    let error = instance.rules.reload().await.expect_err("unknown format");
    assert!(
        !error.to_string().chars().any(char::is_control),
        "{error:?}"
    );
    assert_eq!(logged().len(), 1);
}

// Regression: a text of any length was read by every instance.
#[tokio::test]
async fn stored_rules_that_are_too_long_are_not_read_and_the_current_rules_stay() {
    let server = Server::start();
    let mut instance = Instance::start(server.url());
    instance
        .rules
        .push(new("limit: 7/h"))
        .await
        .expect("stored");
    instance.until_version(1).await;
    let long = " ".repeat((1 << 20) + 1);
    let fields = [
        ("format", "yaml"),
        ("author", "ada"),
        ("comment", ""),
        ("text", &long),
    ];
    for (version, field) in [(2, "author"), (3, "comment"), (4, "format"), (5, "text")] {
        let text = rule("limit: 8/h");
        let fields = fields.map(|(name, value)| match name {
            name if name == field => (name, long.as_str()),
            "text" => (name, text.as_str()),
            name => (name, value),
        });
        write_version(&server, version, &fields);
        let error = instance.rules.reload().await.expect_err("too long");
        assert_eq!(
            error.to_string(),
            format!(
                "version {version} of the rules in redis has a longer {field} than tollgate stores: push other rules"
            )
        );
        assert_eq!(instance.rules.version().number(), 1);
        let history = instance.rules.history().await.expect("the others");
        assert_eq!(numbers(&history), [1]);
    }
    let next = instance.rules.push(new("limit: 9/h").replacing(5)).await;
    assert_eq!(next.expect("stored").number(), 6);
    // The file of a gigabyte's work: it is refused as any other.
    let hostile = format!(
        "rules:\n- id: a\n  key: {{ header: x }}\n  limit: 5/min\n  tiers:\n{}  overrides:\n{}",
        format!("    {}: 5/min\n", "t".repeat(1_000)).repeat(500),
        "  - {key: a, tier: ''}\n".repeat(12_000)
    );
    write_version(&server, 7, &[("format", "yaml"), ("text", &hostile)]);
    let error = instance.rules.reload().await.expect_err("refused");
    assert!(error.to_string().len() < 150_000);
    assert_eq!(instance.rules.version().number(), 6);
}
