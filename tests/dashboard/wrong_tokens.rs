//! Clients that try tokens.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use axum::{Router, extract::ConnectInfo};
use http::{Method, Request, StatusCode, response::Parts};
use tollgate::{
    clock::{Clock, Timestamp},
    dashboard::{Access, Dashboard},
    extract::Header,
};

use super::{READ, WRITE, ask, guarded, layer, send};
use crate::support::logged;

#[tokio::test]
async fn client_with_wrong_tokens_has_to_wait_and_the_right_one_works_for_others() {
    logged();
    let (router, clock) = dashboard();
    for number in 0..10 {
        let head = ask_from(&router, "192.0.2.1", &wrong(number)).await;
        assert_eq!(head.status, StatusCode::UNAUTHORIZED, "{number}");
    }
    // The right one gets the same response as a wrong one now.
    for token in [&wrong(10), READ, WRITE] {
        let head = ask_from(&router, "192.0.2.1", token).await;
        assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS, "{token}");
        assert_eq!(head.headers["retry-after"], "6");
    }
    let head = ask_from(&router, "192.0.2.2", READ).await;
    assert_eq!(head.status, StatusCode::OK);
    // Without a token, nothing is tried.
    let request = Request::get("/api/session").extension(peer("192.0.2.1"));
    assert_eq!(send(&router, request, "").await.0.status, StatusCode::OK);

    clock.advance(Duration::from_secs(6));
    let head = ask_from(&router, "192.0.2.1", WRITE).await;
    assert_eq!(head.status, StatusCode::OK);
    let log = logged().join("\n");
    assert!(log.contains("clients with wrong tokens"), "{log}");
    assert!(!log.contains("192.0.2.1"), "{log}");
}

#[tokio::test]
async fn no_path_confirms_a_valid_token_to_a_client_that_has_to_wait() {
    let (router, _) = dashboard();
    for number in 0..11 {
        ask_from(&router, "2001:db8::1", &wrong(number)).await;
    }
    for (method, path, body, _) in super::API {
        let mut replies = Vec::new();
        for token in [&wrong(11), READ, WRITE] {
            // Another address of the same network.
            let request = ask(method.clone(), path, token).extension(peer("2001:db8::2"));
            let (head, reply) = send(&router, request, body).await;
            assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
            assert!(
                reply.starts_with(r#"{"error":"too_many_tokens""#),
                "{reply}"
            );
            replies.push((format!("{head:?}"), reply));
        }
        replies.dedup();
        assert_eq!(replies.len(), 1, "{path}: {replies:?}");
    }
    let request = ask(Method::GET, "/api/session", READ).extension(peer("2001:db8::3"));
    let (head, _) = send(&router, request, "").await;
    assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn right_tokens_never_count_however_often_they_are_sent() {
    let (router, _) = dashboard();
    for _ in 0..300 {
        let head = ask_from(&router, "192.0.2.1", READ).await;
        assert_eq!(head.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn attack_from_many_addresses_is_limited_in_all_and_keeps_no_operator_out() {
    let (router, _) = dashboard();
    let mut tried = 0;
    for number in 0..300 {
        let address = format!("198.51.{}.{}", number / 200, number % 200);
        let head = ask_from(&router, &address, &wrong(number)).await;
        tried += usize::from(head.status == StatusCode::UNAUTHORIZED);
        if head.status == StatusCode::TOO_MANY_REQUESTS {
            let head = ask_from(&router, &address, WRITE).await;
            assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
        }
    }
    assert_eq!(tried, 100);
    let head = ask_from(&router, "192.0.2.2", WRITE).await;
    assert_eq!(head.status, StatusCode::OK);
}

#[tokio::test]
async fn clients_without_an_address_share_a_limit() {
    let (router, clock) = dashboard();
    let mut statuses = Vec::new();
    for number in 0..101 {
        let request = ask(Method::GET, "/api/state", &wrong(number));
        statuses.push(send(&router, request, "").await.0.status);
    }
    assert_eq!(statuses.pop(), Some(StatusCode::TOO_MANY_REQUESTS));
    assert_eq!(statuses, [StatusCode::UNAUTHORIZED; 100]);
    let right = || ask(Method::GET, "/api/state", READ);
    let (head, _) = send(&router, right(), "").await;
    assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(head.headers["retry-after"], "1");
    clock.advance(Duration::from_secs(1));
    let (head, _) = send(&router, right(), "").await;
    assert_eq!(head.status, StatusCode::OK);
}

#[tokio::test]
async fn clients_are_distinguished_by_the_key_of_the_application() {
    let layer = layer();
    let builder = Dashboard::builder(&layer).client_key(Header::new("x-client"));
    let router: Router = guarded(builder).router();
    let from = |client: &str, token: &str| {
        let request = ask(Method::GET, "/api/state", token);
        request.header("x-client", client).extension(peer("::1"))
    };
    for number in 0..11 {
        send(&router, from("one", &wrong(number)), "").await;
    }
    let (head, _) = send(&router, from("one", READ), "").await;
    assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
    let (head, _) = send(&router, from("two", READ), "").await;
    assert_eq!(head.status, StatusCode::OK);

    let fault = Dashboard::builder(&layer)
        .token(READ)
        .client_key(Header::new("not a header"))
        .build();
    assert!(fault.is_err());
}

#[tokio::test]
async fn tokens_of_the_application_are_not_counted_where_only_it_decides() {
    let layer = layer();
    let dashboard = Dashboard::builder(&layer).access_by_extension().build();
    let router: Router = dashboard.expect("a dashboard").router();
    for number in 0..200 {
        let head = ask_from(&router, "192.0.2.1", &wrong(number)).await;
        assert_eq!(head.status, StatusCode::UNAUTHORIZED);
    }
    let granted = ask(Method::GET, "/api/state", "of-the-application");
    let granted = granted
        .extension(peer("192.0.2.1"))
        .extension(Access::read_only());
    assert_eq!(send(&router, granted, "").await.0.status, StatusCode::OK);
}

fn dashboard() -> (Router, Clock) {
    let layer = layer();
    let clock = Clock::manual(Timestamp::from_micros(1_800_000_000_000_000));
    let builder = Dashboard::builder(&layer).clock(clock.clone());
    (guarded(builder).router(), clock)
}

async fn ask_from(router: &Router, address: &str, token: &str) -> Parts {
    let request = ask(Method::GET, "/api/state", token).extension(peer(address));
    send(router, request, "").await.0
}

fn peer(address: &str) -> ConnectInfo<SocketAddr> {
    let address: IpAddr = address.parse().expect("an address");
    ConnectInfo((address, 50_000).into())
}

fn wrong(number: usize) -> String {
    format!("wrong-{number:016}")
}
