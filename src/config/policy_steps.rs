//! The policy of a rule, made setting by setting, so that a setting that cannot work is noted where it is.

use std::time::Duration;

use crate::{
    algorithm::{Algorithm, QueueLimits, Quota, WindowStart},
    error::Error,
    policy::{Consistency, OnOutage, Percent, Policy},
};

use super::{
    classes,
    fields::{Fields, boolean, choice, percentage, text, whole},
    names::{AlgorithmName, ConsistencyName},
    outcomes, penalty,
    quota::{self, LimitUnit, duration},
    spec::{LimitSettingsSpec, RuleSpec},
    units::write_duration,
};

/// The policy of a rule so far; all of its settings can work together.
pub(super) struct PolicySteps {
    /// Its quota is the limit of the file, or one that every algorithm can count while that has a fault.
    pub policy: Policy,
    /// Whether the limit can work, so that costs can be compared with it.
    pub has_limit: bool,
    pub limit_unit: LimitUnit,
}

impl PolicySteps {
    /// Reads the fields of a policy into the spec of its rule. Every setting that cannot work is noted.
    pub fn read(fields: &mut Fields<'_, '_>, spec: &mut RuleSpec) -> Self {
        let mut steps = Self::of_calls(fields, spec);
        steps.of_requests(fields, spec);
        steps
    }

    /// Reads the fields that rules for calls that go out have, too.
    pub fn of_calls(fields: &mut Fields<'_, '_>, spec: &mut RuleSpec) -> Self {
        spec.algorithm = fields.read("algorithm", choice);
        let name = spec.algorithm.or(fields.reading.defaults.algorithm);
        let name = name.unwrap_or(AlgorithmName::TokenBucket);
        let limit_unit = match name {
            _ if spec.algorithm.is_none() && fields.get("algorithm").is_some() => {
                LimitUnit::Unknown
            }
            AlgorithmName::Concurrency => LimitUnit::InFlight,
            _ => LimitUnit::PerPeriod,
        };
        let id = match spec.id.as_str() {
            "" => STAND_IN,
            id => id,
        };
        let mut steps = Self {
            policy: Policy::new(id, stand_in(name)).algorithm(algorithm(name)),
            has_limit: false,
            limit_unit,
        };
        if let Some((limits, quota)) = quota::settings(fields, limit_unit) {
            steps.limit(fields, name, (&limits, quota));
            (spec.limit, spec.window, spec.burst) = (limits.limit, limits.window, limits.burst);
        }
        steps.parameters(fields, name, spec);
        spec.cost = fields.read("cost", whole);
        // The fault of a cost only shows beside the limit of the file.
        if let (Some(units), true) = (spec.cost, steps.has_limit) {
            steps.apply(fields, "cost", |policy| policy.cost(units));
        }
        spec.outage = fields.read("outage", choice);
        let outage = spec.outage.or(fields.reading.defaults.outage);
        let outage = outage.map(OnOutage::from).unwrap_or_default();
        steps.policy = steps.policy.on_outage(outage);
        steps
    }

    /// Checks another quota in place of the limit.
    ///
    /// # Errors
    ///
    /// Why the policy cannot have it.
    pub fn check(&self, quota: Quota) -> Result<(), Error> {
        match self.limit_unit {
            LimitUnit::Unknown => Ok(()),
            _ => self
                .policy
                .of_tier(self.policy.name(), quota, None)
                .validate(),
        }
    }

    fn limit(
        &mut self,
        fields: &mut Fields<'_, '_>,
        name: AlgorithmName,
        (limits, quota): (&LimitSettingsSpec, Quota),
    ) {
        let with = |policy: Policy, quota| {
            Policy::new(policy.name().as_str(), quota).algorithm(algorithm(name))
        };
        let has_no_period = limits.window.is_some() && quota.period().is_zero();
        let field = if has_no_period { "window" } else { "limit" };
        self.has_limit = self.apply(fields, field, |policy| with(policy, quota));
        if let Some(units) = limits.burst {
            self.has_limit &= self.apply(fields, "burst", |policy| {
                let quota = policy.quota().burst(units);
                with(policy, quota)
            });
        }
    }

    /// Reads the settings that only some algorithms have.
    fn parameters(
        &mut self,
        fields: &mut Fields<'_, '_>,
        name: AlgorithmName,
        spec: &mut RuleSpec,
    ) {
        spec.window_start = fields.read("window_start", choice);
        spec.queue = fields.read("queue", whole);
        let max_wait = fields.read("max_wait", duration);
        let lease = fields.read("lease", duration);
        spec.max_wait = max_wait.map(write_duration);
        spec.lease = lease.map(write_duration);
        if self.limit_unit != LimitUnit::Unknown {
            note_foreign(fields, name);
        }
        // The fault of a start only shows beside the limit of the file.
        if let (AlgorithmName::FixedWindow, Some(start), true) =
            (name, spec.window_start, self.has_limit)
        {
            let fixed = Algorithm::FixedWindow(start.into());
            self.apply(fields, "window_start", |policy| policy.algorithm(fixed));
        }
        if name == AlgorithmName::LeakyQueue {
            self.queue(fields, (spec.queue, max_wait));
        }
        if let (AlgorithmName::Concurrency, Some(lease)) = (name, lease) {
            let concurrency = Algorithm::Concurrency { lease };
            self.apply(fields, "lease", |policy| policy.algorithm(concurrency));
        }
    }

    fn queue(
        &mut self,
        fields: &mut Fields<'_, '_>,
        (length, max_wait): (Option<u64>, Option<Duration>),
    ) {
        for (name, remedy) in [
            ("queue", "add the length of the queue, in units"),
            (
                "max_wait",
                "add the longest wait, shorter than the time after which clients give up",
            ),
        ] {
            if fields.get(name).is_none() {
                fields.add("algorithm", format!("`{name}` is missing"), remedy);
            }
        }
        let mut length = length.unwrap_or(1);
        let queue = |length, wait| Algorithm::LeakyQueue(QueueLimits::new(length, wait));
        let next = queue(length, Duration::MAX);
        if !self.apply(fields, "queue", |policy| policy.algorithm(next)) {
            length = 1;
        }
        if let Some(wait) = max_wait {
            let next = queue(length, wait);
            self.apply(fields, "max_wait", |policy| policy.algorithm(next));
        }
    }

    /// Reads the fields that only rules for requests have.
    fn of_requests(&mut self, fields: &mut Fields<'_, '_>, spec: &mut RuleSpec) {
        spec.unit = fields.read("unit", text);
        if let Some(unit) = &spec.unit {
            self.apply(fields, "unit", |policy| policy.unit(unit));
        }
        spec.count_denied = fields.read("count_denied", boolean);
        // A default is for the rules that can have it.
        let default = fields.reading.defaults.count_denied;
        let default = default.filter(|_| !self.policy.is_concurrency());
        let count = spec.count_denied.or(default).unwrap_or(false);
        self.apply(fields, "count_denied", |policy| policy.count_denied(count));
        if let Some((penalty_spec, penalty)) = fields.read("penalty", penalty::read) {
            spec.penalty = Some(penalty_spec);
            self.apply(fields, "penalty", |policy| policy.penalty(penalty));
        }
        if let Some((backoff_spec, backoff)) = fields.read("backoff", outcomes::backoff) {
            if spec.penalty.is_some() {
                let reason = "a rule has a penalty or a backoff, not both";
                fields.add("backoff", reason, "remove one of them");
            }
            spec.backoff = Some(backoff_spec);
            self.apply(fields, "backoff", |policy| policy.backoff(backoff));
        }
        if let Some((reserve_spec, reserve)) = fields.read("reserve", classes::reserve) {
            spec.reserve = Some(reserve_spec);
            // What it leaves only shows beside the limit of the file.
            if self.has_limit {
                self.apply(fields, "reserve", |policy| {
                    let policy = policy.reserve(reserve.classes.clone(), reserve.part);
                    match reserve.lent_within {
                        Some(within) => policy.lend(within),
                        None => policy,
                    }
                });
            }
        }
        self.consistency(fields, spec);
    }

    fn consistency(&mut self, fields: &mut Fields<'_, '_>, spec: &mut RuleSpec) {
        spec.consistency = fields.read("consistency", choice);
        spec.overshoot = fields.read("overshoot", |node, reading| {
            percentage(node, ("an overshoot", 0.1..=100.0, "2%"), reading)
        });
        let is_delayed = spec.consistency == Some(ConsistencyName::Delayed);
        let consistency = match (spec.consistency, spec.overshoot) {
            (Some(ConsistencyName::Delayed), Some(percent)) => Consistency::Delayed {
                overshoot: Percent::new(percent),
            },
            (Some(ConsistencyName::Leased), _) => Consistency::Leased,
            (Some(ConsistencyName::Delayed | ConsistencyName::Strict) | None, _) => {
                Consistency::Strict
            }
        };
        let has_overshoot = fields.get("overshoot").is_some();
        let has_consistency = fields.get("consistency").is_some();
        if is_delayed && !has_overshoot {
            let remedy = "add by how much the limit may be exceeded, such as `overshoot: 2%`";
            fields.add("consistency", "`overshoot` is missing", remedy);
        } else if has_overshoot && !is_delayed && spec.consistency.is_some() == has_consistency {
            let reason = "an overshoot of a rule that is not delayed";
            fields.add(
                "overshoot",
                reason,
                "remove it, or add `consistency: delayed`",
            );
        }
        if self.has_limit {
            self.apply(fields, "consistency", |policy| {
                policy.consistency(consistency)
            });
        }
    }

    /// Changes the setting of a field, unless the policy could not work then, which is noted. Returns whether it was changed.
    fn apply(
        &mut self,
        fields: &mut Fields<'_, '_>,
        name: &'static str,
        change: impl FnOnce(Policy) -> Policy,
    ) -> bool {
        let next = change(self.policy.clone());
        if self.limit_unit != LimitUnit::Unknown
            && let Err(error) = next.validate()
        {
            fields.refuse(name, &error);
            return false;
        }
        self.policy = next;
        true
    }
}

/// Notes the settings of other algorithms.
fn note_foreign(fields: &mut Fields<'_, '_>, name: AlgorithmName) {
    for (setting, owner, owner_name) in [
        ("window_start", AlgorithmName::FixedWindow, "fixed_window"),
        ("queue", AlgorithmName::LeakyQueue, "leaky_queue"),
        ("max_wait", AlgorithmName::LeakyQueue, "leaky_queue"),
        ("lease", AlgorithmName::Concurrency, "concurrency"),
    ] {
        if name != owner && fields.get(setting).is_some() {
            let reason = format!("`{setting}` is only for `algorithm: {owner_name}`");
            fields.add(setting, reason, "leave it out, or choose that algorithm");
        }
    }
}

/// Returns the algorithm with the defaults of its settings.
fn algorithm(name: AlgorithmName) -> Algorithm {
    match name {
        AlgorithmName::Concurrency => Algorithm::Concurrency { lease: LEASE },
        AlgorithmName::FixedWindow => Algorithm::FixedWindow(WindowStart::Clock),
        AlgorithmName::LeakyBucket => Algorithm::LeakyBucket,
        AlgorithmName::LeakyQueue => Algorithm::LeakyQueue(QueueLimits::new(1, Duration::MAX)),
        AlgorithmName::SlidingLog => Algorithm::SlidingLog,
        AlgorithmName::SlidingWindow => Algorithm::SlidingWindow,
        AlgorithmName::TokenBucket => Algorithm::TokenBucket,
    }
}

/// Returns a quota that the algorithm can count.
fn stand_in(name: AlgorithmName) -> Quota {
    match name {
        AlgorithmName::Concurrency => Quota::in_flight(1_000),
        _ => Quota::per_minute(1_000),
    }
}

/// Name of a rule without one, and of other parts that need a name to be checked.
const STAND_IN: &str = "rule";
const LEASE: Duration = Duration::from_secs(30);
