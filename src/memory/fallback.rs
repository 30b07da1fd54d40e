//! Usage and bans that the fallback of a shared store takes over from its decisions.

use crate::charge::Fingerprint;
use crate::{charge::Charge, clock::Timestamp, decision::Usage};

use super::store::MemoryStore;

#[cfg_attr(
    not(feature = "redis"),
    allow(dead_code, reason = "only the fallback of a shared store calls these")
)]
impl MemoryStore {
    /// Replaces the state of a charge's key by one with this usage, which the shared store returned.
    pub(crate) fn seed(&self, charge: &Charge<'_>, usage: Usage) {
        let fingerprint = Fingerprint::of(charge.policy(), charge.key());
        let read = self.shared.clock.read();
        let mut shard = self.cell(fingerprint).lock();
        let now = shard.now(read, &self.shared.clock);
        shard.restore(charge, usage, now);
    }

    /// Bans a charge's key until a time that the shared store returned, if the policy has a [penalty](crate::policy).
    pub(crate) fn seed_ban(&self, charge: &Charge<'_>, until: Timestamp) {
        let Some(penalty) = charge.policy().ban_penalty() else {
            return;
        };
        let fingerprint = Fingerprint::of(charge.policy(), charge.key());
        let read = self.shared.clock.read();
        let mut shard = self.cell(fingerprint).lock();
        let now = shard.now(read, &self.shared.clock);
        shard.bans.restore(penalty, fingerprint, until, now);
    }

    /// Ends the ban of a charge's key that began by this time, at which the shared store admitted the key.
    pub(crate) fn end_ban(&self, charge: &Charge<'_>, at: Timestamp) {
        let fingerprint = Fingerprint::of(charge.policy(), charge.key());
        let read = self.shared.clock.read();
        let mut shard = self.cell(fingerprint).lock();
        shard.now(read, &self.shared.clock);
        shard.bans.end(fingerprint, at);
    }
}
