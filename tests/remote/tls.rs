//! TLS between the store and the server: certificates that are right, wrong, missing and expired.

use std::time::{Duration, Instant};

use tokio::{io::AsyncWriteExt, net::TcpListener};
use tollgate::{
    Decision, Error, ErrorKind, Key, Policy, Quota, RateLimiter,
    decision::CountedBy,
    remote::{RedisStore, RedisStoreBuilder, TlsConfig},
};

use crate::support::{Authority, Identity, Server, logged};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_secs(5);
/// Longer than anything here takes on a loaded machine.
const HUNG: Duration = Duration::from_secs(30);

fn policy() -> Policy {
    Policy::new("encrypted", Quota::per_hour(1_000_000))
}

/// Asks once, without a breaker.
async fn decide(builder: RedisStoreBuilder) -> Result<Decision, Error> {
    let store = builder
        .deadline(DEADLINE)
        .connect_timeout(DEADLINE)
        .connections(1)
        .build()?;
    let limiter = RateLimiter::new(store, [policy()])?;
    limiter.check(&[policy().charge(Key::new("ada"))]).await
}

fn with_client(authority: &Authority, client: &Identity) -> TlsConfig {
    TlsConfig::new()
        .ca_certificates(authority.pem())
        .client_certificate(client.certificate.clone(), client.key.clone())
}

#[tokio::test]
async fn both_sides_are_verified_by_an_authority_of_their_own() {
    let authority = Authority::new();
    let server = Server::start_tls(&authority, &authority.sign("localhost"), &[]);
    let tls = with_client(&authority, &authority.sign("client"));
    for url in [
        server.tls_url(),
        server.tls_url().replace("rediss", "redis"),
    ] {
        let decision = decide(RedisStore::builder(url).tls(tls.clone())).await;
        assert_eq!(
            decision.expect("a decision").counted_by(),
            CountedBy::Shared
        );
    }
    let port = server.tls_url().rsplit_once(':').expect("a port").1.parse();
    let builder = RedisStoreBuilder::tcp("localhost", port.expect("a port")).tls(tls);
    decide(builder).await.expect("a decision");
}

// Regression: the error was that of a server that cannot be reached.
#[tokio::test]
async fn server_without_tls_is_suspected_where_the_handshake_does_not_end() {
    let server = Server::start();
    let url = server.url().replace("redis://", "rediss://");
    let tls = TlsConfig::new().ca_certificates(Authority::new().pem());
    let limiter = RateLimiter::builder()
        .policy(policy())
        .redis(RedisStore::builder(url).tls(tls))
        .deadline(Duration::from_millis(50));
    let limiter = limiter.build().expect("a usable limiter");
    let started = Instant::now();
    while !limiter.health().is_degraded() {
        let decided = limiter.check(&[policy().charge(Key::new("ada"))]).await;
        assert_eq!(
            decided.expect("a decision").counted_by(),
            CountedBy::Fallback
        );
        assert!(started.elapsed() < HUNG, "{:?}", limiter.health());
    }
    let health = limiter.health();
    let cause = health.outages()[0].cause().to_string();
    assert!(
        cause.ends_with("does the server use TLS on this port?"),
        "{cause}"
    );
}

// Regression: the error was "broken pipe".
#[tokio::test]
async fn server_with_tls_is_suspected_where_a_plain_connection_is_closed() {
    let authority = Authority::new();
    let server = Server::start_tls(&authority, &authority.sign("localhost"), &[]);
    let url = server.tls_url().replace("rediss://", "redis://");
    let error = decide(RedisStore::builder(url)).await.expect_err("no TLS");
    let expected = "does this port need TLS (rediss://)";
    assert!(error.to_string().contains(expected), "{error}");
}

// Regression: the error was that of a server that does not speak Redis's protocol.
#[tokio::test]
async fn server_with_tls_is_suspected_where_it_replies_with_an_alert() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let alert = [21, 3, 3, 0, 2, 2, 70];
            stream.write_all(&alert).await.expect("it is connected");
        }
    });
    let store = RedisStore::builder(format!("redis://{address}"));
    let error = decide(store).await.expect_err("no TLS");
    let expected = "does this port need TLS (rediss://)";
    assert!(error.to_string().contains(expected), "{error}");
    server.abort();
}

#[tokio::test]
async fn error_of_each_wrong_certificate_contains_what_to_do() {
    let authority = Authority::new();
    let client = authority.sign("client");
    let server = Server::start_tls(&authority, &authority.sign("localhost"), &[]);
    let elsewhere = Server::start_tls(&authority, &authority.sign("elsewhere.example"), &[]);
    let expired = Server::start_tls(&authority, &authority.sign_expired("localhost"), &[]);
    let tls = with_client(&authority, &client);
    let stranger = Authority::new();
    let unknown_client = with_client(&authority, &stranger.sign("client"));
    for (url, tls, expected) in [
        (elsewhere.tls_url(), tls.clone(), "TlsConfig::server_name"),
        (expired.tls_url(), tls, "has expired: renew it"),
        (
            server.tls_url(),
            with_client(&stranger, &client),
            "TlsConfig::ca_certificates",
        ),
        (
            server.tls_url(),
            TlsConfig::new().ca_certificates(authority.pem()),
            "TlsConfig::client_certificate",
        ),
        (
            server.tls_url(),
            unknown_client,
            "TlsConfig::client_certificate",
        ),
    ] {
        let error = decide(RedisStore::builder(&url).tls(tls)).await;
        let error = error.expect_err(expected);
        assert_eq!(error.kind(), ErrorKind::Connect, "{error:?}");
        assert!(error.to_string().contains(expected), "{error:?}");
        let address = url.strip_prefix("rediss://").expect("a url for TLS");
        assert!(error.to_string().contains(address), "{error:?}");
    }
}

#[tokio::test]
async fn certificate_for_another_name_is_accepted_if_that_name_is_set() {
    let authority = Authority::new();
    let identity = authority.sign("elsewhere.example");
    let server = Server::start_tls(&authority, &identity, &["--tls-auth-clients", "no"]);
    let tls = TlsConfig::new()
        .ca_certificates(authority.pem())
        .server_name("elsewhere.example");
    decide(RedisStore::builder(server.tls_url()).tls(tls))
        .await
        .expect("a decision");
}

#[tokio::test]
async fn authorities_of_the_system_do_not_trust_a_certificate_of_ones_own() {
    let authority = Authority::new();
    let server = Server::start_tls(&authority, &authority.sign("localhost"), &[]);
    let error = decide(RedisStore::builder(server.tls_url())).await;
    let error = error.expect_err("an unknown authority, or a system without any");
    assert!(
        error.to_string().contains("TlsConfig::ca_certificates"),
        "{error:?}"
    );
}

#[tokio::test]
async fn certificate_that_has_expired_is_an_outage_until_it_is_renewed() {
    let authority = Authority::new();
    let identity = authority.sign("localhost");
    let server = Server::start_tls(&authority, &identity, &["--tls-auth-clients", "no"]);
    let tls = TlsConfig::new().ca_certificates(authority.pem());
    let limiter = RateLimiter::builder()
        .redis(RedisStore::builder(server.tls_url()).tls(tls))
        .deadline(Duration::from_millis(250))
        .policy(policy())
        .build()
        .expect("a usable limiter");
    let policy = policy();
    let until = async |wanted: CountedBy| {
        let started = Instant::now();
        loop {
            let decision = limiter.check(&[policy.charge(Key::new("ada"))]).await;
            let decision = decision.expect("a decision, whatever breaks");
            if decision.counted_by() == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(started.elapsed() < HUNG, "never {wanted:?}");
        }
    };
    logged();
    until(CountedBy::Shared).await;
    server.set_identity(&authority.sign_expired("localhost"));
    server.close_connections();
    until(CountedBy::Fallback).await;
    while !limiter.health().is_degraded() {
        until(CountedBy::Fallback).await;
    }
    let log = logged().join("\n");
    assert!(
        log.contains("its certificate has expired: renew it"),
        "{log}"
    );
    server.set_identity(&identity);
    until(CountedBy::Shared).await;
}

#[test]
fn certificates_that_cannot_be_used_fail_at_build() {
    let authority = Authority::new();
    let client = authority.sign("client");
    let other = authority.sign("other");
    let of = |tls: TlsConfig| {
        let error = RedisStore::builder("rediss://host").tls(tls).build();
        let error = error.expect_err("an unusable certificate");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error:?}");
        error.to_string()
    };
    let none = of(TlsConfig::new().ca_certificates("no certificate"));
    assert!(none.contains("BEGIN CERTIFICATE"), "{none}");
    let trusted = TlsConfig::new().ca_certificates(authority.pem());
    let key = of(trusted
        .clone()
        .client_certificate(client.certificate.clone(), "no key"));
    assert!(key.contains("key of the client certificate"), "{key}");
    let pair = of(trusted
        .clone()
        .client_certificate(client.certificate.clone(), other.key));
    assert!(pair.contains("cannot be used"), "{pair}");
    let name = of(trusted.clone().server_name("not a name"));
    assert!(name.contains("server name"), "{name}");
    let socket = RedisStoreBuilder::unix("/run/redis.sock")
        .tls(trusted)
        .build();
    let socket = socket.expect_err("a socket").to_string();
    assert!(socket.contains("unix socket"), "{socket}");
}

#[test]
fn insecure_mode_is_refused() {
    let error = RedisStore::builder("rediss://host/#insecure").build();
    let error = error.expect_err("a fragment");
    assert_eq!(error.kind(), ErrorKind::InvalidUrl);
    assert!(error.to_string().contains("always verified"), "{error}");
}

#[test]
fn settings_of_tls_show_no_key_and_no_certificate() {
    let client = Authority::new().sign("client");
    let tls = TlsConfig::new().client_certificate(client.certificate.clone(), client.key.clone());
    let shown = format!("{tls:?}");
    assert!(!shown.contains("BEGIN") && shown.len() < 100, "{shown}");
}
