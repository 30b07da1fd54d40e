//! What a quota must be to be counted in windows.

use std::time::Duration;

use crate::{
    error::{Error, ErrorKind},
    quota::Quota,
};

/// A limit for each window of so many milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) limit: u64,
    pub(super) millis: u64,
}

impl Window {
    pub(super) fn new(quota: Quota) -> Result<Self, Error> {
        let refuse = |message| Err(Error::new(ErrorKind::InvalidQuota, message));
        if quota.count() == 0 {
            return refuse(
                "quota of 0: to refuse everybody, take the route away; else count at least 1",
            );
        }
        if quota.own_burst().is_some() {
            return refuse(
                "a window has no burst: take burst() away, or count by the token bucket",
            );
        }
        if quota.count() > MOST {
            return refuse("a window counts to 4,294,967,295: divide the count and the cost");
        }
        let period = quota.period();
        let millis = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        if millis == 0 || period != Duration::from_millis(millis) {
            return refuse("a window is whole milliseconds long, and at least one");
        }
        if millis > LONGEST {
            return refuse("a window is at most 366 days long: shorten the period");
        }
        Ok(Self {
            limit: quota.count(),
            millis,
        })
    }
}

/// A count as it is stored: in four bytes.
#[inline]
pub(super) fn capped(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

const MOST: u64 = 0xFFFF_FFFF;
const LONGEST: u64 = 366 * 86_400_000;
