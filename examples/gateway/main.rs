//! Run with
//!
//! ```sh
//! cargo run --example gateway --features dashboard,reload,top-keys
//! # in front of your own service, and with limits that several gateways share
//! REDIS_URL=redis://127.0.0.1/ cargo run --example gateway --features dashboard,reload,top-keys -- --backend http://127.0.0.1:8080
//! # all options
//! cargo run --example gateway --features dashboard,reload,top-keys -- --help
//! ```
//!
//! How does an API gateway limit clients by rules that change while it runs?
//!
//! ```text
//! client ────> rate limits ────> reverse proxy ────> backend
//!              limits.rs         proxy.rs, hop.rs    yours, or demo_backend.rs
//!              rules.yaml
//!              customers.rs
//! operator ──> dashboard, metrics
//!              operations.rs
//! ```

#![expect(
    clippy::print_stdout,
    reason = "an example prints what to do, and its results"
)]

mod customers;
mod demo_backend;
mod demo_load;
mod hop;
mod limits;
mod operations;
mod proxy;
mod settings;

use std::{
    env,
    error::Error,
    io::{self, ErrorKind, IsTerminal},
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use axum::{Router, serve::ListenerExt};
use http::Uri;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use self::{
    proxy::ReverseProxy,
    settings::{HELP, Settings, Tokens},
};

pub(crate) type Failure = Box<dyn Error>;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    let result = match Settings::read(env::args().skip(1)) {
        Ok(Some(settings)) => run(settings).await,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(settings: Settings) -> Result<(), Failure> {
    let prometheus = operations::prometheus()?;
    let (limit, rules) = limits::build(&settings).await?;
    let listener = listen("--listen", &settings.listen).await?;
    let operations_listener = listen("--operations", &settings.operations).await?;
    let (address, operations) = (listener.local_addr()?, operations_listener.local_addr()?);
    let tokens = Tokens::read(operations.ip())?;
    let dashboard = operations::dashboard(&limit, &rules, &tokens)?;
    let backend = match &settings.backend {
        Some(backend) => backend.clone(),
        None => format!("http://{}", demo_backend::start().await?).parse()?,
    };

    print_welcome(&settings, (address, operations), (&backend, &tokens));
    warn_without_backend(&backend).await;

    let operations = operations::routes(&dashboard, &limit, prometheus);
    let proxy = ReverseProxy::new(backend);
    let app = Router::new()
        .fallback(async move |peer, request| proxy.forward(peer, request).await)
        .layer(limit);
    // `client_ip` and `peer_ip` read the peer's address from here.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    // Otherwise the end of a response can wait for the client's acknowledgement of its start.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));

    let (stop, stopping) = watch::channel(());
    let clients = axum::serve(listener, app).with_graceful_shutdown(closed(stopping.clone()));
    let operators =
        axum::serve(operations_listener, operations).with_graceful_shutdown(closed(stopping));
    let servers = tokio::spawn(async { tokio::try_join!(clients, operators) });
    tokio::select! {
        result = tokio::signal::ctrl_c() => result?,
        () = demo_load::run(reachable(address)), if settings.has_load => {}
    }
    println!("stopping: no new requests, those in flight end");
    dashboard.close();
    drop(stop);
    // A response may take longer than anybody waits for.
    match tokio::time::timeout(SHUTDOWN_TIMEOUT, servers).await {
        Ok(ended) => drop(ended??),
        Err(_) => println!("stopped after {SHUTDOWN_TIMEOUT:?}, with requests in flight"),
    }
    Ok(())
}

async fn listen(option: &str, address: &str) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| {
        let reason = match error.kind() {
            ErrorKind::AddrInUse => "another program listens there".to_owned(),
            _ => error.to_string(),
        };
        format!(
            "cannot listen on {address}: {reason}. Use another address: {option} 127.0.0.1:0 takes any free port"
        )
        .into()
    })
}

/// Waits until the sender is dropped.
async fn closed(mut stopping: watch::Receiver<()>) {
    while stopping.changed().await.is_ok() {}
}

/// Returns an address that can be connected to: 0.0.0.0 is all of this machine's.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip().is_unspecified() {
        true => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        false => address,
    }
}

async fn warn_without_backend(backend: &Uri) {
    let host = backend.host().unwrap_or_default();
    let port = backend.port_u16().unwrap_or(80);
    let host = host.trim_matches(['[', ']']);
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

/// Prints what to open, to edit and to try.
fn print_welcome(
    settings: &Settings,
    (address, operations): (SocketAddr, SocketAddr),
    (backend, tokens): (&Uri, &Tokens),
) {
    let (address, operations) = (reachable(address), reachable(operations));
    println!("gateway http://{address} -> {backend}");
    println!("  open  http://{operations}/ops/limits");
    let shown = |token: &str, name| {
        let is_of_example = Tokens::EXAMPLE.contains(&token);
        if is_of_example {
            token.to_owned()
        } else {
            format!("your {name}")
        }
    };
    let write = shown(&tokens.write, "DASHBOARD_WRITE_TOKEN");
    let read = shown(&tokens.read, "DASHBOARD_TOKEN");
    println!("        sign in with {write}; to look only, with {read}");
    if settings.has_shared_rules {
        println!("  edit  the rules on that page: all gateways on this Redis take them");
    } else {
        println!("  edit  {}", settings.rules.display());
        println!(
            "        save it with another limit, such as `free: 2/s`: it counts from the next request on"
        );
        println!(
            "        save it with a fault, such as `free: 2/mn`: this terminal shows where and what to write"
        );
    }
    let path = if settings.backend.is_none() {
        "/items/1"
    } else {
        "/"
    };
    println!("  try   curl -i -H 'x-api-key: demo-free-ada' http://{address}{path}");
    println!(
        "        for i in $(seq 15); do curl -s -o /dev/null -w '%{{http_code}} ' http://{address}{path}; done; echo"
    );
    println!("        curl -s http://{operations}/metrics | grep tollgate_decisions");
    let place = match settings.redis_url {
        Some(_) => "in Redis",
        None => "in this process; with REDIS_URL=redis://127.0.0.1/ in Redis, for all gateways",
    };
    println!("counts are kept {place}");
}

const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
