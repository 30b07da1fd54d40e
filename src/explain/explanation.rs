//! The state of a key under each policy.

use std::{fmt, time::Duration};

use crate::{
    acquire::KeyWait,
    block::ActiveBlock,
    clock::Timestamp,
    decision::{CountedBy, Outcome, PolicyName, PolicyState, Retry, Usage},
    policy::{BanStatus, Penalty, Policy},
    store::{Health, KeyLease, LocalView},
    telemetry::denials::LastDenial,
};

/// The state of a key under every policy of a limiter, and the health of the store.
///
/// [`RateLimiter::explain`](crate::RateLimiter::explain) returns one. It displays as a few lines for a terminal; see the
/// [module docs](super).
#[derive(Clone, Debug)]
pub struct Explanation {
    pub(super) health: Health,
    pub(super) policies: Vec<PolicyExplanation>,
}

impl Explanation {
    /// Returns the health of the store: its mode, [since when](Health::mode_since), and its outages.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Returns the state under each policy. Those of a layer are in the order of its rules.
    #[must_use]
    pub fn policies(&self) -> &[PolicyExplanation] {
        &self.policies
    }

    /// Returns the state under the policy with this name; `None` if the limiter does not have it.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&PolicyExplanation> {
        let mut policies = self.policies.iter();
        policies.find(|policy| policy.name().as_str() == name)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_health(f, &self.health)?;
        self.policies
            .iter()
            .try_for_each(|policy| write!(f, "\n{policy}"))
    }
}

/// Writes the mode of the store, and its outages.
pub(super) fn write_health(f: &mut fmt::Formatter<'_>, health: &Health) -> fmt::Result {
    write!(f, "store: {}", health.mode().name())?;
    if let Some(age) = health.mode_age() {
        write!(f, " for {}", Span(age))?;
    }
    if let Some(instances) = health.instances().filter(|_| health.is_degraded()) {
        write!(f, ", each of {instances} instances grants its share")?;
    }
    for outage in health.outages() {
        match outage.stuck_slots() {
            Some(slots) => write!(f, "\n  {slots} hash slots are decided by no node")?,
            None => write!(
                f,
                "\n  {} is unavailable",
                outage.server().unwrap_or("the server")
            )?,
        }
        write!(f, ": {}", outage.cause())?;
    }
    if health.outages().is_empty() && !health.is_well() {
        let share = health.affected_share() * 100.0;
        write!(
            f,
            "\n  {share:.1} % of the latest decisions were made without it"
        )?;
        if let Some(cause) = health.cause() {
            write!(f, ": {cause}")?;
        }
    }
    Ok(())
}

// === PolicyExplanation ===

/// The state of a key under one policy.
#[derive(Clone, Debug)]
pub struct PolicyExplanation {
    pub(super) policy: Policy,
    pub(super) cost: u64,
    pub(super) state: PolicyState,
    pub(super) counted_by: CountedBy,
    /// The leased units and the kept denial by which this process decides without the store.
    pub(super) view: LocalView,
    pub(super) counted_at: Timestamp,
    /// How long the longest outage has lasted.
    pub(super) outage_age: Option<Duration>,
    pub(super) last_denial: Option<LastDenial>,
    /// `None` also if nobody counts, so that a ban denies nothing.
    pub(super) ban_status: Option<BanStatus>,
    pub(super) block: Option<ActiveBlock>,
    /// Later than `counted_at`.
    pub(super) paused_until: Option<Timestamp>,
    pub(super) waiting: KeyWait,
}

impl PolicyExplanation {
    /// Returns the name of the policy.
    #[must_use]
    pub fn name(&self) -> &PolicyName {
        self.policy.name()
    }

    /// Returns the policy, with the quota of the tier if there is one.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the name of the tier whose quota applies; `None` for the policy's own.
    #[must_use]
    pub fn tier(&self) -> Option<&PolicyName> {
        self.policy.tier()
    }

    /// Returns the units that the next request would take.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the outcome of a request of this [cost](Self::cost) at that time, if the policy is enforced.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        if self.cost > 0 && self.block.is_some() {
            return Outcome::Limited;
        }
        match self.usage() {
            _ if self.counted_by == CountedBy::Lease => Outcome::Allowed,
            _ if self.counted_by == CountedBy::DenialCache => Outcome::Limited,
            Some(_) if self.cost > 0 && self.is_banned() => Outcome::Limited,
            Some(usage) if usage.remaining < self.cost => Outcome::Limited,
            Some(_) | None => self.state.outcome(),
        }
    }

    /// Returns the units left, with those that this instance has [leased](Self::lease), and when all are back; `None` if nobody
    /// counts.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        let usage = self.state.usage()?;
        let leased = self.view.lease().map_or(0, |lease| lease.units());
        let remaining = usage.remaining.saturating_add(leased).min(usage.limit);
        Some(Usage { remaining, ..usage })
    }

    /// Returns who decides the next request: Redis for all instances, the units that this instance has [leased](Self::lease), a
    /// [denial that it keeps](Self::denied_for), this process by configuration, the fallback, or nobody.
    #[must_use]
    pub fn counted_by(&self) -> CountedBy {
        self.counted_by
    }

    /// Returns when the state was read, by the [clock](crate::RateLimiter::wall_time) of the store, as are all times here.
    #[must_use]
    pub fn counted_at(&self) -> Timestamp {
        self.counted_at
    }

    /// Returns the units of the key that this instance has [leased](crate::Consistency::Leased), and those of other instances;
    /// `None` if it has no lease of the key.
    #[must_use]
    pub fn lease(&self) -> Option<KeyLease> {
        self.view.lease()
    }

    /// Returns for how long requests are denied from the cache of this instance, before it asks Redis again; `None` if the key has
    /// no denial there.
    #[must_use]
    pub fn denied_for(&self) -> Option<Duration> {
        self.view.denied_for()
    }

    /// Returns the age of the count of all instances: zero if it was read now, the time since the last report for leased units, and
    /// during an outage its length.
    ///
    /// The fallback continues from the last state that Redis returned for the key, which may be older than the outage. `None`
    /// if a single failure, and not an outage, is the reason for the fallback, or if nobody counts.
    #[must_use]
    pub fn shared_count_age(&self) -> Option<Duration> {
        match self.counted_by {
            CountedBy::DenialCache | CountedBy::InProcess | CountedBy::Shared => {
                Some(Duration::ZERO)
            }
            CountedBy::Lease => self.lease().map(|lease| lease.age()),
            CountedBy::Fallback => self.outage_age,
            CountedBy::Uncounted => None,
        }
    }

    /// Returns the last denial of the key by this instance; `None` if there was none, or if they are not
    /// [recorded](crate::builder::RateLimiterBuilder::record_denials).
    #[must_use]
    pub fn last_denial(&self) -> Option<&LastDenial> {
        self.last_denial.as_ref()
    }

    /// Returns the denials and the ban of the key under the policy's [penalty](crate::policy); `None` if it has no penalty, if
    /// there is nothing to forgive, or if nobody counts.
    ///
    /// During an outage, they are what this instance has seen: bans by Redis count as the first of their key.
    #[must_use]
    pub fn ban_status(&self) -> Option<&BanStatus> {
        self.ban_status.as_ref()
    }

    /// Returns whether the key is banned, so that requests with a cost are denied whatever quota is left.
    #[must_use]
    pub fn is_banned(&self) -> bool {
        self.ban_status
            .is_some_and(|ban_status| ban_status.is_banned())
    }

    /// Returns the [block](crate::RateLimiter::block) of the key that ends last; `None` if it is not blocked. Requests with a
    /// cost are denied until then, whatever quota is left.
    #[must_use]
    pub fn block(&self) -> Option<&ActiveBlock> {
        self.block.as_ref()
    }

    /// Returns when the [pause](crate::RateLimiter::pause) of the key ends, which the other side of a call asked for; `None` if the
    /// key is not paused, or during an outage, when a pause is not heeded.
    #[must_use]
    pub fn paused_until(&self) -> Option<Timestamp> {
        self.paused_until
    }

    /// Returns the number of callers of this instance that [wait](crate::acquire) for the key.
    #[must_use]
    pub fn waiting_callers(&self) -> usize {
        self.waiting.callers
    }

    /// Returns how long a caller that [asks for a turn](crate::acquire) now waits at least: for the quota, the end of a pause or a
    /// ban, and the callers of this instance before it.
    ///
    /// `None` if that is not known: nobody counts, all slots are taken, the key is blocked, or the cost is above the limit. Callers
    /// of other instances may go first.
    #[must_use]
    pub fn next_turn(&self) -> Option<Duration> {
        let usage = self.state.usage().filter(|_| self.block.is_none())?;
        let now = self.counted_at;
        let policy = self.policy.for_waiting();
        let quota = match policy.counter().retry_under(usage, self.cost, now) {
            Retry::Now => Duration::ZERO,
            Retry::At(at) if !policy.is_concurrency() => at.since(now),
            Retry::At(_) | Retry::Never => return None,
        };
        let ban = self.ban_status.and_then(|status| status.banned_until());
        let ends = [ban, self.paused_until].into_iter().flatten();
        let ends = ends.map(|end| end.since(now));
        ends.chain([quota]).chain(self.waiting.turn).max()
    }

    fn write_turn(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(until) = self.paused_until {
            let ends = Span(until.since(self.counted_at));
            write!(f, "\n  paused: as the other side asked, for {ends}")?;
        }
        let callers = self.waiting.callers;
        if self.paused_until.is_none() && callers == 0 {
            return Ok(());
        }
        match self.next_turn() {
            Some(turn) => write!(f, "\n  next turn: in {}", Span(turn))?,
            None => f.write_str("\n  next turn: at a time that is not known")?,
        }
        match callers {
            0 => Ok(()),
            1 => f.write_str(", behind 1 caller of this instance"),
            _ => write!(f, ", behind {callers} callers of this instance"),
        }
    }

    fn write_block(&self, f: &mut fmt::Formatter<'_>, block: &ActiveBlock) -> fmt::Result {
        let now = self.counted_at;
        let (begun, ends) = (
            Span(now.since(block.since())),
            Span(block.until().since(now)),
        );
        write!(
            f,
            "\n  block: for {begun}, ends in {ends} or by unblocking the key"
        )?;
        match block.reason() {
            "" => Ok(()),
            reason => write!(f, ", reason: {reason}"),
        }
    }

    fn write_ban_status(
        &self,
        f: &mut fmt::Formatter<'_>,
        (penalty, ban_status): (&Penalty, &BanStatus),
    ) -> fmt::Result {
        let (now, bans) = (self.counted_at, ban_status.bans());
        let left = |time: Timestamp| Span(time.since(now));
        if let (Some(since), Some(until)) = (ban_status.banned_since(), ban_status.banned_until()) {
            let number = match self.counted_by {
                // It may have had others in Redis.
                CountedBy::Fallback => String::new(),
                _ => format!("number {bans}, "),
            };
            let (begun, ends) = (Span(now.since(since)), left(until));
            let name = if penalty.is_backoff() {
                "delay after failures"
            } else {
                "ban"
            };
            return write!(
                f,
                "\n  {name}: {number}for {begun}, ends in {ends} or by a reset of the key"
            );
        }
        if penalty.is_backoff() {
            let forgiven = left(ban_status.forgiven_at());
            let plural = if bans == 1 { "" } else { "s" };
            return write!(
                f,
                "\n  backoff: {bans} failure{plural}, forgiven in {forgiven}"
            );
        }
        write!(
            f,
            "\n  penalty: {} of {} denials to a ban",
            ban_status.denials(),
            penalty.denials()
        )?;
        if bans > 0 {
            let plural = if bans == 1 { "" } else { "s" };
            write!(f, " after {bans} ban{plural}")?;
        }
        write!(f, ", forgiven in {}", left(ban_status.forgiven_at()))
    }

    fn write_quota(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quota = self.policy.quota();
        write!(f, "\n  quota: {}", quota.count())?;
        match quota.period() {
            Duration::ZERO => f.write_str(" at once")?,
            period => write!(f, " per {}", Span(period))?,
        }
        if let Some(burst) = quota.explicit_burst() {
            write!(f, ", burst {burst}")?;
        }
        write!(
            f,
            " by {}, {} a request",
            self.policy.algorithm_name(),
            self.cost
        )?;
        if let Some(tier) = self.tier() {
            write!(f, ", tier {tier}")?;
        }
        match self.policy.reserve_in_words() {
            Some(reserve) => write!(f, "\n  reserve: {reserve}"),
            None => Ok(()),
        }
    }

    fn write_denial(&self, f: &mut fmt::Formatter<'_>, denial: &LastDenial) -> fmt::Result {
        let ago = |time: Timestamp| Span(self.counted_at.since(time));
        write!(
            f,
            "\n  last denial: {} ago, {}",
            ago(denial.at()),
            denial.outcome().name()
        )?;
        if denial.is_shadow() {
            f.write_str(" in shadow mode, so that the request passed")?;
        }
        match denial.counted_by() {
            CountedBy::DenialCache => {
                f.write_str(", denied by this instance as Redis did before")?;
            }
            CountedBy::Lease => {
                f.write_str(", denied by Redis in its reply to a report of leased units")?;
            }
            counted_by => write!(f, ", counted by {}", counted_by.name())?,
        }
        match denial.retry() {
            Retry::At(at) if at > self.counted_at => {
                write!(f, ", retry in {}", Span(at.since(self.counted_at)))?;
            }
            Retry::Never => f.write_str(", costs more than the limit")?,
            Retry::At(_) | Retry::Now => {}
        }
        if denial.count() > 1 {
            write!(f, "; {} in {}", denial.count(), ago(denial.first_at()))?;
        }
        Ok(())
    }
}

impl fmt::Display for PolicyExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.outcome().name())?;
        match self.outcome() {
            Outcome::Limited if self.block.is_some() => f.write_str(" by a block")?,
            Outcome::Limited if self.is_banned() => f.write_str(" by a ban")?,
            // Requests without a cost pass all the same.
            _ => {}
        }
        if let Some(usage) = self.usage() {
            write!(f, ", {} of {} units left", usage.remaining, usage.limit)?;
            if usage.reset_at > self.counted_at {
                let reset = Span(usage.reset_at.since(self.counted_at));
                write!(f, ", all back in {reset}")?;
            }
        }
        self.write_quota(f)?;
        write!(f, "\n  counted by: {}", self.counted_by.name())?;
        if self.counted_by == CountedBy::Fallback {
            match self.shared_count_age() {
                Some(age) => write!(f, ", since the count of all instances is {} old", Span(age))?,
                None => f.write_str(", since a call failed or came too late")?,
            }
        }
        if let Some(time) = self.denied_for() {
            let time = Span(time);
            write!(f, "\n  denied from the cache of this instance for {time}")?;
        }
        if let Some(lease) = self.lease() {
            let (units, elsewhere) = (lease.units(), lease.leased_elsewhere());
            let age = Span(lease.age());
            write!(
                f,
                "\n  lease: {units} units here, {elsewhere} elsewhere {age} ago"
            )?;
        }
        if let Some(block) = &self.block {
            self.write_block(f, block)?;
        }
        if let Some(ban_status) = self.policy.ban_penalty().zip(self.ban_status()) {
            self.write_ban_status(f, ban_status)?;
        }
        self.write_turn(f)?;
        match &self.last_denial {
            Some(denial) => self.write_denial(f, denial),
            None => Ok(()),
        }
    }
}

// === Span ===

/// Displays a duration in the largest unit that leaves at least two of it, rounded up: `35 s`, `12 min`. One second is `1 s`.
#[derive(Clone, Copy, Debug)]
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_micros().div_ceil(1_000);
        let fits = |(_, length): &&(&str, u128)| {
            millis >= 2 * length || (millis, *length) == (1_000, 1_000)
        };
        let (unit, length) = UNITS.iter().find(fits).unwrap_or(&("ms", 1));
        write!(f, "{} {unit}", millis.div_ceil(*length))
    }
}

const UNITS: [(&str, u128); 4] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("s", 1_000),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_has_the_largest_unit_that_leaves_two() {
        for (micros, expected) in [
            (0, "0 ms"),
            (1, "1 ms"),
            (1_000_000, "1 s"),
            (1_000_001, "1001 ms"),
            (1_999_000, "1999 ms"),
            (2_000_000, "2 s"),
            (2_000_001, "3 s"),
            (119_000_000, "119 s"),
            (120_000_000, "2 min"),
            (7_199_000_000, "120 min"),
            (7_200_000_000, "2 h"),
            (172_800_000_000, "2 d"),
        ] {
            assert_eq!(Span(Duration::from_micros(micros)).to_string(), expected);
        }
    }
}
