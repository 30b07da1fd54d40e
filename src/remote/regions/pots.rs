//! The pots of this region: units of keys whose homes are other regions.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use crate::{
    charge::{Away, Charge, Fingerprint, OwnedCharge, Site},
    clock::Timestamp,
    key::Key,
    policy::{OnOutage, Policy},
    remote::{protocol::REGION_TURN, store::RedisStore},
    task::{Mutex, SingleTask},
    telemetry::LeaseMetrics,
};

use super::{home::Home, placement::Placement};

/// What the handles on one store share.
#[derive(Debug)]
pub(super) struct Pots {
    /// The store of this region.
    pub here: RedisStore,
    homes: Box<[Home]>,
    placement: Placement,
    /// The part of a limit that is admitted without the home, in 1/1000.
    share: u16,
    /// How long a request waits for a home.
    pub wait: Duration,
    /// Keys of which this process makes a report.
    reported: Mutex<HashSet<Fingerprint>>,
    /// Keys of which this process has got units a moment ago.
    held: Mutex<HashMap<Fingerprint, HeldKey>>,
    pub sweep: SingleTask,
    pub metrics: LeaseMetrics,
}

/// A key of which this region holds units.
#[derive(Clone, Debug)]
pub(super) struct HeldKey {
    pub charge: OwnedCharge,
    /// When this process reported the key.
    since: Timestamp,
    look_at: Timestamp,
    /// Units that were left then.
    left: u64,
    pub idle: Duration,
    /// Units that stay if the others are given back.
    pub reserve: u64,
}

impl Pots {
    pub fn new(
        here: RedisStore,
        homes: Box<[Home]>,
        placement: Placement,
        share: u16,
        wait: Duration,
    ) -> Self {
        Self {
            here,
            homes,
            placement,
            share,
            wait,
            reported: Mutex::default(),
            held: Mutex::default(),
            sweep: SingleTask::default(),
            metrics: LeaseMetrics::of_region(),
        }
    }

    /// Returns the home of a key; `None` if that is this region.
    pub fn home_of(&self, key: &Key) -> Option<&Home> {
        let index = self.placement.home_of(key).checked_sub(1)?;
        self.homes.get(index)
    }

    /// Returns the part of this region of all, in 1/1024.
    pub fn even_share(&self) -> u16 {
        (1_024 / (self.homes.len() + 1)).try_into().unwrap_or(1)
    }

    /// Returns where a charge is counted.
    pub fn site_of(&self, policy: &Policy, key: &Key) -> Site {
        match self.home_of(key) {
            None => Site::Home,
            Some(home) => {
                let share = home.is_cut_off().then(|| self.share_of(policy));
                Site::Away(Away {
                    share: share.unwrap_or_default(),
                    is_again: false,
                })
            }
        }
    }

    /// Returns whether the home of a key is cut off, and nothing is admitted without it.
    pub fn is_out_of_reach(&self, charge: &Charge<'_>) -> bool {
        let home = self.home_of(charge.key());
        home.is_some_and(Home::is_cut_off) && self.share_of(charge.policy()) == 0
    }

    /// Returns what is admitted under a policy without the home, in 1/1000 of its limit.
    pub fn share_of(&self, policy: &Policy) -> u16 {
        match policy.outage_choice() {
            OnOutage::Allow => u16::MAX,
            OnOutage::Deny => 0,
            OnOutage::Local => self.share,
        }
    }

    /// Notes that this process makes a report of a key, unless it does already.
    pub fn begin_report(&self, charge: &Charge<'_>) -> bool {
        self.reported.lock().insert(fingerprint(charge))
    }

    pub fn end_report(&self, charge: &Charge<'_>) {
        self.reported.lock().remove(&fingerprint(charge));
    }

    /// Notes that this region has got units of a key, which it gives back if nobody asks for them.
    pub fn note_held(
        &self,
        charge: &Charge<'_>,
        left: u64,
        (idle, reserve): (Duration, u64),
        now: Timestamp,
    ) {
        let held = HeldKey {
            charge: charge.to_owned(),
            since: now,
            look_at: now + idle,
            left,
            idle,
            reserve,
        };
        self.held.lock().insert(fingerprint(charge), held);
    }

    /// Notes that the units of a key are not to be given back yet.
    pub fn note_busy(&self, charge: &Charge<'_>, due_in: Duration, now: Timestamp) {
        if let Some(held) = self.held.lock().get_mut(&fingerprint(charge)) {
            held.look_at = now + if due_in.is_zero() { held.idle } else { due_in };
        }
    }

    pub fn forget(&self, charge: &Charge<'_>) {
        self.held.lock().remove(&fingerprint(charge));
    }

    /// Returns the keys that may hold units which nobody has asked for.
    pub fn idle(&self, now: Timestamp) -> Vec<HeldKey> {
        let mut held = self.held.lock();
        // If this process has not reported for so long, another one does, or the units have ended.
        held.retain(|_, key| now < key.since + 2 * REGION_TURN);
        let idle = held.values().filter(|key| now >= key.look_at);
        idle.cloned().collect()
    }

    /// Returns the units that this region had left at the last report of each key by this process.
    pub fn units(&self) -> u64 {
        self.held.lock().values().map(|held| held.left).sum()
    }

    /// Returns the names of the regions that cannot be reached.
    pub fn cut_off(&self) -> Vec<String> {
        let cut_off = self.homes.iter().filter(|home| home.is_cut_off());
        cut_off.map(|home| home.name().to_owned()).collect()
    }

    pub fn holds_any(&self) -> bool {
        !self.held.lock().is_empty()
    }
}

fn fingerprint(charge: &Charge<'_>) -> Fingerprint {
    Fingerprint::of(charge.policy(), charge.key())
}
