//! Run with
//!
//! ```sh
//! cargo run --features grpc --example tonic_server
//! cargo run --features grpc --example tonic_server -- 127.0.0.1:50051   # serves other clients
//! ```
//!
//! How is a tonic server limited, and how does its client see a rejection?
//!
//! The service is written by hand, since generating it would require a protobuf compiler.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{
    convert::Infallible,
    error::Error,
    future::{Future, Ready, ready},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, BufMut};
use http::{Response, uri::PathAndQuery};
use tokio::net::TcpListener;
use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp};
use tonic::{
    Request, Status,
    body::Body,
    client, codec,
    codec::{DecodeBuf, EncodeBuf},
    server::{self, NamedService, UnaryService},
    transport::{
        Endpoint, Server,
        server::{TcpConnectInfo, TcpIncoming},
    },
};
use tonic_types::StatusExt;
use tower::{Service, util::MapRequestLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limit = RateLimitLayer::builder()
        .policy(Policy::new("per-ip", Quota::per_minute(2)).key(PeerIp))
        .build()?;
    let address = std::env::args().nth(1);
    let is_server = address.is_some();
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let address = listener.local_addr()?;
    let server = Server::builder()
        .layer(MapRequestLayer::new(add_peer))
        .layer(limit)
        .add_service(Greeter);
    let serving = server.serve_with_incoming(TcpIncoming::from(listener));
    if is_server {
        println!("serving /example.Greeter/Greet on {address}");
        return Ok(serving.await?);
    }
    tokio::spawn(serving);

    for name in ["ada", "bob", "cyd"] {
        match greet(address, name).await {
            Ok(greeting) => println!("{greeting}"),
            Err(status) => {
                println!("{:?}: {}", status.code(), status.message());
                if let Some(wait) = status
                    .get_details_retry_info()
                    .and_then(|info| info.retry_delay)
                {
                    println!("retry in {wait:.1?}");
                }
            }
        }
    }
    Ok(())
}

/// Copies the peer's address from tonic's own type to where `PeerIp` reads it.
fn add_peer<B>(mut request: http::Request<B>) -> http::Request<B> {
    let connection = request.extensions().get::<TcpConnectInfo>();
    if let Some(peer) = connection.and_then(TcpConnectInfo::remote_addr) {
        request.extensions_mut().insert::<SocketAddr>(peer);
    }
    request
}

// === The service ===

#[derive(Clone)]
struct Greeter;

impl NamedService for Greeter {
    const NAME: &'static str = "example.Greeter";
}

impl Service<http::Request<Body>> for Greeter {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move { Ok(server::Grpc::new(Text).unary(Greet, request).await) })
    }
}

struct Greet;

impl UnaryService<String> for Greet {
    type Response = String;
    type Future = Ready<Result<tonic::Response<String>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let greeting = format!("hello {}", request.into_inner());
        ready(Ok(tonic::Response::new(greeting)))
    }
}

// === The client ===

async fn greet(server: SocketAddr, name: &str) -> Result<String, Status> {
    let endpoint = Endpoint::from_shared(format!("http://{server}"));
    let endpoint = endpoint.map_err(|error| Status::internal(error.to_string()))?;
    let mut client = client::Grpc::new(endpoint.connect_lazy());
    let ready = client.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static("/example.Greeter/Greet");
    let response = client
        .unary(Request::new(name.to_owned()), path, Text)
        .await?;
    Ok(response.into_inner())
}

// === Messages ===

/// A codec for plain text, in place of protobuf.
struct Text;

impl codec::Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl codec::Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(text.as_bytes());
        Ok(())
    }
}

impl codec::Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        let text = String::from_utf8(bytes.to_vec());
        text.map(Some)
            .map_err(|error| Status::invalid_argument(error.to_string()))
    }
}
