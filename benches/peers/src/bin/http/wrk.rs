//! wrk: a load generator for HTTP, from the Debian package of that name.

use std::process::Command;

/// The load that one run puts on a server.
#[derive(Clone, Copy)]
pub struct Load {
    pub connections: usize,
    /// Whole seconds: wrk takes no fractions.
    pub seconds: u64,
}

/// The results of one run.
pub struct Report {
    pub requests: u64,
    pub per_second: f64,
    pub p50_micros: f64,
    pub p99_micros: f64,
    /// Responses with a status of 400 or more.
    pub non_2xx: u64,
    /// Failed connects, reads and writes, and timeouts.
    pub socket_errors: u64,
}

/// Checks that wrk is on `PATH`.
///
/// # Panics
///
/// Panics if it is not, with the command that installs it.
pub fn check_installed() {
    let version = Command::new("wrk").arg("--version").output();
    assert!(version.is_ok(), "wrk is missing; run: apt-get install wrk");
}

/// Runs wrk with one thread over keep-alive connections.
///
/// # Panics
///
/// Panics if wrk fails or its output has an unknown form.
pub fn run(load: Load, address: &str) -> Report {
    let mut command = Command::new("wrk");
    command
        .arg("--threads=1")
        .arg(format!("--connections={}", load.connections))
        .arg(format!("--duration={}s", load.seconds))
        .arg("--latency")
        .arg(format!("http://{address}/"));
    let output = command.output().expect("wrk is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}: {text}");
    parse(&text).unwrap_or_else(|| panic!("{command:?} printed {text:?}"))
}

/// Parses the lines that matter:
///
/// ```text
///   Latency Distribution
///      50%  297.00us
///      99%    1.02ms
///   417349 requests in 2.00s, 51.74MB read
///   Socket errors: connect 0, read 0, write 0, timeout 0      (only if there are any)
///   Non-2xx or 3xx responses: 417349                          (only if there are any)
/// Requests/sec: 207453.12
/// ```
fn parse(text: &str) -> Option<Report> {
    let after = |prefix: &str| {
        let mut lines = text.lines().map(str::trim);
        lines.find_map(|line| line.strip_prefix(prefix).map(str::trim))
    };
    let mut lines = text.lines();
    let requests = lines
        .find_map(|line| line.trim().split_once(" requests in "))?
        .0;
    let errors = after("Socket errors:").unwrap_or_default();
    let errors = errors
        .split([' ', ','])
        .filter_map(|word| word.parse::<u64>().ok());
    Some(Report {
        requests: requests.parse().ok()?,
        per_second: after("Requests/sec:")?.parse().ok()?,
        p50_micros: micros(after("50%")?)?,
        p99_micros: micros(after("99%")?)?,
        non_2xx: after("Non-2xx or 3xx responses:").map_or(Some(0), |count| count.parse().ok())?,
        socket_errors: errors.sum(),
    })
}

/// Parses a time such as `297.00us`, `1.02ms` or `1.50s`.
fn micros(time: &str) -> Option<f64> {
    let number = time.trim_end_matches(char::is_alphabetic);
    let factor = match &time[number.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}
