//! Requests as they arrive behind proxies, and whose they are. Also read by `benches/peers`, so only `std` is used.

use std::net::IpAddr;

/// One request, what is trusted, and the address that counts.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) trust: Trust,
    pub(crate) read: Read,
    pub(crate) peer: &'static str,
    /// Names and values, in their order.
    pub(crate) headers: Vec<(&'static str, Vec<u8>)>,
    pub(crate) client: &'static str,
    pub(crate) why: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    Hops(usize),
    Networks(&'static [&'static str]),
    Nobody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Forwarded,
    ForwardedFor,
    Single(&'static str),
}

impl Case {
    fn peer(mut self, peer: &'static str) -> Self {
        self.peer = peer;
        self
    }

    fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    fn and(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name, value.as_ref().to_vec()));
        self
    }

    fn is(mut self, client: &'static str, why: &'static str) -> Self {
        self.client = client;
        self.why = why;
        self
    }

    /// The address to be found, if there is one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        let address = Some(self.client).filter(|client| *client != AMBIGUOUS)?;
        Some(address.parse().expect("an address"))
    }

    /// What is trusted, in few words.
    pub(crate) fn trusted(&self) -> String {
        match self.trust {
            Trust::Hops(hops) => format!("{hops} hops"),
            Trust::Networks(PROXIES) => "proxies".to_owned(),
            Trust::Networks(networks) => networks.join(" "),
            Trust::Nobody => "nobody".to_owned(),
        }
    }

    /// The headers, shortened, so that they fit in a cell of a table.
    pub(crate) fn shown(&self) -> String {
        let lines = self.headers.iter().take(3).map(|(name, value)| {
            let text: String = value.escape_ascii().to_string();
            let text = text
                .replace("\\\"", "\"")
                .replace("\\\\", "\\")
                .replace('|', "\\|");
            match text.len() {
                ..=70 => format!("{name}: {text}"),
                _ => format!(
                    "{name}: {}...{} ({} bytes)",
                    &text[..20],
                    &text[text.len() - 24..],
                    value.len()
                ),
            }
        });
        let more = match self.headers.len() {
            ..=3 => String::new(),
            count => format!(" (and {} lines more)", count - 3),
        };
        format!("`{}`{more}", lines.collect::<Vec<_>>().join("` `"))
    }
}

/// The proxies of most cases: their networks.
pub(crate) const PROXIES: &[&str] = &["10.0.0.0/8", "2001:db8:ffff::/48"];
/// What an attacker writes to be taken for somebody else.
pub(crate) const FORGED: &str = "198.51.100.66";
const CLIENT: &str = "203.0.113.9";
const CLIENT_6: &str = "2001:db8:aa::9";
const PEER: &str = "10.0.0.1";
/// In place of an address: nobody can tell which it is.
pub(crate) const AMBIGUOUS: &str = "none";

pub(crate) fn cases() -> Vec<Case> {
    [
        plain(),
        lines(),
        forms(),
        hidden(),
        mapped_and_zoned(),
        no_addresses(),
        large(),
        forwarded(),
        single(),
        by_number(),
    ]
    .concat()
}

fn xff(value: impl AsRef<[u8]>) -> Case {
    headers(Read::ForwardedFor).and("x-forwarded-for", value)
}

fn fwd(value: impl AsRef<[u8]>) -> Case {
    headers(Read::Forwarded).and("forwarded", value)
}

fn one(name: &'static str, value: impl AsRef<[u8]>) -> Case {
    headers(Read::Single(name)).and(name, value)
}

fn headers(read: Read) -> Case {
    Case {
        trust: Trust::Networks(PROXIES),
        read,
        peer: PEER,
        headers: Vec::new(),
        client: "",
        why: "",
    }
}

fn plain() -> Vec<Case> {
    vec![
        headers(Read::ForwardedFor).is(PEER, "no header: the peer is all there is"),
        xff("203.0.113.9").is(CLIENT, "told by a trusted peer"),
        xff("198.51.100.66, 203.0.113.9").is(CLIENT, "left of the client nothing counts"),
        xff("203.0.113.9, 10.0.0.2").is(CLIENT, "past a proxy"),
        xff("198.51.100.66, 203.0.113.9, 10.0.0.3, 10.0.0.2").is(CLIENT, "past two proxies"),
        xff("198.51.100.66, 10.0.0.7, 203.0.113.9")
            .is(CLIENT, "a proxy that the client made up is left of it"),
        xff("10.0.0.7")
            .peer("203.0.113.9")
            .is(CLIENT, "the peer is no proxy"),
        xff("198.51.100.66, 10.0.0.2")
            .peer("203.0.113.9")
            .is(CLIENT, "a made-up chain from no proxy"),
        xff("198.51.100.66")
            .peer("203.0.113.9")
            .trust(Trust::Nobody)
            .is(CLIENT, "no header is read"),
        xff("10.3.3.3").is("10.3.3.3", "all trusted: a machine inside"),
        xff("10.9.9.9, 10.0.0.3, 10.0.0.2").is("10.9.9.9", "all trusted: the leftmost"),
        xff("2001:db8:aa::9")
            .peer("2001:db8:ffff::1")
            .is(CLIENT_6, "an IPv6 proxy"),
        xff("198.51.100.66, 2001:db8:aa::9, 2001:db8:ffff::2").is(CLIENT_6, "past an IPv6 proxy"),
        xff("198.51.100.66")
            .peer("2001:db8:aa::9")
            .is(CLIENT_6, "an IPv6 peer that is no proxy"),
        xff("198.51.100.66, 203.0.113.9")
            .trust(Trust::Networks(&["10.0.0.1"]))
            .is(CLIENT, "a single address is a network of one"),
        xff("198.51.100.66, 203.0.113.9")
            .trust(Trust::Networks(&["10.0.0.1/8"]))
            .is(CLIENT, "bits behind the prefix do not matter"),
        xff("198.51.100.66, 203.0.113.9")
            .trust(Trust::Networks(&["0.0.0.0/0", "::/0"]))
            .is(PEER, "build() refuses to trust everybody; nobody is"),
        xff("198.51.100.66, 203.0.113.9")
            .trust(Trust::Networks(&["0.0.0.0/1", "128.0.0.0/1"]))
            .is(
                FORGED,
                "everybody trusted in two halves: the client chooses",
            ),
    ]
}

fn lines() -> Vec<Case> {
    let again = |case: Case, value| case.and("x-forwarded-for", value);
    vec![
        again(xff("198.51.100.66"), "203.0.113.9")
            .is(CLIENT, "lines are one list: the last is nearest"),
        again(xff("203.0.113.9"), "10.0.0.2").is(CLIENT, "past a proxy on a line of its own"),
        again(
            again(xff("198.51.100.66, 198.51.100.66"), "203.0.113.9, 10.0.0.3"),
            "10.0.0.2",
        )
        .is(CLIENT, "three lines, in order"),
        again(xff(""), "203.0.113.9").is(CLIENT, "an empty line to the left"),
        again(xff("198.51.100.66"), "").is(PEER, "an empty line is an entry that says nothing"),
        again(xff("198.51.100.66"), "unknown").is(PEER, "the nearest line hides the client"),
        headers(Read::ForwardedFor)
            .and("X-FORWARDED-FOR", "198.51.100.66")
            .and("X-forwarded-For", "203.0.113.9")
            .is(CLIENT, "names in any case are one name"),
        again(xff("\"198.51.100.66"), "203.0.113.9").is(CLIENT, "quotes mean nothing here"),
        xff("203.0.113.9")
            .and("forwarded", "for=198.51.100.66")
            .is(CLIENT, "one header is read only"),
        xff("203.0.113.9")
            .and("x-real-ip", "198.51.100.66")
            .is(CLIENT, "one header is read only"),
        headers(Read::ForwardedFor)
            .and("x-real-ip", "198.51.100.66")
            .is(PEER, "a header that is not the chosen one"),
        headers(Read::ForwardedFor)
            .and("forwarded", "for=198.51.100.66")
            .is(PEER, "a header that is not the chosen one"),
    ]
}

fn forms() -> Vec<Case> {
    vec![
        xff("198.51.100.66, 203.0.113.9:54321").is(CLIENT, "with a port"),
        xff("198.51.100.66, 203.0.113.9:_hidden").is(CLIENT, "with a hidden port"),
        xff("198.51.100.66, [2001:db8:aa::9]:443").is(CLIENT_6, "in brackets, with a port"),
        xff("198.51.100.66, [2001:db8:aa::9]").is(CLIENT_6, "in brackets"),
        xff("198.51.100.66, 2001:DB8:AA:0:0:0:0:9").is(CLIENT_6, "written out, in capitals"),
        xff("203.0.113.9, 10.0.0.2:4711").is(CLIENT, "past a proxy with a port"),
        xff("203.0.113.9, [2001:db8:ffff::2]:80").is(CLIENT, "past a proxy in brackets"),
        xff(" \t203.0.113.9 \t").is(CLIENT, "spaces and tabs around"),
        xff("198.51.100.66,203.0.113.9,10.0.0.2").is(CLIENT, "no spaces"),
        xff("198.51.100.66 , 203.0.113.9 , 10.0.0.2").is(CLIENT, "spaces before commas"),
        xff(",203.0.113.9").is(CLIENT, "an empty entry to the left"),
        xff("198.51.100.66,").is(PEER, "an empty entry stops the walk"),
        xff("198.51.100.66, , 10.0.0.2")
            .is("10.0.0.2", "an empty entry stops the walk at the proxy"),
        xff("").is(PEER, "an empty header"),
        xff(", ,\t,").is(PEER, "commas only"),
        xff("198.51.100.66, 203.0.113.9:").is(PEER, "a port without digits"),
        xff("198.51.100.66, 203.0.113.9:http").is(PEER, "a port that is no number"),
        xff("198.51.100.66, 203.0.113.9:123456").is(PEER, "a port of six digits"),
        xff("198.51.100.66, [2001:db8:aa::9").is(PEER, "a bracket that stays open"),
        xff("198.51.100.66, [2001:db8:aa::9]9").is(PEER, "something behind the bracket"),
        xff("198.51.100.66, [203.0.113.9]").is(PEER, "brackets are for IPv6"),
        xff("198.51.100.66, []").is(PEER, "empty brackets"),
        xff("198.51.100.66, \"203.0.113.9\"").is(PEER, "quotes have no place here"),
        xff("198.51.100.66 203.0.113.9").is(PEER, "two addresses without a comma"),
        xff("198.51.100.66; 203.0.113.9").is(PEER, "a semicolon separates nothing"),
    ]
}

fn hidden() -> Vec<Case> {
    vec![
        xff("unknown").is(PEER, "the proxy does not know"),
        xff("198.51.100.66, unknown").is(PEER, "nothing is skipped"),
        xff("198.51.100.66, UNKNOWN").is(PEER, "in capitals"),
        xff("198.51.100.66, _hidden").is(PEER, "the proxy does not tell"),
        xff("198.51.100.66, unknown, 10.0.0.2")
            .is("10.0.0.2", "stops at the proxy that does not know"),
        xff("198.51.100.66, _gazonk, 10.0.0.3, 10.0.0.2")
            .is("10.0.0.3", "stops at the proxy that does not tell"),
        xff("unknown, 203.0.113.9, 10.0.0.2").is(CLIENT, "left of the client nothing counts"),
        xff("198.51.100.66, -, 203.0.113.9").is(CLIENT, "left of the client nothing counts"),
        xff("198.51.100.66, -").is(PEER, "a dash for nobody"),
        xff("198.51.100.66, client.example").is(PEER, "a name is no address"),
    ]
}

fn mapped_and_zoned() -> Vec<Case> {
    vec![
        xff("198.51.100.66, ::ffff:203.0.113.9").is(CLIENT, "IPv4 in IPv6 form"),
        xff("198.51.100.66, ::FFFF:cb00:7109").is(CLIENT, "IPv4 in IPv6 form, in hex"),
        xff("198.51.100.66, [::ffff:203.0.113.9]:80").is(CLIENT, "IPv4 in IPv6 form, with a port"),
        xff("198.51.100.66, 203.0.113.9, ::ffff:10.0.0.2").is(CLIENT, "past a proxy in IPv6 form"),
        xff("198.51.100.66, 203.0.113.9")
            .peer("::ffff:10.0.0.1")
            .is(CLIENT, "from a dual-stack socket"),
        xff("198.51.100.66")
            .peer("::ffff:203.0.113.9")
            .is(CLIENT, "a dual-stack peer that is no proxy"),
        xff("198.51.100.66, 203.0.113.9")
            .trust(Trust::Networks(&["::ffff:10.0.0.0/104"]))
            .is(CLIENT, "an IPv4 network in IPv6 form"),
        xff("10.9.9.9")
            .trust(Trust::Networks(&["::/1"]))
            .is(PEER, "IPv4 is in no IPv6 network"),
        xff("198.51.100.66, ::203.0.113.9").is("::cb00:7109", "IPv4-compatible is not IPv4-mapped"),
        xff("198.51.100.66, 64:ff9b::203.0.113.9").is("64:ff9b::cb00:7109", "NAT64 stays IPv6"),
        xff("198.51.100.66, fe80::9%eth0").is("fe80::9", "without the zone"),
        xff("198.51.100.66, [fe80::9%25eth0]:80").is("fe80::9", "without the zone and port"),
        xff("203.0.113.9, fe80::2%3")
            .peer("fe80::1")
            .trust(Trust::Networks(&["fe80::/10"]))
            .is(CLIENT, "past a proxy with a zone"),
        xff("198.51.100.66, fe80::9%").is(PEER, "a zone without a name"),
        xff("198.51.100.66, 203.0.113.9%eth0").is(PEER, "IPv4 has no zones"),
    ]
}

fn no_addresses() -> Vec<Case> {
    vec![
        xff("198.51.100.66, 203.0.113.09").is(PEER, "a leading zero: decimal or octal?"),
        xff("198.51.100.66, 0xcb.0.113.9").is(PEER, "hex"),
        xff("198.51.100.66, 3405803785").is(PEER, "one number"),
        xff("198.51.100.66, 203.0.9").is(PEER, "three parts"),
        xff("198.51.100.66, 203.0.113.256").is(PEER, "256"),
        xff("198.51.100.66, 203.0.113.9/32").is(PEER, "a network"),
        xff("198.51.100.66, 2001:db8::aa::9").is(PEER, "two gaps"),
        xff("198.51.100.66, for=203.0.113.9").is(PEER, "the other header's syntax"),
        xff(b"\xFF\xFE, 203.0.113.9").is(CLIENT, "not UTF-8, left of the client"),
        xff(b"198.51.100.66, \xFF").is(PEER, "not UTF-8"),
        xff(b"198.51.100.66, 203.0.113.9\xFF").is(PEER, "not UTF-8 at the end"),
        xff("198.51.100.66, \u{FF12}03.0.113.9").is(PEER, "a full-width digit"),
        xff("198.51.100.66, 203.0.113.9\u{A0}").is(PEER, "a space that is none to HTTP"),
    ]
}

fn large() -> Vec<Case> {
    let many = |entry: &str, count: usize| vec![entry; count].join(", ");
    let mut thousand_lines = headers(Read::ForwardedFor);
    for _ in 0..1_000 {
        thousand_lines = thousand_lines.and("x-forwarded-for", FORGED);
    }
    vec![
        xff(many(FORGED, 1_000) + ", 203.0.113.9").is(CLIENT, "1,000 hops left of the client"),
        xff(many("10.0.0.7", 1_000) + ", 203.0.113.9").is(CLIENT, "1,000 made-up proxies"),
        xff(format!("{FORGED}, {}", many("10.0.0.7", 1_000))).is("10.0.0.7", "32 entries are read"),
        xff(format!("{CLIENT}, {}", many("10.0.0.7", 31))).is(CLIENT, "the 32nd entry is read"),
        xff(format!("{FORGED}, {}", many("10.0.0.7", 32)))
            .is("10.0.0.7", "the 33rd entry is not read"),
        xff("9".repeat(100_000)).is(PEER, "100 kB without a comma"),
        xff("9".repeat(100_000) + ", 203.0.113.9").is(CLIENT, "100 kB left of the client"),
        xff(format!("{FORGED}, {}", " ".repeat(100_000))).is(PEER, "100 kB of spaces"),
        xff(",".repeat(100_000)).is(PEER, "100,000 empty entries"),
        xff(",".repeat(100_000) + "203.0.113.9")
            .is(CLIENT, "100,000 empty entries left of the client"),
        thousand_lines
            .and("x-forwarded-for", CLIENT)
            .is(CLIENT, "1,000 lines left of the client"),
        fwd(many("for=198.51.100.66", 1_000) + ", for=203.0.113.9")
            .is(CLIENT, "1,000 hops left of the client"),
        fwd(format!("for={FORGED}, {}", many("for=10.0.0.7", 1_000)))
            .is("10.0.0.7", "32 entries are read"),
        fwd(format!(
            "for={FORGED};host=\"{}\", for={CLIENT}",
            "a".repeat(100_000)
        ))
        .is(CLIENT, "100 kB left of the client"),
        fwd(format!("for={CLIENT};host=\"{}\"", "a".repeat(100_000)))
            .is(PEER, "an entry of more than 8 kB is not read"),
        fwd(format!(
            "for={FORGED}, for={CLIENT};host=\"{}\"",
            "a,".repeat(4_000)
        ))
        .is(CLIENT, "a Host of 8 kB does not hide its sender"),
        xff(format!("{FORGED}, {CLIENT}{}", " ".repeat(600)))
            .is(PEER, "an entry of more than 512 bytes is not read"),
        xff(format!("x{}{FORGED}", " ".repeat(600)))
            .is(PEER, "the end of a long entry is no entry"),
        fwd(format!(
            "for={CLIENT};host=xfor={FORGED};x={}",
            "a".repeat(8_193 - 20)
        ))
        .is(PEER, "the end of a long entry is no entry"),
        fwd("\"".repeat(100_000)).is(PEER, "100 kB of quotation marks"),
        fwd("\\".repeat(100_000) + "\"").is(PEER, "100 kB of backslashes"),
    ]
}

fn forwarded() -> Vec<Case> {
    let again = |case: Case, value| case.and("forwarded", value);
    vec![
        fwd("for=203.0.113.9").is(CLIENT, "told by a trusted peer"),
        fwd("for=198.51.100.66, for=203.0.113.9").is(CLIENT, "left of the client nothing counts"),
        fwd("for=198.51.100.66, for=203.0.113.9, for=10.0.0.2").is(CLIENT, "past a proxy"),
        fwd("for=198.51.100.66")
            .peer("203.0.113.9")
            .is(CLIENT, "the peer is no proxy"),
        fwd("For=\"203.0.113.9:4711\";Proto=https;BY=\"_x\"").is(CLIENT, "names in any case"),
        fwd("proto=http;host=example.com;for=203.0.113.9;by=10.0.0.1").is(CLIENT, "in any order"),
        fwd("for=\"[2001:db8:aa::9]:4711\"").is(CLIENT_6, "in brackets and quotes, with a port"),
        fwd("for=[2001:db8:aa::9]:4711").is(CLIENT_6, "the quotes are forgotten"),
        fwd("for=2001:db8:aa::9").is(CLIENT_6, "quotes and brackets are forgotten"),
        fwd("for=\"[::ffff:203.0.113.9]\", for=\"[::ffff:10.0.0.2]\"")
            .is(CLIENT, "IPv4 in IPv6 form"),
        fwd("for=203.0.113.9 ; proto=http ;; ").is(CLIENT, "spaces and empty pairs"),
        fwd(r#"for="203\.0\.113\.9""#).is(CLIENT, "escapes in quotes"),
        again(fwd("for=198.51.100.66"), "for=203.0.113.9").is(CLIENT, "lines are one list"),
        again(fwd("for=203.0.113.9"), "for=10.0.0.2")
            .is(CLIENT, "past a proxy on a line of its own"),
        again(fwd("for=\"198.51.100.66"), "for=203.0.113.9")
            .is(CLIENT, "a quote left open ends with its line"),
        fwd("for=\"198.51.100.66, for=203.0.113.9")
            .is(CLIENT, "a quote left open swallows nothing"),
        fwd("for=198.51.100.66;x=\", for=\"[2001:db8:aa::9]\"")
            .is(CLIENT_6, "a quote left open pairs with none of the proxy's"),
        fwd("for=198.51.100.66;x=\"\\, for=\"203.0.113.9\"")
            .is(CLIENT, "an open escape swallows nothing"),
        fwd("for=203.0.113.9;host=\"a, for=198.51.100.66\"").is(CLIENT, "a comma in quotes"),
        fwd("for=203.0.113.9;host=\"a;for=198.51.100.66\"").is(CLIENT, "a semicolon in quotes"),
        fwd(r#"for=203.0.113.9;host="a\", for=198.51.100.66""#).is(CLIENT, "an escaped quote"),
        fwd(r#"for=198.51.100.66, for=203.0.113.9;host="a\\""#).is(CLIENT, "an escaped backslash"),
        fwd("for=198.51.100.66, for=unknown").is(PEER, "the proxy does not know"),
        fwd("for=198.51.100.66, for=_hidden, for=10.0.0.2")
            .is("10.0.0.2", "stops at the proxy that hides"),
        fwd("for=198.51.100.66, for=\"_hidden:_x\"").is(PEER, "the proxy does not tell"),
        fwd("for=198.51.100.66, proto=https").is(PEER, "an entry without for"),
        fwd("for=198.51.100.66, for=203.0.113.9;for=198.51.100.66")
            .is(PEER, "for twice in one entry"),
        fwd("for=198.51.100.66, for = 203.0.113.9").is(PEER, "spaces around ="),
        fwd("for=198.51.100.66, for=\"\"").is(PEER, "an empty value"),
        fwd("for=198.51.100.66, for=").is(PEER, "no value"),
        fwd("for=198.51.100.66, for").is(PEER, "no ="),
        fwd("for=198.51.100.66, 203.0.113.9").is(PEER, "the other header's syntax"),
        fwd("for=198.51.100.66, for=203.0.113.9;host=\"a")
            .is(PEER, "a quote that the proxy leaves open"),
        fwd("for=198.51.100.66, for=203.0.113.9 by=_x").is(PEER, "no semicolon between"),
        fwd("for=198.51.100.66,").is(PEER, "an empty entry stops the walk"),
        fwd("for=198.51.100.66, for=\"203.0.113.9\"x").is(PEER, "something behind the quotes"),
        fwd(b"for=198.51.100.66, for=\"\xFF\"").is(PEER, "not UTF-8"),
        fwd("for=203.0.113.9")
            .and("x-forwarded-for", FORGED)
            .is(CLIENT, "one header is read only"),
    ]
}

fn single() -> Vec<Case> {
    vec![
        one("cf-connecting-ip", "203.0.113.9").is(CLIENT, "told by a trusted peer"),
        one("CF-Connecting-IP", "203.0.113.9").is(CLIENT, "names in any case"),
        one("cf-connecting-ip", FORGED)
            .peer("203.0.113.9")
            .is(CLIENT, "the peer is no proxy"),
        one("cf-connecting-ip", FORGED)
            .and("cf-connecting-ip", CLIENT)
            .is(AMBIGUOUS, "twice: which is it?"),
        one("cf-connecting-ip", CLIENT)
            .and("cf-connecting-ip", CLIENT)
            .is(AMBIGUOUS, "twice, though the same"),
        one("cf-connecting-ip", "")
            .and("cf-connecting-ip", CLIENT)
            .is(AMBIGUOUS, "twice, though one is empty"),
        one("cf-connecting-ip", CLIENT)
            .and("cf-connecting-ip", FORGED)
            .peer("203.0.113.9")
            .is(CLIENT, "twice from a peer that is no proxy"),
        one("cf-connecting-ip", "198.51.100.66, 203.0.113.9")
            .is(AMBIGUOUS, "two lines that were joined"),
        one("cf-connecting-ip", "").is(PEER, "empty"),
        headers(Read::Single("cf-connecting-ip"))
            .and("x-forwarded-for", FORGED)
            .is(PEER, "absent; another header does not stand in"),
        one("true-client-ip", "2001:db8:aa::9").is(CLIENT_6, "IPv6"),
        one("x-real-ip", "::ffff:203.0.113.9").is(CLIENT, "IPv4 in IPv6 form"),
        one("x-real-ip", "unknown").is(PEER, "the proxy does not know"),
        one("x-real-ip", b"\xFF").is(PEER, "not UTF-8"),
        one("x-real-ip", "9".repeat(100_000)).is(PEER, "100 kB"),
        one("fly-client-ip", "203.0.113.9").is(CLIENT, "told by a trusted peer"),
        one("x-envoy-external-address", "203.0.113.9:80").is(CLIENT, "with a port"),
        one("cloudfront-viewer-address", "203.0.113.9:46532").is(CLIENT, "always with a port"),
        one("cloudfront-viewer-address", "2001:db8:aa::9:46532")
            .is(CLIENT_6, "IPv6 without brackets"),
        one("cloudfront-viewer-address", "203.0.113.9").is(PEER, "the port is missing"),
        one("cloudfront-viewer-address", "203.0.113.9:http").is(PEER, "the port is no number"),
        one("x-real-ip", "203.0.113.9")
            .trust(Trust::Hops(1))
            .peer("192.0.2.1")
            .is(CLIENT, "any peer is trusted"),
    ]
}

fn by_number() -> Vec<Case> {
    let behind = |hops, value| xff(value).trust(Trust::Hops(hops)).peer("192.0.2.1");
    vec![
        behind(1, "198.51.100.66, 203.0.113.9").is(CLIENT, "the load balancer's entry"),
        behind(2, "198.51.100.66, 203.0.113.9, 192.0.2.2").is(CLIENT, "past the inner proxy"),
        behind(2, "198.51.100.66, 203.0.113.9, 10.0.0.7, 10.0.0.8")
            .is("10.0.0.7", "so many and no more"),
        behind(3, "203.0.113.9").is(CLIENT, "fewer entries than proxies: the leftmost"),
        behind(1, "").is("192.0.2.1", "an empty header"),
        behind(1, "198.51.100.66, unknown").is("192.0.2.1", "nothing is skipped"),
        behind(2, "198.51.100.66, _hidden, 192.0.2.2")
            .is("192.0.2.2", "stops at the proxy that hides"),
        behind(2, "198.51.100.66, ::ffff:203.0.113.9, ::ffff:192.0.2.2")
            .is(CLIENT, "IPv4 in IPv6 form"),
        fwd("for=198.51.100.66, for=203.0.113.9, for=192.0.2.2")
            .trust(Trust::Hops(2))
            .peer("192.0.2.1")
            .is(CLIENT, "past the inner proxy"),
    ]
}
