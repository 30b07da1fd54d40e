//! Limits, as they are written and as quotas.

use std::time::Duration;

use crate::algorithm::Quota;

use super::{
    fields::{Fields, whole},
    node::{LocatedValue, Value},
    reading::FileReading,
    spec::{LimitSettingsSpec, LimitSpec, QuotaSpec},
    units,
};

/// Unit of a limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitUnit {
    /// Requests in flight.
    InFlight,
    /// Requests in a period.
    PerPeriod,
    /// The algorithm could not be read.
    Unknown,
}

/// Reads `limit`, `window` and `burst`. The quota is without the burst.
pub(super) fn settings(
    fields: &mut Fields<'_, '_>,
    limit_unit: LimitUnit,
) -> Option<(LimitSettingsSpec, Quota)> {
    let window = fields.read("window", duration);
    let has_window = fields.get("window").is_some();
    let burst = fields.read("burst", whole);
    let remedy = "add a rate, such as `limit: 100/min`";
    let (limit, quota) = fields.require("limit", remedy, |node, reading| {
        limit(node, (has_window, window), limit_unit, reading)
    })?;
    let fault = match &limit {
        LimitSpec::Count(_) if limit_unit == LimitUnit::InFlight => Some((
            "requests in flight have no window",
            "leave it out, or choose another `algorithm`",
        )),
        LimitSpec::Count(_) => None,
        LimitSpec::Rate(_) => Some((
            "`window` beside a rate",
            "leave it out, or write a count as `limit`",
        )),
    };
    if let Some((reason, remedy)) = fault.filter(|_| has_window) {
        fields.add("window", reason, remedy);
    }
    let window = window.map(units::write_duration);
    let spec = LimitSettingsSpec {
        limit,
        window,
        burst,
    };
    Some((spec, quota))
}

/// Reads the quota of a candidate or a tier: a limit, or a mapping.
pub(super) fn quota(
    node: &LocatedValue,
    limit_unit: LimitUnit,
    reading: &mut FileReading,
) -> Option<(QuotaSpec, Quota)> {
    if !matches!(node.value, Value::Map(_)) {
        let (limit, quota) = limit(node, (false, None), limit_unit, reading)?;
        return Some((QuotaSpec::Limit(limit), quota));
    }
    let mut fields = Fields::of(node, "write a rate", reading)?;
    let read = settings(&mut fields, limit_unit);
    fields.finish();
    let (spec, quota) = read?;
    let quota = spec.burst.map_or(quota, |units| quota.burst(units));
    Some((QuotaSpec::With(spec), quota))
}

fn limit(
    node: &LocatedValue,
    (has_window, window): (bool, Option<Duration>),
    limit_unit: LimitUnit,
    reading: &mut FileReading,
) -> Option<(LimitSpec, Quota)> {
    match &node.value {
        Value::Text(text) => match units::rate(text) {
            Ok(_) if limit_unit == LimitUnit::InFlight => {
                let remedy = "write how many may be in flight at once, such as `10`";
                reading.fault(node.position, "a rate of requests in flight", remedy)
            }
            Ok((count, period)) => Some((LimitSpec::Rate(text.clone()), Quota::new(count, period))),
            Err(remedy) => reading.fault(node.position, format!("{text:?} is not a rate"), remedy),
        },
        Value::Integer(_) => {
            let count = whole(node, reading)?;
            if limit_unit == LimitUnit::InFlight {
                return Some((LimitSpec::Count(count), Quota::in_flight(count)));
            }
            if !has_window && limit_unit == LimitUnit::PerPeriod {
                let remedy = "write a rate such as `100/min`, or add `window`";
                reading.add(node.position, "a count without a period", remedy);
            }
            // A window that could not be read was noted.
            Some((LimitSpec::Count(count), Quota::new(count, window?)))
        }
        _ => reading.expect(
            node,
            "write a rate such as `100/min`, or a count beside `window`",
        ),
    }
}

pub(super) fn duration(node: &LocatedValue, reading: &mut FileReading) -> Option<Duration> {
    let Value::Text(text) = &node.value else {
        return reading.expect(node, units::AS_DURATION);
    };
    let read = units::duration(text);
    read.map_or_else(
        |remedy| reading.fault(node.position, format!("{text:?} is not a duration"), remedy),
        Some,
    )
}
