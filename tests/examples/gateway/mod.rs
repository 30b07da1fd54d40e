//! `examples/gateway`, as a process of its own: what its reader is promised.

mod backends;
mod faulty_clients;
mod forwarding;
mod operations;
mod picture;
mod process;
mod rules;
mod slow_clients;

use std::time::{Duration, Instant};

use serde_json::Value;

use self::process::{Gateway, failure};
use crate::support::{Client, Folder};

#[tokio::test]
async fn one_command_shows_the_limits_under_load() {
    let gateway = Gateway::start(&[]);
    let welcome = gateway.welcome();
    for piece in [
        "open  http://",
        "sign in with ",
        "; to look only, with ",
        "edit  ",
        "examples/gateway/rules.yaml",
        "try   curl -i -H 'x-api-key: demo-free-ada' http://",
        "/metrics | grep tollgate_decisions",
        "counts are kept in this process; with REDIS_URL=",
    ] {
        assert!(welcome.contains(piece), "{piece} is not in {welcome}");
    }

    let mut operator = gateway.operator().await;
    let page = operator.get("/ops/limits").await;
    assert_eq!(page.status, 200);
    let with_slash = operator.get("/ops/limits/").await;
    assert_eq!(with_slash.body, page.body);
    let typed = operator.get("/").await;
    assert_eq!(typed.status, 303);
    assert_eq!(typed.header("location"), Some("ops/limits"));
    assert_eq!(operator.get("/ops/limits/api/state").await.status, 401);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = operator.state().await;
        if ["free", "pro", "internal", "none"].map(|tier| decided(&state, tier) > 0) == [true; 4]
            && limited(&state) > 0
        {
            break;
        }
        assert!(Instant::now() < deadline, "{state}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let metrics = operator.get("/metrics").await.body;
    for piece in [
        r#"tollgate_decisions_total{policy="api",tier="free",mode="enforced",outcome="allowed",counted_by="in_process"}"#,
        r#"tollgate_decisions_total{policy="search","#,
        r#"tollgate_keys{limiter="gateway"}"#,
    ] {
        assert!(metrics.contains(piece), "{piece} is not in {metrics}");
    }
}

#[tokio::test]
async fn plan_of_an_api_key_decides_and_made_up_keys_are_counted_by_address() {
    let gateway = Gateway::start(&["--no-load"]);
    let mut client = gateway.client().await;
    for (api_key, limit) in [("demo-free-ada", "5"), ("demo-pro-carol", "20")] {
        let reply = get_as(&mut client, api_key).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("x-ratelimit-limit"), Some(limit), "{api_key}");
    }
    for _ in 0..100 {
        assert_eq!(get_as(&mut client, "demo-internal-jobs").await.status, 200);
    }
    let mut statuses = Vec::new();
    for number in 0..12 {
        statuses.push(
            get_as(&mut client, &format!("made-up-{number}"))
                .await
                .status,
        );
    }
    assert_eq!(
        statuses.iter().filter(|&&status| status == 429).count(),
        2,
        "{statuses:?}"
    );
    // An API key that is there twice is nobody's.
    client
        .send("GET /items/1 HTTP/1.1\r\nhost: test\r\nx-api-key: demo-free-ada\r\nx-api-key: demo-pro-carol\r\n\r\n")
        .await;
    assert_eq!(client.receive().await.status, 400);
}

// Regression: a list by `peer` forbade the proxy's clients nothing, and the rules had no other.
#[tokio::test]
async fn client_of_a_forbidden_network_is_rejected_behind_a_proxy() {
    let gateway = Gateway::start(&["--no-load"]);
    let mut client = gateway.client().await;
    for (address, status) in [
        ("198.51.100.3", 403),
        ("2001:db8:bad::7", 403),
        ("192.0.2.1, 198.51.100.3", 403),
        ("198.51.100.3, 192.0.2.1", 200),
        ("192.0.2.1", 200),
    ] {
        let head =
            format!("GET /items/1 HTTP/1.1\r\nhost: test\r\nx-forwarded-for: {address}\r\n\r\n");
        client.send(&head).await;
        assert_eq!(client.receive().await.status, status, "{address}");
    }
}

#[tokio::test]
async fn failed_start_prints_a_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken_address = taken.local_addr().expect("an address").to_string();
    let folder = Folder::new();
    let broken = folder.write(
        "rules.yaml",
        "rules: [{ id: api, key: peer-ip, limit: 5/s }]",
    );
    let broken = broken.to_str().expect("text");
    for (options, said) in [
        (
            &["--listen", &taken_address][..],
            format!(
                "cannot listen on {taken_address}: another program listens there. Use another address: --listen 127.0.0.1:0"
            ),
        ),
        (
            &["--listen", "127.0.0.1:0", "--operations", &taken_address],
            format!(
                "cannot listen on {taken_address}: another program listens there. Use another address: --operations 127.0.0.1:0"
            ),
        ),
        (
            &["--rules", broken],
            format!(
                "so the gateway does not start:\n{broken}:1:25: rule \"api\": unknown key `peer-ip`: write `peer_ip`"
            ),
        ),
        (
            &["--rules", "nowhere.yaml"],
            "nowhere.yaml:1:1: No such file".to_owned(),
        ),
        (
            &["--backend", "https://example.com"],
            "this example reaches backends by http:// only".to_owned(),
        ),
        (
            &["--backend", "http://127.0.0.1:1/api"],
            "write it as http://host:port".to_owned(),
        ),
        (
            &["--shared-rules"],
            "--shared-rules needs a Redis: set REDIS_URL".to_owned(),
        ),
        (
            &["--behind", "0.0.0.0/0"],
            "behind(0.0.0.0/0) trusts every address".to_owned(),
        ),
        (
            &["--client-timeout", "0"],
            "--client-timeout 0: use 1 to 3600 seconds".to_owned(),
        ),
        (
            &[
                "--listen",
                "127.0.0.1:0",
                "--operations",
                "127.0.0.1:0",
                "--operations-hosts",
                "a:1",
            ],
            "is not a host pattern".to_owned(),
        ),
        (&["--listen"], "--listen needs a value".to_owned()),
        (&["--lissten"], "unknown option --lissten".to_owned()),
        (
            &["--listen", "127.0.0.1:0", "--operations", "0.0.0.0:0"],
            "set DASHBOARD_TOKEN to a secret".to_owned(),
        ),
    ] {
        let error = failure(options);
        assert!(error.starts_with("gateway: "), "{error}");
        assert!(error.contains(&said), "{said:?} is not in {error:?}");
    }
}

async fn get_as(client: &mut Client, api_key: &str) -> crate::support::Reply {
    client
        .send(&format!(
            "GET /items/1 HTTP/1.1\r\nhost: test\r\nx-api-key: {api_key}\r\n\r\n"
        ))
        .await;
    client.receive().await
}

/// Returns the number of decisions about callers of a tier.
fn decided(state: &Value, tier: &str) -> u64 {
    let of_tier = |row: &&Value| row["policy"] == "api" && row["tier"] == tier;
    let rows = state["decisions"].as_array().expect("a list");
    let totals = rows
        .iter()
        .filter(of_tier)
        .filter_map(|row| row["totals"].as_array());
    totals.flatten().filter_map(Value::as_u64).sum()
}

fn limited(state: &Value) -> u64 {
    let rows = state["decisions"].as_array().expect("a list").iter();
    rows.filter_map(|row| row["totals"][1].as_u64()).sum()
}

const PATIENCE: Duration = Duration::from_secs(30);
