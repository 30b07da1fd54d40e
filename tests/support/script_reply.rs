//! The packed reply of the decision script.

use redis::Value;

/// Returns the integers of a reply: 8 bytes each, the highest first.
#[track_caller]
pub(crate) fn unpack(reply: &Value) -> Vec<i64> {
    let Value::BulkString(packed) = reply else {
        panic!("not a packed reply: {reply:?}");
    };
    let (numbers, rest) = packed.as_chunks();
    assert!(rest.is_empty(), "{} bytes too many", rest.len());
    numbers
        .iter()
        .map(|bytes| i64::from_be_bytes(*bytes))
        .collect()
}
