//! Limits, as they are written and as quotas.

use std::time::Duration;

use crate::algorithm::Quota;

use super::{
    fields::{self, Faults, Fields},
    node::{Node, Value},
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
    fields: &mut Fields<'_>,
    limit_unit: LimitUnit,
    faults: &mut Faults,
) -> Option<(LimitSettingsSpec, Quota)> {
    let window_node = fields.get("window");
    let window = window_node.and_then(|node| duration(node, faults));
    let burst = fields.read("burst", faults, fields::whole);
    let node = fields.require("limit", "add a rate, such as `limit: 100/min`", faults)?;
    let (limit, quota) = limit(node, (window_node.is_some(), window), limit_unit, faults)?;
    if let Some(node) = window_node {
        let (reason, remedy) = match &limit {
            LimitSpec::Count(_) if limit_unit == LimitUnit::InFlight => (
                "requests in flight have no window",
                "leave it out, or choose another `algorithm`",
            ),
            LimitSpec::Count(_) => ("", ""),
            LimitSpec::Rate(_) => (
                "`window` beside a rate",
                "leave it out, or write a count as `limit`",
            ),
        };
        if !reason.is_empty() {
            faults.add(node.place, reason, remedy);
        }
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
    node: &Node,
    limit_unit: LimitUnit,
    faults: &mut Faults,
) -> Option<(QuotaSpec, Quota)> {
    if !matches!(node.value, Value::Map(_)) {
        let (limit, quota) = limit(node, (false, None), limit_unit, faults)?;
        return Some((QuotaSpec::Limit(limit), quota));
    }
    let mut fields = Fields::of(node, "write a rate", faults)?;
    let read = settings(&mut fields, limit_unit, faults);
    fields.finish(faults);
    let (spec, quota) = read?;
    let quota = spec.burst.map_or(quota, |units| quota.burst(units));
    Some((QuotaSpec::With(spec), quota))
}

fn limit(
    node: &Node,
    (has_window, window): (bool, Option<Duration>),
    limit_unit: LimitUnit,
    faults: &mut Faults,
) -> Option<(LimitSpec, Quota)> {
    match &node.value {
        Value::Text(text) => match units::rate(text) {
            Ok(_) if limit_unit == LimitUnit::InFlight => {
                let remedy = "write how many may be in flight at once, such as `10`";
                faults.add(node.place, "a rate of requests in flight", remedy);
                None
            }
            Ok((count, period)) => Some((LimitSpec::Rate(text.clone()), Quota::new(count, period))),
            Err(remedy) => {
                faults.add(node.place, format!("{text:?} is not a rate"), remedy);
                None
            }
        },
        Value::Integer(_) => {
            let count = fields::whole(node, faults)?;
            if limit_unit == LimitUnit::InFlight {
                return Some((LimitSpec::Count(count), Quota::in_flight(count)));
            }
            if !has_window && limit_unit == LimitUnit::PerPeriod {
                let remedy = "write a rate such as `100/min`, or add `window`";
                faults.add(node.place, "a count without a period", remedy);
            }
            // A window that could not be read was noted.
            Some((LimitSpec::Count(count), Quota::new(count, window?)))
        }
        _ => {
            let remedy = "write a rate such as `100/min`, or a count beside `window`";
            faults.expect(node, remedy);
            None
        }
    }
}

pub(super) fn duration(node: &Node, faults: &mut Faults) -> Option<Duration> {
    let Value::Text(text) = &node.value else {
        faults.expect(
            node,
            "write a duration such as `30s`, `1m30s`, `500ms`, `2h` or `1d`",
        );
        return None;
    };
    match units::duration(text) {
        Ok(duration) => Some(duration),
        Err(remedy) => {
            faults.add(node.place, format!("{text:?} is not a duration"), remedy);
            None
        }
    }
}
