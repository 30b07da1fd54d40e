//! Opens byte streams to servers: TCP, TLS over TCP, or a Unix socket.
//!
//! A host is resolved at each dial, so that a failover by DNS is followed. All its addresses are tried at once, and the
//! first that accepts is used: an address that never responds does not use up the time of the dial.

use std::{io, net::SocketAddr, path::Path, pin::Pin, time::Duration};

use futures_util::future::select_ok;
use redis::{
    aio::AsyncStream,
    io::tcp::socket2::{SockRef, TcpKeepalive},
};
use tokio::net::{TcpStream, lookup_host};

use crate::error::{Error, ErrorKind};

use super::{super::protocol::NodeAddress, address::Address, socket::Socket};

#[cfg(feature = "tls-rustls-no-provider")]
use super::tls::{self, Tls};

/// A stream of any kind.
pub(super) type BoxedStream = Pin<Box<dyn AsyncStream + Send>>;

/// Whether TCP connections are encrypted.
#[derive(Clone, Debug, Default)]
pub(in crate::remote) enum Security {
    #[default]
    Plain,
    #[cfg(feature = "tls-rustls-no-provider")]
    Tls(Tls),
}

impl Security {
    pub fn is_encrypted(&self) -> bool {
        match self {
            Self::Plain => false,
            #[cfg(feature = "tls-rustls-no-provider")]
            Self::Tls(_) => true,
        }
    }
}

/// Opens a stream to a server, and returns the address that it leads to; `None` for a Unix socket.
///
/// # Errors
///
/// [`ErrorKind::Connect`], with the address in the message and the error of the system or of TLS as the source.
pub(super) async fn open(
    address: &Address,
    security: &Security,
) -> Result<(BoxedStream, Option<SocketAddr>), Error> {
    let opened = match (address, security) {
        (Address::Unix(path), _) => open_unix(path).await.map(|stream| (stream, None)),
        (Address::Tcp(tcp), Security::Plain) => open_plain(tcp).await,
        #[cfg(feature = "tls-rustls-no-provider")]
        (Address::Tcp(tcp), Security::Tls(tls)) => open_tls(tcp, tls).await,
    };
    opened.map_err(|error| connect_error(address, error))
}

async fn open_plain(address: &NodeAddress) -> io::Result<(BoxedStream, Option<SocketAddr>)> {
    let stream = open_tcp(address).await?;
    let peer = stream.peer_addr().ok();
    Ok((Box::pin(Socket::new(stream)), peer))
}

#[cfg(feature = "tls-rustls-no-provider")]
async fn open_tls(
    address: &NodeAddress,
    tls: &Tls,
) -> io::Result<(BoxedStream, Option<SocketAddr>)> {
    let stream = open_tcp(address).await?;
    let peer = stream.peer_addr().ok();
    let stream = tls.connect(&address.host, Socket::new(stream)).await?;
    Ok((Box::pin(stream), peer))
}

async fn open_tcp(address: &NodeAddress) -> io::Result<TcpStream> {
    let addresses = lookup_host((address.host.as_str(), address.port)).await?;
    let attempts: Vec<_> = addresses
        .map(|address| Box::pin(TcpStream::connect(address)))
        .collect();
    if attempts.is_empty() {
        let no_address = "the host has no address";
        return Err(io::Error::new(io::ErrorKind::NotFound, no_address));
    }
    let (stream, _) = select_ok(attempts).await?;
    // Nagle's algorithm would hold small commands back. Keepalive notices a peer that is gone.
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5));
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

#[cfg(unix)]
async fn open_unix(path: &Path) -> io::Result<BoxedStream> {
    let stream = tokio::net::UnixStream::connect(path).await?;
    Ok(Box::pin(Socket::new(stream)))
}

#[cfg(not(unix))]
async fn open_unix(_: &Path) -> io::Result<BoxedStream> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this platform has no unix sockets",
    ))
}

/// Returns the error of a stream that could not be opened.
fn connect_error(address: &Address, error: io::Error) -> Error {
    #[cfg(feature = "tls-rustls-no-provider")]
    let advice = tls::advice(&error);
    #[cfg(not(feature = "tls-rustls-no-provider"))]
    let advice: Option<&str> = None;
    let message = match advice {
        Some(advice) => format!("no connection to redis at {address}: {advice}"),
        None => format!("no connection to redis at {address}"),
    };
    Error::new(ErrorKind::Connect, message).with_source(error)
}
