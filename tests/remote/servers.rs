//! The ways to a server: a Unix socket, RESP3, an ACL user, settings beside the URL, and hosts that cannot be reached.

use std::{
    env,
    io::{self, Write},
    net::TcpListener,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;
use tollgate::{
    Decision, Error, ErrorKind, Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, WindowStart},
    charge::Receipt,
    decision::CountedBy,
    diagnosis::Code,
    remote::{Credentials, RedisStore, RedisStoreBuilder, Sentinel},
    store::Store,
};

use crate::support::{Server, logged};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_secs(5);

/// Longer than anything here takes on a loaded machine.
const HUNG: Duration = Duration::from_secs(30);

/// The rights that a decision needs.
pub(crate) const RIGHTS: [&str; 16] = [
    "-@all",
    "+eval",
    "+evalsha",
    "+time",
    "+get",
    "+set",
    "+getrange",
    "+setrange",
    "+strlen",
    "+pexpire",
    "+zadd",
    "+zcount",
    "+zmscore",
    "+zrange",
    "+zrem",
    "+del",
];
/// Those for the registration of an instance, beside some of a decision.
pub(crate) const REGISTRATION_RIGHTS: [&str; 2] = ["+zscore", "+zremrangebyscore"];
/// Those for blocks that instances share.
pub(crate) const BLOCK_RIGHTS: [&str; 3] = ["+hget", "+hset", "+hdel"];
/// Those for the order of callers that wait, and for pauses.
pub(crate) const LINE_RIGHTS: [&str; 5] = ["+hgetall", "+hget", "+hset", "+hdel", "+pttl"];
/// Those for what a single server can do without.
pub(crate) const OPTIONAL_RIGHTS: [&str; 3] = ["+info", "+cluster|slots", "+asking"];

fn policy() -> Policy {
    Policy::new("ways", Quota::per_hour(1_000_000))
}

async fn decide(builder: RedisStoreBuilder) -> Result<Decision, Error> {
    let store = builder
        .deadline(DEADLINE)
        .connect_timeout(DEADLINE)
        .connections(1)
        .build()?;
    let limiter = RateLimiter::new(store, [policy()])?;
    limiter.check(&[policy().charge(Key::new("ada"))]).await
}

#[tokio::test]
async fn unix_socket_is_used_by_path_and_by_url() {
    let server = Server::start_with(&["--unixsocket", "redis.sock"]);
    server.command(&["CONFIG", "SET", "requirepass", "secret"]);
    let path = server.folder().join("redis.sock");
    let url = format!("unix://{}?pass=secret&db=3", path.display());
    for (builder, key) in [
        (RedisStoreBuilder::unix(&path).password("secret"), "0"),
        (RedisStore::builder(&url), "3"),
        (RedisStore::builder(format!("redis+{url}")).database(4), "4"),
    ] {
        let decision = decide(builder).await.expect(key);
        assert_eq!(decision.counted_by(), CountedBy::Shared);
    }
}

#[tokio::test]
async fn resp3_is_chosen_by_url_and_by_setting() {
    let server = Server::start();
    for builder in [
        RedisStore::builder(format!("{}/?protocol=resp3", server.url())),
        RedisStore::builder(server.url()).resp3(true),
        RedisStoreBuilder::tcp("127.0.0.1", server.port()).resp3(true),
    ] {
        server.flush_stats();
        decide(builder).await.expect("a decision");
        let calls = server.command_calls();
        assert_eq!(
            calls.get("hello"),
            Some(&2),
            "the handshake, and the mode: {calls:?}"
        );
    }
}

#[tokio::test]
async fn cluster_is_found_out_in_resp3_too() {
    let server = Server::start_cluster();
    let store = RedisStore::builder(server.url())
        .resp3(true)
        .deadline(DEADLINE)
        .build()
        .expect("a usable store");
    let limiter = RateLimiter::new(store, [policy()]).expect("a usable policy");
    // Together they would be in one call with keys in several slots.
    let decisions =
        (0..200).map(|key| limiter.check(&[policy().charge(Key::new(format!("{key}")))]));
    for decision in futures_util::future::join_all(decisions).await {
        decision.expect("a decision");
    }
}

#[tokio::test]
async fn settings_take_the_place_of_those_in_the_url() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "ada", "on", ">of ada", "~*", "+@all"]);
    let url = format!("redis://nobody:nothing@{}/7", server.address());
    let builder = RedisStore::builder(url)
        .username("ada")
        .password("of ada")
        .database(2);
    decide(builder).await.expect("a decision");
    let keyspace = server.info("keyspace");
    assert!(
        keyspace.contains_key("db2") && !keyspace.contains_key("db7"),
        "{keyspace:?}"
    );
}

#[test]
fn settings_that_contradict_each_other_fail_at_build() {
    let provided = || async { Ok::<_, io::Error>(Credentials::password("x")) };
    let pool = deadpool_redis::Config::from_url("redis://host");
    let pool = pool.create_pool(Some(deadpool_redis::Runtime::Tokio1));
    let pool = pool.expect("a pool");
    for (builder, expected) in [
        (
            RedisStore::builder("redis://:x@host").credentials(provided),
            "both a redis password",
        ),
        (
            RedisStore::builder("redis://host")
                .password("x")
                .credentials(provided),
            "both a redis password",
        ),
        (
            RedisStore::builder("redis://host").username("x"),
            "without a password",
        ),
        (
            RedisStoreBuilder::over_pool(pool).database(1),
            "set for a pool",
        ),
    ] {
        let error = builder.build().expect_err(expected);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn documented_rights_are_enough_and_each_script_right_is_needed() {
    let binaries = ["TOLLGATE_REDIS62_SERVER", "TOLLGATE_VALKEY_SERVER"];
    let named = binaries.map(|variable| env::var(variable).expect(variable));
    let servers = [
        Server::start(),
        Server::start_binary(&named[0], &[]),
        Server::start_binary(&named[1], &[]),
    ];
    for server in &servers {
        let mut user = vec!["ACL", "SETUSER", "limiter", "on", ">secret", "~tollgate:*"];
        user.extend(RIGHTS.iter().chain(&REGISTRATION_RIGHTS));
        user.extend(OPTIONAL_RIGHTS);
        server.command(&user);
        let url = format!("redis://limiter:secret@{}", server.address());
        use_everything(&url).await.expect("enough rights");
        let limiter = RateLimiter::builder().redis(url.as_str()).policy(policy());
        let limiter = limiter.build().expect("a usable limiter");
        let policy = policy();
        let started = Instant::now();
        while !server.keys().iter().any(|key| key.ends_with(":members")) {
            limiter
                .check(&[policy.charge(Key::new("ada"))])
                .await
                .expect("a decision");
            assert!(started.elapsed() < HUNG, "no instance is registered");
        }
        let log = server.command(&["ACL", "LOG"]);
        let refused: Vec<redis::Value> = redis::from_redis_value(log).expect("a list");
        for entry in refused {
            let entry = format!("{entry:?}");
            assert!(
                entry.contains("client"),
                "only CLIENT SETINFO is refused: {entry}"
            );
        }
        assert_eq!(limiter.warnings(), []);
        // A right that nothing uses would be one too many. EVAL is for servers that do not know the script yet, and
        // ZCOUNT for many leases that end at once.
        for right in RIGHTS[2..].iter().filter(|right| **right != "+zcount") {
            let without = right.replace('+', "-");
            server.command(&["ACL", "SETUSER", "limiter", &without]);
            let error = use_everything(&url).await;
            let error = error.expect_err(right);
            assert_eq!(error.kind(), ErrorKind::Script, "{right}: {error:?}");
            server.command(&["ACL", "SETUSER", "limiter", right]);
        }
        server.command(&["ACL", "SETUSER", "limiter", "-eval"]);
        server.command(&["SCRIPT", "FLUSH"]);
        use_everything(&url)
            .await
            .expect_err("the script is not known");
    }
}

// Regression: the error did not name the command, although all rights of the documentation were granted.
#[tokio::test]
async fn user_that_may_not_select_the_database_is_reported() {
    let server = Server::start();
    let mut user = vec!["ACL", "SETUSER", "limiter", "on", ">secret", "~tollgate:*"];
    user.extend(RIGHTS);
    server.command(&user);
    let url = format!("redis://limiter:secret@{}", server.address());
    use_everything(&url).await.expect("enough rights");
    let error = use_everything(&format!("{url}/3")).await;
    let error = error.expect_err("no right to select");
    assert_eq!(error.kind(), ErrorKind::Script);
    assert!(error.to_string().contains("grant it +select"), "{error}");
}

// Regression: each instance granted the whole quota in an outage, without a word.
#[tokio::test]
async fn user_that_may_not_register_an_instance_is_reported() {
    let server = Server::start();
    for missing in REGISTRATION_RIGHTS {
        let mut user = vec![
            "ACL",
            "SETUSER",
            "limiter",
            "reset",
            "on",
            ">secret",
            "~tollgate:*",
        ];
        user.extend(
            RIGHTS
                .iter()
                .chain(&REGISTRATION_RIGHTS)
                .filter(|right| **right != missing),
        );
        server.command(&user);
        let url = format!("redis://limiter:secret@{}", server.address());
        let limiter = RateLimiter::builder()
            .redis(url.as_str())
            .deadline(DEADLINE)
            .policy(policy());
        let limiter = limiter.build().expect("a usable limiter");
        let policy = policy();
        let started = Instant::now();
        while limiter.warnings().is_empty() {
            let decision = limiter.check(&[policy.charge(Key::new("ada"))]).await;
            assert_eq!(
                decision.expect("a decision").counted_by(),
                CountedBy::Shared
            );
            assert!(started.elapsed() < HUNG, "{missing}: never told");
        }
        let [warning] = limiter.warnings().try_into().expect("one warning");
        assert_eq!(warning.code(), Code::UnregisteredInstance);
        assert!(warning.detail().contains("may not run"), "{warning}");
    }
}

// The same outage, where another program has a value under the key of the instances.
#[tokio::test]
async fn value_of_another_program_in_place_of_the_instances_is_reported() {
    let server = Server::start();
    server.command(&["SET", "tollgate:{!}:members", "of another program"]);
    let limiter = RateLimiter::builder()
        .redis(server.url().as_str())
        .deadline(DEADLINE);
    let limiter = limiter.build().expect("a usable limiter");
    let (policy, started) = (policy(), Instant::now());
    while limiter.warnings().is_empty() {
        let decision = limiter.check(&[policy.charge(Key::new("ada"))]).await;
        let counted_by = decision.expect("a decision").counted_by();
        assert_eq!(counted_by, CountedBy::Shared);
        assert!(started.elapsed() < HUNG, "never told");
    }
    let [warning] = limiter.warnings().try_into().expect("one warning");
    assert_eq!(warning.code(), Code::UnregisteredInstance);
    assert!(warning.detail().contains("did not write"), "{warning}");
}

/// Decides by a new connection, which must fail. Returns the error and its causes.
async fn failure(builder: RedisStoreBuilder) -> String {
    let mut error: Option<&dyn std::error::Error> = None;
    let failed = decide(builder).await.expect_err("not usable");
    error.replace(&failed);
    let mut text = String::new();
    while let Some(cause) = error {
        text += &format!("{cause}\n");
        error = cause.source();
    }
    text
}

// Regression: what a server wrote before it closed the connection was lost, and no error of a login had an address.
#[tokio::test]
async fn error_of_a_handshake_contains_the_address_and_what_to_do() {
    let server = Server::start();
    let at = server.address();
    let mut held = server.connection();
    server.command(&["CONFIG", "SET", "maxclients", "1"]);
    let full = failure(RedisStore::builder(server.url())).await;
    let _: () = redis::cmd("CONFIG")
        .arg(&["SET", "maxclients", "100"])
        .query(&mut held)
        .expect("the connection is still served");
    assert!(full.contains("redis has too many clients"), "{full}");
    let login = format!("redis://ada:hunter2@{at}");
    let refused = failure(RedisStore::builder(login)).await;
    assert!(
        refused.contains("redis refused the user name or password"),
        "{refused}"
    );
    let cluster = Server::start_cluster();
    let numbered = failure(RedisStore::builder(cluster.url()).database(1)).await;
    assert!(numbered.contains("only database 0"), "{numbered}");
    for error in [full, refused] {
        assert!(
            error.contains(&at.to_string()) && !error.contains("hunter2"),
            "{error}"
        );
    }
    let sentinel = Server::start_sentinel("");
    let no_sentinel = failure(RedisStore::builder(sentinel.url())).await;
    assert!(no_sentinel.contains("redis-sentinel://"), "{no_sentinel}");
}

// Regression: an error that came before the first command was sent was lost.
#[tokio::test]
async fn error_that_a_server_sends_before_it_is_asked_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let (closed, is_closed) = oneshot::channel();
    let server = thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let full = client.write_all(b"-ERR max number of clients reached\r\n");
        drop(client);
        full.expect("the client is connected");
        closed.send(()).expect("the client waits");
    });
    let is_closed = Mutex::new(Some(is_closed));
    let provider = move || {
        let is_closed = is_closed.lock().expect("no panic").take();
        async move {
            is_closed.expect("one dial").await.expect("it is closed");
            Ok::<_, io::Error>(Credentials::password("secret"))
        }
    };
    let builder = RedisStore::builder(url).credentials(provider);
    let error = failure(builder).await;
    server.join().expect("a server without errors");
    assert!(error.contains("redis has too many clients"), "{error}");
}

/// Decides, renews, settles and resets by every algorithm, as the only caller.
async fn use_everything(url: &str) -> Result<(), Error> {
    let store = RedisStore::builder(url)
        .deadline(DEADLINE)
        .connections(1)
        .build()?;
    let of = |name: &'static str, algorithm: Algorithm| {
        Policy::new(name, Quota::per_minute(10)).algorithm(algorithm)
    };
    let policies = [
        of("bucket", Algorithm::TokenBucket),
        of("fixed", Algorithm::FixedWindow(WindowStart::Clock)),
        of("sliding", Algorithm::SlidingWindow),
        of("log", Algorithm::SlidingLog),
        Policy::concurrency("slots", 5),
    ];
    for policy in &policies {
        for _ in 0..12 {
            let charges = [policy.charge(Key::new("ada"))];
            let decision = store.decide(&charges).await?;
            if let Some(receipt) = Receipt::of(&charges, &decision) {
                store.renew(&charges).await?;
                store.settle(receipt).await?;
            }
        }
        store.reset(policy, &Key::new("ada")).await?;
    }
    store.probe().await
}

#[tokio::test]
async fn error_of_a_dial_that_takes_too_long_contains_the_address() {
    let server = Server::start();
    server.pause();
    let sentinel = Sentinel::new("limits").address("127.0.0.1", server.port());
    let hung = server.address().to_string();
    let deadline = Duration::from_millis(50);
    for (builder, connect_timeout, expected) in [
        (
            RedisStore::builder(server.url()),
            HUNG,
            format!("no connection to redis at {hung} within the deadline of 50ms"),
        ),
        (
            RedisStore::builder(server.url()),
            deadline / 10,
            format!("no connection to redis at {hung} within the connect timeout"),
        ),
        (
            RedisStoreBuilder::over_sentinel(sentinel),
            deadline / 10,
            format!(
                "no connection to the primary of the sentinels at {hung} within the connect timeout"
            ),
        ),
    ] {
        let store = builder.deadline(deadline).connect_timeout(connect_timeout);
        let store = store.build().expect("a usable store");
        let limiter = RateLimiter::new(store, [policy()]).expect("a usable policy");
        let error = limiter.check(&[policy().charge(Key::new("ada"))]).await;
        assert_eq!(error.expect_err("no reply").to_string(), expected);
    }
}

#[tokio::test]
async fn error_and_log_contain_the_address_and_the_error_of_the_system() {
    logged();
    let server = Server::start();
    let gone = server.address();
    drop(server);
    for (url, address, cause) in [
        (
            format!("redis://:hunter2@{gone}"),
            gone.to_string(),
            "refused",
        ),
        (
            "redis://:hunter2@nowhere.invalid:7000".to_owned(),
            "nowhere.invalid:7000".to_owned(),
            "",
        ),
        (
            "unix:///no/such.sock?pass=hunter2".to_owned(),
            "/no/such.sock".to_owned(),
            "No such file",
        ),
    ] {
        let error = decide(RedisStore::builder(&url))
            .await
            .expect_err("no server");
        assert_eq!(error.kind(), ErrorKind::Connect);
        let expected = format!("no connection to redis at {address}");
        assert_eq!(error.to_string(), expected);
        let limiter = RateLimiter::builder().redis(url).policy(policy()).build();
        let limiter = limiter.expect("a usable limiter");
        let policy = policy();
        let charge = [policy.charge(Key::new("ada"))];
        while !limiter.health().is_degraded() {
            limiter.check(&charge).await.expect("a decision");
        }
        let log = logged().join("\n");
        assert!(log.contains(&expected) && log.contains(cause), "{log}");
        assert!(!log.contains("hunter2"), "{log}");
    }
}
