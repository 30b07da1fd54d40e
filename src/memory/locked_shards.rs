//! The shards of a decision with several charges, or with a penalty, while they are locked.

use std::sync::MutexGuard;

use smallvec::SmallVec;

use crate::{
    charge::Charge,
    clock::{Clock, Reading, Timestamp},
};

use super::{keyed::KeyRef, result::Precheck, shard::Shard};

/// The shards of one decision, all locked until this is dropped.
#[derive(Default)]
pub(super) struct LockedShards<'a> {
    /// The index of each shard, and its guard.
    guards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

/// The charges that a penalty concerns, each with the end of its ban. Without a ban, its denial counts.
pub(super) type PenalisedCharges = SmallVec<[(usize, Option<Timestamp>); 1]>;

impl<'a> LockedShards<'a> {
    /// Adds a shard that was locked.
    #[inline]
    pub fn add(&mut self, index: usize, guard: MutexGuard<'a, Shard>) {
        self.guards.push((index, guard));
    }

    /// Returns the time to decide at, the same in all shards.
    ///
    /// As [`Shard::now`]: if the clock has stepped, it is read again while all shards are locked.
    #[inline]
    pub fn now(&mut self, read: Reading, clock: &Clock) -> Timestamp {
        let mut shards = self.guards.iter();
        if shards.all(|(_, shard)| shard.has_step(read)) {
            return read.now;
        }
        let read = clock.read();
        for (_, shard) in &mut self.guards {
            shard.follow_step(read);
        }
        read.now
    }

    /// Returns a shard that was locked for this decision.
    pub fn shard(&mut self, index: usize) -> &mut Shard {
        let locked = self.guards.iter_mut().find(|(locked, _)| *locked == index);
        &mut locked.expect("the shards of all keys are locked").1
    }

    /// Returns the charges that do not fit, under policies with a penalty. Charges of banned keys do not fit any more.
    ///
    /// A key that is denied for what others owe is not among them: a crowd that fills the store must not get it banned.
    #[inline]
    pub fn find_bans(
        &mut self,
        charges: &[Charge<'_>],
        keys: &[KeyRef],
        prechecks: &mut [Precheck<'_>],
        now: Timestamp,
    ) -> PenalisedCharges {
        let mut bans = PenalisedCharges::new();
        for (index, (charge, precheck)) in charges.iter().zip(prechecks).enumerate() {
            if let Some(penalty) = charge.policy().ban_penalty()
                && charge.units() > 0
            {
                let shard = self.shard(precheck.shard);
                let key = &keys[index];
                let until = shard.bans.banned_until(penalty, key.fingerprint, now);
                if until.is_some() {
                    (precheck.is_banned, precheck.fits) = (true, false);
                }
                if !precheck.fits
                    && (until.is_some() || !shard.is_denied_for_others(charge, key, precheck, now))
                {
                    bans.push((index, until));
                }
            }
        }
        bans
    }

    /// Counts the denial of a charge whose key is not banned. Returns when its ban ends, if it is banned now.
    pub fn count_denial(
        &mut self,
        charge: &Charge<'_>,
        key: &KeyRef,
        shard: usize,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let penalty = charge.policy().ban_penalty()?;
        let bans = &mut self.shard(shard).bans;
        bans.count_denial(penalty, key.fingerprint, now)
    }
}
