//! Passwords that change while the store runs, providers that fail, and secrets that must not be shown.

use std::{
    future::pending,
    io::{self, Read, Write},
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use tollgate::{
    Decision, Error, ErrorKind, Key, Policy, Quota, RateLimiter,
    decision::CountedBy,
    error::Phase,
    remote::{Credentials, RedisStore, RedisStoreBuilder},
};

use crate::support::{Server, logged};

const DEADLINE: Duration = Duration::from_millis(250);
const HUNG: Duration = Duration::from_secs(30);

fn policy() -> Policy {
    Policy::new("rotated", Quota::per_hour(100_000_000))
}

fn limiter(builder: RedisStoreBuilder) -> RateLimiter {
    let limiter = RateLimiter::builder().redis(builder).deadline(DEADLINE);
    limiter.policy(policy()).build().expect("a usable limiter")
}

async fn check(limiter: &RateLimiter) -> Decision {
    let decision = limiter.check(&[policy().charge(Key::new("ada"))]).await;
    decision.expect("a decision, whatever breaks")
}

/// Decides until a decision is counted there.
async fn until(limiter: &RateLimiter, wanted: CountedBy) {
    let started = Instant::now();
    while check(limiter).await.counted_by() != wanted {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(started.elapsed() < HUNG, "never {wanted:?}");
    }
}

async fn decide(builder: RedisStoreBuilder) -> Result<Decision, Error> {
    let store = builder
        .deadline(Duration::from_secs(5))
        .connections(1)
        .build()?;
    let limiter = RateLimiter::new(store, [policy()])?;
    limiter.check(&[policy().charge(Key::new("ada"))]).await
}

// Regression: the renewal task panicked.
#[tokio::test]
async fn credentials_that_never_expire_may_have_the_longest_lifetime() {
    let server = Server::start();
    allow(&server, "token");
    let provider =
        || async { Ok::<_, io::Error>(Credentials::new("ada", "token").expires_in(Duration::MAX)) };
    let alive = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let store = RedisStore::builder(server.url()).credentials(provider);
    let store = store
        .connections(1)
        .deadline(Duration::from_secs(5))
        .build();
    let limiter = RateLimiter::new(store.expect("a usable store"), [policy()]);
    let limiter = limiter.expect("a usable limiter");
    for _ in 0..20 {
        check(&limiter).await;
        tokio::task::yield_now().await;
    }
    // The driver of the connection, and the renewal.
    assert!(alive() >= 2, "{}", alive());
}

// Regression: the thread that keeps the deadlines waited for the poll of the dial.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn provider_that_blocks_its_thread_delays_no_decision() {
    let server = Server::start();
    let (is_asked, is_released) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let provider = {
        let (is_asked, is_released) = (Arc::clone(&is_asked), Arc::clone(&is_released));
        move || {
            let (is_asked, is_released) = (Arc::clone(&is_asked), Arc::clone(&is_released));
            async move {
                // The first one blocks. More would leave no thread for the test.
                let is_first = !is_asked.swap(true, Ordering::Relaxed);
                while is_first && !is_released.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                Err::<Credentials, _>(io::Error::other("no credentials"))
            }
        }
    };
    let store = RedisStore::builder(server.url())
        .credentials(provider)
        .connections(1)
        .connect_timeout(Duration::from_millis(60))
        .deadline(Duration::from_millis(50));
    let limiter = RateLimiter::new(store.build().expect("a usable store"), [policy()]);
    let limiter = limiter.expect("a usable limiter");
    // Not a timer of the runtime: the blocked thread may be the one that drives them.
    let is_late = Arc::new(AtomicBool::new(false));
    let (has_ended, ending) = std::sync::mpsc::channel::<()>();
    let rescue = thread::spawn({
        let (is_late, is_released) = (Arc::clone(&is_late), Arc::clone(&is_released));
        move || {
            let ended = ending.recv_timeout(HUNG);
            is_late.store(ended.is_err(), Ordering::Relaxed);
            is_released.store(true, Ordering::Relaxed);
        }
    });
    for _ in 0..5 {
        let decided = limiter.check(&[policy().charge(Key::new("ada"))]).await;
        decided.expect_err("no connection");
    }
    has_ended.send(()).expect("it waits");
    rescue.join().expect("no panic");
    assert!(!is_late.load(Ordering::Relaxed), "each has a deadline");
}

/// Lets the user log in with this password too.
fn allow(server: &Server, password: &str) {
    let password = format!(">{password}");
    server.command(&["ACL", "SETUSER", "ada", "on", &password, "~*", "+@all"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_rotations_under_load_fail_no_decision() {
    let server = Server::start();
    allow(&server, "token-0");
    let current = Arc::new(Mutex::new("token-0".to_owned()));
    let asked = Arc::new(AtomicUsize::new(0));
    let provider = {
        let (current, asked) = (Arc::clone(&current), Arc::clone(&asked));
        move || {
            asked.fetch_add(1, Ordering::Relaxed);
            let token = current.lock().expect("not poisoned").clone();
            async move { Ok::<_, io::Error>(Credentials::new("ada", token)) }
        }
    };
    let limiter = limiter(RedisStore::builder(server.url()).credentials(provider));
    let is_over = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let (limiter, is_over) = (limiter.clone(), Arc::clone(&is_over));
        callers.spawn(async move {
            let mut count = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                check(&limiter).await;
                count += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            count
        });
    }
    for rotation in 1..=20 {
        until(&limiter, CountedBy::Shared).await;
        let (old, new) = (
            format!("token-{}", rotation - 1),
            format!("token-{rotation}"),
        );
        allow(&server, &new);
        current.lock().expect("not poisoned").clone_from(&new);
        server.command(&["ACL", "SETUSER", "ada", &format!("<{old}")]);
        server.close_connections();
    }
    until(&limiter, CountedBy::Shared).await;
    is_over.store(true, Ordering::Relaxed);
    let mut decisions = 0;
    while let Some(count) = callers.join_next().await {
        decisions += count.expect("no decision failed");
    }
    assert!(decisions > 100, "{decisions}");
    assert!(asked.load(Ordering::Relaxed) > 20, "asked at each dial");
}

#[tokio::test]
async fn user_that_is_deleted_and_made_again_is_an_outage_in_between() {
    let server = Server::start();
    allow(&server, "secret");
    let url = format!("redis://ada:secret@{}", server.address());
    let limiter = limiter(RedisStore::builder(url));
    logged();
    until(&limiter, CountedBy::Shared).await;
    server.command(&["ACL", "DELUSER", "ada"]);
    until(&limiter, CountedBy::Fallback).await;
    while !limiter.health().is_degraded() {
        until(&limiter, CountedBy::Fallback).await;
    }
    let log = logged().join("\n");
    assert!(
        log.contains("redis refused the user name or password"),
        "{log}"
    );
    allow(&server, "secret");
    until(&limiter, CountedBy::Shared).await;
}

#[tokio::test]
async fn connection_authenticates_again_before_its_credentials_expire() {
    let server = Server::start();
    allow(&server, "secret");
    let provider = || async {
        let credentials = Credentials::new("ada", "secret");
        Ok::<_, io::Error>(credentials.expires_in(Duration::from_millis(200)))
    };
    let store = RedisStore::builder(server.url())
        .connections(1)
        .credentials(provider);
    let limiter = limiter(store);
    until(&limiter, CountedBy::Shared).await;
    let connections = |server: &Server| {
        let clients: String =
            redis::from_redis_value(server.command(&["CLIENT", "LIST"])).expect("text");
        let ours = clients.lines().filter(|line| line.contains("user=ada"));
        let ids = ours.filter_map(|line| line.split(' ').next().map(str::to_owned));
        ids.collect::<Vec<_>>()
    };
    let before = connections(&server);
    server.flush_stats();
    let started = Instant::now();
    while server.command_calls().get("auth") < Some(&3) {
        assert_eq!(check(&limiter).await.counted_by(), CountedBy::Shared);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(started.elapsed() < HUNG, "never again");
    }
    assert_eq!(connections(&server), before, "the same connection");
}

#[tokio::test]
async fn renewal_that_fails_is_logged_once_and_keeps_the_connection() {
    let server = Server::start();
    allow(&server, "secret");
    let calls = Arc::new(AtomicUsize::new(0));
    let provider = {
        let calls = Arc::clone(&calls);
        move || {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            async move {
                if call > 0 {
                    return Err(io::Error::other("the token service is down"));
                }
                let credentials = Credentials::new("ada", "secret");
                Ok(credentials.expires_in(Duration::from_millis(150)))
            }
        }
    };
    logged();
    let store = RedisStore::builder(server.url())
        .connections(1)
        .credentials(provider);
    let limiter = limiter(store);
    let started = Instant::now();
    while calls.load(Ordering::Relaxed) < 3 {
        until(&limiter, CountedBy::Shared).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(started.elapsed() < HUNG, "not asked again");
    }
    let log = logged();
    let renewals = log
        .iter()
        .filter(|line| line.contains("could not be renewed"));
    let renewals: Vec<_> = renewals.collect();
    assert_eq!(renewals.len(), 1, "{log:?}");
    assert!(renewals[0].contains("the token service is down"), "{log:?}");
    assert!(
        renewals[0].contains(&format!("server={}", server.address())),
        "{log:?}"
    );
}

#[tokio::test]
async fn provider_that_fails_or_panics_is_a_failed_dial_with_its_cause() {
    let server = Server::start();
    allow(&server, "secret");
    let fails = || async { Err::<Credentials, _>(io::Error::other("no token today")) };
    let error = decide(RedisStore::builder(server.url()).credentials(fails)).await;
    let error = error.expect_err("no credentials");
    assert_eq!(error.kind(), ErrorKind::Connect);
    let source = std::error::Error::source(&error)
        .expect("a cause")
        .to_string();
    assert_eq!(source, "no token today");

    let calls = AtomicUsize::new(0);
    let panics = move || {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        assert!(call != 0, "at the call");
        async move {
            assert!(call != 1, "while it is awaited");
            Ok::<_, io::Error>(Credentials::new("ada", "secret"))
        }
    };
    let store = RedisStore::builder(server.url())
        .connections(1)
        .credentials(panics);
    let store = store
        .deadline(Duration::from_secs(5))
        .build()
        .expect("a usable store");
    let limiter = RateLimiter::new(store, [policy()]).expect("a usable policy");
    let started = Instant::now();
    let mut panicked = 0;
    loop {
        match limiter.check(&[policy().charge(Key::new("ada"))]).await {
            Ok(_) => break,
            Err(error) => {
                assert!(
                    error
                        .to_string()
                        .contains("provider of redis credentials panicked")
                );
                panicked += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(started.elapsed() < HUNG, "never recovers");
    }
    assert!(panicked >= 2, "{panicked}");
}

#[tokio::test]
async fn provider_that_never_returns_is_ended_by_the_connect_timeout() {
    struct Ended(Arc<AtomicUsize>);
    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let server = Server::start();
    let ended = Arc::new(AtomicUsize::new(0));
    let provider = {
        let ended = Arc::clone(&ended);
        move || {
            let guard = Ended(Arc::clone(&ended));
            async move {
                let _guard = guard;
                pending::<Result<Credentials, io::Error>>().await
            }
        }
    };
    let store = RedisStore::builder(server.url())
        .connections(1)
        .connect_timeout(Duration::from_millis(50))
        .deadline(Duration::from_secs(5))
        .credentials(provider)
        .build()
        .expect("a usable store");
    let limiter = RateLimiter::new(store, [policy()]).expect("a usable policy");
    let error = limiter.check(&[policy().charge(Key::new("ada"))]).await;
    let error = error.expect_err("no credentials");
    assert_eq!(error.kind(), ErrorKind::Timeout(Phase::Connect));
    assert!(ended.load(Ordering::Relaxed) > 0, "the provider goes on");
}

// Regression: a server without AUTH repeats the arguments of unknown commands, and the error contained them.
#[tokio::test]
async fn server_that_repeats_the_password_does_not_get_it_into_errors_or_logs() {
    logged();
    for resp3 in [false, true] {
        let url = format!("redis://ada:hunter2@{}", parrot());
        let builder = RedisStore::builder(url).resp3(resp3);
        let limiter = limiter(builder.clone());
        let error = decide(builder).await.expect_err("no server");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        let mut texts = vec![format!("{error:?} {error}")];
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            texts.push(format!("{cause:?} {cause}"));
            source = cause.source();
        }
        while !limiter.health().is_degraded() {
            check(&limiter).await;
        }
        texts.extend(logged());
        assert!(!texts.join("\n").contains("hunter2"), "{texts:?}");
    }
}

/// Starts a server that refuses each command as unknown, and repeats it. It ends with the process.
fn parrot() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut request = [0; 4_096];
            while let Ok(length @ 1..) = stream.read(&mut request) {
                let text = String::from_utf8_lossy(&request[..length]).replace("\r\n", " ");
                let commands = text.matches('*').count();
                let reply = format!("-ERR unknown command, with args beginning with: {text}\r\n");
                if stream.write_all(reply.repeat(commands).as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    address
}

#[tokio::test]
async fn wrong_password_and_unused_password_are_errors_without_it() {
    let server = Server::start();
    let wrong = format!("redis://ada:hunter2@{}", server.address());
    let error = decide(RedisStore::builder(wrong))
        .await
        .expect_err("no such user");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let expected = format!(
        "no connection to redis at {}: redis refused the user name or password",
        server.address()
    );
    assert_eq!(error.to_string(), expected);
    let unused = format!("redis://:hunter2@{}", server.address());
    let error = decide(RedisStore::builder(unused))
        .await
        .expect_err("no password");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("remove the password"), "{error}");
    assert!(!format!("{error:?}").contains("hunter2"));
}

#[test]
fn debug_output_shows_no_secret() {
    let provider = || async { Ok::<_, io::Error>(Credentials::password("hunter2")) };
    let builder = RedisStore::builder("redis://:hunter2@host");
    let store = builder.clone().build().expect("a usable store");
    let limiter = RateLimiter::new(store.clone(), [policy()]).expect("a usable policy");
    let sentinel = tollgate::remote::Sentinel::new("limits")
        .address("host", 1)
        .password("hunter2");
    let behind = RedisStoreBuilder::over_sentinel(sentinel.clone()).password("hunter2");
    let shown = [
        format!("{builder:?} {store:?} {limiter:?}"),
        format!(
            "{:?}",
            RedisStore::builder("redis://host")
                .password("hunter2")
                .build()
        ),
        format!(
            "{:?}",
            RedisStore::builder("redis://host")
                .credentials(provider)
                .build()
        ),
        format!("{:?}", Credentials::new("ada", "hunter2")),
        format!("{sentinel:?} {behind:?} {:?}", behind.clone().build()),
    ];
    for text in shown {
        assert!(!text.contains("hunter2"), "{text}");
    }
}
