//! Rules that change under load: from a file, and from Redis for two gateways.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    PATIENCE, get_as,
    process::{Gateway, Operator},
};
use crate::support::{Client, Folder, Server};

/// The free plan has this limit; the others keep theirs.
fn rules(free: &str) -> String {
    format!(
        "rules:\n  - id: api\n    key: {{ custom: customer }}\n    limit: 1/s\n    tier_from: {{ custom: plan }}\n    \
         tiers:\n      free: {free}\n      pro: 30/s\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edited_file_counts_from_the_next_request_on_and_a_broken_one_changes_nothing() {
    let folder = Folder::new();
    let path = folder.write("rules.yaml", &rules("40/s"));
    let file = path.to_str().expect("text");
    let gateway = Gateway::start(&["--no-load", "--rules", file]);
    let load = Load::start(&gateway).await;
    load.until_admitted("40", 60).await;

    folder.write("rules.yaml", &rules("10/s"));
    load.until_admitted("10", 25).await;

    folder.write("rules.yaml", &rules("10/mn"));
    gateway
        .until_logged("rules refused, the current rules stay")
        .await;
    let fault = format!(
        "{file}:7:13: rule \"api\": \"10/mn\" is not a rate: `mn` is not a unit of time: write `ms`, `s`, `min`"
    );
    gateway.until_logged(&fault).await;
    let mut operator = gateway.operator().await;
    assert!(last_error(&mut operator).await.contains(&fault));
    load.until_admitted("10", 40).await;

    folder.write("rules.yaml", &rules("20/s"));
    load.until_admitted("20", 25).await;
    assert_eq!(last_error(&mut operator).await, "");

    for (client, samples) in load.stop().await {
        let is_free = FREE.contains(&client);
        assert_phases(
            client,
            &samples,
            if is_free {
                &["40", "10", "20"]
            } else {
                &["30"]
            },
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_take_pushed_rules_within_one_second() {
    let server = Server::start();
    let folder = Folder::new();
    let path = folder.write("rules.yaml", &rules("40/s"));
    let options = ["--no-load", "--rules", path.to_str().expect("text")];
    let gateways = [(); 2].map(|()| Gateway::start_shared(&options, &server.url()));
    let mut clients = [gateways[0].client().await, gateways[1].client().await];
    for client in &mut clients {
        assert_eq!(limit_of(client, FREE[0]).await, "40");
    }

    let mut operator = gateways[0].operator().await;
    for version in 0..5 {
        let limit = (11 + version).to_string();
        let push =
            json!({ "text": rules(&format!("{limit}/s")), "format": "yaml", "replacing": version });
        let pushed = Instant::now();
        let reply = operator.api("POST", "rules/push", &push.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        for client in &mut clients {
            while limit_of(client, FREE[0]).await != limit {
                tokio::time::sleep(Duration::from_millis(5)).await;
                assert!(
                    pushed.elapsed() < Duration::from_secs(1),
                    "version {}",
                    version + 1
                );
            }
        }
        println!(
            "version {} current on both after {:?}",
            version + 1,
            pushed.elapsed()
        );
    }

    // A gateway that starts later begins with the rules in Redis, not with those of its file.
    let later = Gateway::start_shared(&options, &server.url());
    assert_eq!(limit_of(&mut later.client().await, FREE[0]).await, "15");

    // A broken set is refused where it is pushed, and reaches nobody.
    let push = json!({ "text": rules("9/mn"), "format": "yaml", "replacing": 5 });
    let refused = operator.api("POST", "rules/push", &push.to_string()).await;
    assert_eq!(refused.status, 422);
    assert!(
        refused.body.contains("`mn` is not a unit of time"),
        "{}",
        refused.body
    );
    for client in &mut clients {
        assert_eq!(limit_of(client, FREE[0]).await, "15");
    }
}

async fn limit_of(client: &mut Client, api_key: &str) -> String {
    let reply = get_as(client, api_key).await;
    let limit = reply.header("x-ratelimit-limit").expect("a limit");
    limit.to_owned()
}

/// Returns why the latest rules were refused, or nothing.
async fn last_error(operator: &mut Operator) -> String {
    let reply = operator.api("GET", "rules", "").await;
    let rules: Value = serde_json::from_str(&reply.body).expect("JSON");
    rules["last_error"].as_str().unwrap_or_default().to_owned()
}

// === Load ===

/// Clients that call the gateway, each on a connection of its own. A response other than 200 and 429 fails the test.
struct Load {
    clients: JoinSet<()>,
    samples: Samples,
}

type Samples = Arc<Mutex<BTreeMap<&'static str, Vec<Sample>>>>;

/// A response.
#[derive(Clone, Debug)]
struct Sample {
    sent: Instant,
    received: Instant,
    is_admitted: bool,
    /// The limit in its header.
    limit: String,
}

impl Load {
    async fn start(gateway: &Gateway) -> Self {
        let samples = Samples::default();
        let mut clients = JoinSet::new();
        for api_key in FREE.into_iter().chain(PRO) {
            let client = gateway.client().await;
            clients.spawn(call(client, api_key, Arc::clone(&samples)));
        }
        Self { clients, samples }
    }

    /// Waits until each free client has been admitted this often under a limit.
    async fn until_admitted(&self, limit: &str, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        let is_under = |sample: &&Sample| sample.is_admitted && sample.limit == limit;
        let admitted = || {
            let samples = lock(&self.samples);
            FREE.map(|client| {
                samples
                    .get(client)
                    .map_or(0, |all| all.iter().filter(is_under).count())
            })
        };
        while admitted().iter().any(|&admitted| admitted < count) {
            assert!(
                Instant::now() < deadline,
                "admitted under {limit}: {:?}",
                admitted()
            );
            assert_eq!(self.clients.len(), FREE.len() + PRO.len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends the load, and returns the responses of each client.
    async fn stop(mut self) -> BTreeMap<&'static str, Vec<Sample>> {
        while let Some(ended) = self.clients.try_join_next() {
            ended.expect("no client failed");
        }
        self.clients.shutdown().await;
        lock(&self.samples).clone()
    }
}

async fn call(mut client: Client, api_key: &'static str, samples: Samples) {
    loop {
        let sent = Instant::now();
        let reply = get_as(&mut client, api_key).await;
        assert!(matches!(reply.status, 200 | 429), "{reply:?}");
        let limit = reply.header("x-ratelimit-limit").expect("a limit");
        let sample = Sample {
            sent,
            received: Instant::now(),
            is_admitted: reply.status == 200,
            limit: limit.to_owned(),
        };
        lock(&samples).entry(api_key).or_default().push(sample);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The client saw these limits one after the other, and was never admitted more often than each of them allows.
#[track_caller]
fn assert_phases(client: &str, samples: &[Sample], limits: &[&str]) {
    let phases: Vec<&[Sample]> = samples
        .chunk_by(|one, next| one.limit == next.limit)
        .collect();
    let seen: Vec<&str> = phases.iter().map(|phase| phase[0].limit.as_str()).collect();
    assert_eq!(seen, limits, "{client}");
    for phase in phases {
        let rate: f64 = phase[0].limit.parse().expect("a number");
        let seconds = phase[phase.len() - 1].received - phase[0].sent;
        let admitted = phase.iter().filter(|sample| sample.is_admitted).count();
        // A bucket admits its burst, which is the rate of a second here, and then the rate.
        let most = rate + rate * seconds.as_secs_f64() + 1.0;
        assert!(
            admitted as f64 <= most,
            "{client}: {admitted} of {most} under {rate}/s"
        );
    }
}

fn lock(samples: &Samples) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Vec<Sample>>> {
    samples.lock().unwrap_or_else(PoisonError::into_inner)
}

const FREE: [&str; 2] = ["demo-free-ada", "demo-free-bob"];
const PRO: [&str; 2] = ["demo-pro-carol", "demo-pro-dave"];
