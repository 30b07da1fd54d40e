//! The clients that are compared, each a process.

use std::{
    env,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    str::FromStr,
};

use tollgate_peers::arguments::Arguments;

/// A limiter of outgoing calls, with an HTTP client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Bottleneck with Node's own HTTP client. Several processes share their limit through Redis.
    Bottleneck,
    /// `until_ready` of governor, with hyper. Each process has its part of the rate.
    Governor,
    /// throttle-net, with hyper. Each process has its part of the rate, and pauses for `Retry-After`.
    ThrottleNet,
    /// `acquire` of tollgate, with hyper. Several processes share their limit through Redis.
    Tollgate,
}

/// Settings of a client's processes.
pub struct Calls {
    pub address: SocketAddr,
    /// Calls a second of all processes together.
    pub rate: f64,
    pub processes: u64,
    pub tasks: u64,
    /// The second of the wall clock from which calls are counted.
    pub begins_at: u64,
    pub seconds: u64,
    /// URL of the server through which processes share a limit.
    pub redis: Option<String>,
}

impl Client {
    pub const ALL: [Self; 4] = [
        Self::Tollgate,
        Self::Governor,
        Self::ThrottleNet,
        Self::Bottleneck,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bottleneck => "bottleneck",
            Self::Governor => "governor",
            Self::ThrottleNet => "throttle-net",
            Self::Tollgate => "tollgate",
        }
    }

    pub fn needs_node(self) -> bool {
        self == Self::Bottleneck
    }

    pub fn shares_by_redis(self) -> bool {
        matches!(self, Self::Bottleneck | Self::Tollgate)
    }

    /// Starts the process of this number, which calls until its time is over, and then prints a report.
    ///
    /// # Panics
    ///
    /// Panics if it does not start.
    pub fn start(self, (calls, number): (&Calls, u64), arguments: &Arguments) -> Child {
        let mut command = if self.needs_node() {
            let packages: String = arguments.value("--bottleneck", String::new());
            assert!(!packages.is_empty(), "bottleneck needs --bottleneck DIR");
            let mut command = Command::new("node");
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("bottleneck.cjs");
            command.arg(script).arg(packages);
            command
        } else {
            let mut command = Command::new(env::current_exe().expect("the program has a path"));
            command.args(["call", "--client", self.name()]);
            command
        };
        command
            .args(["--address", &calls.address.to_string()])
            .args(["--rate", &calls.rate.to_string()])
            .args(["--processes", &calls.processes.to_string()])
            .args(["--number", &number.to_string()])
            .args(["--tasks", &calls.tasks.to_string()])
            .args(["--begins-at", &calls.begins_at.to_string()])
            .args(["--seconds", &calls.seconds.to_string()]);
        if let Some(url) = &calls.redis {
            command.args(["--redis", url]);
        }
        let started = command.stdout(Stdio::piped()).spawn();
        started.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"))
    }
}

impl FromStr for Client {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|client| client.name() == name);
        found.ok_or_else(|| format!("one of {:?}", Self::ALL.map(Self::name)))
    }
}
