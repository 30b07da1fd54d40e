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
//! It leaves out what has nothing to do with limits: TLS, upgrades such as WebSocket, and several backends.
//!
//! ```text
//! client ────> server ───────> rate limits ────> reverse proxy ────> backend
//!              server.rs       limits.rs         proxy.rs, hop.rs    yours, or demo_backend.rs
//!              unread.rs       rules.yaml        upload.rs
//!              exchange.rs     customers.rs      watched.rs
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
mod exchange;
mod hop;
mod limits;
mod operations;
mod proxy;
mod server;
mod settings;
mod unread;
mod upload;
mod watched;
mod welcome;

use std::{
    env,
    error::Error,
    io::{self, ErrorKind, IsTerminal},
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use axum::{Router, middleware::from_fn};
use tokio::{net::TcpListener, sync::watch, task::JoinError};

use self::{
    proxy::ReverseProxy,
    settings::{HELP, Settings, Tokens},
    welcome::Addresses,
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
    let for_clients = listen("--listen", &settings.listen).await?;
    let for_operators = listen("--operations", &settings.operations).await?;
    let addresses = Addresses {
        backend: match &settings.backend {
            Some(backend) => backend.clone(),
            None => demo_backend::start().await?,
        },
        gateway: reachable(for_clients.local_addr()?),
        operations: reachable(for_operators.local_addr()?),
    };
    let operations_ip = for_operators.local_addr()?.ip();
    let tokens = Tokens::read(operations_ip)?;
    let dashboard = operations::dashboard(&limit, &rules, &tokens)?;
    let operations = operations::routes(&dashboard, &limit, prometheus);
    let operations = operations::with_hosts(operations, &settings.operations_hosts, operations_ip)?;

    welcome::print(&settings, &addresses, &tokens);
    welcome::warn_without_backend(&addresses.backend).await;
    let proxy = ReverseProxy::new(addresses.backend, &settings);
    let app = Router::new()
        .fallback(async move |peer, request| proxy.forward(peer, request).await)
        .layer(limit)
        .layer(from_fn(exchange::keep));

    let (stop, stopping) = watch::channel(());
    let serve = |listener, app| {
        let serve = server::serve(listener, app, settings.client_timeout, stopping.clone());
        tokio::spawn(serve)
    };
    let servers = [serve(for_clients, app), serve(for_operators, operations)];
    tokio::select! {
        result = tokio::signal::ctrl_c() => result?,
        () = demo_load::run(addresses.gateway), if settings.has_load => {}
    }
    println!("stopping: no new requests, those in flight end");
    dashboard.close();
    drop(stop);
    // A response may take longer than anybody waits for.
    let ended = async {
        for server in servers {
            server.await?;
        }
        Ok::<_, JoinError>(())
    };
    match tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await {
        Ok(ended) => ended?,
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

/// Returns an address that can be connected to: 0.0.0.0 is all of this machine's.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip().is_unspecified() {
        true => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        false => address,
    }
}

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
