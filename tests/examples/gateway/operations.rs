//! The address for operators.

use serde_json::{Value, json};

use super::process::Gateway;

// Regression: the server for operators knew no addresses, so one client with wrong tokens locked all others out.
#[tokio::test]
async fn wrong_tokens_are_counted_by_address() {
    let gateway = Gateway::start(&["--no-load"]);
    let mut operator = gateway.operator().await;
    let mut statuses = Vec::new();
    for number in 0..11 {
        let token = format!("authorization: Bearer wrong-token-{number}\r\n");
        let reply = operator
            .send("GET", "/ops/limits/api/state", &token, "")
            .await;
        statuses.push(reply.status);
    }
    assert_eq!(statuses[..10], [401; 10]);
    assert_eq!(statuses[10], 429, "its own quota is used up");
}

// Regression: the dashboard showed the full quota of an address without an API key, and did not block it.
#[tokio::test]
async fn caller_without_an_api_key_is_found_and_blocked_by_its_address() {
    let gateway = Gateway::start(&["--no-load"]);
    let (mut client, mut operator) = (gateway.client().await, gateway.operator().await);
    let mut call = async || {
        let address = "x-forwarded-for: 198.51.100.99";
        let request = format!("GET /items/1 HTTP/1.1\r\nhost: test\r\n{address}\r\n\r\n");
        client.send(&request).await;
        client.receive().await.status
    };
    assert_eq!(call().await, 200);
    let body = json!({ "key": "198.51.100.99", "form": "address", "policy": "api" });
    let reply = operator.api("POST", "key", &body.to_string()).await;
    let found: Value = serde_json::from_str(&reply.body).expect("JSON");
    let row = &found["policies"][0];
    assert_eq!(row["has_state"], true, "{found}");
    let body = json!({ "key": row["key"], "form": "counted", "seconds": 60 });
    let reply = operator.api("POST", "key/block", &body.to_string()).await;
    assert_eq!(reply.status, 204, "{}", reply.body);
    assert_eq!(call().await, 429);
}

// Regression: the same two tokens opened the dashboard of each gateway on this machine.
#[tokio::test]
async fn tokens_are_other_ones_in_each_run_and_are_shown_once() {
    let gateways = [(); 2].map(|()| Gateway::start(&["--no-load"]));
    let tokens = gateways.each_ref().map(Gateway::tokens).concat();
    for (index, token) in tokens.iter().enumerate() {
        assert_eq!(token.len(), 32, "{token}");
        assert!(!tokens[..index].contains(token), "{tokens:?}");
    }
    for known in ["look-at-the-limits", "change-the-limits-too"] {
        let mut operator = gateways[0].operator().await;
        let token = format!("authorization: Bearer {known}\r\n");
        let reply = operator
            .send("GET", "/ops/limits/api/state", &token, "")
            .await;
        println!("{known}: {}", reply.status);
        assert_eq!(reply.status, 401, "{known}");
    }
    assert!(
        !gateways[0].log().contains(tokens[0]),
        "a secret in the log"
    );
}

// A page of another site, whose name resolves to this machine, is of the same origin here.
#[tokio::test]
async fn address_of_this_machine_is_not_reached_by_other_host_names() {
    let gateway = Gateway::start(&["--no-load"]);
    let mut operator = gateway.operator().await;
    let own = operator.host.clone();
    let port = own.rsplit_once(':').expect("a port").1.to_owned();
    let forged = format!("x-forwarded-host: {own}\r\n");
    for path in ["/", "/ops/limits", "/ops/limits/api/session", "/metrics"] {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
        ] {
            operator.host = format!("{host}:{port}");
            let reply = operator.send("GET", path, &forged, "").await;
            println!("{path} of {host}: {}", reply.status);
            assert_eq!(reply.status, 421, "{path} of {host}");
        }
        for host in [own.clone(), format!("localhost:{port}")] {
            operator.host = host;
            let reply = operator.get(path).await;
            assert!(
                matches!(reply.status, 200 | 303),
                "{path}: {}",
                reply.status
            );
        }
    }
    // Regression: the URL that it printed got a 421.
    let other = Gateway::start(&["--no-load", "--operations", "127.0.0.2:0"]);
    let reply = other.operator().await.get("/ops/limits").await;
    assert_eq!(reply.status, 200, "{}", other.welcome());
    let named = Gateway::start(&["--no-load", "--operations-hosts", "ops.example, test"]);
    let mut operator = named.operator().await;
    for (host, status) in [("ops.example", 200), ("test:80", 200), ("localhost", 421)] {
        operator.host = host.to_owned();
        assert_eq!(operator.get("/metrics").await.status, status, "{host}");
    }
}
