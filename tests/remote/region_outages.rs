//! Requests for keys whose home is cut off: when they wait, and how they are counted.

use std::time::Duration;

use metrics::set_default_local_recorder;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tollgate::{Key, OnOutage, RateLimiter, remote::Regions};

use super::regions::{check, limiter, policy};
use crate::support::{Mode, Proxy, Server};

/// A region and two others: the home of keys that begin with `near`, and that of all others.
struct World {
    limiter: RateLimiter,
    to_far: Proxy,
    _servers: [Server; 3],
}

impl World {
    async fn start() -> Self {
        let servers: [Server; 3] = std::array::from_fn(|_| Server::start());
        let to_far = Proxy::start(servers[2].address()).await;
        let regions = Regions::here("here", servers[0].url())
            .region("near", servers[1].url())
            .region("far", to_far.url())
            .fixed_home("near", |key| key.starts_with("near"))
            .fixed_home("far", |_| true)
            .wait(Duration::from_secs(10))
            .report_timeout(Duration::from_millis(300));
        Self {
            limiter: limiter(regions),
            to_far,
            _servers: servers,
        }
    }

    async fn cut_off_far(&self) {
        self.to_far.set(Mode::BlackHole);
        let policy = policy("probe", 2).on_outage(OnOutage::Deny);
        while self.limiter.health().cut_off_regions().is_empty() {
            check(&self.limiter, &[policy.charge(Key::new("far-probe"))]).await;
        }
    }
}

// Regression: they waited for units that could not come.
#[tokio::test]
async fn requests_that_are_denied_while_their_home_is_cut_off_do_not_wait() {
    let world = World::start().await;
    world.cut_off_far().await;
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let policy = |name| policy(name, 5).on_outage(OnOutage::Deny);
    let (far, near) = (policy("far"), policy("near"));
    let charges = [far.charge(Key::new("far")), near.charge(Key::new("near"))];
    for charges in [&charges[..1], &charges[..]] {
        let decision = check(&world.limiter, charges).await;
        assert!(!decision.is_allowed(), "{decision:?}");
        assert_eq!(count(&recorder, "tollgate_region_waits_total"), 0);
    }
    // Those of a home in reach do.
    assert!(check(&world.limiter, &charges[1..]).await.is_allowed());
}

// Regression: each look for the units of another key counted a key that had units.
#[tokio::test]
async fn request_counts_once_as_decided_by_the_share() {
    let world = World::start().await;
    let with_units = policy("with-units", 800);
    let with_units = with_units.charge(Key::new("far"));
    // Brings an eighth of the burst.
    assert!(check(&world.limiter, &[with_units]).await.is_allowed());
    world.cut_off_far().await;
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let by_share = || count(&recorder, "tollgate_region_share_decisions_total");
    let decide = async |far, near: &'static str| {
        let policy = policy(near, 800);
        let decision = check(&world.limiter, &[far, policy.charge(Key::new(near))]).await;
        assert!(decision.is_allowed(), "{decision:?}");
    };
    decide(with_units, "near-1").await;
    assert_eq!(by_share(), 0);
    let without = policy("without", 4);
    let without = without.charge(Key::new("far"));
    decide(without, "near-2").await;
    assert_eq!(by_share(), 1);
    // A third of 4 units is spent.
    assert!(!check(&world.limiter, &[without]).await.is_allowed());
    assert_eq!(by_share(), 2);
}

fn recorder() -> PrometheusRecorder {
    PrometheusBuilder::new().build_recorder()
}

/// Returns the value of a counter without labels.
fn count(recorder: &PrometheusRecorder, name: &str) -> u64 {
    let exported = recorder.handle().render();
    let mut lines = exported.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_default()
}
