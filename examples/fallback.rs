//! Run with
//!
//! ```sh
//! # without Redis: each outage choice in effect
//! cargo run --example fallback
//! # stop this server for ten seconds and start it again, to see the breaker open and close
//! redis-server --port 6390 --save '' &
//! REDIS_URL=redis://127.0.0.1:6390/ cargo run --example fallback
//! ```
//!
//! Which responses do requests get while Redis is down?

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{
    env,
    error::Error,
    io::{IsTerminal, stdout},
    net::TcpListener,
    time::{Duration, Instant},
};

use tollgate::{
    Decision, Key, OnOutage, Policy, Quota, RateLimiter, decision::Outcome, store::Health,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_ansi(stdout().is_terminal())
        .without_time()
        .init();

    let (url, duration) = match env::var("REDIS_URL") {
        Ok(url) => {
            println!(
                "using {url} for 40 seconds: stop the server for ten of them, then start it again"
            );
            (url, Duration::from_secs(40))
        }
        Err(_) => {
            println!("REDIS_URL is not set: using a port where no server listens");
            (url_of_a_closed_port()?, Duration::from_secs(4))
        }
    };
    // Three policies with the same quota and different outage choices.
    let quota = Quota::per_minute(6).burst(5);
    let policies = [OnOutage::Allow, OnOutage::Local, OnOutage::Deny]
        .map(|choice| Policy::new(format!("{choice:?}"), quota).on_outage(choice));
    let limiter = policies
        .iter()
        .cloned()
        .fold(RateLimiter::builder().redis(url), |builder, policy| {
            builder.policy(policy)
        })
        .build()?;

    let start = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    let mut last = String::new();
    while start.elapsed() < duration {
        ticks.tick().await;
        let mut line = String::new();
        for policy in &policies {
            let decision = limiter.check(&[policy.charge(Key::new("ada"))]).await?;
            line += &format!("{}: {:<20}", policy.name(), status(&decision));
        }
        line += condition(&limiter.health());
        if line != last {
            println!("{:>5.1} s  {line}", start.elapsed().as_secs_f32());
        }
        last = line;
    }
    let health = limiter.health();
    if let Some(cause) = health.cause() {
        println!("last error: {cause}");
    }
    println!("{} decisions without Redis", health.fallback_decisions());
    Ok(())
}

/// The status that `RateLimitLayer` would respond with, and where the request was counted.
fn status(decision: &Decision) -> String {
    let status = match decision.outcome() {
        Outcome::Allowed => 200,
        Outcome::Limited => 429,
        _ => 503,
    };
    format!("{status} ({:?})", decision.counted_by())
}

fn condition(health: &Health) -> &'static str {
    if health.is_degraded() {
        "degraded"
    } else {
        "healthy"
    }
}

fn url_of_a_closed_port() -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(format!("redis://{}/", listener.local_addr()?))
}
