//! Random spellings of ten paths against what real servers serve: axum, Flask, nginx, and Jetty on demand.
//!
//! A rule must not miss a spelling that a server serves. For 100,000 spellings per server, with Jetty:
//!
//! ```sh
//! apt-get install default-jdk-headless libjetty9-java
//! TOLLGATE_SPELLINGS=100000 bash tests/run.sh served -- --nocapture --include-ignored
//! bash tests/run.sh jetty -- --ignored   # also behind the gateway
//! ```

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use axum::{Router, routing::get};
use http::uri::PathAndQuery;
use tollgate::matching::{Match, PathPattern};

use super::steps::STEPS;
use crate::support::{Nginx, Random};

#[test]
fn no_spelling_that_axum_serves_is_missed() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let address = runtime.block_on(async {
        let mut app = Router::new();
        for (name, route, _, _) in ROUTES {
            app = app.route(route, get(move || async move { name }));
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    });
    assert_none_is_missed("axum", address);
}

#[test]
fn no_spelling_that_flask_serves_is_missed() {
    let backend = flask();
    assert_none_is_missed("Flask", backend.address());
}

#[test]
fn no_spelling_that_nginx_serves_is_missed() {
    let nginx = Nginx::start(NGINX);
    assert_none_is_missed("nginx", nginx.address());
}

#[test]
#[ignore = "needs Java and Jetty, which take minutes to install: see the head of the file"]
fn no_spelling_that_jetty_serves_is_missed() {
    let backend = jetty();
    assert_none_is_missed("Jetty", backend.address());
}

pub(crate) fn flask() -> Backend {
    Backend::start(Command::new("python3").arg(file("flask_app.py")))
}

/// Starts Jetty from the jars in `TOLLGATE_JETTY`, else from those of Debian's package.
pub(crate) fn jetty() -> Backend {
    let jars = env::var("TOLLGATE_JETTY").unwrap_or_else(|_| "/usr/share/java".to_owned());
    let jar = |name: &str| format!("{jars}/{name}.jar");
    let names = [
        "jetty9-server",
        "jetty9-servlet",
        "jetty9-http",
        "jetty9-io",
        "jetty9-util",
        "jetty9-security",
        "servlet-api",
    ];
    let mut command = Command::new("java");
    command.arg("-cp").arg(names.map(jar).join(":"));
    command.arg(file("JettyApp.java")).stderr(Stdio::null());
    Backend::start(&mut command)
}

/// Sends random spellings, and compares each that is served with the pattern of its route.
fn assert_none_is_missed(server: &str, address: SocketAddr) {
    let count =
        env::var("TOLLGATE_SPELLINGS").map_or(4_000, |count| count.parse().expect("a number"));
    let found: Vec<Found> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || search(address, number, count / THREADS)))
            .collect();
        let found = threads
            .into_iter()
            .map(|thread| thread.join().expect("it ended"));
        found.collect()
    });
    let served: u64 = found.iter().map(|found| found.served).sum();
    let missed: BTreeMap<&String, &str> = found
        .iter()
        .flat_map(|found| &found.missed)
        .map(|(path, name)| (path, *name))
        .collect();
    println!(
        "{server}: {count} spellings, {served} served, {} missed",
        missed.len()
    );
    if let Ok(folder) = env::var("TOLLGATE_SPELLINGS_SERVED") {
        let lines = found
            .iter()
            .flat_map(|found| &found.paths)
            .map(|(path, name)| format!("{name} {path}\n"));
        fs::write(Path::new(&folder).join(server), lines.collect::<String>())
            .expect("it can be written");
    }
    assert!(
        served > count / 50,
        "the server serves only {served} of {count}"
    );
    assert!(missed.is_empty(), "{server}: {missed:#?}");
}

/// What a thread has found.
#[derive(Default)]
struct Found {
    served: u64,
    missed: Vec<(String, &'static str)>,
    paths: Vec<(String, &'static str)>,
}

fn search(address: SocketAddr, seed: u64, count: u64) -> Found {
    let mut random = Random(seed);
    let mut client = None;
    let mut found = Found::default();
    let patterns = ROUTES.map(|(name, _, pattern, _)| (name, PathPattern::new(pattern)));
    let keeps = env::var("TOLLGATE_SPELLINGS_SERVED").is_ok();
    for _ in 0..count {
        let path = spelling(&mut random);
        // Other paths do not reach a rule.
        let Ok(parsed) = PathAndQuery::try_from(path.as_str()) else {
            continue;
        };
        let Some(body) = ask(&mut client, address, &path) else {
            continue;
        };
        let Some((name, pattern)) = patterns.iter().find(|(name, _)| *name == body) else {
            panic!("{path} is answered with {body:?}");
        };
        found.served += 1;
        if pattern.matches_path(parsed.path()) == Match::Miss {
            found.missed.push((path.clone(), name));
        }
        if keeps {
            found.paths.push((path, name));
        }
    }
    found
}

/// Returns a random spelling of one of the paths: mostly steps of normalization backwards.
fn spelling(random: &mut Random) -> String {
    let mut below = |most: usize| usize::try_from(random.below(most as u64)).expect("small");
    let mut path = ROUTES[below(ROUTES.len())].3.to_owned();
    for _ in 0..1 + below(3) {
        if below(4) == 0 {
            let at = 1 + below(path.len());
            path.insert_str(at.min(path.len()), NOISE[below(NOISE.len())]);
        } else {
            let step = STEPS[below(STEPS.len())];
            path = step(&path, below(1_000), below(1_000)).unwrap_or(path);
        }
    }
    path
}

/// Sends one request, and returns the body of a response with status 200.
fn ask(client: &mut Option<TcpStream>, address: SocketAddr, path: &str) -> Option<String> {
    let stream = client.get_or_insert_with(|| connect(address));
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
    let response = stream
        .write_all(request.as_bytes())
        .ok()
        .and_then(|()| response(stream));
    let Some((head, body)) = response else {
        *client = None;
        return None;
    };
    if head.contains("connection: close") {
        *client = None;
    }
    head.starts_with("http/1.1 200").then_some(body)
}

/// Reads a response: its head in lower case, and its body. `None` if the connection ends before.
fn response(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut read = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        let head = read.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = head {
            let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
            let length = head.split_once("content-length: ")?.1;
            let length: usize = length.lines().next()?.trim().parse().ok()?;
            if let Some(body) = read.get(end + 4..end + 4 + length) {
                return Some((head, String::from_utf8_lossy(body).into_owned()));
            }
        }
        match stream.read(&mut buffer) {
            Ok(length @ 1..) => read.extend(&buffer[..length]),
            _ => return None,
        }
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("a setting");
    stream.set_read_timeout(Some(PATIENCE)).expect("a setting");
    stream
}

/// A server that prints its port, and is killed when it is dropped.
pub(crate) struct Backend {
    child: Child,
    port: u16,
}

impl Backend {
    fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).spawn();
        let mut child =
            child.unwrap_or_else(|error| panic!("{command:?}: {error}; see tests/run.sh"));
        let output = child.stdout.take().expect("it is piped");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("text");
        let port = line.trim().parse();
        let port =
            port.unwrap_or_else(|_| panic!("{command:?} prints {line:?} in place of its port"));
        Self { child, port }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/matching/served")
        .join(name)
}

/// Names, routes of axum, patterns, and paths.
const ROUTES: [(&str, &str, &str, &str); 10] = [
    ("admin", "/admin/secret", "/admin/secret", "/admin/secret"),
    ("login", "/login", "/login", "/login"),
    (
        "users",
        "/users/{id}/files",
        "/users/{id}/files",
        "/users/7/files",
    ),
    (
        "static",
        "/static/{*rest}",
        "/static/{*rest}",
        "/static/a/b",
    ),
    (
        "orders",
        "/api/v1/orders",
        "/api/v1/orders",
        "/api/v1/orders",
    ),
    ("health", "/health", "/health", "/health"),
    ("reports", "/reports/2024", "/reports/2024", "/reports/2024"),
    (
        "account",
        "/account/settings/",
        "/account/settings/",
        "/account/settings/",
    ),
    ("search", "/search", "/search", "/search"),
    (
        "upload",
        "/upload/avatar",
        "/upload/avatar",
        "/upload/avatar",
    ),
];

/// The routes of nginx.
const NGINX: &str = r"
keepalive_requests 10000000;
location = /admin/secret { return 200 admin; }
location ~* ^/login/?$ { return 200 login; }
location ~ ^/users/[^/]+/files$ { return 200 users; }
location /static/ { return 200 static; }
location = /api/v1/orders { return 200 orders; }
location = /health { return 200 health; }
location ~* ^/reports/2024$ { return 200 reports; }
location = /account/settings/ { return 200 account; }
location ~ ^/search/*$ { return 200 search; }
location = /upload/avatar { return 200 upload; }
location / { return 404; }
";

/// What clients might write as well.
const NOISE: [&str; 28] = [
    "%",
    "%0",
    "%zz",
    "%u",
    "%u006",
    "%c0%af",
    "%c0%ae",
    "%e2%80%a8",
    "%ef%bc%8f",
    ";",
    ":",
    "+",
    "%2B",
    "%20",
    " ",
    "%09",
    "%0a",
    "%00",
    ".json",
    "~",
    "*",
    "//x",
    "/x",
    "%2e",
    "..",
    "=",
    "%7F",
    "|",
];
const THREADS: u64 = 8;
const PATIENCE: Duration = Duration::from_secs(30);
