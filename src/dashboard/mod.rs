//! A web page and an API for operators: live decisions, keys, and kill switches. Needs the feature `dashboard`.
//!
//! [`Dashboard`] shows one limiter: decisions by policy and tier over time, the latency and the outages of Redis, the keys
//! that are denied most often, the [overload](crate::overload) of this process, the versions of the rules, and the state of a
//! key that an operator looks for. Operators with write access change modes, rollouts and rules, and block, unblock, refund
//! and reset keys. All parts of the page are in the program; it loads nothing from elsewhere.
//!
//! # Examples
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::{Policy, Quota, RateLimitLayer, dashboard::Dashboard, extract::PeerIp};
//!
//! # fn example(read_token: String, write_token: String) -> Result<Router, tollgate::Error> {
//! let limit = RateLimitLayer::builder()
//!     .policy(Policy::new("per-ip", Quota::per_minute(100)).key(PeerIp))
//!     .build()?;
//! let dashboard = Dashboard::builder(&limit)
//!     .token(read_token) // from the configuration: at least 16 characters
//!     .write_token(write_token)
//!     .build()?;
//! let app = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(limit)
//!     // Below the layer, so that operators are not limited.
//!     .nest_service("/ops/limits", dashboard.router::<()>());
//! # Ok(app)
//! # }
//! ```
//!
//! Behind the application's own login:
//!
//! ```
//! use axum::{Extension, Router};
//! use tollgate::{RateLimitLayer, dashboard::{Access, Dashboard}};
//!
//! # fn example(limit: &RateLimitLayer) -> Result<Router, tollgate::Error> {
//! let dashboard = Dashboard::builder(limit).access_by_extension().build()?;
//! // In place of the `Extension`, a middleware that knows who is logged in; see `Access`.
//! let routes: Router = dashboard.router().layer(Extension(Access::read_only()));
//! # Ok(routes)
//! # }
//! ```
//!
//! # Security
//!
//! - **Closed by default**: without a token or [`access_by_extension`](DashboardBuilder::access_by_extension), the dashboard
//!   does not build. The page itself is public, and contains nothing but a form for the token; all data is behind the guard.
//! - **Read-only by default**: changes need the write token, or [`Access::read_write`]. Each is logged at INFO with the
//!   operator's name, without the key.
//! - **Tokens** are sent in the header `authorization` and nowhere else. They are kept as hashes, compared in constant time,
//!   and never logged. The page keeps the token in its tab until that is closed (`sessionStorage`). It sets no cookie.
//!   Use TLS in front, as for every password. Clients with [wrong tokens](#wrong-tokens) have to wait.
//! - **Other sites** are refused: by `sec-fetch-site`, by `origin` for older browsers and plain HTTP, and by the header
//!   `x-tollgate-dashboard`, which all requests other than GET need and no form can send.
//! - **Other host names** are refused if [`allowed_hosts`](DashboardBuilder::allowed_hosts) lists the right ones.
//! - **The content security policy** allows scripts, styles and connections of the own origin only, no inline ones, and no
//!   frames around the page. Every response has `cache-control: no-store`.
//! - **Bounds**: the body of a request has at most 16 KiB, and at most 2 MiB if it contains rules. A request to the API
//!   with parameters in its URL is rejected. At most 16 pages follow at the same time
//!   ([`max_clients`](DashboardBuilder::max_clients)). When all places are taken, the client with most pages gives one
//!   to a client with fewer. A stream ends after ten minutes, and the page opens a new one. A client that has stopped
//!   reading loses its place then.
//!
//! Operators who may read see addresses of servers, names of policies and tiers, and the texts of rules, and can look up any
//! key they know. Top keys are shown in the form that the application chose. Blocked keys are listed as they are counted, so
//! the list needs write access.
//!
//! # Wrong tokens
//!
//! A client can send 10 wrong tokens a minute, and all clients together 100. Beyond that, requests with a token get a 429
//! with `retry-after`, and the log a warning, at most once a minute. A client over its limit gets the 429 for the right token
//! too: otherwise it could go on guessing, and any other status would show that a guess is right. Others sign in as before,
//! also during an attack from many addresses: the common limit only holds for clients that have sent a wrong token within the
//! last seconds.
//!
//! Clients are distinguished by their [peer address](crate::extract::PeerIp), which axum provides with
//! `into_make_service_with_connect_info::<SocketAddr>()`, by the address that
//! [trusted proxies](DashboardBuilder::trusted_proxies) name, or as [`client_key`](DashboardBuilder::client_key) sets. Without
//! an address they share the 100, and an attacker can keep operators out. Counts are kept in this process, for up to 10,000
//! clients. In the [metrics](crate::telemetry) they are the policies `dashboard-tokens` and `dashboard-tokens-of-a-client`.
//!
//! # Behind a proxy
//!
//! The links of the page have no path, so a proxy may change the path, with a slash at its end or without. A proxy that
//! changes `Host` hides where a page comes from: over plain HTTP, browsers send no `sec-fetch-site`, and all changes get a
//! 403. Set it as one of the [`trusted_proxies`](DashboardBuilder::trusted_proxies), and let it send the host that the
//! browser asked for. For example, with nginx:
//!
//! ```nginx
//! location /tools/limits/ {
//!     proxy_pass http://127.0.0.1:3001/ops/limits/;
//!     proxy_set_header X-Forwarded-Host $http_host;
//!     proxy_set_header X-Forwarded-Port "";
//!     proxy_set_header X-Forwarded-Proto $scheme;
//!     proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
//! }
//! ```
//!
//! If the proxy sends `X-Forwarded-Proto: https`, pages of `http` are refused. Of a list, the last item counts, which the
//! nearest proxy wrote. Trust no network with browsers in it, such as the loopback addresses of a developer's machine:
//! after DNS rebinding, a page can send these headers too.
//!
//! # API
//!
//! All paths are relative to the place where the router is mounted. Bodies are JSON. Requests other than GET need the headers
//! `content-type: application/json` and `x-tollgate-dashboard: 1`. Errors are `{"error": code, "message": sentence}`. Times are
//! in milliseconds since the Unix epoch; `second` and `latest` of the history are in seconds. `form`, `reason` and `comment` may
//! be left out; so may `policy`, except for a refund and a rollout. `format` is `yaml`, `toml` or `json`.
//!
//! | request | access | body | response |
//! |---|---|---|---|
//! | `GET /` | none | | the page; its files are `?style.css`, `?boot.js` and `?icon.svg` |
//! | `GET /assets/{module}` | none | | the page's program, as modules |
//! | `GET /api/session` | none | | what the token may do, if it is valid |
//! | `GET /api/state` | read | | policies with their modes and who waits under them, decisions since the start, health, servers, latency of the last second and minute, warnings |
//! | `GET /api/history` | read | | decisions and latency of the last 5 minutes by the second, and of the last 6 hours by the minute |
//! | `GET /api/live` | read | | the state as server-sent events, once a second |
//! | `GET /api/top-keys` | read | | the keys that each policy denied most often (feature `top-keys`) |
//! | `POST /api/key` | read | `key`, `form`, `policy` | the state of a key under one policy, or under each |
//! | `GET /api/blocks` | write | | the 100 blocks that end first, with their keys in the form `counted`; with `store_error`, only those that this instance knows |
//! | `POST /api/key/block` | write | `key`, `form`, `policy`, `seconds`, `reason` | 204; the key is [blocked](crate::RateLimiter::block), without `policy` under all |
//! | `POST /api/key/unblock` | write | `key`, `form`, `policy` | 204; the block of the key under this policy has ended; without `policy`, the one under all policies, and others stay |
//! | `POST /api/key/refund` | write | `key`, `form`, `policy`, `units` | 204; `units`, or as many as were used, are [refunded](crate::RateLimiter::refund) under this policy |
//! | `POST /api/key/reset` | write | `key`, `form`, `policy` | 204; the key has its full quota again, and its ban has ended; without `policy`, under all |
//! | `POST /api/mode` | write | `mode`, `policy` | 204; `off`, `shadow` or `enforce`; of the layer without a policy |
//! | `POST /api/overload/mode` | write | `mode` | 204; `off`, `shadow` or `enforce`; of the [overload limit](DashboardBuilder::overload) |
//! | `POST /api/rollout` | write | `policy`, `percent` | 204; the percentage of keys for which the rule denies requests |
//!
//! With the feature `reload`, and the [handle](DashboardBuilder::rules) of the rules:
//!
//! | request | access | body | response |
//! |---|---|---|---|
//! | `GET /api/rules` | read | | the versions of the rules, and why the latest one was refused; if the source is unavailable, only the current version |
//! | `GET /api/rules/{number}` | read | | a version with its text |
//! | `POST /api/rules/push` | write | `text`, `format`, `replacing`, `comment` | the new version; 422 with all faults; 409 if `replacing` is not the `latest` version of `GET /api/rules`, which may have been refused here |
//! | `POST /api/rules/roll-back` | write | `version` | the new version, with the text of the old one |
//!
//! Both respond with 409 to rules from a file (`can_push` is false): edit that file.
//!
//! | `form` | `key` is |
//! |---|---|
//! | `text` | any text: a value that the caller sends, or the identity that the application finds for it; the default |
//! | `address` | an IP address |
//! | `secret` | an API key, a token or a session cookie |
//! | `counted` | a key as [`Key::as_str`](crate::Key::as_str) returns it |
//!
//! Policies count the same caller by different keys, so the extractor of each policy
//! [makes its own](crate::extract::KeyExtractor::keys_of) from an address, a secret or a text: with
//! `ApiKey::header("x-api-key").or_else(PeerIp)`, an address is the key `x-api-key-or-peer-ip!203.0.113.7`. A policy may have
//! several keys for one text, and each is shown with its state. `without_key` lists the policies that do not count by it, such
//! as those by address for an API key. Closures are taken to make the key that [`CallerId::key`](crate::extract::CallerId::key)
//! returns, with the [`hash_secret`](DashboardBuilder::hash_secret) for secrets. A change applies to all these keys; without
//! one, it is a 422.
//!
//! A key under a policy with a [penalty](crate::policy) has the field `penalty` once it was denied: how long it stays banned
//! (`banned_millis`), its bans that are not forgiven, and its denials that count towards the next one. A reset ends the ban of a
//! policy and forgives all of it; `unblock` ends blocks by operators only. Where callers have tiers (`has_tiers`), keys are
//! looked up and refunded under the policy's own quota.
//!
//! Numbers of decisions are lists: allowed, denied, would have been denied (in shadow, or under a candidate), unavailable
//! (503); then decided without the store, by [leased](crate::Consistency::Leased) units, and by denials that are kept. The last three
//! numbers count decisions that are in the others too. They are the numbers of `tollgate_decisions_total`, see
//! [`telemetry`](crate::telemetry).
//!
//! Changes apply to this process. Counts and resets in Redis apply to the fleet; decisions, history and modes are those of
//! the instance that serves the page.
//!
//! # Cost
//!
//! A limiter without a dashboard pays for one check per decision. With one, a decision takes two atomic additions, and a
//! task reads the numbers once a second. The history takes 18 KB for each pair of policy and tier with decisions, at most
//! 4.8 MB.

mod access;
mod api;
mod api_error;
mod builder;
mod guard;
mod history;
mod history_view;
mod json;
mod key_view;
mod keys;
mod live;
mod page;
mod permits;

mod policy_keys;
mod requested_host;
mod router;
#[cfg(feature = "reload")]
mod rules;
mod sampler;
mod shared;
mod state;
#[cfg(feature = "top-keys")]
mod top_keys_view;
mod watched;
mod wrong_tokens;

pub use self::access::Access;
pub use self::builder::{Dashboard, DashboardBuilder};
