//! Limits and algorithms of rules.

use std::time::Duration;

use crate::{
    algorithm::{Algorithm, QueueLimits, WindowStart},
    quota::Quota,
};

use super::{
    fields::{self, Faults, Fields},
    node::{Node, Place, Value},
    spec::{AlgorithmName, CandidateSpec, LimitSpec, WindowStartName},
    units,
};

/// Reads `limit`, `window` and `burst`.
pub(super) fn quota(
    fields: &mut Fields<'_>,
    in_flight: bool,
    faults: &mut Faults,
) -> Option<(CandidateSpec, Quota)> {
    let window_node = fields.get("window");
    let window = window_node.and_then(|node| duration(node, faults));
    let burst = fields.read("burst", faults, fields::whole);
    let node = fields.require("limit", "add a rate, such as `limit: 100/min`", faults)?;
    let (limit, quota) = limit(node, (window_node.is_some(), window), in_flight, faults)?;
    if let (LimitSpec::Rate(_), Some(window)) = (&limit, window_node) {
        faults.add(
            window.place,
            "`window` beside a rate",
            "leave it out, or write a count as `limit`",
        );
        return None;
    }
    let quota = burst.map_or(quota, |units| quota.burst(units));
    let window = window.map(units::write_duration);
    Some((
        CandidateSpec {
            limit,
            window,
            burst,
        },
        quota,
    ))
}

fn limit(
    node: &Node,
    (has_window, window): (bool, Option<Duration>),
    in_flight: bool,
    faults: &mut Faults,
) -> Option<(LimitSpec, Quota)> {
    match &node.value {
        Value::Text(text) => match units::rate(text) {
            Ok((count, period)) => Some((LimitSpec::Rate(text.clone()), Quota::new(count, period))),
            Err(remedy) => {
                faults.add(node.place, format!("{text:?} is not a rate"), remedy);
                None
            }
        },
        Value::Integer(_) => {
            let count = fields::whole(node, faults)?;
            if !has_window && !in_flight {
                faults.add(
                    node.place,
                    "a count without a period",
                    "write a rate such as `100/min`, or add `window`",
                );
                return None;
            }
            // A window that could not be read was noted.
            let period = if has_window { window? } else { Duration::ZERO };
            Some((LimitSpec::Count(count), Quota::new(count, period)))
        }
        _ => {
            faults.expect(
                node,
                "write a rate such as `100/min`, or a count beside `window`",
            );
            None
        }
    }
}

/// Reads the quota of a candidate: a rate, or a mapping.
pub(super) fn candidate_quota(
    node: &Node,
    in_flight: bool,
    faults: &mut Faults,
) -> Option<(CandidateSpec, Quota)> {
    if !matches!(node.value, Value::Map(_)) {
        let (limit, quota) = limit(node, (false, None), in_flight, faults)?;
        return Some((
            CandidateSpec {
                limit,
                window: None,
                burst: None,
            },
            quota,
        ));
    }
    let mut fields = Fields::of(node, "write a rate", faults)?;
    let read = quota(&mut fields, in_flight, faults);
    fields.finish(faults);
    read
}

/// The algorithm, and the settings that only some algorithms have.
pub(super) struct Parameters {
    pub(super) name: Option<AlgorithmName>,
    pub(super) window_start: Option<WindowStartName>,
    pub(super) queue: Option<u64>,
    pub(super) max_wait: Option<Duration>,
    pub(super) lease: Option<Duration>,
}

impl Parameters {
    /// Returns the algorithm. Settings of another one are noted.
    pub(super) fn algorithm(
        &self,
        place: Place,
        fields: &mut Fields<'_>,
        faults: &mut Faults,
    ) -> Option<Algorithm> {
        let name = self.name.unwrap_or(AlgorithmName::TokenBucket);
        let settings = [
            ("window_start", AlgorithmName::FixedWindow),
            ("queue", AlgorithmName::LeakyQueue),
            ("max_wait", AlgorithmName::LeakyQueue),
            ("lease", AlgorithmName::Concurrency),
        ];
        for (setting, owner) in settings {
            if let (Some(node), false) = (fields.get(setting), name == owner) {
                let owner = AlgorithmName::ALL.iter().find(|(_, other)| *other == owner);
                let owner = owner.map_or("", |(name, _)| name);
                let reason = format!("`{setting}` is only for `algorithm: {owner}`");
                faults.add(node.place, reason, "leave it out, or choose that algorithm");
            }
        }
        Some(match name {
            AlgorithmName::Concurrency => Algorithm::Concurrency {
                lease: self.lease.unwrap_or(LEASE),
            },
            AlgorithmName::FixedWindow => Algorithm::FixedWindow(match self.window_start {
                None | Some(WindowStartName::Clock) => WindowStart::Clock,
                Some(WindowStartName::FirstHit) => WindowStart::FirstHit,
                Some(WindowStartName::Month) => WindowStart::Month,
            }),
            AlgorithmName::LeakyBucket => Algorithm::LeakyBucket,
            AlgorithmName::LeakyQueue => {
                let Some(length) = self.queue else {
                    if fields.get("queue").is_none() {
                        faults.add(
                            place,
                            "`queue` is missing",
                            "add the length of the queue, in units",
                        );
                    }
                    return None;
                };
                let limits = QueueLimits::new(length);
                Algorithm::LeakyQueue(self.max_wait.map_or(limits, |wait| limits.max_wait(wait)))
            }
            AlgorithmName::SlidingLog => Algorithm::SlidingLog,
            AlgorithmName::SlidingWindow => Algorithm::SlidingWindow,
            AlgorithmName::TokenBucket => Algorithm::TokenBucket,
        })
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

const LEASE: Duration = Duration::from_secs(30);
