//! The pictures in `docs/images`, of a service under load.

use std::{fs, time::Duration};

use axum::{Router, body::Body};
use http::Request;
use tokio::{net::TcpListener, task::block_in_place};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RateLimiter,
    config::{
        Format, RuleSet,
        reload::{NewRules, RuleSource, RulesHandle},
    },
    dashboard::Dashboard,
    remote::RedisStore,
    top_keys::{ShownKeys, TopKeys},
};
use tower::{Layer, ServiceExt, service_fn};

use super::{WRITE, guarded};
use crate::support::{Browser, Random, Server};

const RULES: &str = include_str!("pictures.yaml");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes docs/images: cargo test --all-features --test suite -- --ignored pictures"]
async fn pictures_show_five_minutes_of_load() {
    let server = Server::start();
    let others = [(); 2].map(|()| other_instance(&server));
    let (layer, rules) = layer(&server);
    for (limit, comment) in [
        ("4/s", "less, while the database is slow"),
        ("5/s", "a little more"),
    ] {
        let text = RULES.replace("6/s", limit);
        let new = NewRules::new(Format::Yaml, text)
            .author("ada")
            .comment(comment);
        rules.push(new).await.expect("pushed");
    }
    let builder = Dashboard::builder(&layer).rules(&rules).title("checkout");
    let app: Router = Router::new().nest("/ops/limits", guarded(builder).router());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!(
        "http://{}/ops/limits",
        listener.local_addr().expect("an address")
    );
    tokio::spawn(async move { axum::serve(listener, app).await });
    let load = tokio::spawn(load(layer, others));
    tokio::time::sleep(Duration::from_secs(305)).await;
    block_in_place(|| take_pictures(&url));
    load.abort();
}

fn take_pictures(url: &str) {
    let mut page = Browser::start();
    for (name, width, scheme, height) in [
        ("light", 1_280, "light", 2_200),
        ("dark", 1_280, "dark", 2_200),
        ("phone", 390, "light", 1_400),
    ] {
        page.show_on(width, 900, scheme);
        page.open(url);
        page.until("!login.hidden || !main.hidden");
        if page.evaluate("main.hidden") == true {
            page.evaluate("token.focus()");
            page.insert_text(WRITE);
            page.press("Enter");
        }
        page.until("connection.dataset.state === 'live'");
        page.until("document.querySelectorAll('#top-keys tbody tr').length > 3");
        page.evaluate("key.focus()");
        page.insert_text("203.0.113.7");
        page.press("Enter");
        page.until("document.getElementById('key-states').rows.length > 3");
        page.until("document.getElementById('versions').rows.length > 2");
        page.evaluate("document.querySelector('#versions button').click()");
        page.until("document.getElementById('diff').rows.length > 1");
        page.evaluate("key.blur(); scrollTo(0, 0)");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/images");
        fs::create_dir_all(folder).expect("a folder");
        let path = format!("{folder}/dashboard-{name}.png");
        fs::write(path, page.picture(height)).expect("written");
    }
}

fn layer(server: &Server) -> (RateLimitLayer, RulesHandle) {
    let rules = RuleSet::parse(Format::Yaml, RULES).expect("rules");
    let top_keys = TopKeys::builder().shown_keys(ShownKeys::plain()).build();
    let redis = RedisStore::builder(server.url()).shared_blocks(true);
    RateLimitLayer::builder()
        .redis(redis)
        .deadline(Duration::from_millis(250))
        .top_keys(top_keys.expect("a recorder"))
        .record_denials(1_000)
        .build_reloading(RuleSource::in_process(rules))
        .expect("a layer")
}

fn other_instance(server: &Server) -> RateLimiter {
    let limiter = RateLimiter::builder().redis(server.url());
    limiter.build().expect("a limiter")
}

/// Requests of thirty callers, whose number and haste change over the minutes.
async fn load(layer: RateLimitLayer, others: [RateLimiter; 2]) {
    let mut random = Random(7);
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    let api = Policy::new("api", Quota::per_second(5).burst(10));
    for tick in 0_u32.. {
        ticks.tick().await;
        let seconds = f64::from(tick) / 20.0;
        let wave = 4.0 + 2.5 * (seconds / 30.0).sin() + 1.5 * (seconds / 11.0).sin();
        let is_attack = (170.0..225.0).contains(&seconds);
        let requests = wave as u64 + random.below(2) + if is_attack { 5 } else { 0 };
        for number in 0..requests {
            let caller = if is_attack && number % 2 == 0 {
                7
            } else {
                let low = random.below(30);
                low.min(random.below(30))
            };
            let caller_name = format!("203.0.113.{caller}");
            let plan = ["free", "pro", "enterprise", "free"][caller as usize % 4];
            let path = ["/", "/", "/search", "/search", "/login"][random.below(5) as usize];
            let request = Request::get(path)
                .header("x-caller", &caller_name)
                .header("x-plan", plan);
            let request = request.body(Body::empty()).expect("a request");
            let inner = service_fn(async |_: Request<Body>| {
                Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty()))
            });
            layer
                .layer(inner)
                .oneshot(request)
                .await
                .expect("infallible");
        }
        if tick % 20 == 0 {
            for other in &others {
                let charges = [api.charge(Key::new("another"))];
                other.check(&charges).await.expect("a decision");
            }
        }
    }
}
