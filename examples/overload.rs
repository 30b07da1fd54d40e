//! Run with
//!
//! ```sh
//! cargo run --example overload -- 2
//! ```
//!
//! When twice as many requests come as the service can serve, who is served? A service with ten connections to its database,
//! three classes of requests, and the load as an argument: 0.5 is no overload, and from 3 on, critical requests alone are too many.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{
    array, env,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use tokio::{sync::Semaphore, time};
use tollgate::overload::{Overload, Priority};
use tower::ServiceExt;

/// Paths of the classes.
const PATHS: [&str; 3] = ["/pay", "/browse", "/export"];
/// Requests a second that ten connections can serve, each in 20 ms.
const CAPACITY: f64 = 500.0;

#[derive(Debug, Default)]
struct Counts {
    served: AtomicU32,
    shed: AtomicU32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let load = env::args().nth(1).unwrap_or("2".into());
    let load = load
        .parse()
        .ok()
        .filter(|load| (0.1..=100.0).contains(load));
    let load: f64 = load.ok_or("the load is a number from 0.1 to 100, such as 2")?;
    let overload = Overload::adaptive()
        .priority_when("/pay", Priority::Critical)
        .priority_when("/export", Priority::Sheddable)
        .build()?;
    let connections = Arc::new(Semaphore::new(10));
    let query = get(async move || {
        let _connection = connections.acquire().await;
        time::sleep(Duration::from_millis(19)).await;
    });
    let app = PATHS
        .iter()
        .fold(Router::new(), |app, path| app.route(path, query.clone()));
    let app = app.layer(overload.clone());

    println!(
        "{load} times what the service can serve, a third of it by each class; served and shed a second:"
    );
    println!("second  /pay       /browse    /export    limit  in flight");
    let counts: Arc<[Counts; 3]> = Arc::default();
    let between = Duration::from_secs_f64(1.0 / (load * CAPACITY));
    let (start, mut sent) = (Instant::now(), 0_u32);
    for second in 1..=5 {
        while start.elapsed() < Duration::from_secs(second) {
            while start.elapsed() > sent * between {
                tokio::spawn(ask(app.clone(), sent as usize % 3, Arc::clone(&counts)));
                sent += 1;
            }
            time::sleep(Duration::from_millis(1)).await;
        }
        let classes: [String; 3] = array::from_fn(|class| {
            let [served, shed] = [&counts[class].served, &counts[class].shed];
            let [served, shed] = [served, shed].map(|count| count.swap(0, Ordering::Relaxed));
            format!("{served}, {shed}")
        });
        let [pay, browse, export] = classes;
        println!(
            "{second:<7} {pay:<10} {browse:<10} {export:<10} {:<6} {}",
            overload.limit(),
            overload.in_flight()
        );
    }
    let shed = overload.shed();
    let shed = shed
        .iter()
        .map(|(class, count)| format!("{class}: {count}"));
    println!("shed in all: {}", shed.collect::<Vec<_>>().join(", "));
    Ok(())
}

async fn ask(app: Router, class: usize, counts: Arc<[Counts; 3]>) {
    let request = Request::get(PATHS[class]).body(Body::empty());
    let answer = app.oneshot(request.expect("a valid request")).await;
    let count = match answer.map(|response| response.status()) {
        Ok(StatusCode::SERVICE_UNAVAILABLE) => &counts[class].shed,
        _ => &counts[class].served,
    };
    count.fetch_add(1, Ordering::Relaxed);
}
