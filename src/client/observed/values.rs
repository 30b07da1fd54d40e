//! Header values as text.

use http::{HeaderMap, HeaderValue};

/// Returns a value as text. `None` if it is empty, too long, or not visible ASCII.
pub(super) fn text(value: &HeaderValue) -> Option<&str> {
    bounded(value, MAX_BYTES)
}

/// Returns a value of at most `max` bytes as text.
pub(super) fn bounded(value: &HeaderValue, max: usize) -> Option<&str> {
    if value.len() > max {
        return None;
    }
    let text = value.to_str().ok()?.trim();
    (!text.is_empty()).then_some(text)
}

/// Returns the values of a header as text.
pub(super) fn texts<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter();
    values.take(MAX_VALUES).filter_map(text)
}

/// The most values that are read of a response, and of one header.
pub(super) const MAX_VALUES: usize = 32;
const MAX_BYTES: usize = 1_024;
