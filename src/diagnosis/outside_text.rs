//! Text from outside, as log lines, errors and the dashboard show it.
//!
//! A rule file, a server or an operator can send a line break, which begins a log line of its own, a control sequence, which
//! a terminal executes, and megabytes. Each text is shown on one line, of a bounded length:
//!
//! ```text
//! "ada\r\nWARN all is well"   ada\r\nWARN all is well     the escapes are written out
//! "aaaa…" (1 MiB)             aaaa .. aaaa                the middle is left out
//! ```

#[cfg(feature = "tracing")]
use std::fmt;
use std::{borrow::Cow, fmt::Write as _};

/// Returns the text on one line, without its middle if it is longer than `most` bytes.
pub(crate) fn shown(text: &str, most: usize) -> String {
    // Before, so that little is escaped; and after, because escapes are longer than what they stand for.
    let mut line = String::new();
    escape(&shortened(text, most), &mut line);
    shortened(&line, most).into_owned()
}

fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let half = most.saturating_sub(GAP.len()) / 2;
    let (mut end, mut start) = (half, text.len() - half);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    while !text.is_char_boundary(start) {
        start += 1;
    }
    Cow::Owned([&text[..end], GAP, &text[start..]].concat())
}

/// In place of the middle.
const GAP: &str = " .. ";

/// Formats a value of a log event as [`shown`] does, within [`MOST_LOGGED`](Self::MOST_LOGGED) bytes.
#[cfg(feature = "tracing")]
pub(crate) struct Logged<T>(pub T);

#[cfg(feature = "tracing")]
impl<T> Logged<T> {
    const MOST_LOGGED: usize = 4_096;
}

#[cfg(feature = "tracing")]
impl<T: fmt::Display> fmt::Display for Logged<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.0.to_string(), Self::MOST_LOGGED))
    }
}

fn escape(text: &str, line: &mut String) {
    for next in text.chars() {
        if is_hidden(next) {
            let _ = write!(line, "{}", next.escape_debug());
        } else {
            line.push(next);
        }
    }
}

/// Returns whether a character controls how others are shown: a line break, an escape, the direction of the text.
fn is_hidden(next: char) -> bool {
    next.is_control()
        || matches!(
            next,
            '\u{061C}'
                | '\u{200B}'..='\u{200F}'
                | '\u{2028}'..='\u{202E}'
                | '\u{2060}'..='\u{206F}'
                | '\u{FEFF}'
                | '\u{FFF9}'..='\u{FFFB}'
                | '\u{E0000}'..='\u{E007F}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_written_out_and_others_stay() {
        for (text, line) in [
            ("naïve \"quoted\" \\n 日本", "naïve \"quoted\" \\n 日本"),
            ("a\r\nb\tc", "a\\r\\nb\\tc"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("\u{85}\u{2028}\u{202e}", "\\u{85}\\u{2028}\\u{202e}"),
            ("\0", "\\0"),
        ] {
            assert_eq!(shown(text, 100), line);
        }
    }

    #[test]
    fn long_text_loses_its_middle_whatever_its_characters_are() {
        assert_eq!(shown("0123456789", 10), "0123456789");
        assert_eq!(shown("0123456789x", 10), "012 .. 89x");
        assert_eq!(shown("ééééééé", 14), "ééééééé");
        assert_eq!(shown("éééééééé", 14), "éé .. éé");
        for count in [90, 1 << 20] {
            assert!(shown(&"\u{1b}".repeat(count), 100).len() <= 100);
        }
    }
}
