//! The positions of a text's bytes.

use super::node::Position;

/// Where each line of a text begins.
pub(super) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
    /// The characters before each block, so that a position in a long line is found without counting all of the line.
    before: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub fn of(text: &'a str) -> Self {
        let after = text.match_indices('\n').map(|(index, _)| index + 1);
        Self {
            text,
            starts: std::iter::once(0).chain(after).collect(),
            before: std::iter::once(0)
                .chain(text.as_bytes().chunks(BLOCK).scan(0, |sum, block| {
                    *sum += characters(block);
                    Some(*sum)
                }))
                .collect(),
        }
    }

    /// Returns the line and the column of a byte.
    pub fn position(&self, byte: usize) -> Position {
        let line = self.starts.partition_point(|start| *start <= byte).max(1);
        Position {
            line,
            column: self.characters_before(byte) - self.characters_before(self.starts[line - 1])
                + 1,
        }
    }

    fn characters_before(&self, byte: usize) -> usize {
        let byte = byte.min(self.text.len());
        let block = byte / BLOCK;
        self.before[block] + characters(&self.text.as_bytes()[block * BLOCK..byte])
    }

    /// Returns the index of a byte from its line and its column in bytes, both from 1.
    pub fn byte(&self, line: usize, column: usize) -> usize {
        let start = line.checked_sub(1).and_then(|line| self.starts.get(line));
        start.map_or(self.text.len(), |start| start + column.saturating_sub(1))
    }
}

/// Returns how many characters begin in a part of a text.
fn characters(part: &[u8]) -> usize {
    part.iter().filter(|byte| **byte & 0xC0 != 0x80).count()
}

const BLOCK: usize = 1_024;
