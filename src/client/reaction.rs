//! Obeying the API: pauses after refusals, and corrections by the limits that responses show.
//!
//! # Why does a success not end a pause?
//!
//! The response may belong to a call that was sent before the refusal, or to another resource of the API. A pause that is too
//! long costs a wait. A pause that ends too early costs a refusal, and some APIs ban clients that ignore them.
//!
//! # Why may a response only lower what is left?
//!
//! A response is as old as its way back, and calls were sent meanwhile. If it raised what is left, those calls would be forgotten.
//! A correction that was too low heals within one window.

use std::{collections::HashMap, sync::Arc, time::Duration};

use http::StatusCode;

use crate::{
    algorithm::{MicroRate, Quota},
    charge::Charge,
    clock::Moment,
    decision::{Decision, PolicyName, PolicyState},
    limiter::RateLimiter,
    store::StoreFuture,
    task::{Mutex, spawn},
    telemetry::RetryOutcome,
};

#[cfg(feature = "reload")]
use crate::policy::Policy;

use super::{
    charges::CallCharges,
    observed::{Observed, ObservedLimit},
    rates::{Rates, ReadRates},
    records::Records,
    rule::OutgoingRule,
    subject::Subject,
};

/// Applies what responses show to the limiter. Shared by all clones of a layer.
#[derive(Debug)]
pub(super) struct Reaction {
    pub limiter: RateLimiter,
    pub rules: Box<[OutgoingRule]>,
    pub max_pause: Duration,
    pub refusals: Arc<Refusals>,
    pub rates: Arc<Rates>,
    pub records: Arc<Records>,
}

impl Reaction {
    /// Pauses the keys of a refused call, and lowers their rates. Returns how long its retry has to wait at least. `decision` is
    /// the one that admitted the call.
    pub fn refused(
        &self,
        charges: &CallCharges,
        (sent_at, decision): (Moment, Option<&Decision>),
        status: StatusCode,
        observed: &Observed,
    ) -> Duration {
        let asked = observed.retry_after().map(|wait| wait.max(MIN_PAUSE));
        let subject = charges.subject(&self.rules);
        let Pause { wait, is_new } = match subject {
            Some(subject) => self.refusals.add(subject, sent_at, asked),
            None => Pause::new(asked.unwrap_or(FIRST_PAUSE)),
        };
        if let (Some(policy), Some(refusal)) = (charges.policy(&self.rules), observed.refusal()) {
            self.records.refused(policy, refusal);
        }
        let length = wait.min(self.max_pause);
        for (rule, charge) in charges.with_rules(&self.rules) {
            let present = charge.at_present();
            let pause = if rule.pauses() {
                if is_new {
                    self.records.paused(rule.policy(), length, status, observed);
                }
                self.limiter
                    .pause_or_prolong(&present.borrow(), length, is_new)
            } else {
                StoreFuture::ready(Ok(()))
            };
            match (&charge.rate, decision) {
                // Once for all calls that are refused together: the store cuts the rate once, too.
                (Some(rate), Some(decision)) if is_new => {
                    let (rate, charged_at) = (Arc::clone(rate), decision.decided_at());
                    let limiter = self.limiter.clone();
                    // Calls that are charged before the pause begins must not lower the rate again.
                    self.apply_in_turn(rule, pause, move || {
                        rate.report(&limiter, &present.borrow(), Some(charged_at))
                    });
                }
                _ => self.apply(rule, "pause", pause),
            }
        }
        wait
    }

    /// Counts a call that may be repeated.
    pub fn note_retry(&self, charges: &CallCharges, outcome: RetryOutcome) {
        if let Some(policy) = charges.policy(&self.rules) {
            self.records.metrics.retried(policy, outcome);
        }
    }

    /// Returns the policies of the rules.
    #[cfg(feature = "reload")]
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.rules.iter().map(OutgoingRule::policy)
    }

    /// Reads the rates that are not known. `None` if all are.
    pub fn read_rates(&self, charges: &CallCharges) -> Option<ReadRates> {
        let stale = charges.adaptive().filter(|(_, rate)| rate.is_stale());
        let reads: Vec<ReadRates> = stale
            .map(|(charge, rate)| Arc::clone(rate).read(self.limiter.clone(), charge.at_present()))
            .collect();
        if reads.is_empty() {
            return None;
        }
        Some(Box::pin(async move {
            for read in reads {
                read.await;
            }
        }))
    }

    /// Notes the use of adaptive keys by a call that has its turn.
    pub fn note_used(&self, charges: &CallCharges) {
        for (charge, rate) in charges.adaptive() {
            rate.note_used(charge.borrow().units());
        }
        self.report_rates(charges);
    }

    /// Reports the use of adaptive keys in the background, if it is time.
    pub fn report_rates(&self, charges: &CallCharges) {
        for (charge, rate) in charges.adaptive() {
            if rate.takes_report() {
                let policy = *charge.borrow().policy().name();
                let report = rate.report(&self.limiter, &charge.borrow(), None);
                self.apply_to(policy, "report", report);
            }
        }
    }

    /// Notes that the API did the work of a call.
    pub fn succeeded(&self, charges: &CallCharges, sent_at: Moment) {
        if let Some(subject) = charges.subject(&self.rules) {
            self.refusals.end(&subject, sent_at);
        }
    }

    /// Lowers what is left of each policy to what the API shows. `decision` is the one that admitted the call.
    pub fn lower(&self, charges: &CallCharges, decision: &Decision, observed: &Observed) {
        if observed.limits().is_empty() {
            return;
        }
        for (rule, charge) in charges.with_rules(&self.rules) {
            let left = self
                .followed(charges, rule, observed)
                .filter_map(left_of)
                .min();
            // Asked only if it would change something: usually both counts agree.
            if let Some(left) = left.filter(|left| is_below(*left, &charge.borrow(), decision)) {
                let lowered = self.limiter.lower(&charge.at_present().borrow(), left);
                self.apply(rule, "lower", lowered);
            }
        }
    }

    /// Lowers the rates of adaptive keys to those that a response shows. A higher one than before is a higher ceiling again.
    pub fn follow(&self, charges: &CallCharges, observed: &Observed) {
        for (rule, charge) in charges.with_rules(&self.rules) {
            let Some(rate) = &charge.rate else {
                continue;
            };
            // A unit in a longest pause: a lower rate would close the key, and no response could raise it again.
            let least = MicroRate::of(Quota::new(1, self.max_pause));
            let shown = self
                .followed(charges, rule, observed)
                .filter_map(rate_of)
                .min()
                .map(|shown| shown.max(least));
            if shown.is_some_and(|shown| rate.note_shown(shown)) {
                let report = rate.report(&self.limiter, &charge.borrow(), None);
                self.apply(rule, "report", report);
            }
        }
    }

    /// Returns the limits of the API that a rule's policy follows.
    fn followed<'a>(
        &self,
        charges: &CallCharges,
        rule: &'a OutgoingRule,
        observed: &'a Observed,
    ) -> impl Iterator<Item = &'a ObservedLimit> + use<'a> {
        let rates = charges.with_rules(&self.rules);
        let is_only = rates.filter(|(rule, _)| rule.is_rate()).count() == 1;
        let limits = observed.limits().iter();
        limits.filter(move |limit| follows(rule, limit, is_only, observed))
    }

    /// Returns how long the API refuses calls from now on.
    pub fn pause_of(&self, charges: &CallCharges) -> Option<Duration> {
        let subject = charges.subject(&self.rules)?;
        self.refusals.rest(&subject)
    }

    /// Applies a change now, or in the background if it takes a message: the response is not delayed, and the change is made even
    /// if its caller goes away. A change that fails is lost: the next refusal makes it again.
    fn apply(&self, rule: &OutgoingRule, kind: &'static str, change: StoreFuture<()>) {
        self.apply_to(*rule.policy().name(), kind, change);
    }

    fn apply_to(&self, policy: PolicyName, kind: &'static str, mut change: StoreFuture<()>) {
        if let Some(made) = change.take_ready() {
            return self.records.changed(policy, kind, made);
        }
        let records = Arc::clone(&self.records);
        spawn::on_current(async move { records.changed(policy, kind, change.await) });
    }

    /// Applies a report after a pause.
    fn apply_in_turn(
        &self,
        rule: &OutgoingRule,
        mut pause: StoreFuture<()>,
        report: impl FnOnce() -> StoreFuture<()> + Send + 'static,
    ) {
        if let Some(paused) = pause.take_ready() {
            let policy = *rule.policy().name();
            self.records.changed(policy, "pause", paused);
            return self.apply(rule, "report", report());
        }
        let (records, policy) = (Arc::clone(&self.records), *rule.policy().name());
        spawn::on_current(async move {
            records.changed(policy, "pause", pause.await);
            records.changed(policy, "report", report().await);
        });
    }
}

/// Returns whether a rule's policy follows a limit of the API.
fn follows(rule: &OutgoingRule, limit: &ObservedLimit, is_only: bool, observed: &Observed) -> bool {
    let is_one = is_only && observed.limits().len() == 1 && limit.unit().is_none();
    rule.is_rate()
        && match (rule.reported_name(), limit.name()) {
            (Some(own), Some(name)) => own.eq_ignore_ascii_case(name),
            (Some(_), None) => false,
            (None, _) => is_one,
        }
}

/// Returns the units that a limit leaves. `None` if it shows none.
fn left_of(limit: &ObservedLimit) -> Option<u64> {
    match (limit.remaining(), limit.limit()) {
        (Some(remaining), Some(limit)) => Some(remaining.min(limit)),
        (remaining, limit) => remaining.or(limit),
    }
}

/// Returns the rate of a limit. `None` if the response does not show its period. The time until a bucket is full again does not:
/// it is rounded, and a few missing units give any rate.
fn rate_of(limit: &ObservedLimit) -> Option<MicroRate> {
    let count = limit.limit().filter(|count| *count > 0)?;
    let window = limit.window().filter(|window| !window.is_zero())?;
    Some(MicroRate::of(Quota::new(count, window)))
}

/// Returns whether less is left than the decision counted.
fn is_below(left: u64, charge: &Charge<'_>, decision: &Decision) -> bool {
    let state = decision.state(charge.policy().name().as_str());
    let usage = state.and_then(PolicyState::usage);
    usage.is_some_and(|usage| left < usage.remaining)
}

// === Refusals ===

/// Refusals in a row, by key.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    rows: Mutex<HashMap<Subject, Row>>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    /// The pause without a usable time, if the next call is refused too.
    next: Duration,
    paused_at: Moment,
    until: Moment,
}

/// The pause after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    wait: Duration,
    /// Whether it is not the pause of another call that was in flight at the same time.
    is_new: bool,
}

impl Pause {
    const fn new(wait: Duration) -> Self {
        Self { wait, is_new: true }
    }
}

impl Refusals {
    /// Adds a refusal. Returns the wait that the API asked for, or else 1 s, which doubles up to 60 s while refusals go on.
    fn add(&self, subject: Subject, sent_at: Moment, asked: Option<Duration>) -> Pause {
        let now = Moment::now();
        let mut rows = self.rows.lock();
        if rows.len() >= MAX_KEYS && !rows.contains_key(&subject) {
            rows.retain(|_, row| row.until + LONGEST_PAUSE > now);
            if rows.len() >= MAX_KEYS {
                return Pause::new(asked.unwrap_or(FIRST_PAUSE));
            }
        }
        let row = rows.entry(subject).or_insert(Row {
            next: FIRST_PAUSE,
            paused_at: sent_at,
            until: now,
        });
        // A call that was sent before the pause began is refused for the same reason: it does not double the pause.
        let is_new = sent_at >= row.paused_at;
        let own = match is_new {
            true => row.next,
            false => row.until.since(now).max(MIN_PAUSE),
        };
        let wait = asked.unwrap_or(own);
        if is_new {
            row.paused_at = now;
            row.next = LONGEST_PAUSE.min(row.next * 2);
        }
        row.until = row.until.max(now + wait);
        Pause { wait, is_new }
    }

    /// Ends the row, if the call was sent after the last pause began.
    fn end(&self, subject: &Subject, sent_at: Moment) {
        let mut rows = self.rows.lock();
        if rows.get(subject).is_some_and(|row| sent_at > row.paused_at) {
            rows.remove(subject);
        }
    }

    fn rest(&self, subject: &Subject) -> Option<Duration> {
        let rows = self.rows.lock();
        let rest = rows.get(subject)?.until.since(Moment::now());
        Some(rest).filter(|rest| !rest.is_zero())
    }
}

/// The shortest pause: `Retry-After: 0` must not make a loop.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// The pause after the first refusal without a usable time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause without a usable time.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// At about 150 bytes each.
const MAX_KEYS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{algorithm::Quota, key::Key, policy::Policy};

    fn subject(key: u64) -> Subject {
        let policy = Policy::new("api", Quota::per_second(1));
        Subject::of(&policy.charge(Key::from(key)))
    }

    #[tokio::test(start_paused = true)]
    async fn pause_without_a_time_doubles_while_refusals_go_on() {
        let (refusals, api) = (Refusals::default(), subject(1));
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let wait = refusals.add(api, Moment::now(), None).wait;
            assert_eq!(wait, Duration::from_secs(seconds));
            tokio::time::advance(wait).await;
        }
        refusals.end(&api, Moment::now());
        assert_eq!(refusals.add(api, Moment::now(), None).wait, FIRST_PAUSE);
        assert_eq!(
            refusals.add(subject(2), Moment::now(), None).wait,
            FIRST_PAUSE
        );
    }

    #[tokio::test(start_paused = true)]
    async fn calls_in_flight_that_are_refused_together_count_once() {
        let (refusals, api) = (Refusals::default(), subject(1));
        let sent_at = Moment::now();
        tokio::time::advance(Duration::from_millis(10)).await;
        for number in 0..20 {
            let pause = refusals.add(api, sent_at, None);
            assert_eq!(pause.wait, FIRST_PAUSE);
            assert_eq!(pause.is_new, number == 0, "the others prolong it at most");
        }
        refusals.end(&api, sent_at);
        tokio::time::advance(FIRST_PAUSE).await;
        let next = refusals.add(api, Moment::now(), None);
        assert_eq!(
            next,
            Pause::new(FIRST_PAUSE * 2),
            "an early success ends nothing"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn keys_beyond_the_bound_are_paused_and_forgotten() {
        let refusals = Refusals::default();
        let most = u64::try_from(MAX_KEYS).expect("a small number");
        for key in 0..most + 10 {
            let pause = refusals.add(subject(key), Moment::now(), None);
            assert_eq!(pause.wait, FIRST_PAUSE);
        }
        assert_eq!(refusals.rows.lock().len(), MAX_KEYS);
        tokio::time::advance(LONGEST_PAUSE * 2).await;
        refusals.add(subject(most), Moment::now(), None);
        assert_eq!(refusals.rows.lock().len(), 1);
    }
}
