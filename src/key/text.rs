//! A key before it is put together.

use super::key::Key;

/// A key, or a text that is counted as [`Key::new`] of it, without making the key.
///
/// Made from a `&str`, a `&String` or a `&Key`. For a key, pass the key and not its [`as_str`](Key::as_str): what is escaped or
/// hashed in that text would be escaped once more, and count as another key.
#[derive(Clone, Copy, Debug)]
pub struct KeyText<'a>(Source<'a>);

#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Key(&'a Key),
    Text(&'a str),
}

impl KeyText<'_> {
    /// Returns the key, if it is one already.
    #[inline]
    pub(crate) fn as_key(&self) -> Option<&Key> {
        match self.0 {
            Source::Key(key) => Some(key),
            Source::Text(_) => None,
        }
    }

    /// Returns the words of the key of a text, as [`Key::words`] does; `None` if the text must be escaped or hashed, or fills the
    /// word with the length.
    // Always inlined, as the hash that reads them.
    #[inline(always)]
    pub(crate) fn words(&self) -> Option<impl Iterator<Item = u64>> {
        let Source::Text(text) = self.0 else {
            return None;
        };
        let text = text.as_bytes();
        let is_short = (1..8 * Key::WORDS - 7).contains(&text.len());
        if !(is_short && Key::is_plain(text)) {
            return None;
        }
        let (words, rest) = text.as_chunks();
        let last = |word, byte: &u8| word << 8 | u64::from(*byte);
        let last = rest.iter().rev().fold(0, last);
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        Some(words.chain((!rest.is_empty()).then_some(last)))
    }
}

impl<'a> From<&'a str> for KeyText<'a> {
    #[inline]
    fn from(text: &'a str) -> Self {
        Self(Source::Text(text))
    }
}

impl<'a> From<&'a String> for KeyText<'a> {
    #[inline]
    fn from(text: &'a String) -> Self {
        Self(Source::Text(text))
    }
}

impl<'a> From<&'a Key> for KeyText<'a> {
    #[inline]
    fn from(key: &'a Key) -> Self {
        Self(Source::Key(key))
    }
}

impl From<KeyText<'_>> for Key {
    fn from(text: KeyText<'_>) -> Self {
        match text.0 {
            Source::Key(key) => *key,
            Source::Text(text) => Self::new(text),
        }
    }
}
