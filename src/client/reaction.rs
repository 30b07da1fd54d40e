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
    charge::Charge,
    clock::Moment,
    decision::{Decision, PolicyState},
    limiter::RateLimiter,
    store::StoreFuture,
    task::{Mutex, spawn},
    telemetry::RetryOutcome,
};

use super::{
    charges::{CallCharges, Subject},
    observed::{Observed, ObservedLimit},
    records::Records,
    rule::OutgoingRule,
};

/// Applies what responses show to the limiter. Shared by all clones of a layer.
#[derive(Debug)]
pub(super) struct Reaction {
    pub limiter: RateLimiter,
    pub rules: Box<[OutgoingRule]>,
    pub max_pause: Duration,
    pub refusals: Refusals,
    pub records: Arc<Records>,
}

impl Reaction {
    /// Pauses the keys of a refused call. Returns how long its retry has to wait at least.
    pub fn refused(
        &self,
        charges: &CallCharges,
        sent_at: Moment,
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
            if rule.pauses() {
                if is_new {
                    self.records.paused(rule.policy(), length, status, observed);
                }
                let paused = self.limiter.pause_or_prolong(&charge, length, is_new);
                self.apply(rule, "pause", paused);
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
        let rates = charges.with_rules(&self.rules);
        let is_only = rates.filter(|(rule, _)| rule.is_rate()).count() == 1;
        for (rule, charge) in charges.with_rules(&self.rules) {
            let followed = observed.limits().iter();
            let followed = followed.filter(|limit| follows(rule, limit, is_only, observed));
            let left = followed.filter_map(left_of).min();
            // Asked only if it would change something: usually both counts agree.
            if let Some(left) = left.filter(|left| is_below(*left, &charge, decision)) {
                self.apply(rule, "lower", self.limiter.lower(&charge, left));
            }
        }
    }

    /// Returns how long the API refuses calls from now on.
    pub fn pause_of(&self, charges: &CallCharges) -> Option<Duration> {
        let subject = charges.subject(&self.rules)?;
        self.refusals.rest(&subject)
    }

    /// Applies a change now, or in the background if it takes a message: the response is not delayed, and the change is made even
    /// if its caller goes away. A change that fails is lost: the next refusal makes it again.
    fn apply(&self, rule: &OutgoingRule, kind: &'static str, mut change: StoreFuture<()>) {
        let policy = *rule.policy().name();
        if let Some(made) = change.take_ready() {
            return self.records.changed(policy, kind, made);
        }
        let records = Arc::clone(&self.records);
        spawn::on_current(async move { records.changed(policy, kind, change.await) });
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
