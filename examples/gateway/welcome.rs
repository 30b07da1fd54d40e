//! The first lines of output: a page to open, a file to edit, and commands to try.

use std::{net::SocketAddr, time::Duration};

use http::Uri;
use tokio::net::TcpStream;

use crate::settings::{Settings, Tokens};

/// The addresses of a running gateway.
pub(crate) struct Addresses {
    pub(crate) gateway: SocketAddr,
    pub(crate) operations: SocketAddr,
    pub(crate) backend: Uri,
}

pub(crate) fn print(settings: &Settings, addresses: &Addresses, tokens: &Tokens) {
    let Addresses {
        gateway,
        operations,
        backend,
    } = addresses;
    println!("gateway http://{gateway} -> {backend}");
    println!("  open  http://{operations}/ops/limits");
    let (read, write) = (&tokens.read.shown, &tokens.write.shown);
    println!("        sign in with {write}; to look only, with {read}");
    if settings.has_shared_rules {
        println!("  edit  the rules on that page: all gateways on this Redis take them");
    } else {
        println!("  edit  {}", settings.rules.display());
        println!("        save another limit, such as `free: 2/s`: it counts within about 100 ms");
        println!(
            "        save a fault, such as `free: 2/mn`: the log shows where it is, and how to mend it"
        );
    }
    let path = settings.backend.as_ref().map_or("items/1", |_| "");
    let url = format!("http://{gateway}/{path}");
    println!("  try   curl -i -H 'x-api-key: demo-free-ada' {url}");
    println!(
        "        for i in $(seq 15); do curl -s -o /dev/null -w '%{{http_code}} ' {url}; done; echo"
    );
    println!("        curl -s http://{operations}/metrics | grep tollgate_decisions");
    let place = match settings.redis_url {
        Some(_) => "in Redis",
        None => "in this process; with REDIS_URL=redis://127.0.0.1/ in Redis, for all gateways",
    };
    println!("counts are kept {place}");
}

pub(crate) async fn warn_without_backend(backend: &Uri) {
    let host = backend.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = backend.port_u16().unwrap_or(80);
    let connected = tokio::time::timeout(PROBE_TIMEOUT, TcpStream::connect((host, port))).await;
    let reason = match connected {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no connection within {PROBE_TIMEOUT:?}"),
    };
    eprintln!(
        "gateway: the backend {backend} is not there yet ({reason}): requests get 502 until it is"
    );
}

const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
