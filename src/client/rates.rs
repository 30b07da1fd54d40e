//! The rates of adaptive keys, as this instance knows them.
//!
//! ```text
//! a call begins        the rate is older than 2 s: it waits for one message, which returns the rate
//!                      or else reports in the background, once a second
//! a call has its turn  its units are counted for the next report
//! a call is refused    pauses the key, and then reports at once
//! a response shows another limit than before    reports at once
//! ```

use std::{
    collections::HashMap,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    algorithm::{MicroRate, RateReport},
    charge::{Charge, OwnedCharge},
    clock::{Moment, Timestamp},
    error::Error,
    limiter::RateLimiter,
    policy::PresentRate,
    store::StoreFuture,
    task::{Mutex, SingleTask, timer::sleep},
};

use super::subject::Subject;

/// A rate per key. Clones of a layer share it.
#[derive(Debug, Default)]
pub(super) struct Rates {
    keys: Mutex<HashMap<Subject, Arc<KeyRate>>>,
}

impl Rates {
    /// Returns the rate of a charge's key. A new key begins at the lowest rate until the store has returned another one.
    pub fn of(&self, charge: &Charge<'_>, empty: RateReport) -> Arc<KeyRate> {
        let subject = Subject::of(charge);
        let mut keys = self.keys.lock();
        let known = keys.get(&subject);
        if let Some(rate) = known.filter(|rate| rate.empty == empty) {
            return Arc::clone(rate);
        }
        // Rules were replaced, and with them the bounds. Calls that wait follow the same rate as before.
        let present = known.map(|rate| rate.present.clone());
        if keys.len() >= MAX_KEYS {
            let is_used = |rate: &Arc<KeyRate>| Arc::strong_count(rate) > 1;
            keys.retain(|_, rate| is_used(rate) || !rate.is_stale());
            if keys.len() >= MAX_KEYS {
                // The rates are in the store: those that are dropped are read again.
                keys.retain(|_, rate| is_used(rate));
            }
        }
        let present = present.unwrap_or_else(|| PresentRate::new(empty.floor));
        let rate = Arc::new(KeyRate::new(empty, present));
        keys.insert(subject, Arc::clone(&rate));
        rate
    }
}

/// The rate of one key.
#[derive(Debug)]
pub(super) struct KeyRate {
    pub present: PresentRate,
    /// A report without any use.
    empty: RateReport,
    /// Units that were charged since the last report.
    used: AtomicU64,
    /// The rate that a response showed last, in millionths of a unit per second; 0 if none did.
    shown: AtomicU64,
    /// When the last report was begun, and when the last one ended.
    times: Mutex<Times>,
    /// Reads the rate for all calls that begin meanwhile. Not one of the calls: their callers may not poll them.
    reading: SingleTask,
    read: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    reported: Option<Moment>,
    known: Option<Moment>,
}

impl KeyRate {
    fn new(empty: RateReport, present: PresentRate) -> Self {
        Self {
            present,
            empty,
            used: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            times: Mutex::default(),
            reading: SingleTask::default(),
            read: Notify::new(),
        }
    }

    /// Notes units that were charged.
    pub fn note_used(&self, units: u64) {
        self.used.fetch_add(units, Ordering::Relaxed);
    }

    /// Notes the rate that a response shows. Returns whether it is another one.
    pub fn note_shown(&self, rate: MicroRate) -> bool {
        self.shown.swap(rate.as_micros(), Ordering::Relaxed) != rate.as_micros()
    }

    /// Whether the rate must be read before the next call. Without that, a key that this instance has not used for long would be
    /// charged at the rate of then.
    pub fn is_stale(&self) -> bool {
        let known = self.times.lock().known;
        known.is_none_or(|known| Moment::now().since(known) > STALE_AFTER)
    }

    /// Whether it is time for the next report. Then it counts as begun.
    pub fn takes_report(&self) -> bool {
        let (now, mut times) = (Moment::now(), self.times.lock());
        let is_due = times
            .reported
            .is_none_or(|reported| now.since(reported) >= REPORT_EVERY);
        if is_due {
            times.reported = Some(now);
        }
        is_due
    }

    /// Reports the use of the key, and a refused call that was charged at this time. Notes the rate that the store returns.
    pub fn report(
        self: &Arc<Self>,
        limiter: &RateLimiter,
        charge: &Charge<'_>,
        refused_at: Option<Timestamp>,
    ) -> StoreFuture<()> {
        let used = self.used.swap(0, Ordering::Relaxed);
        let report = self.empty.used(used);
        let report = refused_at.map_or(report, |charged_at| report.refused_at(charged_at));
        // Each time, since the store may have lost it.
        let report = match self.shown.load(Ordering::Relaxed) {
            0 => report,
            shown => report.shown(MicroRate::from_micros(shown)),
        };
        self.times.lock().reported = Some(Moment::now());
        let rate = Arc::clone(self);
        let reply = limiter.adapt(charge, report);
        reply.map(move |reply| rate.note(reply, used))
    }

    /// Waits until the rate was read.
    pub fn read(self: Arc<Self>, limiter: RateLimiter, charge: OwnedCharge) -> ReadRates {
        Box::pin(async move {
            let mut read = pin!(self.read.notified());
            read.as_mut().enable();
            if !self.is_stale() {
                return;
            }
            let rate = Arc::clone(&self);
            let is_running = self.reading.start(|running| async move {
                rate.read_now(&limiter, &charge).await;
                // First: whoever finds it running waits for the notification.
                drop(running);
                rate.read.notify_waiters();
            });
            if is_running {
                read.await;
            }
        })
    }

    async fn read_now(self: &Arc<Self>, limiter: &RateLimiter, charge: &OwnedCharge) {
        // Charged at an old rate, a few calls could take the units of all instances for long.
        for pause in [50, 100, 200, 400] {
            let reply = self.report(limiter, &charge.borrow(), None);
            if reply.await.is_ok() {
                return;
            }
            sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Notes a reply. After an error, the known rate stays, and the use is reported next time.
    fn note(&self, reply: Result<MicroRate, Error>, used: u64) -> Result<(), Error> {
        // Not asked before each call while the store is down.
        self.times.lock().known = Some(Moment::now());
        match reply {
            Ok(rate) => {
                self.present.set(rate);
                Ok(())
            }
            Err(error) => {
                self.note_used(used);
                Err(error)
            }
        }
    }
}

/// The future of a call that reads the rates of its keys.
pub(super) type ReadRates = Pin<Box<dyn Future<Output = ()> + Send>>;

const REPORT_EVERY: Duration = Duration::from_secs(1);
const STALE_AFTER: Duration = Duration::from_secs(2);
/// At about 250 bytes each.
const MAX_KEYS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{algorithm::Quota, key::Key, policy::Policy};

    fn report(floor: u64) -> RateReport {
        let rate = |count| MicroRate::of(Quota::per_second(count));
        RateReport::new(rate(floor), rate(100))
    }

    #[test]
    fn calls_that_wait_follow_their_rate_when_its_floor_is_changed() {
        let (rates, policy) = (Rates::default(), Policy::new("api", Quota::per_second(100)));
        let charge = policy.charge(Key::GLOBAL);
        let before = rates.of(&charge, report(1));
        assert!(Arc::ptr_eq(&before, &rates.of(&charge, report(1))));
        let after = rates.of(&charge, report(2));
        after.present.set(MicroRate::from_micros(7));
        assert_eq!(before.present.get(), MicroRate::from_micros(7));
    }

    #[tokio::test(start_paused = true)]
    async fn keys_beyond_the_bound_are_dropped_unless_a_call_uses_them() {
        let (rates, policy) = (Rates::default(), Policy::new("api", Quota::per_second(100)));
        let most = u64::try_from(MAX_KEYS).expect("a small number");
        let of = |key: u64| rates.of(&policy.charge(Key::from(key)), report(1));
        let used = of(0);
        for key in 1..=most {
            of(key);
        }
        assert_eq!(rates.keys.lock().len(), 2);
        assert!(Arc::ptr_eq(&used, &of(0)));
    }
}
