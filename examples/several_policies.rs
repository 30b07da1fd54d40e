//! Run with
//!
//! ```sh
//! cargo run --example several_policies
//! ```
//!
//! How do several policies work together? All are decided at once, and if one denies the request, none is charged.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;

use axum::{Router, body::Body, routing::get};
use http::Request;
use tollgate::{
    Key, Policy, Quota, RateLimitLayer,
    extract::{Global, Header, Route},
    rejection::{Reason, Rejection},
};
use tower::ServiceExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let user = Policy::new("user", Quota::per_minute(3));
    let route = Policy::new("route", Quota::per_minute(5));
    let everybody = Policy::new("everybody", Quota::per_minute(100));

    let limit = RateLimitLayer::builder()
        // Set by a gateway in front. Without one, clients could choose any value.
        .policy(user.clone().key(Header::new("x-user")))
        .policy(route.clone().key(Route))
        .policy(everybody.clone().key(Global))
        .build()?;
    let app = Router::new()
        .route("/search", get(|| async {}))
        .route("/items/{id}", get(|| async {}))
        .layer(limit.clone());

    println!(
        "{:<20} {:<16} left for ada, GET /search, everybody",
        "request", "response"
    );
    let requests = [
        ("ada", "/search"),
        ("ada", "/search"),
        ("ada", "/search"),
        ("ada", "/search"),
        ("bob", "/search"),
        ("bob", "/search"),
        ("bob", "/search"),
        ("bob", "/items/7"),
    ];
    for (name, path) in requests {
        let request = Request::get(path).header("x-user", name);
        let response = app.clone().oneshot(request.body(Body::empty())?).await?;
        let denied_by = response.extensions().get::<Rejection>().and_then(denied_by);
        let status = match denied_by {
            Some(policy) => format!("{} by {policy}", response.status().as_u16()),
            None => response.status().as_u16().to_string(),
        };

        let search = Key::new("GET").and(&Key::new("/search"));
        let charges = [
            user.charge(Key::new("ada")),
            route.charge(search),
            everybody.charge(Key::GLOBAL),
        ];
        let decision = limit.limiter().peek(&charges).await?;
        let left: Vec<String> = decision
            .states()
            .iter()
            .filter_map(|state| Some(state.usage()?.remaining.to_string()))
            .collect();
        println!(
            "{:<20} {status:<16} {}",
            format!("{name} {path}"),
            left.join(", ")
        );
    }
    Ok(())
}

fn denied_by(rejection: &Rejection) -> Option<String> {
    match rejection.reason() {
        Reason::Limited { policy } => Some(policy.to_string()),
        _ => None,
    }
}
