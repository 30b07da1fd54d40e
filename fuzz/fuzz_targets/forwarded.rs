//! The walk over `X-Forwarded-For`, `Forwarded` and single-value headers.
//!
//! Whatever bytes a client sends, the address that its own proxy saw is the one found. What an attacker may add is the
//! head of the list, and the text of a quoted `host`, which proxies copy from the request.

#![no_main]

use std::{net::IpAddr, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use tollgate::{
    extract::{ClientIp, SingleHeader},
    fuzzing,
};

fuzz_target!(|data: &[u8]| {
    let [choice, rest @ ..] = data else { return };
    let lines: Vec<&[u8]> = rest.splitn(MAX_LINES, |byte| *byte == b'\n').collect();
    any_bytes_are_walked(*choice, &lines);
    client_is_found(*choice, rest, lines);
});

/// No panic, and never anything when there is no one to believe. Of two values of a single-value header there is no telling.
fn any_bytes_are_walked(choice: u8, lines: &[&[u8]]) {
    let number = usize::from(choice) % ALL.len();
    let extractor = &ALL[number];
    let values = lines.iter().map(|line| line.split(|byte| *byte == b',').count());
    let is_clear = number < 2 || values.sum::<usize>() < 2;
    assert_eq!(fuzzing::follow(extractor, PROXY, lines).is_some(), is_clear);
    assert_eq!(fuzzing::follow(extractor, CLIENT, lines), Some(CLIENT));
}

/// The client's bytes, and behind them what honest proxies say: it is the client that is found.
fn client_is_found(choice: u8, rest: &[u8], mut lines: Vec<&[u8]>) {
    let is_forwarded = choice & 1 == 1;
    let honest = if is_forwarded {
        forwarded(choice, rest)
    } else {
        forwarded_for(choice)
    };
    let is_one_line = choice & 2 == 2;
    let said = if is_one_line {
        let last = lines.pop().unwrap_or_default();
        let comma: &[u8] = if choice & 4 == 4 { b"," } else { b" ,\t " };
        [last, comma, &honest].concat()
    } else {
        honest
    };
    let lines = [&lines[..], &[&said]].concat();
    let extractor = &ALL[usize::from(is_forwarded)];
    assert_eq!(fuzzing::follow(extractor, PROXY, &lines), Some(CLIENT));
}

fn forwarded_for(choice: u8) -> Vec<u8> {
    match choice >> 3 & 3 {
        0 => b"203.0.113.9".to_vec(),
        1 => b"203.0.113.9:80, 10.1.1.1".to_vec(),
        2 => b"::ffff:203.0.113.9,[2001:db8:1::1]:80".to_vec(),
        _ => b"[::ffff:203.0.113.9%eth0]:_x , 10.1.1.1,2001:db8:1::2%3,\t10.9.9.9:1".to_vec(),
    }
}

fn forwarded(choice: u8, rest: &[u8]) -> Vec<u8> {
    let mut said = match choice >> 3 & 3 {
        0 => b"for=203.0.113.9".to_vec(),
        1 => b"proto=https;for=\"203.0.113.9:80\"".to_vec(),
        2 => b"For=\"[::ffff:203.0.113.9]:_x\" ; by=_y".to_vec(),
        _ => b"for=\"203\\.0.113.9\"".to_vec(),
    };
    if choice & 0x20 != 0 {
        said.extend_from_slice(b";host=\"");
        for byte in rest {
            if matches!(byte, b'"' | b'\\') {
                said.push(b'\\');
            }
            said.push(*byte);
        }
        said.push(b'"');
    }
    if choice & 0x40 != 0 {
        said.extend_from_slice(b" , for=\"[2001:db8:1::1]\";proto=http,for=10.1.1.1");
    }
    said
}

const MAX_LINES: usize = 8;
const PROXY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 9));

static ALL: LazyLock<[ClientIp; 4]> = LazyLock::new(|| {
    let behind = || ClientIp::behind(["10.0.0.0/8", "2001:db8:1::/48"]);
    [
        behind().forwarded_for(),
        behind().forwarded(),
        behind().header(SingleHeader::XRealIp),
        behind().header(SingleHeader::CloudFrontViewerAddress),
    ]
});
