//! The arguments of the script: tags, marks and numbers.

use redis::Cmd;
use smallvec::SmallVec;

/// The arguments of a few charges.
pub(super) type Arguments = SmallVec<[Argument; 4]>;

/// One argument of the script.
#[derive(Clone, Debug)]
pub(super) enum Argument {
    /// Packed bytes: what an instance reports of its leased units, or members of a sorted set of slots, with 8 bytes for the
    /// ticket and 3 for the number of slots.
    Bytes(Box<[u8]>),
    /// A cost or increment that never fits.
    Never,
    /// An integer, in decimal.
    Number(u64),
    /// A tag, followed by the tag of the quota that the state belongs to.
    Tag { bytes: [u8; 5], length: usize },
    /// A ticket in 8 bytes.
    Ticket(u64),
}

/// Bytes that name algorithms and marks to the script. `lua/decide.lua` defines a constant for each.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Tag {
    /// A charge of a bucket whose units each take whole microseconds to come back.
    Bucket = b'w',
    /// Before a charge that is made in place of the one before it, and denies nothing.
    Candidate = b'?',
    /// `Candidate` and `CountDenied`.
    CandidateCountDenied = b'/',
    /// Before all requests of a call: the next argument is the time to decide by.
    CallerTime = b'@',
    /// A charge of a fixed window that begins by the clock.
    ClockWindow = b'f',
    /// Before a charge: a denied attempt consumes quota too, at most until none is left.
    CountDenied = b'!',
    /// A charge of a fixed window that begins with its first hit.
    FirstHitWindow = b'o',
    /// Precedes a charge that is made even if it does not fit.
    Force = b'+',
    /// Before the charges of a request that has several: the next argument is their number.
    Group = b'*',
    /// Before a charge: its units were admitted without Redis, and are added at most until no quota is left.
    Merge = b'=',
    /// Before a charge of no units: reports leased units, and leases more.
    Lease = b'&',
    /// A charge of a fixed window that is a calendar month.
    MonthWindow = b'm',
    /// A charge of units that another region has leased to this one.
    Pot = b'p',
    /// A step in a report of these units.
    PotReport = b'r',
    /// Before a charge and its mark: a key that is denied several times is banned.
    Penalty = b'^',
    /// `Force` for a sliding log, which also tries the commands that only long logs need.
    Probe = b'#',
    /// A charge of a queue, as of an `UnevenBucket`.
    Queue = b'q',
    /// Before a charge: its units are refunded, as far as they are still outstanding.
    Refund = b'-',
    /// Releases slots of tickets.
    ReleaseSlots = b'e',
    /// Renews the leases of tickets.
    RenewSlots = b'k',
    /// Before a charge that denies nothing.
    Shadow = b'~',
    /// `Shadow` and `CountDenied`.
    ShadowCountDenied = b';',
    /// A charge of a sliding log.
    SlidingLog = b'g',
    /// A charge of a sliding window.
    SlidingWindow = b's',
    /// A charge of a concurrency policy.
    TakeSlots = b'c',
    /// A charge of any other bucket. The script walks the lattice of the [`TokenBucket`].
    UnevenBucket = b'l',
}

impl Argument {
    /// A tag without a quota.
    pub fn mark(tag: Tag) -> Self {
        Self::tag(tag, [])
    }

    /// A tag with the tag of a quota.
    pub fn tag<const N: usize>(tag: Tag, quota_tag: [u8; N]) -> Self {
        let mut bytes = [tag as u8; 5];
        bytes[1..=N].copy_from_slice(&quota_tag);
        Self::Tag {
            bytes,
            length: N + 1,
        }
    }

    /// Appends the argument to a command.
    pub fn write(&self, command: &mut Cmd) {
        match self {
            Self::Bytes(bytes) => command.arg(bytes.as_ref()),
            Self::Never => command.arg(b"-1"),
            Self::Number(number) => command.arg(number),
            Self::Tag { bytes, length } => command.arg(&bytes[..*length]),
            Self::Ticket(ticket) => command.arg(&ticket.to_be_bytes()),
        };
    }
}
