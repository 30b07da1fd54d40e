//! Each example runs, and says what its reader is promised.

use std::{
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use http::{Request, Version};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::support::{Client, Server};

#[test]
fn every_example_is_run_here() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let names = std::fs::read_dir(folder).expect("a readable folder");
    let mut names: Vec<String> = names
        .map(|entry| entry.expect("a readable entry").path())
        .map(|path| path.file_stem().expect("a name").display().to_string())
        .collect();
    // Alerts and charts are tested with the metrics, rule files by tests/in_process/config/rule_files.rs, the gateway by
    // tests/examples/gateway, and a crate of its own by tests/run.sh.
    names.retain(|name| {
        !["gateway", "grafana", "opentelemetry", "prometheus", "rules"].contains(&name.as_str())
    });
    names.sort();
    let tests = include_str!("runs.rs");
    for name in names {
        assert!(tests.contains(&format!("\"{name}\"")), "{name} is not run");
    }
}

#[test]
fn axum_handlers_know_what_is_left() {
    let said = output("axum_handlers");
    assert_says(
        &said,
        &[
            "/api/reports/1  200 reports left: 1, requests left: 3, least: 1",
            "/api/reports/2  200 reports left: 0, requests left: 2, least: 0",
            "  rejected: rate limit reports exceeded, retry in 1800 seconds",
            "/api/reports/3  429 ",
            "/api/status     200 requests left: 0",
            "  rejected: rate limit per-ip exceeded, retry in 15 seconds",
            "/api/status     429 ",
            "/health         200 not limited",
            "TG003: policy per-ip: a request has a header such as X-Forwarded-For",
        ],
    );
    assert_eq!(said.lines().count(), 9);
}

// Twice the load for five seconds: what matters most is served, and the least is shed.
#[test]
fn overload_sheds_exports_before_payments() {
    let said = output("overload");
    let last = said.lines().last().expect("a line");
    let [pay, browse, export]: [u32; 3] = ["critical: ", "normal: ", "sheddable: "].map(|class| {
        let (_, rest) = last.split_once(class).unwrap_or_else(|| panic!("{said}"));
        let digits = rest.split(',').next().expect("a number");
        digits.parse().unwrap_or_else(|_| panic!("{said}"))
    });
    assert!(pay < browse && browse < export && export > 100, "{said}");
}

#[tokio::test]
async fn chat_limits_connections_and_messages() {
    let mut running = Running::start("chat");
    let address: SocketAddr = running
        .line_with("ws://")
        .split('/')
        .next()
        .and_then(|text| text.parse().ok())
        .expect("an address");
    let mut chat = open_chat(address).await;
    // Server-sent events hold a slot, too: this client has no third connection.
    let mut events = TcpStream::connect(address).await.expect("it listens");
    let request = "GET /events HTTP/1.1\r\nhost: test\r\n\r\n";
    events
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    assert!(
        read_until(&mut events, "\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    let reply = Client::connect(address).await.get("/events").await;
    assert_eq!(reply.status, 429);
    for _ in 0..5 {
        chat.write_all(&text_frame("hello"))
            .await
            .expect("it reads");
        read_until(&mut chat, "sent to 1 readers").await;
        read_until(&mut events, "data: hello").await;
    }
    chat.write_all(&text_frame("hello"))
        .await
        .expect("it reads");
    read_until(&mut chat, "rate limit messages exceeded, retry in 1 second").await;
    drop(chat);
    let started = Instant::now();
    while Client::connect(address).await.get("/chat").await.status == 429 {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "its slot is taken"
        );
    }
}

/// Opens a WebSocket.
async fn open_chat(address: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.expect("it listens");
    let handshake = "GET /chat HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket
        .write_all(handshake.as_bytes())
        .await
        .expect("it reads");
    let head = read_until(&mut socket, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    socket
}

/// A text message of a client, masked by zeros.
fn text_frame(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("it is short");
    [&[0x81, 0x80 | length, 0, 0, 0, 0], text.as_bytes()].concat()
}

/// Reads until this text has come.
async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut seen = Vec::new();
    loop {
        let so_far = String::from_utf8_lossy(&seen).into_owned();
        if so_far.contains(text) {
            return so_far;
        }
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read_buf(&mut seen)).await;
        assert!(read.expect(text).expect("it is open") > 0, "{so_far}");
    }
}

#[test]
fn custom_keys_are_counted_apart() {
    let said = output("custom_key");
    let statuses: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.get(21..24))
        .collect();
    assert_eq!(
        statuses,
        [
            "200", "200", "429", "200", "404", "200", "200", "429", "200", "200", "200", "429",
            "200", "200"
        ]
    );
}

// Regression: it read the Host header, which HTTP/2 does not have, so each such request got 404.
#[tokio::test]
async fn custom_keys_are_found_in_requests_of_http_1_and_http_2() {
    let mut running = Running::start_with("custom_key", &["127.0.0.1:0"]);
    let address = running.address();
    let mut client = Client::connect(address).await;
    for status in [200, 200, 429] {
        client
            .send("GET / HTTP/1.1\r\nhost: acme.example.com\r\n\r\n")
            .await;
        assert_eq!(client.receive().await.status, status);
    }
    let stream = TcpStream::connect(address).await.expect("it listens");
    let (mut client, connection) =
        http2::handshake::<_, _, String>(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("it speaks HTTP/2");
    tokio::spawn(connection);
    for (host, status) in [
        ("ACME.example.com", 429),
        ("globex.example.com", 200),
        ("globex.example.com:80", 200),
        ("globex.example.com", 429),
        ("localhost", 404),
    ] {
        let request = Request::get(format!("http://{host}/")).body(String::new());
        let request = request.expect("it is well formed");
        let answer = client.send_request(request).await.expect("it answers");
        assert_eq!(answer.status(), status, "{host}");
        assert_eq!(answer.version(), Version::HTTP_2);
    }
}

#[tokio::test]
async fn dashboard_shows_the_demo_load_to_who_has_a_token() {
    let mut running = Running::start("dashboard");
    let address = running.address();
    let token = running.line_with("and sign in with ");
    let (token, _) = token.split_once(" or ").expect("two tokens");
    let mut client = Client::connect(address).await;
    let mut get = async |path: &str, headers: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{headers}\r\n");
        client.send(&request).await;
        client.receive().await
    };
    let page = get("/ops/limits", "").await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("<title>tollgate</title>"));
    assert_eq!(get("/ops/limits/api/state", "").await.status, 401);
    let known = "authorization: Bearer look-at-the-limits\r\n";
    assert_eq!(get("/ops/limits/api/state", known).await.status, 401);
    let token = format!("authorization: Bearer {token}\r\n");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let state = get("/ops/limits/api/state", &token).await;
        assert_eq!(state.status, 200);
        let state: serde_json::Value = serde_json::from_str(&state.body).expect("JSON");
        let decisions = state["decisions"].as_array().expect("a list").iter();
        let denied: u64 = decisions.filter_map(|row| row["totals"][1].as_u64()).sum();
        if denied > 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{state}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn fallback_keeps_each_outage_choice() {
    let said = output("fallback");
    assert_says(
        &said,
        &[
            "mode=degraded",
            "Allow: 200 (Uncounted)",
            "Local: 200 (Fallback)",
            "Deny: 503 (Uncounted)",
            "Local: 429 (Fallback)",
            " decisions without Redis",
        ],
    );
}

#[test]
fn hyper_server_denies_the_third_request() {
    let said = output("hyper_server");
    assert_eq!(
        said,
        "HTTP/1.1 200 OK; x-ratelimit-remaining: 1\n\
         HTTP/1.1 200 OK; x-ratelimit-remaining: 0\n\
         HTTP/1.1 429 Too Many Requests; x-ratelimit-remaining: 0\n"
    );
}

#[test]
fn jobs_are_refused_in_their_own_words() {
    assert_eq!(
        output("jobs"),
        "acme    15 pages: printing\n\
         acme    10 pages: quota exceeded, retry in 5 s\n\
         globex   3 pages: printing\n\
         both printers are in use\n\
         globex   3 pages: all printers are busy\n\
         the first print is done\n\
         globex  13 pages: paper jam\n\
         globex  17 pages: printing\n"
    );
}

#[tokio::test]
async fn metrics_are_scraped_and_scrapes_are_not_limited() {
    let mut running = Running::start("metrics_prometheus");
    let address = running.address();
    let mut client = Client::connect(address).await;
    for status in [200, 200, 200, 429] {
        assert_eq!(client.get("/").await.status, status);
    }
    let metrics = client.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    let labels = r#"policy="per-ip",tier="none",mode="enforced""#;
    let counted = |outcome, count| {
        format!(
            "tollgate_decisions_total{{{labels},outcome=\"{outcome}\",counted_by=\"in_process\"}} {count}"
        )
    };
    for line in [
        counted("allowed", 3),
        counted("limited", 1),
        r#"tollgate_keys{limiter="web"} 1"#.to_owned(),
    ] {
        assert!(metrics.body.contains(&line), "{line} in {}", metrics.body);
    }
}

#[test]
fn outgoing_calls_are_not_refused() {
    let mut running = Running::start("outgoing");
    running.line_with("serving an API with 20 calls a second at port ");
    for second in 1..=4 {
        let line = running.line_with(&format!(" {second} s: "));
        assert!(!line.contains("refused"), "{line}");
        assert!(line.contains("webhooks "), "{line}");
    }
}

#[tokio::test]
async fn quickstart_serves_ten_requests() {
    let mut running = Running::start("quickstart");
    let address = running.address();
    let mut client = Client::connect(address).await;
    let mut statuses = Vec::new();
    for _ in 0..11 {
        statuses.push(client.get("/").await.status);
    }
    assert_eq!(statuses, [&[200; 10][..], &[429]].concat());
}

#[tokio::test]
async fn login_of_three_processes_lets_nobody_guess_or_lock_the_owner_out() {
    let server = Server::start();
    let processes: Vec<Running> = (0..3)
        .map(|_| {
            let mut command = command("login");
            command.env("REDIS_URL", server.url());
            Running::spawn(command)
        })
        .collect();
    attack_a_login(processes).await;
}

#[tokio::test]
async fn login_of_one_process_lets_nobody_guess_or_lock_the_owner_out() {
    attack_a_login(vec![Running::start("login")]).await;
}

/// Attacks a login from other addresses than the owner's. The attacker knows her name.
async fn attack_a_login(mut processes: Vec<Running>) {
    let addresses: Vec<SocketAddr> = processes.iter_mut().map(Running::address).collect();
    let login = |number: usize, from: [u8; 4], name: &str, password: &str| {
        let address = addresses[number % addresses.len()];
        let body = format!(r#"{{"name":"{name}","password":"{password}"}}"#);
        async move {
            let mut client = Client::over(connect(from, address).await);
            client.send(&login_request(&body)).await;
            client.receive().await.status
        }
    };
    let (owner, first, second) = ([127, 0, 0, 1], [127, 0, 1, 1], [127, 0, 2, 2]);
    // 50 guesses at once, in all spellings of the name: 5 reach the service.
    let names = ["ada", "ADA", " Ada "];
    let guesses = (0..50).map(|number| login(number, first, names[number % 3], "1"));
    let statuses = join_all(guesses).await;
    let reached = statuses.iter().filter(|status| **status == 401).count();
    assert!((1..=5).contains(&reached), "{statuses:?}");
    assert!(
        statuses.iter().all(|status| matches!(status, 401 | 429)),
        "{statuses:?}"
    );
    // The owner, at another address, logs in.
    assert_eq!(login(0, owner, "ada", "analytical").await, 200);

    // Guesses whose client hangs up at once count as well.
    for number in 0..10 {
        let body = r#"{"name":"ada","password":"1"}"#;
        let mut client = connect(second, addresses[number % addresses.len()]).await;
        client
            .write_all(login_request(body).as_bytes())
            .await
            .expect("it is sent");
        drop(client);
    }
    // Until one of them was counted.
    let mut status = 401;
    for number in 0..1_000 {
        status = login(number, second, "ada", "1").await;
        if status == 429 {
            break;
        }
    }
    assert_eq!(status, 429);

    // An own account between guesses at others does not clear the count of the address.
    let third = [127, 0, 3, 3];
    let mut reached = 0;
    for number in 0..40 {
        reached += usize::from(login(number, third, &format!("victim{number}"), "1").await == 401);
        login(number + 1, third, "mallory", "own").await;
    }
    assert!((1..=20).contains(&reached), "{reached}");
    assert_eq!(login(1, owner, "ada", "analytical").await, 200);
}

/// Connects from an address of this machine.
async fn connect(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind(SocketAddr::from((from, 0)))
        .expect("a free port");
    socket.connect(to).await.expect("it listens")
}

fn login_request(body: &str) -> String {
    let length = body.len();
    format!(
        "POST /login HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[test]
fn tiers_are_looked_up_once_and_outlive_their_database() {
    assert_says(
        &output("tiers"),
        &[
            "  free-1  /users      200 OK  limit 60    left 59",
            "  pro-1   /users      200 OK  limit 1000  left 999",
            "  pro-1   /reports/7  200 OK  limit 1000  left 979",
            "  pro-1   /health     200 OK  limit none  left -",
            "2 lookups",
            "  pro-2   /users      200 OK  limit 60    left 59",
        ],
    );
}

#[test]
fn several_policies_are_charged_together() {
    let said = output("several_policies");
    assert_says(
        &said,
        &[
            "ada /search          200              0, 2, 97",
            "ada /search          429 by user      0, 2, 97",
            "bob /search          429 by route     0, 0, 95",
            "bob /items/7         200              0, 0, 94",
        ],
    );
}

#[test]
fn tonic_client_sees_that_its_quota_is_exhausted() {
    let said = output("tonic_server");
    let (status, wait) = said.split_once("\nretry in ").expect("a wait");
    assert_eq!(
        status,
        "hello ada\n\
         hello bob\n\
         ResourceExhausted: rate limit per-ip exceeded, retry in 30 seconds"
    );
    let wait: f64 = wait.trim_end_matches("s\n").parse().expect("seconds");
    assert!((29.0..=30.0).contains(&wait), "{wait}");
}

#[test]
fn tower_stack_charges_what_it_lets_through() {
    let said = output("tower_stack");
    assert_says(
        &said,
        &[
            "  /quick   200 OK, left: 4",
            "  /slow    504 Gateway Timeout, left: ",
            "  /slow    503 Service Unavailable, left: no header",
            "  /quick   200 OK, left: 0",
            "  /quick   429 Too Many Requests, left: 0",
        ],
    );
}

// === Helpers ===

/// What an example prints until its end.
#[track_caller]
fn output(name: &str) -> String {
    let output = command(name).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    String::from_utf8(output.stdout).expect("it prints text")
}

/// Each piece is there, after the one before.
#[track_caller]
fn assert_says(said: &str, pieces: &[&str]) {
    let mut rest = said;
    for piece in pieces {
        let at = rest.find(piece);
        let at = at.unwrap_or_else(|| panic!("{piece:?} is not in its place in\n{said}"));
        rest = &rest[at + 1..];
    }
}

pub(crate) fn command(name: &str) -> Command {
    let mut command = Command::new(folder().join(name));
    command.env_remove("REDIS_URL").env_remove("RUST_LOG");
    command
}

/// Where the examples lie, once they are built: they need not be, or may be old, when only this suite was asked for.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "--all-features", "--examples"])
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let built = build.output().expect("cargo runs");
        let errors = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "{errors}");
        let suite = env::current_exe().expect("it has a path");
        let target = suite.parent().and_then(|deps| deps.parent());
        target.expect("it lies in target/*/deps").join("examples")
    })
}

/// An example that serves until it is killed.
struct Running {
    child: Child,
    /// Kept open: it prints more.
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    fn start_with(name: &str, arguments: &[&str]) -> Self {
        let mut command = command(name);
        command.args(arguments);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let child = command.env("PORT", "0").stdout(Stdio::piped()).spawn();
        let mut child = child.expect("it runs");
        let output = child.stdout.take().expect("it is piped");
        Self {
            child,
            output: BufReader::new(output),
        }
    }

    /// The rest of the next line that begins like this.
    fn line_with(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("text");
            assert!(read > 0, "it ended before {start:?}");
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim_end().to_owned();
            }
        }
    }

    /// The address in the first line that it prints.
    fn address(&mut self) -> SocketAddr {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        read.expect("it prints text");
        let (_, rest) = line.split_once("http://").expect("it tells its address");
        let address = rest.split(',').next().and_then(|text| text.parse().ok());
        address.expect("it is an address")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
