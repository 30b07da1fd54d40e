//! The server, the proxy in front of it, and the rounds.

use std::{fmt, str::FromStr, time::Duration};

use tokio::runtime::{Builder, Runtime};

use crate::{
    load::{self, Keys},
    recorder::{Measurement, Recorder},
    subject::{Decider, Subject},
    support::{Arguments, Mode, Proxy, Server, cpu},
};

/// How the client reaches the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Link {
    /// Without the proxy.
    Direct,
    /// Through the proxy, which adds this round trip.
    Proxied(Duration),
}

impl Link {
    pub(crate) fn millis(millis: f64) -> Self {
        Self::Proxied(Duration::from_secs_f64(millis / 1e3))
    }
}

impl FromStr for Link {
    type Err = std::num::ParseFloatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "direct" => Ok(Self::Direct),
            millis => Ok(Self::millis(millis.parse()?)),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::Proxied(added) => write!(f, "{} ms", added.as_secs_f64() * 1e3),
        }
    }
}

/// The load of one round.
#[derive(Clone, Copy)]
pub(crate) enum Load {
    /// The number of callers, and their pause after a decision that Redis did not make.
    Callers(usize, Duration),
    /// The number of arrivals per second.
    Arrivals(f64),
}

/// Runs rounds against one server.
pub(crate) struct Harness {
    pub(crate) server: Server,
    proxy: Proxy,
    server_pid: u32,
    keys: Keys,
    workers: usize,
    warm_up: Duration,
    pub(crate) span: Duration,
    pub(crate) rounds: usize,
}

impl Harness {
    pub(crate) const ARGUMENTS: [&str; 6] = [
        "--no-pin",
        "--rounds",
        "--seconds",
        "--subjects",
        "--warm-up",
        "--workers",
    ];

    /// Starts the server and the proxy, on another core than the client if there are two.
    pub(crate) fn start(arguments: &Arguments, seconds: f64) -> Self {
        let workers = arguments.value("--workers", 0);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let is_pinned = cores > 1 && workers == 0 && !arguments.has("--no-pin");
        let pin = |core| {
            if is_pinned {
                cpu::pin(core);
            }
        };
        // new threads and processes inherit the core of the thread that starts them
        pin(1);
        let server = Server::start();
        pin(cores.min(3) - 1);
        let proxy = runtime(0).block_on(Proxy::start(server.address()));
        pin(0);
        let place = match (is_pinned, cores) {
            (true, 2) => "client on core 0, server and proxy on core 1".to_owned(),
            (true, _) => "client on core 0, server on core 1, proxy on core 2".to_owned(),
            (false, cores) => format!("{cores} cores, nothing pinned"),
        };
        let client = match workers {
            0 => "one thread".to_owned(),
            workers => format!("{workers} worker threads"),
        };
        let version = server.info("server").remove("redis_version");
        println!(
            "Redis {}; client: {client}; {place}",
            version.unwrap_or_default()
        );
        let pid = server.info("server")["process_id"].parse();
        Self {
            server,
            proxy,
            server_pid: pid.expect("a number"),
            keys: Keys::new(),
            workers,
            warm_up: arguments.seconds("--warm-up", 0.3),
            span: arguments.seconds("--seconds", seconds),
            rounds: arguments.value("--rounds", 3),
        }
    }

    /// Runs rounds of the subjects in turn, each round starting with the next subject. Returns the rounds by subject.
    pub(crate) fn interleave(
        &self,
        subjects: &[Subject],
        link: Link,
        load: Load,
    ) -> Vec<Vec<Measurement>> {
        let mut measured: Vec<Vec<Measurement>> = subjects.iter().map(|_| Vec::new()).collect();
        for round in 0..self.rounds {
            for turn in 0..subjects.len() {
                let index = (round + turn) % subjects.len();
                measured[index].push(self.round(subjects[index], link, load));
            }
        }
        measured
    }

    /// Runs one round on a new runtime with new connections.
    pub(crate) fn round(&self, subject: Subject, link: Link, load: Load) -> Measurement {
        let url = match link {
            Link::Direct => self.server.url(),
            Link::Proxied(added) => {
                self.proxy.set(Mode::RoundTrip(added));
                self.proxy.url()
            }
        };
        let runtime = runtime(self.workers);
        let measured = runtime.block_on(async {
            let decider = Decider::connect(subject, &url).await;
            let recorder = Recorder::default();
            match load {
                Load::Callers(callers, pause) => {
                    load::start_callers(&decider, &self.keys, &recorder, callers, pause);
                }
                Load::Arrivals(rate) => load::start_arrivals(&decider, &self.keys, &recorder, rate),
            }
            recorder
                .measure(self.server_pid, self.warm_up, self.span)
                .await
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        measured
    }
}

fn runtime(workers: usize) -> Runtime {
    let mut builder = match workers {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if workers > 0 {
        builder.worker_threads(workers);
    }
    builder.enable_all().build().expect("a runtime")
}
