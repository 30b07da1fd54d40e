//! The client address that tollgate and other crates find when the headers are hostile.
//!
//! `cargo run --release --ignore-rust-version --bin spoof -- [--all] [--express DIR] [--seconds 0.2]`
//!
//! The requests are those of tollgate's test, `tests/in_process/extract/client_ip/cases.rs`. The table has the requests on which another
//! crate differs from tollgate; with `--all` it has every request.

#[path = "../../../../tests/in_process/extract/client_ip/cases.rs"]
mod cases;

use std::{
    hint::black_box,
    io::Write,
    net::{IpAddr, SocketAddr},
    process::{Command, Stdio},
    time::Duration,
};

use axum::extract::ConnectInfo;
use axum_client_ip::ClientIpSource;
use http::{HeaderName, HeaderValue, Request, request::Parts};
use tollgate::{
    RequestHead,
    extract::{ClientIp, SingleHeader},
};
use tollgate_peers::{
    allocations::{self, Counting},
    arguments::Arguments,
    rounds::nanos_per_call,
    table,
};
use tower_governor::key_extractor::{KeyExtractor as _, SmartIpKeyExtractor};

use self::cases::{Case, FORGED, Read, Trust, cases};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let arguments = Arguments::of_process();
    let cases = cases();
    let packages = arguments.value("--express", String::new());
    if !packages.is_empty() {
        compare_with_express(&cases, &packages);
    }
    let shows_all = std::env::args().any(|argument| argument == "--all");
    let mut rows = Vec::new();
    let mut tallies = [Tally::default(); 3];
    for (index, case) in cases.iter().enumerate() {
        let request = request(case);
        let ours = extractor(case).address(&RequestHead::from(&parts(case)));
        assert_eq!(ours, case.address(), "{case:?}");
        let ours = show(ours);
        let theirs = [
            Some(client_ip(case)),
            Some(governor(&request)),
            express(case),
        ];
        let cells: Vec<String> = theirs.iter().map(|cell| cell_of(cell, &ours)).collect();
        for (tally, cell) in tallies.iter_mut().zip(&theirs) {
            tally.add(cell.as_deref(), case);
        }
        if shows_all || cells.iter().any(|cell| cell != SAME && cell != NONE) {
            let number = (index + 1).to_string();
            let head = [
                number,
                case.peer.to_owned(),
                case.trusted(),
                case.shown(),
                ours,
            ];
            rows.push([&head[..], &cells, &[case.why.to_owned()]].concat());
        }
    }
    let heading = format!(
        "{} of {} requests on which another crate differs from tollgate",
        rows.len(),
        cases.len()
    );
    let columns = [
        "#",
        "peer",
        "trusted",
        "headers",
        "tollgate",
        "axum-client-ip",
        "tower_governor smart",
        "express-rate-limit",
        "why",
    ];
    table::print(&heading, &columns, &rows);
    print_tallies(&tallies);
    print_costs(&cases, arguments.seconds("--seconds", 0.2));
}

// === Tallies ===

/// Number of requests on which a crate agrees with tollgate, and differs, by kind of difference.
#[derive(Clone, Copy, Default)]
struct Tally {
    asked: usize,
    same: usize,
    forged: usize,
    peer: usize,
    refused: usize,
    no_address: usize,
    other: usize,
}

impl Tally {
    fn add(&mut self, cell: Option<&str>, case: &Case) {
        let Some(cell) = cell else { return };
        self.asked += 1;
        let canonical = cell.parse().map(|address: IpAddr| address.to_canonical());
        *match canonical.map(|address| address.to_string()) {
            Ok(address) if address == case.client => &mut self.same,
            Ok(address) if address == FORGED => &mut self.forged,
            Ok(address) if address == case.peer => &mut self.peer,
            Ok(_) => &mut self.other,
            Err(_) if cell == REFUSED => &mut self.refused,
            Err(_) => &mut self.no_address,
        } += 1;
    }
}

fn print_tallies(tallies: &[Tally; 3]) {
    let names = [
        "axum-client-ip",
        "tower_governor smart",
        "express-rate-limit",
    ];
    let rows: Vec<Vec<String>> = names
        .iter()
        .zip(tallies)
        .map(|(name, tally)| {
            let counts = [
                tally.asked,
                tally.same,
                tally.forged,
                tally.peer,
                tally.other,
                tally.no_address,
                tally.refused,
            ];
            let counts = counts.iter().map(ToString::to_string);
            [(*name).to_owned()].into_iter().chain(counts).collect()
        })
        .collect();
    let columns = [
        "crate",
        "requests",
        "as tollgate",
        "the forged address",
        "the peer",
        "another address",
        "text that is not an address",
        "an error",
    ];
    table::print("addresses that other crates find", &columns, &rows);
}

// === The contenders ===

fn extractor(case: &Case) -> ClientIp {
    let trusting = match case.trust {
        Trust::Hops(hops) => ClientIp::behind_hops(hops),
        Trust::Networks(networks) => ClientIp::behind(networks.iter().copied()),
        Trust::Nobody => return ClientIp::peer(),
    };
    match case.read {
        Read::Forwarded => trusting.forwarded(),
        Read::ForwardedFor => trusting,
        Read::Single(name) => trusting.header(match name.to_ascii_lowercase().as_str() {
            "cf-connecting-ip" => SingleHeader::CfConnectingIp,
            "cloudfront-viewer-address" => SingleHeader::CloudFrontViewerAddress,
            name => HeaderName::from_bytes(name.as_bytes())
                .expect("a name")
                .into(),
        }),
    }
}

/// The source of axum-client-ip that fits the case; the crate has no list of proxies.
fn source(case: &Case) -> ClientIpSource {
    match case.read {
        _ if case.trust == Trust::Nobody => ClientIpSource::ConnectInfo,
        Read::Forwarded => ClientIpSource::RightmostForwarded,
        Read::ForwardedFor => ClientIpSource::RightmostXForwardedFor,
        Read::Single(name) => match name.to_ascii_lowercase().as_str() {
            "cf-connecting-ip" => ClientIpSource::CfConnectingIp,
            "cloudfront-viewer-address" => ClientIpSource::CloudFrontViewerAddress,
            "fly-client-ip" => ClientIpSource::FlyClientIp,
            "true-client-ip" => ClientIpSource::TrueClientIp,
            "x-envoy-external-address" => ClientIpSource::XEnvoyExternalAddress,
            "x-real-ip" => ClientIpSource::XRealIp,
            name => unreachable!("{name} has no source"),
        },
    }
}

fn client_ip(case: &Case) -> String {
    ask_client_ip(source(case), &mut parts(case))
}

fn ask_client_ip(source: ClientIpSource, parts: &mut Parts) -> String {
    use axum::extract::FromRequestParts;
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Poll, Waker},
    };
    parts.extensions.insert(source);
    let found = pin!(axum_client_ip::ClientIp::from_request_parts(parts, &()))
        .poll(&mut Context::from_waker(Waker::noop()));
    match found {
        Poll::Ready(Ok(axum_client_ip::ClientIp(address))) => address.to_string(),
        Poll::Ready(Err(_)) => REFUSED.to_owned(),
        Poll::Pending => unreachable!("nothing here waits"),
    }
}

fn governor(request: &Request<()>) -> String {
    match SmartIpKeyExtractor.extract(request) {
        Ok(address) => address.to_string(),
        Err(_) => REFUSED.to_owned(),
    }
}

/// The address that Express finds under `trust proxy`, by the rule of proxy-addr 2.0.8. It reads `X-Forwarded-For` only.
///
/// From the peer, then the entries from right to left, it returns the first that is not trusted, else the last. It skips
/// empty entries, and returns an entry that is not an address unchanged. `--express` compares this function with the
/// packages.
fn express(case: &Case) -> Option<String> {
    let lines = forwarded_for_lines(case)?;
    let joined = lines.join(", ");
    let entries = joined.split(',').rev().map(|entry| entry.trim_matches(' '));
    let entries = entries.filter(|entry| !entry.is_empty());
    let mut found = case.peer;
    for (distance, entry) in entries.enumerate() {
        let is_trusted = match case.trust {
            Trust::Hops(hops) => distance < hops,
            Trust::Networks(networks) if networks.iter().any(|network| network.ends_with("/0")) => {
                return Some(REFUSED.to_owned());
            }
            Trust::Networks(networks) => {
                let networks = tollgate::extract::Networks::new(networks.iter().copied());
                let address = found.split('%').next().unwrap_or_default().parse();
                address.is_ok_and(|address| networks.expect("networks").contains(address))
            }
            Trust::Nobody => false,
        };
        if !is_trusted {
            break;
        }
        found = entry;
    }
    Some(match found.parse() {
        Ok(IpAddr::V6(address)) => {
            // IPv4-compatible addresses only if they are written with dots.
            let compatible = found.contains('.').then(|| address.to_ipv4()).flatten();
            let ipv4 = address.to_ipv4_mapped().or(compatible);
            ipv4.map_or(found.to_owned(), |address| address.to_string())
        }
        _ => found.to_owned(),
    })
}

/// The header lines as Node reads them, one character per byte. `None` if the case is about another header.
fn forwarded_for_lines(case: &Case) -> Option<Vec<String>> {
    (case.read == Read::ForwardedFor).then(|| {
        let lines = case.headers.iter();
        lines
            .filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-for"))
            .map(|(_, value)| value.iter().copied().map(char::from).collect())
            .collect()
    })
}

fn compare_with_express(cases: &[Case], folder: &str) {
    let asked: Vec<&Case> = cases
        .iter()
        .filter(|case| case.read == Read::ForwardedFor)
        .collect();
    let mut node = Command::new("node")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/express.cjs"))
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node is on PATH");
    let json: Vec<String> = asked.iter().map(|case| json_of(case)).collect();
    let mut stdin = node.stdin.take().expect("piped");
    let writer =
        std::thread::spawn(move || stdin.write_all(format!("[{}]", json.join(",")).as_bytes()));
    let output = node.wait_with_output().expect("node ran");
    writer.join().expect("no panic").expect("node read it all");
    let answers = String::from_utf8(output.stdout).expect("JSON");
    assert_eq!(answers.lines().count(), asked.len(), "an answer each");
    let mut agreeing = 0;
    for (case, answer) in asked.iter().zip(answers.lines()) {
        let ours = quoted(&express(case).expect("it reads this header"));
        if ours == quoted_ascii(answer) {
            agreeing += 1;
        } else {
            println!(
                "express returns {answer}, this program {ours}: {}",
                case.shown()
            );
        }
    }
    println!(
        "This program's version of Express's rule agrees with the packages on {agreeing} of {} requests.",
        asked.len()
    );
}

fn json_of(case: &Case) -> String {
    let list = |texts: Vec<String>| {
        let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
        format!("[{}]", texts.join(","))
    };
    let trust = match case.trust {
        Trust::Hops(hops) => hops.to_string(),
        Trust::Networks(networks) => list(networks.iter().map(ToString::to_string).collect()),
        Trust::Nobody => "false".to_owned(),
    };
    let lines = list(forwarded_for_lines(case).unwrap_or_default());
    format!(
        r#"{{"trust":{trust},"peer":"{}","lines":{lines}}}"#,
        case.peer
    )
}

/// Encodes text as a JSON string in ASCII.
fn quoted(text: &str) -> String {
    let characters = text.chars().map(|character| match character {
        '"' | '\\' => format!("\\{character}"),
        ' '..='~' => character.to_string(),
        _ => format!("\\u{:04x}", u32::from(character)),
    });
    format!("\"{}\"", characters.collect::<String>())
}

/// Converts a JSON string that Node wrote to ASCII.
fn quoted_ascii(json: &str) -> String {
    let characters = json.chars().map(|character| match character {
        ' '..='~' => character.to_string(),
        _ => format!("\\u{:04x}", u32::from(character)),
    });
    characters.collect::<String>().replace("\\t", "\\u0009")
}

// === Costs ===

fn print_costs(cases: &[Case], span: Duration) {
    let pick = |why: &str| cases.iter().find(|case| case.why == why);
    let picked = [
        pick("past a proxy"),
        pick("32 entries are read"),
        pick("1,000 hops left of the client"),
        pick("100 kB left of the client"),
        pick("100 kB without a comma"),
    ];
    let mut rows = Vec::new();
    for case in picked.into_iter().flatten() {
        let (ours, parts) = (extractor(case), parts(case));
        let request = request(case);
        let source = source(case);
        let cost = |call: &(dyn Fn() + Sync)| {
            let before = allocations::count();
            call();
            let allocations = allocations::count() - before;
            let nanos = nanos_per_call(1, span, |_| call);
            format!("{nanos:.0} ns, {allocations}")
        };
        rows.push(vec![
            case.shown(),
            cost(&|| keep(ours.address(black_box(&RequestHead::from(&parts))))),
            cost(&|| keep(headers_only(&source, black_box(&parts)))),
            cost(&|| keep(SmartIpKeyExtractor.extract(black_box(&request)).ok())),
        ]);
    }
    let columns = ["headers", "tollgate", "client-ip", "tower_governor smart"];
    table::print("time and allocations to find an address", &columns, &rows);
}

fn keep(found: Option<IpAddr>) {
    black_box(found);
}

fn headers_only(source: &ClientIpSource, parts: &Parts) -> Option<IpAddr> {
    match source {
        ClientIpSource::RightmostForwarded => client_ip::rightmost_forwarded(&parts.headers).ok(),
        _ => client_ip::rightmost_x_forwarded_for(&parts.headers).ok(),
    }
}

fn request(case: &Case) -> Request<()> {
    Request::from_parts(parts(case), ())
}

fn parts(case: &Case) -> Parts {
    let (mut parts, ()) = Request::new(()).into_parts();
    let peer: IpAddr = case.peer.parse().expect("an address");
    parts
        .extensions
        .insert(ConnectInfo(SocketAddr::new(peer, 40_000)));
    for (name, value) in &case.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        let value = HeaderValue::from_bytes(value).expect("a value");
        parts.headers.append(name, value);
    }
    parts
}

fn show(address: Option<IpAddr>) -> String {
    address.map_or(REFUSED.to_owned(), |address| address.to_string())
}

fn cell_of(theirs: &Option<String>, ours: &str) -> String {
    match theirs {
        None => NONE.to_owned(),
        Some(theirs) if theirs == ours => SAME.to_owned(),
        Some(theirs) if theirs == FORGED => format!("**{FORGED}**"),
        Some(theirs) if theirs == REFUSED => REFUSED.to_owned(),
        Some(theirs) if theirs.len() > 40 => format!(
            "`{}...`",
            theirs.escape_default().to_string().split_at(20).0
        ),
        Some(theirs) => format!("`{}`", theirs.escape_default()),
    }
}

const NONE: &str = "-";
const REFUSED: &str = "refused";
const SAME: &str = "=";
