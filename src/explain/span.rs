//! Lengths of time as operators read them.

use std::{fmt, time::Duration};

/// Displays a duration in the largest unit that leaves at least two of it, rounded up: `35 s`, `12 min`. One second is `1 s`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span(pub(crate) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_micros().div_ceil(1_000);
        let fits = |(_, length): &&(&str, u128)| {
            millis >= 2 * length || (millis, *length) == (1_000, 1_000)
        };
        let (unit, length) = UNITS.iter().find(fits).unwrap_or(&("ms", 1));
        write!(f, "{} {unit}", millis.div_ceil(*length))
    }
}

const UNITS: [(&str, u128); 4] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("s", 1_000),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_has_the_largest_unit_that_leaves_two() {
        for (micros, expected) in [
            (0, "0 ms"),
            (1, "1 ms"),
            (1_000_000, "1 s"),
            (1_000_001, "1001 ms"),
            (1_999_000, "1999 ms"),
            (2_000_000, "2 s"),
            (2_000_001, "3 s"),
            (119_000_000, "119 s"),
            (120_000_000, "2 min"),
            (7_199_000_000, "120 min"),
            (7_200_000_000, "2 h"),
            (172_800_000_000, "2 d"),
        ] {
            assert_eq!(Span(Duration::from_micros(micros)).to_string(), expected);
        }
    }
}
