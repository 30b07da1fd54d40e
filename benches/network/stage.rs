//! The server, the proxy before it, and rounds of measurements over both.

use std::{fmt, str::FromStr, time::Duration};

use tokio::runtime::{Builder, Runtime};

use crate::{
    load::{self, Keys},
    support::{Arguments, Mode, Proxy, Server, cpu},
    tally::{Measurement, Tally},
    way::{Kind, Way},
};

/// How far the server is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Distance {
    /// Without the proxy.
    Direct,
    /// Through the proxy, which adds this round trip.
    RoundTrip(Duration),
}

impl Distance {
    pub(crate) fn millis(millis: f64) -> Self {
        Self::RoundTrip(Duration::from_secs_f64(millis / 1e3))
    }
}

impl FromStr for Distance {
    type Err = std::num::ParseFloatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "direct" => Ok(Self::Direct),
            millis => Ok(Self::millis(millis.parse()?)),
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::RoundTrip(added) => write!(f, "{} ms", added.as_secs_f64() * 1e3),
        }
    }
}

/// What one round does.
#[derive(Clone, Copy)]
pub(crate) enum Load {
    /// So many callers, who pause for this long after an answer that was not Redis's.
    Callers(usize, Duration),
    /// So many arrivals a second.
    Arrivals(f64),
}

/// Where all measurements of a run are made.
pub(crate) struct Stage {
    pub(crate) server: Server,
    proxy: Proxy,
    server_pid: u32,
    keys: Keys,
    workers: usize,
    warm_up: Duration,
    pub(crate) span: Duration,
    pub(crate) rounds: usize,
}

impl Stage {
    pub(crate) const ARGUMENTS: [&str; 6] = [
        "--no-pin",
        "--rounds",
        "--seconds",
        "--ways",
        "--warm-up",
        "--workers",
    ];

    /// Starts the server and the proxy, and puts them on another core than the client if there are two.
    pub(crate) fn set(arguments: &Arguments, seconds: f64) -> Self {
        let workers = arguments.value("--workers", 0);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let is_pinned = cores > 1 && workers == 0 && !arguments.has("--no-pin");
        let pin = |core| {
            if is_pinned {
                cpu::pin(core);
            }
        };
        // threads and processes stay where the thread that starts them is
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

    /// Rounds of each way in turn, each beginning with another one, on new connections each time. Rounds by way.
    pub(crate) fn interleave(
        &self,
        ways: &[Kind],
        distance: Distance,
        load: Load,
    ) -> Vec<Vec<Measurement>> {
        let mut measured: Vec<Vec<Measurement>> = ways.iter().map(|_| Vec::new()).collect();
        for round in 0..self.rounds {
            for turn in 0..ways.len() {
                let index = (round + turn) % ways.len();
                measured[index].push(self.round(ways[index], distance, load));
            }
        }
        measured
    }

    /// One round, on a runtime of its own: nothing of it is left for the next one.
    pub(crate) fn round(&self, kind: Kind, distance: Distance, load: Load) -> Measurement {
        let url = match distance {
            Distance::Direct => self.server.url(),
            Distance::RoundTrip(added) => {
                self.proxy.set(Mode::RoundTrip(added));
                self.proxy.url()
            }
        };
        let runtime = runtime(self.workers);
        let measured = runtime.block_on(async {
            let way = Way::connect(kind, &url).await;
            let tally = Tally::default();
            match load {
                Load::Callers(callers, pause) => {
                    load::start_callers(&way, &self.keys, &tally, callers, pause);
                }
                Load::Arrivals(rate) => load::start_arrivals(&way, &self.keys, &tally, rate),
            }
            tally
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
