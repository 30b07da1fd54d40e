//! Whose address a request bears behind proxies, and that clients have no say in it.

mod cases;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{Router, body::Body, extract::connect_info::MockConnectInfo};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, request::Parts};
use ipnet::IpNet;
use proptest::{collection::vec, prelude::*};
use tollgate::{
    Error, ErrorKind, Key, Policy, Quota, RateLimitLayer, RequestHead,
    extract::{ClientIp, Extracted, Global, KeyExtractor, Networks, PeerIp, SingleHeader},
};
use tower::ServiceExt;

use self::cases::{Case, FORGED, Read, Trust, cases};

// === The table ===

#[test]
fn address_is_the_one_in_the_table() {
    let cases = cases();
    println!("| # | peer | trusted | headers | client | why |");
    println!("|---|---|---|---|---|---|");
    let mut wrong = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let found = extractor(case).resolve(Some(ip(case.peer)), &header_map(case));
        let Case { peer, why, .. } = case;
        let (trusted, headers, number) = (case.trusted(), case.shown(), index + 1);
        let shown = found.map_or("none".to_owned(), |found| found.to_string());
        println!("| {number} | {peer} | {trusted} | {headers} | {shown} | {why} |");
        if found != case.address() {
            wrong.push(format!("{number}: {shown}, not {}: {headers}", case.client));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(cases.len() >= 60, "{} combinations", cases.len());
}

#[test]
fn forged_address_counts_only_if_every_peer_is_trusted() {
    for case in cases() {
        let trusts_everybody = case.trust == Trust::Networks(&["0.0.0.0/1", "128.0.0.0/1"]);
        assert_eq!(case.client == FORGED, trusts_everybody, "{case:?}");
    }
}

#[test]
fn request_and_header_map_lead_to_one_address() {
    for case in cases() {
        let mut head = with_peer(case.peer);
        head.headers = header_map(&case);
        let extractor = extractor(&case);
        assert_eq!(
            extractor.address(&RequestHead::from(&head)),
            case.address(),
            "{case:?}"
        );
        let Some(expected) = case.address() else {
            assert_eq!(
                extractor.extract(&RequestHead::from(&head)),
                Extracted::Ambiguous,
                "{case:?}"
            );
            continue;
        };
        let network = extractor
            .network(&RequestHead::from(&head))
            .expect("there is a peer");
        let networks = Networks::new([network]).expect("a network");
        assert!(networks.contains(expected), "{case:?}");
        let key = extractor
            .extract(&RequestHead::from(&head))
            .found()
            .expect("there is a peer");
        assert_eq!(key, Key::new(network.addr().to_string()), "{case:?}");
    }
}

// === Nobody chooses an address ===

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn nothing_left_of_the_client_changes_its_address(
        (read, is_one_line) in (prop_oneof![Just(Read::Forwarded), Just(Read::ForwardedFor)], any::<bool>()),
        attack in vec(attack(), 0..4),
        client in outsider(),
        proxies in vec(proxy(), 0..6),
        spelling in any::<u64>(),
    ) {
        let hops = [&[client][..], &proxies].concat();
        let said: Vec<String> = hops.iter().enumerate().map(|(index, hop)| {
            spelt(read, *hop, spelling.rotate_right(index as u32 * 7))
        }).collect();
        let mut lines: Vec<Vec<u8>> = attack.clone();
        let said = said.join(", ").into_bytes();
        match lines.last_mut() {
            Some(last) if is_one_line => {
                last.extend_from_slice(b", ");
                last.extend_from_slice(&said);
            }
            _ => lines.push(said),
        }
        let found = behind_proxies(read).resolve(Some(ip("10.0.0.1")), &lines_of(read, &lines));
        prop_assert_eq!(found, Some(client), "{:?}", lines);
        // A count of the proxies finds the same, and so does one that is not trusted itself.
        let by_number = reading(ClientIp::behind_hops(proxies.len() + 1), read);
        prop_assert_eq!(by_number.resolve(Some(ip("192.0.2.1")), &lines_of(read, &lines)), Some(client));
        let stranger = behind_proxies(read).resolve(Some(client), &lines_of(read, &lines));
        prop_assert_eq!(stranger, Some(client));
    }

    #[test]
    fn nothing_left_of_what_cannot_be_read_is_believed(
        read in prop_oneof![Just(Read::Forwarded), Just(Read::ForwardedFor)],
        attack in attack(),
        unreadable in prop_oneof![
            Just("unknown".to_owned()), Just("_hidden".to_owned()), Just(String::new()), "[a-z._-]{1,40}",
        ],
        proxies in vec(proxy(), 0..6),
        spelling in any::<u64>(),
    ) {
        let entry = match read {
            Read::Forwarded => format!("for={unreadable}"),
            _ => unreadable,
        };
        let said: Vec<String> = proxies.iter().map(|proxy| spelt(read, *proxy, spelling)).collect();
        let line = [&attack[..], b",", &[vec![entry], said].concat().join(",").into_bytes()].concat();
        let peer = ip("10.0.0.1");
        let last_good = proxies.first().copied().unwrap_or(peer);
        let found = behind_proxies(read).resolve(Some(peer), &lines_of(read, &[line]));
        prop_assert_eq!(found, Some(last_good));
    }

    #[test]
    fn any_bytes_lead_to_an_address_without_a_panic(
        lines in vec(attack(), 0..6),
        peer in prop_oneof![outsider(), proxy()],
        hops in 1_usize..40,
    ) {
        for read in READS {
            let headers = lines_of(read, &lines);
            let values = lines.iter().map(|line| line.split(|byte| *byte == b',').count());
            let is_one = !matches!(read, Read::Single(_)) || values.sum::<usize>() < 2;
            let by_number = reading(ClientIp::behind_hops(hops), read);
            // more than 32 are refused at build(), and trust nobody
            let found = by_number.resolve(Some(peer), &headers).is_some();
            prop_assert_eq!(found, is_one || hops > 32);
            let by_network = behind_proxies(read);
            let found = by_network.resolve(Some(peer), &headers).is_some();
            prop_assert_eq!(found, is_one || !by_network.trusts(peer));
        }
    }

    /// The rule as it reads, with no thought for allocations, over lists short enough for every bound.
    #[test]
    fn walk_agrees_with_the_rule_written_plainly(
        lines in vec("[,. :0-9a-f]{0,30}|((10\\.0\\.0\\.[1-9]|203\\.0\\.113\\.9|unknown|::ffff:10\\.0\\.0\\.2) ?, ?){0,6}", 1..4),
        peer in prop_oneof![outsider(), proxy()],
    ) {
        let networks = Networks::new(cases::PROXIES.iter().copied()).expect("networks");
        let joined = lines.join(",");
        let mut expected = peer;
        for entry in joined.split(',').rev().take(32) {
            let Ok(address) = entry.trim_matches([' ', '\t']).parse::<IpAddr>() else {
                // Ports and brackets are tried elsewhere.
                let is_spelt_otherwise = entry.contains(':') && entry.contains('.');
                prop_assume!(!networks.contains(expected) || !is_spelt_otherwise);
                break;
            };
            if !networks.contains(expected) {
                break;
            }
            expected = address.to_canonical();
        }
        let lines: Vec<Vec<u8>> = lines.into_iter().map(String::into_bytes).collect();
        let read = Read::ForwardedFor;
        let found = behind_proxies(read).resolve(Some(peer), &lines_of(read, &lines));
        prop_assert_eq!(found, Some(expected));
    }

    #[test]
    fn addresses_share_a_key_when_they_share_the_prefix_and_only_then(
        first in any::<u128>(), flipped in 0_u32..128, prefix in 48_u8..=128,
    ) {
        let (first, second) = (first | 1 << 127, (first | 1 << 127) ^ (1 << flipped));
        let extractor = ClientIp::peer().ipv6_prefix(prefix);
        let key = |address: u128| extractor.extract(&RequestHead::from(&with(IpAddr::V6(address.into())))).found();
        let is_behind_the_prefix = flipped < 128 - u32::from(prefix);
        prop_assume!(flipped != 127);
        prop_assert_eq!(key(first) == key(second), is_behind_the_prefix);
    }

    #[test]
    fn ipv4_addresses_share_a_key_when_they_share_the_prefix_and_only_then(
        first in any::<u32>(), flipped in 0_u32..32, prefix in 8_u8..=32,
    ) {
        let extractor = ClientIp::peer().ipv4_prefix(prefix);
        let key = |address: u32| extractor.extract(&RequestHead::from(&with(IpAddr::V4(address.into())))).found();
        let is_behind_the_prefix = flipped < 32 - u32::from(prefix);
        prop_assert_eq!(key(first) == key(first ^ (1 << flipped)), is_behind_the_prefix);
    }
}

/// What somebody sends: any bytes that HTTP lets through, and bytes that look the part.
fn attack() -> impl Strategy<Value = Vec<u8>> {
    let allowed = (0_u8..=255).prop_filter("no header byte", |byte| {
        *byte == b'\t' || (*byte >= 32 && *byte != 127)
    });
    let pieces = prop::sample::select(vec![
        "10.0.0.7",
        "198.51.100.66",
        "for=",
        "for=198.51.100.66",
        "for=\"[2001:db8::66]:80\"",
        "host=\"",
        ";",
        ",",
        ", ",
        "\"",
        "\\",
        "[",
        "]",
        ":",
        "::ffff:",
        "%",
        "unknown",
        "_x",
        " ",
    ]);
    prop_oneof![
        vec(allowed, 0..80),
        vec(pieces, 0..12).prop_map(|pieces| pieces.concat().into_bytes()),
    ]
}

fn outsider() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 3]>().prop_map(|[a, b, c]| IpAddr::from([203, a, b, c])),
        any::<[u16; 4]>().prop_map(|[a, b, c, d]| IpAddr::from([
            0x2001,
            0xdb8,
            a & 0xff,
            0,
            b,
            c,
            d,
            1
        ])),
    ]
}

fn proxy() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 3]>().prop_map(|[a, b, c]| IpAddr::from([10, a, b, c])),
        any::<[u16; 2]>().prop_map(|[a, b]| IpAddr::from([0x2001, 0xdb8, 0xffff, 0, 0, 0, a, b])),
    ]
}

/// One of the ways in which proxies write an address.
fn spelt(read: Read, address: IpAddr, way: u64) -> String {
    let has_port = way & 1 == 1;
    let node = match address {
        IpAddr::V4(address) if way & 2 == 2 => match has_port {
            true => format!("[::ffff:{address}]:80"),
            false => format!("[::ffff:{address}]"),
        },
        address if has_port => SocketAddr::new(address, 4711).to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
        IpAddr::V4(address) => address.to_string(),
    };
    match read {
        Read::Forwarded if way & 4 == 4 => {
            format!("proto=https;For=\"{node}\";host=\"a\\\", for={FORGED}\"")
        }
        Read::Forwarded => format!("for=\"{node}\";by=_x"),
        _ if !has_port && way & 8 == 8 => address.to_string(),
        _ => node,
    }
}

// === Groups of addresses ===

#[test]
fn key_is_the_address_of_the_network() {
    let key = |extractor: ClientIp, address: &str| {
        extractor
            .extract(&RequestHead::from(&with_peer(address)))
            .found()
    };
    let text = |text| Some(Key::new(text));
    assert_eq!(
        key(ClientIp::peer(), "2001:db8:1:2:3:4:5:6"),
        text("2001:db8:1:2::")
    );
    let by_site = ClientIp::peer().ipv6_prefix(56);
    assert_eq!(key(by_site, "2001:db8:1:2:3::"), text("2001:db8:1::"));
    let one_by_one = ClientIp::peer().ipv6_prefix(128);
    assert_eq!(key(one_by_one, "2001:db8::1"), text("2001:db8::1"));
    assert_eq!(key(ClientIp::peer(), "192.0.2.77"), text("192.0.2.77"));
    assert_eq!(
        key(ClientIp::peer().ipv4_prefix(24), "192.0.2.77"),
        text("192.0.2.0")
    );
}

// CVE-2026-30827: all clients of a dual-stack socket fell into one prefix
#[test]
fn ipv4_address_in_ipv6_form_is_not_grouped_as_ipv6() {
    let extractor = ClientIp::peer().ipv6_prefix(48);
    let mapped = extractor
        .extract(&RequestHead::from(&with_peer("::ffff:192.0.2.1")))
        .found();
    assert_eq!(mapped, Some(Key::new("192.0.2.1")));
    assert_eq!(
        PeerIp
            .extract(&RequestHead::from(&with_peer("::ffff:192.0.2.1")))
            .found(),
        mapped
    );
}

#[test]
fn network_is_shown_with_its_length() {
    let head = with_peer("2001:db8:1:2:3:4:5:6");
    let expected: IpNet = "2001:db8:1:2::/64".parse().expect("a network");
    assert_eq!(
        ClientIp::peer().network(&RequestHead::from(&head)),
        Some(expected)
    );
}

#[test]
fn peer_ip_and_client_ip_without_proxies_find_the_same_key() {
    for peer in ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "::1"] {
        let head = with_peer(peer);
        assert_eq!(
            PeerIp.extract(&RequestHead::from(&head)).found(),
            ClientIp::peer().extract(&RequestHead::from(&head)).found(),
            "{peer}"
        );
        assert!(PeerIp.extract(&RequestHead::from(&head)).found().is_some());
    }
}

// === No peer ===

#[test]
fn unknown_peer_is_believed_only_where_proxies_are_counted() {
    let head = {
        let mut head = nothing();
        head.headers
            .insert("x-forwarded-for", HeaderValue::from_static("203.0.113.9"));
        head
    };
    assert_eq!(
        ClientIp::peer().extract(&RequestHead::from(&head)).found(),
        None
    );
    assert_eq!(
        ClientIp::behind(["10.0.0.0/8"])
            .extract(&RequestHead::from(&head))
            .found(),
        None
    );
    // As over a Unix socket.
    let by_number = ClientIp::behind_hops(1);
    assert_eq!(
        by_number.address(&RequestHead::from(&head)),
        Some(ip("203.0.113.9"))
    );
    assert_eq!(
        by_number.extract(&RequestHead::from(&nothing())).found(),
        None
    );
    assert_eq!(
        by_number.missing_status(&RequestHead::from(&nothing())),
        StatusCode::INTERNAL_SERVER_ERROR
    );
}

#[test]
fn trusted_peers_are_distinguished_from_others() {
    let by_networks = ClientIp::behind(["10.0.0.0/8"]);
    assert!(by_networks.trusts(ip("10.1.2.3")));
    assert!(by_networks.trusts(ip("::ffff:10.1.2.3")));
    assert!(!by_networks.trusts(ip("192.0.2.1")));
    assert!(ClientIp::behind_hops(1).trusts(ip("192.0.2.1")));
    assert!(!ClientIp::peer().trusts(ip("127.0.0.1")));
}

// === Settings ===

#[test]
fn networks_are_given_as_text_addresses_or_networks() {
    let address = ip("10.0.0.1");
    let network: IpNet = "10.0.0.0/8".parse().expect("a network");
    let text = String::from("10.0.0.0/8");
    for extractor in [
        ClientIp::behind(["10.0.0.0/8", "2001:db8::/32"]),
        ClientIp::behind(vec![text.clone()]),
        ClientIp::behind([&text]),
        ClientIp::behind([address]),
        ClientIp::behind([network]),
        ClientIp::behind(Networks::PRIVATE),
    ] {
        assert!(extractor.validate().is_ok());
        assert!(extractor.trusts(address), "{extractor:?}");
    }
}

#[test]
fn settings_that_cannot_work_fail_at_build_and_trust_no_peer() {
    let behind = || ClientIp::behind(["10.0.0.0/8"]);
    let named = |name| SingleHeader::from(HeaderName::from_static(name));
    let wrong = [
        (
            ClientIp::behind(["10.0.0.0/33"]),
            "\"10.0.0.0/33\" is not a network",
        ),
        (
            ClientIp::behind(["10.0.0.0/8", "proxy.internal"]),
            "\"proxy.internal\" is not a network",
        ),
        (ClientIp::behind([""]), "\"\" is not a network"),
        (
            ClientIp::behind([] as [&str; 0]),
            "without a network trusts no proxy",
        ),
        (
            ClientIp::behind(["10.0.0.0/8", "0.0.0.0/0"]),
            "behind(0.0.0.0/0) trusts every address",
        ),
        (
            ClientIp::behind(["::/0"]),
            "behind(::/0) trusts every address",
        ),
        (
            ClientIp::behind(["::ffff:0:0/96"]),
            "behind(0.0.0.0/0) trusts every address",
        ),
        (ClientIp::behind_hops(0), "behind_hops(0)"),
        (ClientIp::behind_hops(33), "behind_hops(33)"),
        (
            ClientIp::peer().forwarded(),
            "no proxy is trusted to send it",
        ),
        (
            ClientIp::peer().header(SingleHeader::XRealIp),
            "no proxy is trusted to send it",
        ),
        (behind().forwarded().forwarded_for(), "two headers"),
        (
            behind()
                .header(SingleHeader::XRealIp)
                .header(SingleHeader::FlyClientIp),
            "two headers",
        ),
        (
            behind().header(named("x-forwarded-for")),
            "x-forwarded-for is a list",
        ),
        (behind().header(named("forwarded")), "forwarded is a list"),
        (behind().ipv6_prefix(47), "ipv6_prefix(47)"),
        (behind().ipv6_prefix(129), "ipv6_prefix(129)"),
        (behind().ipv4_prefix(7), "ipv4_prefix(7)"),
        (behind().ipv4_prefix(33), "ipv4_prefix(33)"),
    ];
    for (extractor, message) in wrong {
        let error = build(extractor.clone()).expect_err(message);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(
            error.to_string().contains(message),
            "{error} says: {message}"
        );
        // Used all the same, it must neither panic nor believe a header.
        let mut head = with_peer("10.0.0.1");
        for name in ["x-forwarded-for", "forwarded", "x-real-ip", "fly-client-ip"] {
            head.headers.insert(name, HeaderValue::from_static(FORGED));
        }
        assert!(
            extractor
                .extract(&RequestHead::from(&head))
                .found()
                .is_some()
        );
        if !message.contains("prefix") {
            assert_eq!(
                extractor.address(&RequestHead::from(&head)),
                Some(ip("10.0.0.1")),
                "{message}"
            );
        }
    }
}

#[test]
fn settings_that_can_work_are_not_refused() {
    for extractor in [
        ClientIp::peer(),
        ClientIp::behind(["10.0.0.0/8"]).forwarded_for(),
        ClientIp::behind(["::/1"])
            .forwarded()
            .ipv6_prefix(48)
            .ipv4_prefix(8),
        ClientIp::behind_hops(32).header(HeaderName::from_static("x-client-ip")),
        ClientIp::behind_hops(1)
            .header(SingleHeader::TrueClientIp)
            .ipv6_prefix(128)
            .ipv4_prefix(32),
    ] {
        assert!(build(extractor).is_ok());
    }
}

#[test]
fn extractors_that_hold_a_wrong_one_are_refused_too() {
    let wrong = || ClientIp::behind_hops(0);
    let boxed: Box<dyn KeyExtractor> = Box::new(wrong());
    let shared: Arc<dyn KeyExtractor> = Arc::new(wrong());
    let refused = [
        build(wrong().and(Global)),
        build(Global.and(wrong())),
        build(wrong().or_else(Global)),
        build(Global.or_else(wrong())),
        build(boxed),
        build(shared),
        build(Global.and(Global.or_else(wrong()))),
    ];
    for result in refused {
        let error = result.expect_err("a wrong extractor inside");
        assert!(error.to_string().contains("behind_hops(0)"), "{error}");
    }
    assert!(build(Global.and(PeerIp).or_else(PeerIp)).is_ok());
}

#[test]
fn every_single_header_is_read_under_its_name() {
    for header in [
        SingleHeader::CfConnectingIp,
        SingleHeader::FlyClientIp,
        SingleHeader::Named(HeaderName::from_static("x-client-ip")),
        SingleHeader::TrueClientIp,
        SingleHeader::XEnvoyExternalAddress,
        SingleHeader::XRealIp,
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(header.name(), HeaderValue::from_static("203.0.113.9"));
        let extractor = ClientIp::behind(["10.0.0.0/8"]).header(header);
        let found = extractor.resolve(Some(ip("10.0.0.1")), &headers);
        assert_eq!(found, Some(ip("203.0.113.9")), "{extractor:?}");
    }
}

#[test]
fn networks_find_addresses_in_either_form() {
    let networks = Networks::new(["10.0.0.0/8", "::ffff:192.0.2.0/120", "2001:db8::/32"]);
    let networks = networks.expect("networks");
    for inside in [
        "10.255.0.1",
        "::ffff:10.0.0.1",
        "192.0.2.255",
        "2001:db8:f::1",
    ] {
        assert!(networks.contains(ip(inside)), "{inside}");
    }
    for outside in ["11.0.0.1", "::10.0.0.1", "192.0.3.0", "2001:db9::1"] {
        assert!(!networks.contains(ip(outside)), "{outside}");
    }
    let written: Vec<String> = networks.iter().map(|network| network.to_string()).collect();
    assert_eq!(written, ["10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32"]);
    assert!(!Networks::default().contains(ip("10.0.0.1")));
}

// === Through a layer ===

#[tokio::test]
async fn client_that_varies_the_header_stays_one_client() {
    let rule =
        Policy::new("per-ip", Quota::per_hour(2).burst(2)).key(ClientIp::behind(["10.0.0.0/8"]));
    let limit = RateLimitLayer::builder()
        .policy(rule)
        .build()
        .expect("a layer");
    let peer: SocketAddr = "10.0.0.1:80".parse().expect("an address");
    let app = Router::new()
        .fallback(async || "fine")
        .layer(limit)
        .layer(MockConnectInfo(peer));
    let ask = async |value: String| {
        let request = Request::get("/")
            .header("x-forwarded-for", value)
            .body(Body::empty());
        let response = app.clone().oneshot(request.expect("a request")).await;
        response.expect("an answer").status().as_u16()
    };
    let mut statuses = Vec::new();
    for forged in 0..4 {
        statuses.push(ask(format!("198.51.100.{forged}, 203.0.113.9")).await);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(ask("203.0.113.10".to_owned()).await, 200, "another client");
    assert_eq!(ask("2001:db8:1:2::1".to_owned()).await, 200);
    assert_eq!(ask("2001:db8:1:2::2".to_owned()).await, 200);
    assert_eq!(
        ask("2001:db8:1:2::3".to_owned()).await,
        429,
        "one /64 is one client"
    );
}

fn build(extractor: impl KeyExtractor) -> Result<RateLimitLayer, Error> {
    let rule = Policy::new("per-ip", Quota::per_minute(1)).key(extractor);
    RateLimitLayer::builder().policy(rule).build()
}

fn extractor(case: &Case) -> ClientIp {
    let trusting = match case.trust {
        Trust::Hops(hops) => ClientIp::behind_hops(hops),
        Trust::Networks(networks) => ClientIp::behind(networks.iter().copied()),
        Trust::Nobody => return ClientIp::peer(),
    };
    reading(trusting, case.read)
}

fn behind_proxies(read: Read) -> ClientIp {
    reading(ClientIp::behind(cases::PROXIES.iter().copied()), read)
}

fn reading(extractor: ClientIp, read: Read) -> ClientIp {
    match read {
        Read::Forwarded => extractor.forwarded(),
        Read::ForwardedFor => extractor,
        Read::Single("cf-connecting-ip") => extractor.header(SingleHeader::CfConnectingIp),
        Read::Single("CF-Connecting-IP") => extractor.header(SingleHeader::CfConnectingIp),
        Read::Single("cloudfront-viewer-address") => {
            extractor.header(SingleHeader::CloudFrontViewerAddress)
        }
        Read::Single(name) => extractor.header(HeaderName::from_static(name)),
    }
}

fn header_map(case: &Case) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &case.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        headers.append(name, HeaderValue::from_bytes(value).expect("a value"));
    }
    headers
}

fn lines_of(read: Read, lines: &[Vec<u8>]) -> HeaderMap {
    let name = match read {
        Read::Forwarded => "forwarded",
        Read::ForwardedFor => "x-forwarded-for",
        Read::Single(name) => name,
    };
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(name, HeaderValue::from_bytes(line).expect("a value"));
    }
    headers
}

fn nothing() -> Parts {
    Request::new(()).into_parts().0
}

fn with(peer: IpAddr) -> Parts {
    let mut head = nothing();
    head.extensions.insert(peer);
    head
}

fn with_peer(peer: &str) -> Parts {
    with(ip(peer))
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

const READS: [Read; 4] = [
    Read::Forwarded,
    Read::ForwardedFor,
    Read::Single("x-real-ip"),
    Read::Single("cloudfront-viewer-address"),
];
