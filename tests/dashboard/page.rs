//! The page in a browser when something is wrong.

use std::time::Duration;

use axum::Router;
use http::StatusCode;
use tokio::{net::TcpListener, runtime::Handle, task::block_in_place};
use tollgate::{
    RateLimitLayer,
    clock::{Clock, Timestamp},
    config::{
        Format, RuleSet,
        reload::{NewRules, RuleSource, RulesHandle},
    },
    dashboard::Dashboard,
};

use super::{READ, call, guarded};
use crate::support::{Browser, Mode, Proxy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_sees_who_denies_what_changed_and_that_numbers_are_old() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = Browser::start();
        page.show_on(1_280, 900, "light");
        page.open(&site.url);
        page.until("!login.hidden");
        sign_in(&mut page, READ);
        page.until("connection.dataset.state === 'live'");
        let detail = "document.getElementById('status-detail').textContent";
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
        page.until("document.querySelectorAll('#decisions-chart line.change').length === 1");
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
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = Browser::start();
        page.open(&format!("{}/limited", site.origin));
        page.until("!login.hidden");
        page.evaluate(
            "window.statuses = []; for (let number = 0; number <= 100; number += 1) \
             fetch(new URL('session', API), { headers: { authorization: `Bearer wrong-${number}` } }) \
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
        site.clock.advance(Duration::from_secs(1));
        page.evaluate("login.requestSubmit()");
        page.until("!main.hidden && login.hidden");

        page.open(&format!("{}/of-the-application", site.origin));
        page.until("!login.hidden");
        page.until("document.getElementById('login-token').hidden");
        let hint = "document.getElementById('login-hint').textContent";
        page.until(&format!("{hint}.startsWith('Sign in to the application')"));
    });
}

fn sign_in(page: &mut Browser, token: &str) {
    page.evaluate("token.value = ''; token.focus()");
    page.insert_text(token);
    page.press("Enter");
}

/// A service with two dashboards, behind a proxy that can cut the connection.
struct Site {
    layer: RateLimitLayer,
    rules: RulesHandle,
    proxy: Proxy,
    origin: String,
    url: String,
    /// The clock of the dashboard whose wrong tokens count.
    clock: Clock,
}

impl Site {
    async fn start() -> Self {
        let rules = RuleSet::parse(Format::Yaml, RULES).expect("rules");
        let (layer, rules) = RateLimitLayer::builder()
            .build_reloading(RuleSource::in_process(rules))
            .expect("a layer");
        let builder = Dashboard::builder(&layer).rules(&rules).title("checkout");
        let foreign = Dashboard::builder(&layer).access_by_extension().build();
        let clock = Clock::manual(Timestamp::from_micros(1_800_000_000_000_000));
        let limited = Dashboard::builder(&layer).clock(clock.clone());
        let app: Router = Router::new()
            .nest("/limited", guarded(limited).router())
            .nest("/ops/limits", guarded(builder).router())
            .nest(
                "/of-the-application",
                foreign.expect("a dashboard").router(),
            );
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = Proxy::start(listener.local_addr().expect("an address")).await;
        tokio::spawn(async move { axum::serve(listener, app).await });
        let origin = format!("http://{}", proxy.address());
        Self {
            layer,
            rules,
            proxy,
            url: format!("{origin}/ops/limits"),
            origin,
            clock,
        }
    }

    /// Sends a request of this caller.
    fn call(&self, caller: &str) -> StatusCode {
        Handle::current().block_on(call(&self.layer, caller))
    }

    fn replace(&self, text: &str) {
        let new = NewRules::new(Format::Yaml, text);
        let pushed = Handle::current().block_on(self.rules.push(new));
        pushed.expect("pushed");
    }
}

const RULES: &str = "rules:\n  - id: api\n    key: { header: x-caller }\n    limit: 3/hour\n";
