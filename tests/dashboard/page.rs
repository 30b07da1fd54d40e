//! The page in a browser when something is wrong.

use std::time::Duration;

use axum::Router;
use http::StatusCode;
use tokio::{net::TcpListener, task::block_in_place};
use tollgate::{
    clock::{Clock, Timestamp},
    dashboard::Dashboard,
};

use super::{
    READ, guarded, layer,
    site::{RULES, Site, sign_in, text_of},
};
use crate::support::{Browser, Mode};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_sees_who_denies_what_changed_and_that_numbers_are_old() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(READ);
        let detail = text_of("status-detail");
        page.until(&format!(
            "{detail}.startsWith('Nothing was denied in the last minute.')"
        ));
        page.until("document.title === 'checkout: rate limits'");
        for number in 0..5 {
            let status = site.call("ada");
            assert_eq!(status == StatusCode::OK, number < 3);
        }
        page.until(&format!(
            "{detail}.startsWith('Denied in the last minute: 2 by api.')"
        ));

        // As many policies as before, under other names.
        site.replace(&RULES.replace("api", "other"));
        let names =
            "[...document.getElementById('chart-policy').options].map(({ value }) => value)";
        page.until(&format!("{names}.includes('other')"));
        assert_eq!(page.evaluate(names), serde_json::json!(["", "other"]));
        page.until("document.querySelectorAll('#decisions-chart line.annotation').length === 1");
        let label = "document.querySelector('#decisions-chart svg').getAttribute('aria-label')";
        page.until(&format!("{label}.includes('rules 2 since')"));

        // What others write cannot turn the text around it.
        let direction = "getComputedStyle(document.querySelector('#versions td')).unicodeBidi";
        page.until("document.getElementById('versions').rows.length === 3");
        assert_eq!(page.evaluate(direction), "isolate");

        site.proxy.set(Mode::Refuse);
        let text = "document.getElementById('status-text').textContent";
        page.until(&format!("{text}.startsWith('Not current: ')"));
        assert_eq!(
            page.evaluate("document.title.startsWith('Not current: ')"),
            true
        );
        site.proxy.set(Mode::Pass);
        page.until(&format!("{text} === 'Limiting normally'"));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_explains_how_to_sign_in_and_why_one_has_to_wait() {
    let (origin, clock) = serve_others().await;
    block_in_place(|| {
        let mut page = Browser::start();
        page.open(&format!("{origin}/limited"));
        page.until("!login.hidden");
        page.evaluate(
            "window.statuses = []; for (let number = 0; number <= 100; number += 1) \
             fetch(`${location.pathname}/api/session`, { headers: { authorization: `Bearer wrong-${number}` } }) \
             .then(({ status }) => statuses.push(status))",
        );
        page.until("statuses.length === 101");
        assert_eq!(
            page.evaluate("statuses.filter((it) => it === 429).length"),
            1
        );
        sign_in(&mut page, READ);
        let message = "document.getElementById('login-error').textContent";
        page.until(&format!("{message}.includes('too many wrong tokens')"));
        // The token is right, and still in its field.
        clock.advance(Duration::from_secs(1));
        page.evaluate("login.requestSubmit()");
        page.until("!main.hidden && login.hidden");

        page.open(&format!("{origin}/of-the-application"));
        page.until("!login.hidden");
        page.until("document.getElementById('login-token').hidden");
        assert_eq!(
            page.evaluate("document.activeElement === document.body"),
            true
        );
        let hint = "document.getElementById('login-hint').textContent";
        page.until(&format!("{hint}.startsWith('Sign in to the application')"));
    });
}

/// Serves two dashboards: one whose wrong tokens are counted by a clock, and one of the application's own login.
async fn serve_others() -> (String, Clock) {
    let layer = layer();
    let foreign = Dashboard::builder(&layer).access_by_extension().build();
    let clock = Clock::manual(Timestamp::from_micros(1_800_000_000_000_000));
    let limited = Dashboard::builder(&layer).clock(clock.clone());
    let app: Router = Router::new()
        .nest("/limited", guarded(limited).router())
        .nest(
            "/of-the-application",
            foreign.expect("a dashboard").router(),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    (format!("http://{address}"), clock)
}
