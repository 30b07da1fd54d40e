//! Warnings about the Redis server.

use std::time::Duration;

use http::StatusCode;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    time,
};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer,
    clock::{Clock, Timestamp},
    diagnosis::{Code, Warning},
    extract::Global,
};

use super::app::{PLENTY, app, ask, builder, codes, get_root, warnings};
use crate::support::{Mode, Proxy, Server, logged};

#[tokio::test]
async fn server_that_evicts_keys_is_reported_once() {
    let arguments = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let server = Server::start_with(&arguments);
    server.flush_stats();
    let layer = redis_layer(&server.url());
    let app = app(&layer);
    for _ in 0..5 {
        assert_eq!(ask(&app, get_root()).await, StatusCode::OK);
    }
    let [warning] = told(&layer).await;
    assert_eq!(warning.code(), Code::EvictingServer);
    assert_eq!(warning.policy(), None);
    assert_eq!(
        warning.detail(),
        "the redis server evicts keys: maxmemory-policy is allkeys-lru"
    );
    assert_eq!(layer.limiter().warnings(), layer.warnings());
    for _ in 0..5 {
        assert_eq!(ask(&app, get_root()).await, StatusCode::OK);
    }
    assert_eq!(layer.warnings().len(), 1);
    // Each of two connections asks for the run of the server.
    let asked = server.command_calls()["info"];
    assert!((2..=3).contains(&asked), "{asked}");
}

// Regression: the question was bounded by a timer of the runtime, which panics where there are none.
#[test]
fn server_that_evicts_keys_is_reported_on_a_runtime_without_timers() {
    let arguments = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let server = Server::start_with(&arguments);
    let policy = Policy::new("evicted", Quota::per_hour(100));
    let limiter = tollgate::RateLimiter::builder()
        .redis(server.url())
        .deadline(PATIENCE)
        .policy(policy.clone())
        .build()
        .expect("a usable limiter");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    runtime.expect("a runtime").block_on(async {
        let started = std::time::Instant::now();
        while limiter.warnings().is_empty() {
            let decision = limiter.check(&[policy.charge(Key::new("ada"))]).await;
            decision.expect("a decision, whatever breaks");
            assert!(started.elapsed() < PATIENCE, "never told");
        }
    });
    assert_eq!(limiter.warnings()[0].code(), Code::EvictingServer);
}

// Reproducer: what the layer was told to mute was reported by the store behind it.
#[tokio::test]
async fn muted_code_of_the_server_is_not_reported() {
    logged();
    let arguments = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let server = Server::start_with(&arguments);
    server.flush_stats();
    let builder = builder(Global).redis(server.url()).deadline(PATIENCE);
    let layer = builder.silence(Code::EvictingServer).build();
    let layer = layer.expect("it is well set up");
    let heard = redis_layer(&server.url());
    for layer in [&layer, &heard] {
        ask(&app(layer), get_root()).await;
    }
    // the one that is not muted was asked last
    told::<1>(&heard).await;
    for own in 0.. {
        if server.command_calls().get("info").copied() > Some(own + 1) {
            break;
        }
        assert!(own < 1_000, "it is asked");
    }
    assert_eq!(codes(&layer), []);
    let lines = logged();
    assert_eq!(
        lines.iter().filter(|line| line.contains("TG007")).count(),
        1
    );
}

#[tokio::test]
async fn server_without_a_limit_on_memory_or_without_eviction_is_fine() {
    for arguments in [
        ["--maxmemory", "0", "--maxmemory-policy", "allkeys-lru"],
        ["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"],
    ] {
        let server = Server::start_with(&arguments);
        server.flush_stats();
        let layer = redis_layer(&server.url());
        ask(&app(&layer), get_root()).await;
        // what asks for the calls is one of them
        for own in 0.. {
            let asked = server.command_calls().get("info").copied();
            if asked.unwrap_or(0) > own {
                break;
            }
            assert!(own < 1_000, "it is asked");
        }
        ask(&app(&layer), get_root()).await;
        assert_eq!(codes(&layer), []);
    }
}

#[tokio::test]
async fn server_that_denies_info_is_used_without_a_warning() {
    let server = Server::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    server.command(&[
        "ACL", "SETUSER", "plain", "on", ">secret", "~*", "+@all", "-info",
    ]);
    logged();
    let url = server.url().replace("redis://", "redis://plain:secret@");
    let layer = redis_layer(&url);
    let app = app(&layer);
    assert_eq!(ask(&app, get_root()).await, StatusCode::OK);
    let refused = || server.info("errorstats").contains_key("errorstat_NOPERM");
    let times = (0..1_000).take_while(|_| !refused()).count();
    assert!(times < 1_000, "it is asked");
    for _ in 0..5 {
        assert_eq!(ask(&app, get_root()).await, StatusCode::OK);
    }
    assert_eq!(codes(&layer), []);
    assert_eq!(logged(), Vec::<String>::new());
}

#[tokio::test]
async fn server_whose_clock_is_far_off_is_reported_once() {
    for (offset, said) in [
        (-7_200, Some("behind this process'")),
        (-4, None),
        (0, None),
        (4, None),
        (3_600, Some("ahead of this process'")),
    ] {
        logged();
        let layer = redis_layer(&server_in_another_time(offset).await);
        let app = app(&layer);
        for _ in 0..3 {
            assert_eq!(ask(&app, get_root()).await, StatusCode::OK);
        }
        match said {
            Some(said) => {
                let [warning] = warnings(&layer);
                assert_eq!(warning.code(), Code::ClockSkew);
                let detail = warning.detail();
                assert!(
                    detail.starts_with("the redis server's clock is "),
                    "{detail}"
                );
                assert!(detail.ends_with(said), "{detail}");
                assert_eq!(logged().len(), 1);
            }
            None => assert_eq!(codes(&layer), []),
        }
    }
}

#[tokio::test]
async fn late_reply_is_not_taken_for_a_clock_that_is_ahead() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let layer = redis_layer(&proxy.url());
    let app = app(&layer);
    ask(&app, get_root()).await;
    proxy.set(Mode::Delay(Duration::from_millis(30)));
    ask(&app, get_root()).await;
    assert_eq!(codes(&layer), []);
}

#[tokio::test]
async fn clock_of_the_caller_is_not_compared_with_itself() {
    let server = Server::start();
    let long_ago = Clock::manual(Timestamp::from_micros(1_500_000_000_000_000));
    let store = tollgate::remote::RedisStore::builder(server.url()).client_time(long_ago);
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("p", PLENTY).key(Global))
        .redis(store.deadline(PATIENCE))
        .build()
        .expect("it is well set up");
    assert_eq!(ask(&app(&layer), get_root()).await, StatusCode::OK);
    assert_eq!(codes(&layer), []);
}

/// The URL of a server that admits everything at its own time: a real one can't have its clock set.
async fn server_in_another_time(offset: i64) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await;
    let listener = listener.expect("some port is free");
    let address = listener.local_addr().expect("it is bound");
    // both end with the test's runtime
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, offset));
        }
    });
    format!("redis://{address}")
}

async fn serve(stream: TcpStream, offset: i64) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let words = command(&mut stream).await?;
        let reply = if words[0][..4].eq_ignore_ascii_case(b"EVAL") {
            let now = i64::try_from(Clock::system().now().as_micros()).expect("before 294246");
            let then = now + offset * 1_000_000;
            let packed = [then, 1, 1, then].map(i64::to_be_bytes).concat();
            [b"$32\r\n", packed.as_slice(), b"\r\n"].concat()
        } else if words[0].eq_ignore_ascii_case(b"INFO") {
            b"$0\r\n\r\n".to_vec()
        } else {
            b"+OK\r\n".to_vec()
        };
        stream.write_all(&reply).await.ok()?;
    }
}

async fn command(stream: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    for _ in 0..number(stream, '*').await? {
        let mut word = vec![0; number(stream, '$').await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

async fn number(stream: &mut BufReader<TcpStream>, mark: char) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(mark)?.parse().ok()
}

fn redis_layer(url: &str) -> RateLimitLayer {
    let builder = builder(Global).redis(url).deadline(PATIENCE);
    builder.build().expect("it is well set up")
}

/// The warnings, once there are some.
async fn told<const N: usize>(layer: &RateLimitLayer) -> [Warning; N] {
    let there = async {
        while layer.warnings().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    time::timeout(PATIENCE, there).await.expect("it is told");
    warnings(layer)
}

const PATIENCE: Duration = Duration::from_secs(10);
