//! Named values that may be percent-encoded: cookies, path and query parameters.
//!
//! # Why are cookies and parameters decoded?
//!
//! The handler behind the layer decodes them. Counted as written, one session would be as many keys as it has spellings: `%61bc`,
//! `a%62c`, `"abc"`. If the limiter decodes more than the handler, two spellings share a count, which only harms a client that
//! sends both.

use std::borrow::Cow;

use crate::{
    error::{Error, ErrorKind},
    request::hex_byte,
};

/// The name of a cookie or parameter, with a label that contains it, such as `query:tenant`.
#[derive(Clone, Debug)]
pub(super) struct ParamName {
    label: String,
    /// Where the name starts in the label.
    start: usize,
}

impl ParamName {
    pub fn new(kind: &str, name: &str) -> Self {
        Self {
            label: format!("{kind}:{name}"),
            start: kind.len() + 1,
        }
    }

    #[inline]
    pub fn as_str(&self) -> &str {
        &self.label[self.start..]
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns whether `text` is this name, however it is encoded.
    pub fn matches(&self, text: &[u8], plus: Plus) -> bool {
        let name = self.as_str();
        // An escape takes three bytes, which bounds the length of an encoded name.
        (name.len()..=3 * name.len()).contains(&text.len())
            && decoded_bytes(text, plus).eq(name.bytes())
    }

    /// Rejects a name that no request can have. `kind` completes "is not the name of ..", with what to use instead.
    pub fn validate(&self, is_valid: bool, kind: &str) -> Result<(), Error> {
        if is_valid {
            return Ok(());
        }
        let message = format!("{:?} is not the name of a {kind}", self.as_str());
        Err(Error::new(ErrorKind::InvalidConfig, message))
    }
}

// === Percent-decoding ===

/// How a `+` is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plus {
    /// Not at all, as in paths and cookies.
    Literal,
    /// To a space, as in queries.
    Space,
}

/// Decodes a text as web frameworks do. A `%` without two hexadecimal digits after it is kept.
pub(super) fn decode(text: &[u8], plus: Plus) -> Cow<'_, [u8]> {
    let is_encoded = |byte: &u8| *byte == b'%' || (*byte == b'+' && plus == Plus::Space);
    if text.iter().any(is_encoded) {
        Cow::Owned(decoded_bytes(text, plus).collect())
    } else {
        Cow::Borrowed(text)
    }
}

fn decoded_bytes(text: &[u8], plus: Plus) -> impl Iterator<Item = u8> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (first, after) = rest.split_first()?;
        if let (b'%', [high, low, after @ ..]) = (first, after)
            && let Some(byte) = hex_byte(*high, *low)
        {
            rest = after;
            return Some(byte);
        }
        rest = after;
        match (first, plus) {
            (b'+', Plus::Space) => Some(b' '),
            _ => Some(*first),
        }
    })
}
