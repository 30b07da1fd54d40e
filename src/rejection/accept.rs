//! Content negotiation by `Accept` (RFC 9110, section 12.5.1).

use http::{HeaderMap, HeaderValue, header::ACCEPT};

/// Returns the index of the media type that a request prefers. `None` if it accepts none of them, or has no `Accept`.
///
/// For each media type, the most exact range counts. If several media types have the same quality, the one that is
/// named more exactly is preferred, then the first. A range whose quality is malformed is ignored.
pub(super) fn preferred<const N: usize>(
    headers: &HeaderMap,
    media_types: [&str; N],
) -> Option<usize> {
    let mut preferences = [Preference::default(); N];
    let lines = headers.get_all(ACCEPT).iter();
    let lines = lines.filter_map(|line: &HeaderValue| line.to_str().ok());
    for range in lines.flat_map(|line| line.split(',')) {
        let (range, quality) = parse_range(range);
        let Some(quality) = quality else { continue };
        for (preference, media_type) in preferences.iter_mut().zip(media_types) {
            let precision = precision(range, media_type);
            if precision > preference.precision {
                *preference = Preference { quality, precision };
            }
        }
    }
    let accepted = preferences.iter().enumerate().rev();
    let accepted = accepted.filter(|(_, preference)| preference.quality > 0);
    // `max_by_key` returns the last of equals, which is the first in reverse order.
    let best = accepted.max_by_key(|(_, preference)| **preference);
    best.map(|(index, _)| index)
}

/// Preference for a media type, by the most precise range that matches it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    /// In thousandths.
    quality: u16,
    precision: u8,
}

/// Returns a range without its parameters, and its quality in thousandths. `None` if the quality is malformed.
fn parse_range(range: &str) -> (&str, Option<u16>) {
    let mut parts = range.split(';').map(str::trim_ascii);
    let name = parts.next().unwrap_or_default();
    let quality = parts.find_map(|part| {
        let (name, quality) = part.split_once('=')?;
        name.trim_ascii()
            .eq_ignore_ascii_case("q")
            .then_some(quality)
    });
    (name, quality.map_or(Some(1_000), thousandths))
}

/// Parses `0`, `0.5` or `1.000`: at most three decimals, at most 1.
fn thousandths(quality: &str) -> Option<u16> {
    let (whole, decimals) = quality
        .trim_ascii()
        .split_once('.')
        .unwrap_or((quality, ""));
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

/// Returns how precisely a range names a media type; 0 if it does not match.
fn precision(range: &str, media_type: &str) -> u8 {
    if range.eq_ignore_ascii_case(media_type) {
        return 3;
    }
    let Some(accepted) = range.strip_suffix("/*") else {
        return 0;
    };
    let main_type = media_type.split('/').next();
    if accepted == "*" {
        1
    } else if main_type.is_some_and(|main_type| main_type.eq_ignore_ascii_case(accepted)) {
        2
    } else {
        0
    }
}
