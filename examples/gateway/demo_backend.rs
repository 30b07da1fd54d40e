//! A service to protect, for the demo.

use std::{fmt::Write, time::Duration};

use axum::{
    Router,
    extract::Path,
    routing::{any, get},
};
use http::{Uri, request::Parts};
use tokio::{net::TcpListener, time::sleep};

use crate::Failure;

/// Starts the service on a free port of this machine, and returns its URL.
pub(crate) async fn start() -> Result<Uri, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?).parse()?;
    let app = Router::new()
        .route("/items/{id}", get(item))
        .route("/reports/{id}", get(report))
        .route("/search", get(search))
        .route("/echo", any(echo));
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}

async fn item(Path(id): Path<String>) -> String {
    sleep(Duration::from_millis(4)).await;
    format!("item {id}\n")
}

async fn report(Path(id): Path<String>) -> String {
    sleep(Duration::from_millis(60)).await;
    format!("report {id}\n")
}

async fn search() -> &'static str {
    sleep(Duration::from_millis(20)).await;
    "found\n"
}

/// Returns the request head as it arrived here.
async fn echo(parts: Parts) -> String {
    let mut text = format!("{} {}\n", parts.method, parts.uri);
    for (name, value) in &parts.headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        writeln!(text, "{name}: {value}").expect("text can always grow");
    }
    text
}
