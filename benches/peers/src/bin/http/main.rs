//! Requests a second that an axum server keeps behind a rate limit layer, under wrk.
//!
//! `cargo run --release --ignore-rust-version --bin http -- [--rounds 7] [--seconds 2] [--connections 64] [--only Redis] [--before PATH] [--cores 0,1] [--workers 1]`
//!
//! Each contender runs in a separate process, pinned to the first core. wrk and Redis share the second core. With several
//! workers nothing is pinned.
//! `http serve NAME [--port 0] [--core 0] [--redis URL] [--workers 1]` starts one server by hand.

mod serve;
mod wrk;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::Stdio,
};

use tollgate_peers::{
    arguments::Arguments,
    builds::{Entrant, add_ratio_to_before, entrants},
    child::KillOnDrop,
    cpu,
    rounds::{Contender, interleave},
    server::Server,
    table::{Summary, Table},
};

use self::{
    serve::{BARE, PLAIN_REDIS, ROUTERS, Router},
    wrk::Load,
};

fn main() {
    let arguments = Arguments::of_process();
    if let Some(words) = arguments.subcommand("serve") {
        serve::run(words.first().map_or("", String::as_str), &arguments);
    } else {
        compare(&arguments);
    }
}

fn compare(arguments: &Arguments) {
    let cores: String = arguments.value("--cores", "0,1".to_owned());
    let (server_core, client_core) = cores.split_once(',').expect("--cores takes two numbers");
    let workers = arguments.value("--workers", 1);
    if workers == 1 {
        // Redis and wrk inherit this; each server moves to the other core.
        cpu::pin_to(client_core.parse().expect("--cores takes whole numbers"));
    }
    wrk::check_installed();
    let entrants = entrants(picked(arguments), arguments);
    let uses_redis = |entrant: &Entrant| router(&entrant.name).uses_redis;
    let redis = entrants.iter().any(uses_redis).then(Server::start);
    let redis_url = redis.as_ref().map_or("", |redis| redis.url.as_str());
    let load = Load {
        connections: arguments.value("--connections", 64),
        seconds: arguments.value("--seconds", 2),
    };
    let servers: Vec<_> = entrants
        .iter()
        .map(|entrant| AxumServer::start(entrant, (workers, server_core), redis_url))
        .collect();
    let mut contenders: Vec<_> = entrants
        .iter()
        .zip(&servers)
        .map(|(entrant, server)| {
            let _warm_up = server.sample(Load { seconds: 1, ..load });
            Contender::new(&entrant.label, move || server.sample(load))
        })
        .collect();
    let samples = interleave(&mut contenders, arguments.value("--rounds", 7));
    print(&entrants, &samples);
    let unexpected: u64 = samples
        .iter()
        .flatten()
        .map(|sample| sample.unexpected)
        .sum();
    assert_eq!(unexpected, 0, "a row with unexpected responses is void");
}

/// Names of the routers that `--only` selects, and of those that their ratios refer to.
fn picked(arguments: &Arguments) -> impl Iterator<Item = &'static str> {
    let picks = |router: &Router| arguments.picks(router.name);
    let any_redis = ROUTERS
        .iter()
        .any(|router| router.uses_redis && picks(router));
    let names = ROUTERS.iter().filter(move |router| {
        router.name == BARE || router.name == PLAIN_REDIS && any_redis || picks(router)
    });
    names.map(|router| router.name)
}

fn router(name: &str) -> &'static Router {
    let router = ROUTERS.iter().find(|router| router.name == name);
    router.expect("every entrant is a router")
}

// === AxumServer ===

/// A running server of one contender.
struct AxumServer {
    process: KillOnDrop,
    /// `127.0.0.1:PORT`.
    address: String,
    router: &'static Router,
}

impl AxumServer {
    /// Starts the server, and checks its status and headers against the contender's name. A single worker has a core.
    fn start(entrant: &Entrant, (workers, core): (usize, &str), redis_url: &str) -> Self {
        let mut command = entrant.command(&["serve", &entrant.name]);
        if workers == 1 {
            command.args(["--core", core]);
        } else {
            command.args(["--workers", &workers.to_string()]);
        }
        command.args(["--redis", redis_url]).stdout(Stdio::piped());
        let process = command.spawn();
        let mut process = process.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        let stdout = process.stdout.take().expect("it is piped");
        let mut address = String::new();
        let read = BufReader::new(stdout).read_line(&mut address);
        assert!(read.is_ok_and(|length| length > 0), "{command:?} ended");
        let server = Self {
            process: KillOnDrop(process),
            address: address.trim_end().to_owned(),
            router: router(&entrant.name),
        };
        server.check(&entrant.label);
        server
    }

    /// Checks the second response: the first request uses up the quota of the denied rows.
    fn check(&self, label: &str) {
        let _first = self.response_head();
        let head = self.response_head();
        let status = if self.router.denies { "429" } else { "200" };
        assert!(
            head.starts_with(&format!("http/1.1 {status}")),
            "{label}: {head}"
        );
        let is_limit = |line: &&str| line.contains("ratelimit-") || line.contains("retry-after");
        let headers = head.lines().filter(is_limit).count();
        assert_eq!(headers, self.router.headers, "{label}: {head}");
    }

    /// Sends one request, and returns the head of the response in lower case.
    fn response_head(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request).expect("the server reads");
        let mut response = String::new();
        let read = stream.read_to_string(&mut response);
        read.expect("the server responds with text");
        let (head, _body) = response
            .split_once("\r\n\r\n")
            .expect("the head has an end");
        head.to_ascii_lowercase()
    }

    fn sample(&self, load: Load) -> Sample {
        let cpu_before = cpu::time_of(self.process.0.id());
        let report = wrk::run(load, &self.address);
        let cpu = cpu::time_of(self.process.0.id()) - cpu_before;
        let requests = report.requests;
        let expected = if self.router.denies { requests } else { 0 };
        Sample {
            per_second: report.per_second,
            p50_micros: report.p50_micros,
            p99_micros: report.p99_micros,
            denied_share: report.non_2xx as f64 / requests as f64,
            unexpected: report.non_2xx.abs_diff(expected) + report.socket_errors,
            cpu_micros: cpu.as_secs_f64() * 1e6 / requests as f64,
            cpu_share: cpu.as_secs_f64() / load.seconds as f64,
        }
    }
}

// === Sample ===

/// One run of wrk.
struct Sample {
    per_second: f64,
    p50_micros: f64,
    p99_micros: f64,
    /// Share of responses that wrk counts as non-2xx.
    denied_share: f64,
    /// Responses with the wrong kind of status for the row, and socket errors.
    unexpected: u64,
    /// CPU of the server per request.
    cpu_micros: f64,
    /// Share of its core that the server used.
    cpu_share: f64,
}

fn print(entrants: &[Entrant], samples: &[Vec<Sample>]) {
    let column = |cell: &dyn Fn(&[Sample]) -> String| -> Vec<String> {
        samples.iter().map(|samples| cell(samples)).collect()
    };
    let median = |field: fn(&Sample) -> f64, digits: usize| {
        column(&move |samples| {
            format!("{:.digits$}", Summary::of(samples.iter().map(field)).median)
        })
    };
    let bare = &samples[0];
    let labels = entrants.iter().map(|entrant| entrant.label.clone());
    let mut table = Table::new("server", labels);
    table.add_column(
        "requests/s, median (min..max)",
        column(&|samples| Summary::of(samples.iter().map(|sample| sample.per_second)).show(0)),
    );
    table.add_column(
        "ratio to bare",
        column(&|samples| Summary::of_ratios(samples, bare, |sample| sample.per_second).show(3)),
    );
    let plain = entrants
        .iter()
        .position(|entrant| entrant.name == PLAIN_REDIS);
    if let Some(plain) = plain.map(|plain| &samples[plain]) {
        let cells = entrants.iter().zip(samples).map(|(entrant, samples)| {
            if router(&entrant.name).uses_redis {
                Summary::of_ratios(samples, plain, |sample| sample.per_second).show(3)
            } else {
                String::new()
            }
        });
        table.add_column("ratio to plain EVALSHA", cells);
    }
    add_ratio_to_before(&mut table, entrants, samples, |sample| sample.per_second);
    table.add_column("p50 us", median(|sample| sample.p50_micros, 0));
    table.add_column("p99 us", median(|sample| sample.p99_micros, 0));
    table.add_column("non-2xx", column(&show_denied));
    table.add_column(
        "server CPU us a request",
        median(|sample| sample.cpu_micros, 2),
    );
    table.add_column(
        "CPU us over bare",
        column(&|samples| {
            Summary::of_differences(samples, bare, |sample| sample.cpu_micros).show(2)
        }),
    );
    table.add_column(
        "server core busy",
        median(|sample| 100.0 * sample.cpu_share, 0)
            .into_iter()
            .map(|share| format!("{share} %")),
    );
    table.print("axum server under wrk");
}

fn show_denied(samples: &[Sample]) -> String {
    let share = Summary::of(samples.iter().map(|sample| sample.denied_share)).median;
    let unexpected: u64 = samples.iter().map(|sample| sample.unexpected).sum();
    if unexpected == 0 {
        format!("{:.0} %", 100.0 * share)
    } else {
        format!("void: {unexpected} unexpected")
    }
}
