//! The gateway as a process, with its two addresses and what it printed.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::PATIENCE;
use crate::{
    examples::runs::command,
    support::{Client, Reply},
};

/// A gateway on two free ports, which is killed when it is dropped.
pub(super) struct Gateway {
    child: Child,
    welcome: String,
    log: Arc<Mutex<String>>,
}

impl Gateway {
    pub(super) fn start(options: &[&str]) -> Self {
        Self::run(gateway(&[&ON_FREE_PORTS, options].concat()))
    }

    /// Starts a gateway that takes the rules and keeps the counts in this Redis.
    pub(super) fn start_shared(options: &[&str], redis_url: &str) -> Self {
        let mut command = gateway(&[&ON_FREE_PORTS, options].concat());
        command.arg("--shared-rules").env("REDIS_URL", redis_url);
        Self::run(command)
    }

    fn run(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let errors = child.stderr.take().expect("it is piped");
        let log = Arc::new(Mutex::new(String::new()));
        let collected = Arc::clone(&log);
        thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                let mut log = collected.lock().unwrap_or_else(PoisonError::into_inner);
                *log += &(line + "\n");
            }
        });
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut welcome = String::new();
        while !welcome.contains("counts are kept") {
            let read = output.read_line(&mut welcome).expect("it prints text");
            assert!(read > 0, "it ended: {welcome}{}", lock(&log));
        }
        // It prints more, and would wait for a reader.
        thread::spawn(move || output.read_to_end(&mut Vec::new()));
        Self {
            child,
            welcome,
            log,
        }
    }

    pub(super) fn welcome(&self) -> &str {
        &self.welcome
    }

    /// Returns what it has logged so far.
    pub(super) fn log(&self) -> String {
        lock(&self.log).clone()
    }

    /// Waits until it has logged this.
    pub(super) async fn until_logged(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "{text} is not in {}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address_after("gateway http://")
    }

    pub(super) async fn client(&self) -> Client {
        Client::connect(self.address()).await
    }

    /// Connects to the address for operators, with the token to change something.
    pub(super) async fn operator(&self) -> Operator {
        let host = self.address_after("open  http://");
        let [_, token] = self.tokens();
        Operator {
            client: Client::connect(host).await,
            host: host.to_string(),
            token: token.to_owned(),
        }
    }

    /// Returns the URL of the dashboard.
    pub(super) fn dashboard(&self) -> String {
        format!("http://{}/ops/limits", self.address_after("open  http://"))
    }

    /// Returns the tokens that it printed: to look, and to change limits too.
    pub(super) fn tokens(&self) -> [&str; 2] {
        let (_, rest) = self.welcome.split_once("sign in with ").expect("printed");
        let (line, _) = rest.split_once('\n').expect("a line");
        let (write, read) = line.split_once("; to look only, with ").expect("two");
        [read, write]
    }

    fn address_after(&self, text: &str) -> SocketAddr {
        let (_, rest) = self.welcome.split_once(text).expect("it is printed");
        let end = rest.find([' ', '/', '\n']).expect("more follows");
        rest[..end].parse().expect("an address")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended on its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns what a gateway that does not start prints.
pub(super) fn failure(options: &[&str]) -> String {
    let output = gateway(options).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{options:?}");
    assert_eq!(output.stdout, b"", "{options:?}");
    String::from_utf8(output.stderr).expect("text")
}

fn gateway(options: &[&str]) -> Command {
    let mut command = command("gateway");
    command
        .args(options)
        .env_remove("DASHBOARD_TOKEN")
        .env_remove("DASHBOARD_WRITE_TOKEN");
    command
}

/// A later option replaces an earlier one.
const ON_FREE_PORTS: [&str; 4] = ["--listen", "127.0.0.1:0", "--operations", "127.0.0.1:0"];

fn lock(log: &Mutex<String>) -> std::sync::MutexGuard<'_, String> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

// === Operator ===

/// A connection of an operator.
pub(super) struct Operator {
    client: Client,
    pub(super) host: String,
    token: String,
}

impl Operator {
    /// Sends a request without a token.
    pub(super) async fn get(&mut self, path: &str) -> Reply {
        self.send("GET", path, "", "").await
    }

    /// Sends a request to the API of the dashboard.
    pub(super) async fn api(&mut self, method: &str, path: &str, body: &str) -> Reply {
        let headers = format!(
            "authorization: Bearer {}\r\ncontent-type: application/json\r\nx-tollgate-dashboard: 1\r\n",
            self.token
        );
        self.send(method, &format!("/ops/limits/api/{path}"), &headers, body)
            .await
    }

    pub(super) async fn state(&mut self) -> Value {
        let reply = self.api("GET", "state", "").await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        serde_json::from_str(&reply.body).expect("JSON")
    }

    /// Sends a request with these lines of headers.
    pub(super) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Reply {
        let (host, length) = (&self.host, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        self.client.send(&request).await;
        self.client.receive().await
    }
}
