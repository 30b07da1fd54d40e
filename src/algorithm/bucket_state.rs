//! What is remembered of a bucket.

/// When a bucket will be full again, and under which span the debt was made.
///
/// Packed, so that a key takes 24 bytes of the in-process store and not 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct BucketState {
    pub(super) tat: u64,
    pub(super) quota_tag: u32,
}

impl BucketState {
    /// The theoretical arrival time in microseconds, 0 when nothing was ever charged.
    #[must_use]
    pub fn tat(self) -> u64 {
        self.tat
    }

    /// Moves the TAT forwards by so many microseconds.
    pub(crate) fn shift(&mut self, micros: u64) {
        self.tat = self.tat.saturating_add(micros);
    }
}

/// A span cut to its 26 most significant bits, and how many bits were cut off.
pub(super) fn quota_tag_of(span: u64) -> u32 {
    let mut exponent = 0_u32;
    while span >> exponent >= 1 << MANTISSA {
        exponent += 1;
    }
    // Invariant: a span is at most 2^50, so the exponent is at most 25 and fits in the six bits left.
    let mantissa = u32::try_from(span >> exponent).expect("below 2^26");
    (exponent << MANTISSA) | mantissa
}

/// The span that a shape stands for.
pub(super) fn span_of(quota_tag: u32) -> u64 {
    let (exponent, mantissa) = (quota_tag >> MANTISSA, quota_tag & ((1 << MANTISSA) - 1));
    (u64::from(mantissa) << exponent).max(1)
}

const MANTISSA: u32 = 26;
