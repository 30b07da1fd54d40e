//! The places of a text's bytes.

use super::node::Place;

/// Where each line of a text begins.
pub(super) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let after = text.match_indices('\n').map(|(index, _)| index + 1);
        Self {
            text,
            starts: std::iter::once(0).chain(after).collect(),
        }
    }

    /// Returns the line and the column of a byte.
    pub(super) fn place(&self, byte: usize) -> Place {
        let line = self.starts.partition_point(|start| *start <= byte).max(1);
        let before = self.text.get(self.starts[line - 1]..byte);
        Place {
            line,
            column: before.unwrap_or_default().chars().count() + 1,
        }
    }

    /// Returns the index of a byte from its line and its column in bytes, both from 1.
    pub(super) fn byte(&self, line: usize, column: usize) -> usize {
        let start = line.checked_sub(1).and_then(|line| self.starts.get(line));
        start.map_or(self.text.len(), |start| start + column.saturating_sub(1))
    }
}
