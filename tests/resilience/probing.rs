//! Probes: they find out whether decisions would succeed, by the same commands.

use std::time::{Duration, Instant};

use tollgate::{
    Error, ErrorKind, Key, Policy, Quota,
    algorithm::Algorithm,
    remote::{RedisStore, RedisStoreBuilder},
    store::Store,
};

use crate::support::Server;

/// Longer than anything here takes on a loaded machine.
const HUNG: Duration = Duration::from_secs(30);

fn store(server: impl Into<RedisStoreBuilder>) -> RedisStore {
    let builder: RedisStoreBuilder = server.into();
    builder.deadline(HUNG).build().expect("a usable store")
}

fn bucket() -> Policy {
    Policy::new("bucket", Quota::per_hour(1_000_000))
}

fn log() -> Policy {
    Policy::new("log", Quota::per_hour(1_000)).algorithm(Algorithm::SlidingLog)
}

fn all() -> [Policy; 5] {
    let window = |name| Policy::new(name, Quota::per_hour(1_000));
    [
        bucket(),
        log(),
        window("fixed").algorithm(Algorithm::FixedWindow(
            tollgate::algorithm::WindowStart::Clock,
        )),
        window("sliding").algorithm(Algorithm::SlidingWindow),
        Policy::concurrency("slots", 100),
    ]
}

/// Decides under each of these policies, so that probes try their algorithms.
async fn use_of(store: &RedisStore, policies: &[Policy]) -> Result<(), Error> {
    for policy in policies {
        store.decide(&[policy.charge(Key::new("ada"))]).await?;
    }
    Ok(())
}

/// Returns the URL of a user with all permissions except this one.
fn url_of_user_without(server: &Server, permission: &str) -> String {
    let without = format!("-{permission}");
    server.command(&[
        "ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "+@all", &without,
    ]);
    format!("redis://limited:secret@{}", server.address())
}

#[tokio::test]
async fn probe_passes_on_a_healthy_server_and_its_keys_expire() {
    let server = Server::start();
    let store = store(server.url());
    for round in 0..3 {
        for _ in 0..3 {
            store.probe().await.expect("a healthy server");
        }
        let policies = all();
        use_of(&store, &policies[..=round])
            .await
            .expect("decisions");
    }
    use_of(&store, &all()).await.expect("decisions");
    store.probe().await.expect("a healthy server");
    let probes = || {
        server
            .keys()
            .into_iter()
            .filter(|key| key.contains("}:probe"))
    };
    assert_eq!(probes().count(), 5, "{:?}", server.keys());
    let started = Instant::now();
    while probes().count() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(started.elapsed() < HUNG, "{:?}", server.keys());
    }
}

#[tokio::test]
async fn user_without_a_command_that_decisions_use_fails_the_probe() {
    let named = |variable| std::env::var(variable).expect("set by `bash tests/run.sh`");
    for server in [
        Server::start(),
        Server::start_binary(named("TOLLGATE_VALKEY_SERVER"), &[]),
        Server::start_binary(named("TOLLGATE_REDIS62_SERVER"), &[]),
    ] {
        permissions_are_probed(&server).await;
    }
}

async fn permissions_are_probed(server: &Server) {
    let buckets_and_logs = || vec![bucket(), log()];
    for (permission, used, fails) in [
        ("set", all().to_vec(), true),
        ("evalsha", all().to_vec(), true),
        ("time", all().to_vec(), true),
        // Only long logs need these.
        ("setrange", buckets_and_logs(), true),
        ("pexpire", buckets_and_logs(), true),
        ("strlen", buckets_and_logs(), true),
        ("setrange", vec![bucket()], false),
        ("getrange", vec![bucket()], false),
    ] {
        let store = store(url_of_user_without(server, permission));
        // Decisions that the user has no permission for fail.
        let _ = use_of(&store, &used).await;
        let probe = store.probe().await;
        assert_eq!(probe.is_err(), fails, "without {permission}: {probe:?}");
        if let Err(error) = probe {
            assert_eq!(error.kind(), ErrorKind::Script, "{permission}: {error:?}");
            assert!(error.to_string().contains("may not"), "{error}");
        }
    }
}
