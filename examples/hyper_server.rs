//! Run with
//!
//! ```sh
//! cargo run --example hyper_server
//! ```
//!
//! How is a hyper server limited, without a framework?

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{convert::Infallible, error::Error, net::SocketAddr};

use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp};
use tower::{ServiceBuilder, service_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limit = RateLimitLayer::builder()
        .policy(Policy::new("per-ip", Quota::per_minute(2)).key(PeerIp))
        .build()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    tokio::spawn(serve(listener, limit));

    for _ in 0..3 {
        println!("{}", get(server).await?);
    }
    Ok(())
}

async fn serve(listener: TcpListener, limit: RateLimitLayer) -> std::io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        // hyper does not add the peer's address to requests; `PeerIp` reads it from here.
        let add_peer = move |mut request: Request<Incoming>| {
            request.extensions_mut().insert::<SocketAddr>(peer);
            request
        };
        let service = ServiceBuilder::new()
            .map_request(add_peer)
            .layer(limit.clone())
            .service(service_fn(hello));
        let service = TowerToHyperService::new(service);
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

/// Returns the status line and the remaining quota.
async fn get(server: SocketAddr) -> Result<String, Box<dyn Error>> {
    let mut stream = TcpStream::connect(server).await?;
    let request = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let is_shown = |line: &&str| line.starts_with("HTTP") || line.contains("remaining");
    let lines: Vec<&str> = response.lines().filter(is_shown).collect();
    Ok(lines.join("; "))
}
