//! APIs that enforce a limit: nginx, and a fixed window in this program.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio, id},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    http::{StatusCode, header::RETRY_AFTER},
    response::IntoResponse,
};
use tokio::runtime::Runtime;
use tollgate_peers::child::KillOnDrop;

/// How an API counts.
#[derive(Clone, Copy, Debug)]
pub enum Api {
    /// Calls in each second of the wall clock. A 429 has `Retry-After`.
    FixedWindow,
    /// `limit_req` of nginx with `burst=1 nodelay`, which spaces calls to the millisecond. A 429 has no `Retry-After`.
    Nginx,
}

impl Api {
    pub const ALL: [Self; 2] = [Self::Nginx, Self::FixedWindow];

    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
            Self::Nginx => "nginx",
        }
    }
}

/// An API on a free loopback port, stopped when dropped.
pub struct RunningApi {
    _process: KillOnDrop,
    address: SocketAddr,
    folder: Option<PathBuf>,
}

impl RunningApi {
    /// Starts an API that allows this many calls a second.
    ///
    /// # Panics
    ///
    /// Panics if it does not start.
    pub fn start(api: Api, rate: u64) -> Self {
        match api {
            Api::FixedWindow => Self::fixed_window(rate),
            Api::Nginx => Self::nginx(rate),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn fixed_window(rate: u64) -> Self {
        let program = env::current_exe().expect("the program has a path");
        let mut process = Command::new(program)
            .args(["api", "--rate", &rate.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let mut line = String::new();
        let output = process.stdout.take().expect("it is piped");
        BufReader::new(output)
            .read_line(&mut line)
            .expect("it prints its address");
        Self {
            _process: KillOnDrop(process),
            address: line.trim().parse().expect("an address"),
            folder: None,
        }
    }

    fn nginx(rate: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("some port is free");
        let address = listener.local_addr().expect("it is bound");
        drop(listener);
        let folder =
            env::temp_dir().join(format!("tollgate-peers-nginx-{}-{}", id(), address.port()));
        fs::create_dir_all(&folder).expect("a folder can be made");
        fs::write(folder.join("index.html"), "fine").expect("a file can be written");
        let configuration = nginx_configuration(&folder, address, rate);
        fs::write(folder.join("nginx.conf"), configuration).expect("a file can be written");
        let process = Command::new("nginx")
            .arg("-p")
            .arg(&folder)
            .args(["-c", "nginx.conf", "-e", "log"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run nginx: {error}"));
        let api = Self {
            _process: KillOnDrop(process),
            address,
            folder: Some(folder),
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "nginx did not start");
            thread::sleep(Duration::from_millis(10));
        }
        api
    }
}

impl Drop for RunningApi {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            // It only fails if someone has removed the folder.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

fn nginx_configuration(folder: &Path, address: SocketAddr, rate: u64) -> String {
    let place = folder.display();
    let temporary = ["client_body", "fastcgi", "proxy", "scgi", "uwsgi"]
        .map(|name| format!("{name}_temp_path {place}/{name};"))
        .concat();
    // A file is served after the limit has been checked; `return` would come before it.
    format!(
        "daemon off; master_process off; pid {place}/pid; error_log {place}/log crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 100000000; {temporary}
  limit_req_zone $server_port zone=api:1m rate={rate}r/s;
  limit_req_status 429;
  server {{
    listen {address};
    root {place};
    location / {{ limit_req zone=api burst=1 nodelay; }}
  }}
}}
"
    )
}

// === The fixed window ===

/// Serves the API with a fixed window until the process is killed. Prints its address.
pub fn serve(rate: u64) {
    let window = Arc::new(Mutex::new(Window::default()));
    let handler = move || {
        let is_allowed = window.lock().expect("no panic while locked").allows(rate);
        async move {
            if is_allowed {
                StatusCode::OK.into_response()
            } else {
                // The window ends within a second.
                (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")]).into_response()
            }
        }
    };
    let runtime = Runtime::new().expect("a runtime can be made");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("some port is free");
        println!("{}", listener.local_addr().expect("it is bound"));
        io::stdout().flush().expect("it can be printed");
        let app = Router::new().fallback(handler);
        axum::serve(listener, app)
            .await
            .expect("it serves for ever");
    });
}

#[derive(Default)]
struct Window {
    second: u64,
    count: u64,
}

impl Window {
    fn allows(&mut self, rate: u64) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let second = now.expect("the clock is right").as_secs();
        if second != self.second {
            *self = Self { second, count: 0 };
        }
        self.count += 1;
        self.count <= rate
    }
}
