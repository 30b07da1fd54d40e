//! Quotas that are counted in windows, and counts that are stored in four bytes.

use std::time::Duration;

use super::quota::Quota;
use crate::error::{Error, ErrorKind};

/// A limit per window of `millis` milliseconds: for both kinds of window, and for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowQuota {
    pub limit: u64,
    pub millis: u64,
}

impl WindowQuota {
    pub fn new(quota: Quota) -> Result<Self, Error> {
        let invalid = |message| Err(Error::new(ErrorKind::InvalidQuota, message));
        if quota.count() == 0 {
            return invalid(
                "quota of 0: set at least 1, or remove the route to reject all requests",
            );
        }
        if quota.explicit_burst().is_some() {
            return invalid("a window has no burst: remove burst(), or use the token bucket");
        }
        if quota.count() > MAX_COUNT {
            return invalid(
                "the count of a window must be at most 4,294,967,295: divide the count and the cost",
            );
        }
        let period = quota.period();
        let millis = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        if millis == 0 || period != Duration::from_millis(millis) {
            return invalid("a window must be a whole number of milliseconds long, at least 1");
        }
        if millis > MAX_MILLIS {
            return invalid("a window must be at most 366 days long: shorten the period");
        }
        Ok(Self {
            limit: quota.count(),
            millis,
        })
    }
}

/// Returns a count as it is stored, capped at `u32::MAX`.
#[inline]
pub(super) fn capped(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

const MAX_COUNT: u64 = 0xFFFF_FFFF;
const MAX_MILLIS: u64 = 366 * 86_400_000;
