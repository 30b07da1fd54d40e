//! Starts server processes, and waits until they are ready.

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use super::in_process::folder::fresh_directory;

/// The settings to start one server, and the directory that it may write to.
pub(super) struct Launch {
    binary: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
    /// The contents of the configuration file of a sentinel, which rewrites it while it runs.
    sentinel: Option<String>,
}

impl Launch {
    pub(super) fn new(binary: &Path, extra: &[&str]) -> Self {
        let mut arguments = vec!["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"];
        if major_version(binary) >= 7 {
            arguments.extend(["--enable-debug-command", "yes"]);
        }
        arguments.extend(extra);
        Self {
            binary: binary.to_owned(),
            arguments: arguments.into_iter().map(str::to_owned).collect(),
            directory: fresh_directory(),
            sentinel: None,
        }
    }

    /// A sentinel with this configuration.
    pub(super) fn sentinel(binary: &Path, configuration: &str) -> Self {
        Self {
            binary: binary.to_owned(),
            arguments: Vec::new(),
            directory: fresh_directory(),
            sentinel: Some(configuration.to_owned()),
        }
    }

    /// Starts the server on a free port, and on another one if some other process has taken that.
    pub(super) fn run_anywhere(&self) -> (u16, Child) {
        let deadline = Instant::now() + START_TIMEOUT;
        let mut failure = String::new();
        for _ in 0..PORT_ATTEMPTS {
            let port = free_port();
            match self.run(port, deadline) {
                Ok(child) => return (port, child),
                Err(reason) => failure = reason,
            }
        }
        panic!("{}", self.report(&failure));
    }

    /// Starts the server on the port that it had before.
    pub(super) fn run_again(&self, port: u16) -> Child {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match self.run(port, deadline) {
                Ok(child) => return child,
                Err(reason) if Instant::now() > deadline => panic!("{}", self.report(&reason)),
                Err(_) => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// Starts the server and waits until it replies. Returns the reason if it does not.
    fn run(&self, port: u16, deadline: Instant) -> Result<Child, String> {
        let mut child = self.spawn(port);
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait().expect("the child is ours to wait for") {
                return Err(format!("it ended with {status}"));
            }
            if let Ok(true) = answers(loopback(port), child.id()) {
                return Ok(child);
            }
            thread::sleep(POLL_INTERVAL);
        }
        end(&mut child);
        Err(format!("it was not ready after {START_TIMEOUT:?}"))
    }

    fn spawn(&self, port: u16) -> Child {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .expect("the server's directory is writable");
        let mut command = Command::new(&self.binary);
        match &self.sentinel {
            Some(configuration) => {
                let path = self.directory.join("sentinel.conf");
                let directory = self.directory.display();
                let place = format!("port {port}\ndir {directory}\nbind 127.0.0.1\n");
                fs::write(&path, place + configuration).expect("the directory is writable");
                command.arg(path).arg("--sentinel");
            }
            None => {
                command
                    .args(["--port", &port.to_string(), "--dir"])
                    .arg(&self.directory)
                    .args(&self.arguments);
            }
        }
        command
            .stdin(process::Stdio::null())
            // its own `--logfile` would not have errors about the arguments
            .stdout(log.try_clone().expect("a file handle can be doubled"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", self.binary.display()))
    }

    fn report(&self, reason: &str) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
        format!(
            "{} {:?} did not start: {reason}; its log ends with:\n{}",
            self.binary.display(),
            self.arguments,
            tail.join("\n"),
        )
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    fn log(&self) -> PathBuf {
        self.directory.join("server.log")
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        // a directory that stays does not fail a test
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns whether the process `pid` replies there, and not another one that took the port first.
fn answers(address: SocketAddr, pid: u32) -> io::Result<bool> {
    let stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    let mut stream = BufReader::new(stream);
    stream.get_mut().write_all(b"PING\r\nINFO server\r\n")?;
    let mut reply = String::new();
    stream.read_line(&mut reply)?;
    if reply.starts_with("-NOAUTH") {
        return Ok(true);
    }
    let pid = format!("process_id:{pid}");
    let mut lines = stream.lines().map_while(Result::ok);
    Ok(reply.starts_with("+PONG") && lines.any(|line| line == pid))
}

/// Returns a port that no process listens on now, nor on the port that a node of a cluster takes besides.
///
/// Both lie below the range for outgoing connections: from there a reconnecting client could take the port of a killed server,
/// or even connect to itself, and the connections of all tests leave few ports to bind.
pub(super) fn free_port() -> u16 {
    let random = RandomState::new().build_hasher().finish();
    let start = random % u64::from(PORTS.end - PORTS.start);
    let start = PORTS.start + u16::try_from(start).expect("a remainder of a u16");
    (start..PORTS.end)
        .chain(PORTS.start..start)
        .find(|&port| {
            let both = [port, port + TO_BUS_PORT].map(|port| TcpListener::bind(loopback(port)));
            both.iter().all(Result::is_ok)
        })
        .expect("some port is free")
}

pub(super) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Reads `7` from `Redis server v=7.0.15 sha=...`.
fn major_version(binary: &Path) -> u32 {
    let output = Command::new(binary)
        .arg("--version")
        .output()
        .unwrap_or_else(|error| panic!("cannot run {}: {error}", binary.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_once("v=")
        .and_then(|(_, version)| version.split('.').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{} tells no version: {text}", binary.display()))
}

/// Ends these processes, and removes these directories, once this process has ended.
///
/// For servers that all tests of a process share: statics are not dropped, so a shell does it.
pub(super) fn end_with_this_process(ids: &[u32], directories: &[&Path]) {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    let directories: Vec<String> = directories
        .iter()
        .map(|directory| directory.display().to_string())
        .collect();
    let script = format!(
        "while kill -0 {}; do sleep 1; done; kill -9 {}; rm -rf {}",
        process::id(),
        ids.join(" "),
        directories.join(" "),
    );
    let shell = Command::new("sh")
        .args(["-c", &script])
        .stdin(process::Stdio::null())
        .stdout(process::Stdio::null())
        .stderr(process::Stdio::null())
        .spawn();
    drop(shell.expect("sh runs"));
}

/// Kills a child that may have ended already, and waits for its end.
pub(super) fn end(child: &mut Child) {
    // both fail only for a child that was waited for
    let _ = child.kill();
    let _ = child.wait();
}

const PORTS: Range<u16> = 10_000..32_768 - TO_BUS_PORT;
/// From the port of a node of a cluster to that on which it hears from the others.
const TO_BUS_PORT: u16 = 10_000;
const PORT_ATTEMPTS: usize = 5;
const START_TIMEOUT: Duration = Duration::from_secs(10);
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const LOG_TAIL_LINES: usize = 20;
