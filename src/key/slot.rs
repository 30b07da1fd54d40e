//! Hash slots: a cluster assigns each key to one of 16,384 by its hash tag.
//!
//! ```text
//! key                         hash tag   CRC-16   slot (modulo 16,384)
//! tollgate:{ada}:user         ada        5938     5938
//! tollgate:{%s}^ada|x:route   %s        %s     5938
//! ```
//!
//! A key of tollgate has exactly one hash tag: its identity, so all policies about one identity are in one slot, or the
//! short tag of the slot that the identity was put in.

use std::sync::LazyLock;

/// A text of letters and digits whose slot is the wanted one.
pub(crate) type SlotTag = [u8; 3];

/// Returns the tag of a slot.
pub(crate) fn tag_of(slot: u16) -> SlotTag {
    TAGS[usize::from(slot)]
}

/// The tag of each slot. Three letters and digits reach all of them.
static TAGS: LazyLock<Box<[SlotTag]>> = LazyLock::new(|| {
    let characters = (b'0'..=b'9').chain(b'A'..=b'Z').chain(b'a'..=b'z');
    let mut tags = vec![SlotTag::default(); usize::from(SLOTS)].into_boxed_slice();
    for a in characters.clone().rev() {
        for b in characters.clone().rev() {
            for c in characters.clone().rev() {
                let tag = [a, b, c];
                tags[usize::from(slot_of(&tag))] = tag;
            }
        }
    }
    tags
});

/// Returns the slot of a hash tag: CRC-16 (XMODEM) modulo the number of slots, as the [specification] requires.
///
/// [specification]: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        let index = usize::from((crc >> 8) ^ u16::from(*byte));
        (crc << 8) ^ CRC_16[index]
    });
    crc % SLOTS
}

/// The number of slots of every cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The CRC-16 of each byte, with the polynomial 0x1021.
static CRC_16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            let carry = if crc & 0x8000 == 0 { 0 } else { 0x1021 };
            crc = (crc << 1) ^ carry;
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // The check value of the specification, and slots that `CLUSTER KEYSLOT` returns.
        assert_eq!(slot_of(b"123456789"), 0x31C3);
        for (tag, slot) in [("foo", 12_182), ("ada", 5_938), ("!", 13_379), ("!!", 404)] {
            assert_eq!(slot_of(tag.as_bytes()), slot, "{tag}");
        }
    }

    #[test]
    fn each_slot_has_a_tag() {
        for slot in 0..SLOTS {
            assert_eq!(slot_of(&tag_of(slot)), slot);
        }
    }
}
