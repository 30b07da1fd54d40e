//! What a request accepts (RFC 9110, section 12.5.1).

use http::{HeaderMap, HeaderValue, header::ACCEPT};

/// The offer that the request likes best, by its place; `None` when it accepts none, or does not say.
///
/// What an exact name says goes before what a range says. Of offers liked equally, the one that was named more exactly is
/// taken, then the first. A range that is not well formed says nothing.
pub(super) fn best<const N: usize>(headers: &HeaderMap, offers: [&str; N]) -> Option<usize> {
    let mut liked = [Liking::default(); N];
    let lines = headers.get_all(ACCEPT).iter();
    let lines = lines.filter_map(|line: &HeaderValue| line.to_str().ok());
    for range in lines.flat_map(|line| line.split(',')) {
        let (range, quality) = parsed(range);
        let Some(quality) = quality else { continue };
        for (liking, offer) in liked.iter_mut().zip(offers) {
            let exactness = exactness(range, offer);
            if exactness > liking.exactness {
                *liking = Liking { quality, exactness };
            }
        }
    }
    let accepted = liked.iter().enumerate().rev();
    let accepted = accepted.filter(|(_, liking)| liking.quality > 0);
    // The last of equals: with the places reversed, the first.
    let best = accepted.max_by_key(|(_, liking)| **liking);
    best.map(|(place, _)| place)
}

/// How much an offer is liked, and how exactly that was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Liking {
    /// In thousandths.
    quality: u16,
    exactness: u8,
}

/// A range without its parameters, and its quality in thousandths unless that makes no sense.
fn parsed(range: &str) -> (&str, Option<u16>) {
    let mut parts = range.split(';').map(str::trim_ascii);
    let name = parts.next().unwrap_or_default();
    let weight = parts.find_map(|part| {
        let (name, weight) = part.split_once('=')?;
        name.trim_ascii()
            .eq_ignore_ascii_case("q")
            .then_some(weight)
    });
    (name, weight.map_or(Some(1_000), thousandths))
}

/// `0`, `0.5`, `1.000`: at most three decimals, at most 1.
fn thousandths(weight: &str) -> Option<u16> {
    let (whole, decimals) = weight.trim_ascii().split_once('.').unwrap_or((weight, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let decimals = format!("{decimals:0<3}").parse::<u16>().ok()?;
    match whole.trim_ascii() {
        "0" => Some(decimals),
        "1" if decimals == 0 => Some(1_000),
        _ => None,
    }
}

/// How exactly a range names an offer; 0 when it does not.
fn exactness(range: &str, offer: &str) -> u8 {
    if range.eq_ignore_ascii_case(offer) {
        return 3;
    }
    match range.strip_suffix("/*") {
        Some("*") => 1,
        Some(kind)
            if offer
                .split('/')
                .next()
                .is_some_and(|own| own.eq_ignore_ascii_case(kind)) =>
        {
            2
        }
        _ => 0,
    }
}
