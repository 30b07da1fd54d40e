//! The offset between this machine's clock and that of a server.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use super::timestamp::{Timestamp, micros};

/// The offset of a server's clock, learned from the times in its replies.
///
/// A reply bounds the offset: the server read its clock after the call was sent and before the reply came.
///
/// ```text
/// this clock    sent at 100              received at 104       the server read 130 between 100 and 104,
/// server                     130                               so its offset is between 26 and 30
/// ```
///
/// The offset changes only if it is outside of these bounds, and then to the nearer one. So it is as exact as the fastest
/// call, and two decisions by it are as far apart as by the clock itself.
#[derive(Debug)]
pub(super) struct Offset {
    /// In microseconds; [`UNKNOWN`] before the first reply.
    micros: AtomicI64,
}

impl Offset {
    /// Narrows the offset by a reply that was received at `now`, took `latency`, and contains the time `server`.
    pub fn learn(&self, now: Timestamp, server: Timestamp, latency: Duration) {
        let latest = signed(server.as_micros());
        let least = latest.saturating_sub(signed(now.as_micros()));
        let most = least.saturating_add(signed(micros(latency)));
        let offset = self.micros.load(Ordering::Relaxed);
        let next = if offset == UNKNOWN {
            // The middle has the smallest error.
            least + (most - least) / 2
        } else {
            offset.clamp(least, most)
        };
        if next != offset {
            self.micros.store(next, Ordering::Relaxed);
        }
    }

    /// Returns whether the server has replied.
    pub fn is_known(&self) -> bool {
        self.micros.load(Ordering::Relaxed) != UNKNOWN
    }

    /// Returns the server's time when this clock shows `now`; `None` before the first reply.
    #[inline]
    pub fn apply(&self, now: Timestamp) -> Option<Timestamp> {
        let offset = self.micros.load(Ordering::Relaxed);
        (offset != UNKNOWN)
            .then(|| Timestamp::from_micros(now.as_micros().saturating_add_signed(offset)))
    }
}

impl Default for Offset {
    fn default() -> Self {
        Self {
            micros: AtomicI64::new(UNKNOWN),
        }
    }
}

/// Times are below 2^63 us, which is the year 294,247.
fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

const UNKNOWN: i64 = i64::MIN;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + micros)
    }

    #[test]
    fn offset_is_within_the_bounds_of_every_call_and_changes_only_if_it_must() {
        let offset = Offset::default();
        assert_eq!(offset.apply(at(0)), None);
        let learn = |now, server, latency| {
            offset.learn(at(now), at(server), Duration::from_micros(latency));
            offset
                .apply(at(now))
                .map(|time| time.since(at(now)).as_micros())
        };
        assert_eq!(learn(104, 130, 4), Some(28));
        // A slow call and one that fits change nothing.
        assert_eq!(learn(300, 310, 200), Some(28));
        assert_eq!(learn(400, 427, 2), Some(28));
        // Faster calls narrow it.
        assert_eq!(learn(500, 529, 1), Some(29));
        // The server's clock was set back.
        assert_eq!(learn(1_000, 1_010, 2), Some(12));
    }

    #[test]
    fn server_may_be_behind() {
        let offset = Offset::default();
        offset.learn(at(10_000_000), at(0), Duration::from_micros(2));
        assert_eq!(offset.apply(at(20_000_000)), Some(at(10_000_001)));
    }
}
