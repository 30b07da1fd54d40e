//! Percent-decoding, as the frameworks behind the layer do it.

use std::borrow::Cow;

/// What a `+` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plus {
    Itself,
    /// A space: in forms and queries.
    Space,
}

/// The bytes that a text stands for; a `%` that begins no escape stands for itself.
pub(super) fn decoded(text: &[u8], plus: Plus) -> Cow<'_, [u8]> {
    let is_encoded = text
        .iter()
        .any(|byte| *byte == b'%' || (*byte == b'+' && plus == Plus::Space));
    match is_encoded {
        true => Cow::Owned(bytes(text, plus).collect()),
        false => Cow::Borrowed(text),
    }
}

/// Whether a text stands for a name, however it is encoded.
pub(super) fn reads_as(text: &[u8], plus: Plus, name: &str) -> bool {
    // An escape is three bytes, so what is shorter than the name or over three times as long cannot be it.
    (name.len()..=3 * name.len()).contains(&text.len()) && bytes(text, plus).eq(name.bytes())
}

fn bytes(text: &[u8], plus: Plus) -> impl Iterator<Item = u8> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (first, behind) = rest.split_first()?;
        if let (b'%', Some(byte)) = (first, behind.get(..2).and_then(escaped)) {
            rest = &behind[2..];
            return Some(byte);
        }
        rest = behind;
        match (first, plus) {
            (b'+', Plus::Space) => Some(b' '),
            _ => Some(*first),
        }
    })
}

fn escaped(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let value = 16 * digit(*digits.first()?)? + digit(*digits.get(1)?)?;
    u8::try_from(value).ok()
}
