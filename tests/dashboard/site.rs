//! A service with a dashboard, and a browser that shows it.

use axum::Router;
use http::StatusCode;
use tokio::{net::TcpListener, runtime::Handle};
use tollgate::{
    RateLimitLayer,
    builder::RateLimitLayerBuilder,
    config::{
        Format, RuleSet,
        reload::{NewRules, RuleSource, RulesHandle},
    },
    dashboard::Dashboard,
    top_keys::{ShownKeys, TopKeys},
};

use super::{call, guarded};
use crate::support::{Browser, Proxy};

/// A service whose dashboard is behind a proxy that can cut the connection.
pub(super) struct Site {
    pub(super) layer: RateLimitLayer,
    pub(super) rules: RulesHandle,
    pub(super) proxy: Proxy,
    pub(super) origin: String,
    pub(super) url: String,
}

impl Site {
    pub(super) async fn start() -> Self {
        let top_keys = TopKeys::builder().shown_keys(ShownKeys::plain()).build();
        let builder = RateLimitLayer::builder().top_keys(top_keys.expect("a recorder"));
        Self::serve(builder, RuleSource::in_process(rules(RULES))).await
    }

    /// Serves the dashboard of a layer with these rules.
    pub(super) async fn serve(builder: RateLimitLayerBuilder, source: RuleSource) -> Self {
        let (layer, rules) = builder.build_reloading(source).expect("a layer");
        let builder = Dashboard::builder(&layer).rules(&rules).title("checkout");
        let app: Router = Router::new().nest("/ops/limits", guarded(builder).router());
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
        }
    }

    /// Opens the page in a new browser, with a token.
    pub(super) fn open(&self, token: &str) -> Browser {
        let mut page = Browser::start();
        page.show_on(1_280, 900, "light");
        page.open(&self.url);
        page.until("!login.hidden");
        sign_in(&mut page, token);
        page.until("!main.hidden && connection.dataset.state === 'live'");
        // Its modules, so that a test may look at what they know.
        page.evaluate(
            "Promise.all(['api', 'keys', 'lists', 'live', 'notices', 'page', 'text'].map((name) => \
             import(`${location.pathname.replace(/\\/*$/, '')}/assets/${name}.mjs`))) \
             .then((modules) => { Object.assign(window, ...modules); })",
        );
        page
    }

    /// Sends a request of this caller.
    pub(super) fn call(&self, caller: &str) -> StatusCode {
        Handle::current().block_on(call(&self.layer, caller))
    }

    /// Applies other rules, as another operator does.
    pub(super) fn replace(&self, text: &str) {
        let new = NewRules::new(Format::Yaml, text);
        let pushed = Handle::current().block_on(self.rules.push(new));
        pushed.expect("pushed");
    }
}

pub(super) fn sign_in(page: &mut Browser, token: &str) {
    page.evaluate("token.value = ''; token.focus()");
    page.insert_text(token);
    page.press("Enter");
}

pub(super) fn rules(text: &str) -> RuleSet {
    RuleSet::parse(Format::Yaml, text).expect("rules")
}

/// Sends a form.
#[track_caller]
pub(super) fn submit(page: &mut Browser, form: &str) {
    page.evaluate(&format!(
        "document.getElementById('{form}').requestSubmit()"
    ));
}

/// Answers the question that the page asks.
#[track_caller]
pub(super) fn confirm(page: &mut Browser) {
    page.until("question.open");
    page.evaluate("document.getElementById('confirm-yes').click()");
    page.until("!question.open");
}

/// Looks a key up, from the keyboard.
#[track_caller]
pub(super) fn look_up(page: &mut Browser, key: &str) {
    page.evaluate("key.focus(); key.select()");
    page.insert_text(key);
    page.press("Enter");
    page.until(&format!(
        "document.getElementById('key-shown').textContent.endsWith('{key}')"
    ));
    page.until("document.getElementById('key-states').rows.length > 1");
}

/// Returns the text of an element.
pub(super) fn text_of(id: &str) -> String {
    format!("document.getElementById('{id}').textContent")
}

pub(super) const RULES: &str = "rules:\n  - id: api\n    key: { header: x-caller }\n    limit: 3/hour\n    \
    penalty: { denials: 5, within: 1h, ban: 1h }\n";
