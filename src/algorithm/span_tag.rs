//! Spans of buckets, packed for the states of keys.

/// Packs a span into 32 bits: its 26 most significant bits, and the number of bits cut off.
pub(super) fn quota_tag_of(span: u64) -> u32 {
    let mut exponent = 0_u32;
    while span >> exponent >= 1 << MANTISSA {
        exponent += 1;
    }
    // Invariant: a span is at most 2^50, so the exponent is at most 25 and fits in the six bits left.
    let mantissa = u32::try_from(span >> exponent).expect("below 2^26");
    (exponent << MANTISSA) | mantissa
}

/// Returns the span of a tag: at least 1, and below the original by at most 1 in 2^25.
pub(super) fn span_of(quota_tag: u32) -> u64 {
    let (exponent, mantissa) = (quota_tag >> MANTISSA, quota_tag & ((1 << MANTISSA) - 1));
    (u64::from(mantissa) << exponent).max(1)
}

const MANTISSA: u32 = 26;
