//! The address for operators.

use serde_json::{Value, json};

use super::process::{Gateway, api};

// Regression: the server for operators knew no addresses, so one client with wrong tokens locked all others out.
#[tokio::test]
async fn wrong_tokens_are_counted_by_address() {
    let gateway = Gateway::start(&["--no-load"]);
    let mut operator = gateway.operator().await;
    let mut statuses = Vec::new();
    for number in 0..11 {
        let request = format!(
            "GET /ops/limits/api/state HTTP/1.1\r\nhost: test\r\nauthorization: Bearer wrong-token-{number}\r\n\r\n"
        );
        operator.send(&request).await;
        statuses.push(operator.receive().await.status);
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
    let reply = api(&mut operator, "POST", "key", &body.to_string()).await;
    let found: Value = serde_json::from_str(&reply.body).expect("JSON");
    let row = &found["policies"][0];
    assert_eq!(row["has_state"], true, "{found}");
    let body = json!({ "key": row["key"], "form": "counted", "seconds": 60 });
    let reply = api(&mut operator, "POST", "key/block", &body.to_string()).await;
    assert_eq!(reply.status, 204, "{}", reply.body);
    assert_eq!(call().await, 429);
}
