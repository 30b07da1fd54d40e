//! The overload of the process: what is shown of it, and its kill switch.

use std::time::Duration;

use axum::Router;
use http::{Method, StatusCode};
use serde_json::json;
use tokio::{net::TcpListener, task::block_in_place};
use tollgate::{
    clock::{Clock, Timestamp},
    dashboard::Dashboard,
    overload::{Overload, Priority},
    rules::RuleMode,
};

use super::{
    READ, WRITE, ask, get, layer, post, send,
    site::{confirm, sign_in, text_of},
};
use crate::support::Browser;

fn manual() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}

/// A limit whose clock stands still, so that what it allows does not change.
fn stopped() -> Overload {
    let overload = Overload::adaptive().clock(manual()).build();
    overload.expect("usable settings")
}

fn dashboard(overload: &Overload, clock: Clock) -> Router {
    let builder = Dashboard::builder(&layer()).overload(overload).clock(clock);
    let dashboard = builder.token(READ).write_token(WRITE).build();
    dashboard.expect("a dashboard").router()
}

#[tokio::test]
async fn state_shows_what_is_in_flight_and_was_shed_and_the_mode_can_be_changed() {
    let overload = stopped();
    let router = dashboard(&overload, Clock::system());
    let limit = overload.limit();
    let fill = || std::iter::from_fn(|| overload.enter(Priority::Sheddable, None).ok());
    let places: Vec<_> = fill().collect();
    assert_eq!(
        get(&router, "/api/state").await["overload"],
        json!({
            "mode": "enforce", "is_overloaded": false, "limit": limit, "in_flight": limit,
            "classes": [
                { "name": "critical", "shed": 0 },
                { "name": "normal", "shed": 0 },
                { "name": "sheddable", "shed": 1 },
            ],
        })
    );
    for (mode, name) in [
        (RuleMode::Off, "off"),
        (RuleMode::Shadow, "shadow"),
        (RuleMode::Enforce, "enforce"),
    ] {
        let body = format!(r#"{{"mode":"{name}"}}"#);
        let (status, reply) = post(&router, "/api/overload/mode", &body).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{reply}");
        assert_eq!(overload.mode(), mode);
        assert_eq!(get(&router, "/api/state").await["overload"]["mode"], name);
    }
    drop(places);
    assert_eq!(get(&router, "/api/state").await["overload"]["in_flight"], 0);
}

#[tokio::test]
async fn dashboard_without_an_overload_limit_shows_and_changes_none() {
    let dashboard = Dashboard::builder(&layer()).token(READ).write_token(WRITE);
    let router: Router = dashboard.build().expect("a dashboard").router();
    assert_eq!(get(&router, "/api/state").await["overload"], json!(null));
    let request = ask(Method::POST, "/api/overload/mode", WRITE);
    let (head, reply) = send(&router, request, r#"{"mode":"off"}"#).await;
    assert_eq!(head.status, StatusCode::NOT_FOUND);
    assert!(reply.contains("build it with overload(..)"), "{reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_sees_who_is_shed_and_switches_it_off_in_a_browser() {
    let overload = stopped();
    let clock = manual();
    let routes = dashboard(&overload, clock.clone());
    let app = Router::new().nest("/ops/limits", routes);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    block_in_place(|| {
        let mut page = Browser::start();
        page.show_on(1_280, 900, "light");
        page.open(&format!("http://{address}/ops/limits"));
        page.until("!login.hidden");
        sign_in(&mut page, WRITE);
        let panel = "document.getElementById('overload-panel')";
        page.until(&format!("{panel} && !{panel}.hidden"));
        let note = text_of("overload-note");
        page.until(&format!(
            "{note} === 'Not overloaded. 0 requests in flight, up to {} of the lowest class.'",
            overload.limit()
        ));
        let places = || std::iter::from_fn(|| overload.enter(Priority::Sheddable, None).ok());
        let places: Vec<_> = places().collect();
        for _ in 0..6 {
            let _ = overload.enter(Priority::Sheddable, None).expect_err("full");
        }
        let classes = text_of("overload-classes");
        page.until(&format!(
            "{note}.includes('{} requests in flight')",
            places.len()
        ));
        page.until(&format!("{classes}.endsWith('sheddable0 /s7')"));
        // 7 in the 2 s since the state before.
        clock.advance(Duration::from_secs(2));
        page.until(&format!(
            "{classes}.endsWith('critical0 /s0normal0 /s0sheddable3.5 /s7')"
        ));
        // None in the next second.
        clock.advance(Duration::from_secs(1));
        page.until(&format!("{classes}.endsWith('sheddable0 /s7')"));
        let select = "document.getElementById('overload-mode')";
        page.evaluate(&format!(
            "{select}.value = 'off'; {select}.dispatchEvent(new Event('change'))"
        ));
        confirm(&mut page);
        page.until(&format!(
            "{} === 'Set overload to off.'",
            text_of("overload-message")
        ));
        assert_eq!(overload.mode(), RuleMode::Off);
        page.until(&format!("{note}.startsWith('Off: nothing is counted.')"));

        // Whoever may only read has no switch, and sees nothing of what the one before has done.
        page.evaluate("document.getElementById('leave').click()");
        page.until("!login.hidden");
        sign_in(&mut page, READ);
        page.until(&format!("!main.hidden && {note}.startsWith('Off')"));
        page.until("document.getElementById('overload-mode-label').hidden");
        assert_eq!(page.evaluate(&text_of("overload-message")), "");
    });
}
