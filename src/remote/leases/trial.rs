//! A lease by itself, for tests that move the time and lose messages.

#![expect(missing_docs, reason = "for the tests of this package")]

use std::sync::{Arc, atomic::AtomicU64};

use crate::{algorithm::Counter, charge::Charge, clock::Timestamp, remote::protocol::LeaseReply};

use super::{lease::Lease, table};

/// The leased units of one key.
#[derive(Debug, Default)]
pub struct LeaseTrial(Lease);

/// Units that were taken: what the end of a hold needs, and what a refund does.
#[derive(Clone, Copy, Debug)]
pub struct TrialTaken {
    pub generation: u64,
    pub token: u64,
    pub reset_at: Timestamp,
}

impl LeaseTrial {
    /// Returns a lease without units, whose numbers no other one with these has.
    #[must_use]
    pub fn new(ids: Arc<AtomicU64>) -> Self {
        Self(Lease::new(ids))
    }

    /// Asks for the units of a charge, which are spent or held.
    pub fn take(&mut self, charge: &Charge<'_>, holds: bool, now: Timestamp) -> Option<TrialTaken> {
        self.0.note_request(charge.units(), now);
        let taken = self.0.take(charge.units(), holds, now)?;
        let state = table::state(charge, &taken, taken.known.server_time(now));
        Some(TrialTaken {
            generation: taken.generation,
            token: state.refunded_before(),
            reset_at: state.usage()?.reset_at,
        })
    }

    pub fn end_hold(&mut self, units: u64, generation: u64, is_admitted: bool) {
        self.0.end_hold(units, generation, is_admitted);
    }

    /// Refunds units here.
    ///
    /// # Errors
    ///
    /// The total of refunds before, with which Redis can refund them.
    pub fn refund(&mut self, units: u64, token: u64) -> Result<(), u64> {
        self.0.refund(units, token)
    }

    #[must_use]
    pub fn units(&self, now: Timestamp) -> u64 {
        self.0.units(now)
    }

    #[must_use]
    pub fn is_at_rest(&self, now: Timestamp) -> bool {
        self.0.is_at_rest(now)
    }

    #[must_use]
    pub fn has_report(&self) -> bool {
        self.0.has_report()
    }

    /// Returns the report as the script takes it. `overshoot` is in 1/1000.
    pub fn begin_report(&mut self, is_returned: bool, overshoot: u16, now: Timestamp) -> [u8; 37] {
        self.0
            .begin_report(is_returned, 0, 1, now)
            .to_bytes(overshoot)
    }

    /// Takes the integers of the reply.
    pub fn end_report(
        &mut self,
        counter: &Counter,
        decided_at: Timestamp,
        numbers: [u64; 8],
        now: Timestamp,
    ) {
        let reply = LeaseReply::of(decided_at, numbers).expect("a reply of the script");
        self.0.end_report(&reply, counter, now);
    }

    pub fn lose_report(&mut self, now: Timestamp) {
        self.0.lose_report(now);
    }

    pub fn cancel_report(&mut self, now: Timestamp) {
        self.0.cancel_report(now);
    }

    pub fn void(&mut self) {
        self.0.void();
    }
}
