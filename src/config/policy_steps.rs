//! The policy of a rule, made setting by setting, so that a setting that cannot work is noted where it is.

use std::time::Duration;

use crate::{
    algorithm::{Algorithm, QueueLimits, Quota, WindowStart},
    error::Error,
    policy::{OnOutage, Penalty, Policy},
};

use super::{
    fields::{self, Faults, Fields},
    node::Place,
    penalty,
    quota::{self, LimitUnit, duration},
    spec::{AlgorithmName, DefaultsSpec, LimitSettingsSpec, RuleSpec, WindowStartName},
    units,
};

/// The settings of a policy so far; all of them can work together.
#[derive(Clone)]
pub(super) struct PolicySettings {
    id: String,
    /// The limit of the file, or one that every algorithm can count while that has a fault.
    quota: Quota,
    has_limit: bool,
    pub(super) limit_unit: LimitUnit,
    algorithm: Algorithm,
    cost: u64,
    unit: Option<String>,
    count_denied: bool,
    penalty: Option<Penalty>,
    on_outage: OnOutage,
}

impl PolicySettings {
    /// Reads the fields of a policy into the spec of its rule. Every setting that cannot work is noted.
    pub(super) fn read(
        fields: &mut Fields<'_>,
        defaults: &DefaultsSpec,
        spec: &mut RuleSpec,
        faults: &mut Faults,
    ) -> Self {
        let node = fields.get("algorithm");
        spec.algorithm = node.and_then(|node| fields::choice(AlgorithmName::ALL)(node, faults));
        let name = spec.algorithm.or(defaults.algorithm);
        let name = name.unwrap_or(AlgorithmName::TokenBucket);
        let limit_unit = match name {
            _ if node.is_some() && spec.algorithm.is_none() => LimitUnit::Unknown,
            AlgorithmName::Concurrency => LimitUnit::InFlight,
            _ => LimitUnit::PerPeriod,
        };
        let limits = quota::settings(fields, limit_unit, faults);
        let mut settings = Self {
            id: match spec.id.as_str() {
                "" => STAND_IN.to_owned(),
                id => id.to_owned(),
            },
            quota: stand_in(name),
            has_limit: false,
            limit_unit,
            algorithm: algorithm(name),
            cost: 1,
            unit: None,
            count_denied: false,
            penalty: None,
            on_outage: OnOutage::default(),
        };
        if let Some((limits, quota)) = limits {
            settings.limit(fields, (&limits, quota), faults);
            (spec.limit, spec.window, spec.burst) = (limits.limit, limits.window, limits.burst);
        }
        settings.parameters(fields, name, spec, faults);
        settings.others(fields, defaults, spec, faults);
        settings
    }

    /// Returns the policy.
    pub(super) fn policy(&self) -> Policy {
        let policy = Policy::new(&self.id, self.quota)
            .algorithm(self.algorithm)
            .cost(self.cost)
            .count_denied(self.count_denied)
            .penalty(self.penalty)
            .on_outage(self.on_outage);
        match &self.unit {
            Some(unit) => policy.unit(unit),
            None => policy,
        }
    }

    /// Whether the limit can work, so that costs can be compared with it.
    pub(super) fn has_limit(&self) -> bool {
        self.has_limit
    }

    pub(super) fn is_concurrency(&self) -> bool {
        matches!(self.algorithm, Algorithm::Concurrency { .. })
    }

    /// Checks another quota in place of the limit.
    ///
    /// # Errors
    ///
    /// Why the policy cannot have it.
    pub(super) fn check(&self, quota: Quota) -> Result<(), Error> {
        if self.limit_unit == LimitUnit::Unknown {
            return Ok(());
        }
        let other = Self {
            quota,
            ..self.clone()
        };
        other.policy().validate()
    }

    fn limit(
        &mut self,
        fields: &mut Fields<'_>,
        (limits, quota): (&LimitSettingsSpec, Quota),
        faults: &mut Faults,
    ) {
        let change = |next: &mut Self| next.quota = quota;
        let has_no_period = limits.window.is_some() && quota.period().is_zero();
        let place = fields.place_of(if has_no_period { "window" } else { "limit" });
        self.has_limit = self.apply(place, faults, change);
        if let Some(units) = limits.burst {
            let place = fields.place_of("burst");
            let change = |next: &mut Self| next.quota = next.quota.burst(units);
            self.has_limit &= self.apply(place, faults, change);
        }
    }

    /// Reads the settings that only some algorithms have.
    fn parameters(
        &mut self,
        fields: &mut Fields<'_>,
        name: AlgorithmName,
        spec: &mut RuleSpec,
        faults: &mut Faults,
    ) {
        let start = fields.read("window_start", faults, fields::choice(WindowStartName::ALL));
        let queue = fields.read("queue", faults, fields::whole);
        let max_wait = fields.read("max_wait", faults, duration);
        let lease = fields.read("lease", faults, duration);
        spec.window_start = start;
        spec.queue = queue;
        spec.max_wait = max_wait.map(units::write_duration);
        spec.lease = lease.map(units::write_duration);
        if self.limit_unit != LimitUnit::Unknown {
            note_foreign(fields, name, faults);
        }
        if let (AlgorithmName::FixedWindow, Some(start)) = (name, start) {
            let start = match start {
                WindowStartName::Clock => WindowStart::Clock,
                WindowStartName::FirstHit => WindowStart::FirstHit,
                WindowStartName::Month => WindowStart::Month,
            };
            let change = |next: &mut Self| next.algorithm = Algorithm::FixedWindow(start);
            self.apply_to_limit(fields.place_of("window_start"), faults, change);
        }
        if name == AlgorithmName::LeakyQueue {
            self.queue(fields, (queue, max_wait), faults);
        }
        if let (AlgorithmName::Concurrency, Some(lease)) = (name, lease) {
            let change = |next: &mut Self| next.algorithm = Algorithm::Concurrency { lease };
            self.apply(fields.place_of("lease"), faults, change);
        }
    }

    fn queue(
        &mut self,
        fields: &mut Fields<'_>,
        (length, max_wait): (Option<u64>, Option<Duration>),
        faults: &mut Faults,
    ) {
        if fields.get("queue").is_none() {
            let remedy = "add the length of the queue, in units";
            faults.add(fields.place_of("algorithm"), "`queue` is missing", remedy);
        }
        if fields.get("max_wait").is_none() {
            faults.add(
                fields.place_of("algorithm"),
                "`max_wait` is missing",
                "add the longest wait, shorter than the time after which clients give up",
            );
        }
        let mut length = length.unwrap_or(1);
        let queue = |length, wait| Algorithm::LeakyQueue(QueueLimits::new(length, wait));
        let change = |next: &mut Self| next.algorithm = queue(length, Duration::MAX);
        if !self.apply(fields.place_of("queue"), faults, change) {
            length = 1;
        }
        if let Some(wait) = max_wait {
            let change = |next: &mut Self| next.algorithm = queue(length, wait);
            self.apply(fields.place_of("max_wait"), faults, change);
        }
    }

    fn others(
        &mut self,
        fields: &mut Fields<'_>,
        defaults: &DefaultsSpec,
        spec: &mut RuleSpec,
        faults: &mut Faults,
    ) {
        spec.cost = fields.read("cost", faults, fields::whole);
        if let Some(units) = spec.cost {
            let change = |next: &mut Self| next.cost = units;
            self.apply_to_limit(fields.place_of("cost"), faults, change);
        }
        spec.unit = fields.read("unit", faults, fields::text);
        if let Some(unit) = &spec.unit {
            let change = |next: &mut Self| next.unit = Some(unit.clone());
            self.apply(fields.place_of("unit"), faults, change);
        }
        spec.count_denied = fields.read("count_denied", faults, fields::boolean);
        // A default is for the rules that can have it.
        let default = defaults.count_denied.filter(|_| !self.is_concurrency());
        let count = spec.count_denied.or(default).unwrap_or(false);
        let change = |next: &mut Self| next.count_denied = count;
        self.apply(fields.place_of("count_denied"), faults, change);
        if let Some((penalty_spec, penalty)) = fields.read("penalty", faults, penalty::read) {
            spec.penalty = Some(penalty_spec);
            let change = |next: &mut Self| next.penalty = Some(penalty);
            self.apply(fields.place_of("penalty"), faults, change);
        }
        spec.outage = fields.read(
            "outage",
            faults,
            fields::choice(super::spec::OutageName::ALL),
        );
        let outage = spec.outage.or(defaults.outage);
        self.on_outage = outage.map(OnOutage::from).unwrap_or_default();
    }

    /// Changes a setting whose fault only shows beside the limit of the file.
    fn apply_to_limit(
        &mut self,
        place: Place,
        faults: &mut Faults,
        change: impl FnOnce(&mut Self),
    ) {
        if self.has_limit {
            self.apply(place, faults, change);
        }
    }

    /// Changes a setting, unless the policy could not work then, which is noted. Returns whether it was changed.
    fn apply(&mut self, place: Place, faults: &mut Faults, change: impl FnOnce(&mut Self)) -> bool {
        let mut next = self.clone();
        change(&mut next);
        if self.limit_unit != LimitUnit::Unknown
            && let Err(error) = next.policy().validate()
        {
            faults.refuse(place, &error);
            return false;
        }
        *self = next;
        true
    }
}

/// Notes the settings of other algorithms.
fn note_foreign(fields: &mut Fields<'_>, name: AlgorithmName, faults: &mut Faults) {
    for (setting, owner, owner_name) in [
        ("window_start", AlgorithmName::FixedWindow, "fixed_window"),
        ("queue", AlgorithmName::LeakyQueue, "leaky_queue"),
        ("max_wait", AlgorithmName::LeakyQueue, "leaky_queue"),
        ("lease", AlgorithmName::Concurrency, "concurrency"),
    ] {
        if let (Some(node), false) = (fields.get(setting), name == owner) {
            let reason = format!("`{setting}` is only for `algorithm: {owner_name}`");
            faults.add(node.place, reason, "leave it out, or choose that algorithm");
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
