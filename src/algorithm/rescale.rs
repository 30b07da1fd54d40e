//! Proportions, for states that were made under an earlier limit of their policy.

/// Returns `amount * part / whole`, rounded up, computed in doubles step by step as in the Lua twin.
///
/// All three are below 2^53, so only the division and the product are rounded, in the same way on both sides.
#[expect(clippy::cast_precision_loss, reason = "below 2^53")]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole and not negative after ceil; what is out of range saturates"
)]
pub(super) fn rescale(amount: u64, part: u64, whole: u64) -> u64 {
    (amount as f64 * (part as f64 / whole as f64)).ceil() as u64
}
