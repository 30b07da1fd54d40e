//! The servers: the same axum router behind each contender's layer.

use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use axum::{
    extract::{ConnectInfo, Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use http::StatusCode;
use redis::{Client, RedisError, aio::MultiplexedConnection};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};
use tollgate::{
    Consistency, OnOutage, Policy, Quota, RateLimitLayer,
    builder::RateLimitLayerBuilder,
    extract::PeerIp,
    headers::Headers,
    remote::{RedisStore, RedisStoreBuilder},
};
use tollgate_peers::{arguments::Arguments, cpu, gcra};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};

/// A contender: one layer around the same router.
pub struct Router {
    pub name: &'static str,
    /// Whether every response but the first is a 429.
    pub denies: bool,
    /// Number of `ratelimit` and `retry-after` headers.
    pub headers: usize,
    pub uses_redis: bool,
    add_layer: fn(axum::Router, &Context) -> axum::Router,
}

/// The parts that some layers are made from.
struct Context {
    runtime: Runtime,
    redis_url: String,
}

impl Context {
    fn connect(&self) -> MultiplexedConnection {
        let client = Client::open(self.redis_url.as_str()).expect("the url is well formed");
        let connection = client.get_multiplexed_async_connection();
        self.runtime.block_on(connection).expect("Redis is up")
    }
}

/// Serves one contender on loopback until the process is killed, on one thread or on `--workers`.
///
/// Prints the address once it listens.
///
/// # Panics
///
/// Panics if the name is unknown, the core or the port is not available, or Redis is down.
pub fn run(name: &str, arguments: &Arguments) {
    if let Some(core) = arguments.optional("--core") {
        cpu::pin_to(core);
    }
    let router = ROUTERS.iter().find(|router| router.name == name);
    let router = router.unwrap_or_else(|| panic!("there is no contender {name:?}"));
    let context = Context {
        runtime: runtime(arguments.value("--workers", 1)),
        redis_url: arguments.value("--redis", "redis://127.0.0.1/".to_owned()),
    };
    let app = axum::Router::new().route("/", get(|| async { "hello" }));
    let app = (router.add_layer)(app, &context);
    // The bare router gets the peer's address too, so that this cost is in every row.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let address = (Ipv4Addr::LOCALHOST, arguments.value("--port", 0));
    context.runtime.block_on(async {
        let listener = TcpListener::bind(address).await.expect("the port is free");
        println!("{}", listener.local_addr().expect("it is bound"));
        std::io::stdout().flush().expect("stdout is open");
        axum::serve(listener, service)
            .await
            .expect("it serves for ever");
    });
}

/// Returns a current-thread runtime for one worker, else a multi-threaded one.
fn runtime(workers: usize) -> Runtime {
    let mut builder = match workers {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(workers).enable_all();
    builder.build().expect("a runtime can be made")
}

// === tollgate ===

fn plenty() -> RateLimitLayerBuilder {
    let quota = Quota::per_second(1_000_000).burst(1_000_000_000_000);
    RateLimitLayer::builder().policy(Policy::new("peer", quota).key(PeerIp))
}

fn once() -> RateLimitLayerBuilder {
    RateLimitLayer::builder().policy(Policy::new("peer", Quota::per_day(1)).key(PeerIp))
}

fn on_redis(context: &Context) -> RateLimitLayerBuilder {
    let quota = Quota::per_second(1).burst(gcra::BURST_SECONDS);
    in_store(quota, store(context))
}

fn once_on_redis(context: &Context, keeps_denials: bool) -> RateLimitLayerBuilder {
    let store = store(context).denial_cache(keeps_denials);
    in_store(Quota::per_day(1), store)
}

fn store(context: &Context) -> RedisStoreBuilder {
    // Two builds may store the same key in different formats.
    let prefix = format!("tollgate-{}", std::process::id());
    RedisStore::builder(context.redis_url.as_str()).prefix(prefix)
}

fn leased_on_redis(context: &Context) -> RateLimitLayerBuilder {
    let quota = Quota::per_second(1_000_000).burst(1_000_000_000_000);
    let policy = Policy::new("peer", quota).consistency(Consistency::Leased);
    of_policy(policy, store(context))
}

fn in_store(quota: Quota, store: RedisStoreBuilder) -> RateLimitLayerBuilder {
    of_policy(Policy::new("peer", quota), store)
}

fn of_policy(policy: Policy, store: RedisStoreBuilder) -> RateLimitLayerBuilder {
    // A request that Redis does not count gets a 503, which makes the row void.
    let policy = policy.on_outage(OnOutage::Deny);
    RateLimitLayer::builder()
        .policy(policy.key(PeerIp))
        .redis(store)
        // With the default of 50 ms, a stall of the machine could open the breaker.
        .deadline(Duration::from_secs(1))
}

fn tollgate(app: axum::Router, builder: RateLimitLayerBuilder) -> axum::Router {
    app.layer(builder.build().expect("the policies are valid"))
}

// === tower_governor ===

fn governor(app: axum::Router) -> axum::Router {
    let mut builder = GovernorConfigBuilder::default();
    builder
        .period(Duration::from_micros(1))
        .burst_size(u32::MAX);
    app.layer(GovernorLayer::new(
        builder.finish().expect("the quota is valid"),
    ))
}

fn governor_with_headers(app: axum::Router) -> axum::Router {
    let mut builder = GovernorConfigBuilder::default().use_headers();
    builder
        .period(Duration::from_micros(1))
        .burst_size(u32::MAX);
    app.layer(GovernorLayer::new(
        builder.finish().expect("the quota is valid"),
    ))
}

fn governor_once(app: axum::Router) -> axum::Router {
    let mut builder = GovernorConfigBuilder::default();
    builder.period(Duration::from_secs(86_400)).burst_size(1);
    app.layer(GovernorLayer::new(
        builder.finish().expect("the quota is valid"),
    ))
}

// === Plain EVALSHA ===

/// A limiter as written by hand: one shared connection, one script call per request.
#[derive(Clone)]
struct PlainRedis {
    connection: MultiplexedConnection,
    hash: String,
}

impl PlainRedis {
    fn new(context: &Context) -> Self {
        let mut connection = context.connect();
        let hash = context.runtime.block_on(gcra::load(&mut connection));
        Self { connection, hash }
    }

    async fn is_allowed(&mut self, key: &str) -> Result<bool, RedisError> {
        let decide = gcra::decide(&self.hash, key);
        let (allowed, _): (i64, i64) = decide.query_async(&mut self.connection).await?;
        Ok(allowed == 1)
    }
}

async fn plain_redis(
    State(mut limiter): State<PlainRedis>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    match limiter.is_allowed(&format!("plain:{}", peer.ip())).await {
        Ok(true) => next.run(request).await,
        Ok(false) => StatusCode::TOO_MANY_REQUESTS.into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

// === The contenders ===

/// The router without a layer, to which all others are compared.
pub const BARE: &str = "bare router";
/// The limiter to which those on Redis are compared.
pub const PLAIN_REDIS: &str = "plain EVALSHA on Redis: allowed, no headers";

/// The contenders, in the order of the table.
pub const ROUTERS: &[Router] = &[
    Router {
        name: BARE,
        denies: false,
        headers: 0,
        uses_redis: false,
        add_layer: |app, _| app,
    },
    Router {
        name: "tower_governor: allowed, no headers",
        denies: false,
        headers: 0,
        uses_redis: false,
        add_layer: |app, _| governor(app),
    },
    Router {
        name: "tollgate: allowed, no headers",
        denies: false,
        headers: 0,
        uses_redis: false,
        add_layer: |app, _| tollgate(app, plenty().headers(Headers::none())),
    },
    Router {
        name: "tower_governor: allowed, 2 headers",
        denies: false,
        headers: 2,
        uses_redis: false,
        add_layer: |app, _| governor_with_headers(app),
    },
    Router {
        name: "tollgate: allowed, 3 headers",
        denies: false,
        headers: 3,
        uses_redis: false,
        add_layer: |app, _| tollgate(app, plenty()),
    },
    Router {
        name: "tower_governor: denied, text, 2 headers",
        denies: true,
        headers: 2,
        uses_redis: false,
        add_layer: |app, _| governor_once(app),
    },
    Router {
        name: "tollgate: denied, JSON, 4 headers",
        denies: true,
        headers: 4,
        uses_redis: false,
        add_layer: |app, _| tollgate(app, once()),
    },
    Router {
        name: PLAIN_REDIS,
        denies: false,
        headers: 0,
        uses_redis: true,
        add_layer: |app, context| {
            app.layer(from_fn_with_state(PlainRedis::new(context), plain_redis))
        },
    },
    Router {
        name: "tollgate on Redis: allowed, no headers",
        denies: false,
        headers: 0,
        uses_redis: true,
        add_layer: |app, context| tollgate(app, on_redis(context).headers(Headers::none())),
    },
    Router {
        name: "tollgate on Redis: allowed, 3 headers",
        denies: false,
        headers: 3,
        uses_redis: true,
        add_layer: |app, context| tollgate(app, on_redis(context)),
    },
    Router {
        name: "tollgate on Redis, leased: allowed, no headers",
        denies: false,
        headers: 0,
        uses_redis: true,
        add_layer: |app, context| tollgate(app, leased_on_redis(context).headers(Headers::none())),
    },
    Router {
        name: "tollgate on Redis, leased: allowed, 3 headers",
        denies: false,
        headers: 3,
        uses_redis: true,
        add_layer: |app, context| tollgate(app, leased_on_redis(context)),
    },
    Router {
        name: "tollgate on Redis: denied, JSON, 4 headers",
        denies: true,
        headers: 4,
        uses_redis: true,
        add_layer: |app, context| tollgate(app, once_on_redis(context, true)),
    },
    Router {
        name: "the same without the denial cache, on Redis",
        denies: true,
        headers: 4,
        uses_redis: true,
        add_layer: |app, context| tollgate(app, once_on_redis(context, false)),
    },
];
