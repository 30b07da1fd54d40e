//! The requests that a rule counts by how they end, and the delays after failures.

use crate::{
    policy::{Backoff, Penalty},
    rules::{RequestOutcome, Rule},
};

use super::{
    fields::{Fields, boolean, choice, each, items, whole},
    names::CountName,
    node::LocatedValue,
    quota::duration,
    reading::FileReading,
    spec::{BackoffSpec, OneOrMany, RuleSpec},
    units::write_duration,
};

/// Reads which requests count, and what a success clears, into the spec of the rule.
pub(super) fn read(fields: &mut Fields<'_, '_>, spec: &mut RuleSpec) {
    spec.count = fields.read("count", choice);
    spec.count_statuses = fields.read("count_statuses", statuses);
    if spec.count.is_some() && spec.count_statuses.is_some() {
        let reason = "`count` and `count_statuses` both choose the requests that count";
        fields.add("count_statuses", reason, "remove one of them");
    }
    spec.clear_on_success = fields.read("clear_on_success", boolean);
}

/// Sets which requests count, and what a success clears.
pub(super) fn apply(mut rule: Rule, spec: &RuleSpec) -> Rule {
    if let Some(statuses) = &spec.count_statuses {
        let statuses = statuses.as_slice().to_vec();
        rule = rule.count_when(move |request| {
            matches!(request.outcome, RequestOutcome::Responded { status, .. }
                if statuses.contains(&status.as_u16()))
        });
    } else if spec.count == Some(CountName::Failures) {
        rule = rule.count_failures();
    }
    if spec.clear_on_success == Some(true) {
        rule = rule.clear_on_success();
    }
    rule
}

fn statuses(node: &LocatedValue, reading: &mut FileReading) -> Option<OneOrMany<u16>> {
    let is_list = items(node).1;
    let read = each(node, reading, |item, reading| {
        let status = whole(item, reading)?;
        let status = u16::try_from(status).ok();
        let status = status.filter(|status| (200..=599).contains(status));
        let unknown = || {
            reading.fault(
                item.position,
                "not a status of a response",
                "write one from 200 to 599",
            )
        };
        status.or_else(unknown)
    });
    OneOrMany::of(read?, is_list)
}

/// Reads a backoff. `None` if it has faults.
pub(super) fn backoff(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(BackoffSpec, Backoff)> {
    let noted = reading.noted();
    let mut fields = Fields::of(node, "write `{ first: 1s, longest: 15m }`", reading)?;
    let first = fields.require("first", "add the delay after the first failure", duration);
    let longest = fields.require("longest", "add the longest delay", duration);
    let factor = fields.read("factor", whole);
    let forgiven_after = fields.read("forgiven_after", duration);
    let (first, longest) = (first?, longest?);
    let number = factor.map(|factor| u32::try_from(factor).unwrap_or(u32::MAX));
    let with = |backoff: Backoff| Penalty::from(backoff).validate();
    for (name, valid) in [
        ("first", with(Backoff::doubling(first, first))),
        (
            "longest",
            with(Backoff::doubling(first.min(longest), longest)),
        ),
        (
            "factor",
            with(Backoff::doubling(longest, longest).factor(number.unwrap_or(1))),
        ),
        (
            "forgiven_after",
            with(
                Backoff::doubling(longest, longest)
                    .forgiven_after(forgiven_after.unwrap_or(longest)),
            ),
        ),
    ] {
        if let Err(error) = valid {
            fields.refuse(name, &error);
        }
    }
    let backoff = Backoff::doubling(first, longest).factor(number.unwrap_or(2));
    let backoff = backoff.forgiven_after(forgiven_after.unwrap_or(longest));
    if first > longest {
        let error = with(backoff).err();
        error
            .iter()
            .for_each(|error| fields.refuse("longest", error));
    }
    fields.finish();
    let spec = BackoffSpec {
        first: write_duration(first),
        longest: write_duration(longest),
        factor,
        forgiven_after: forgiven_after.map(write_duration),
    };
    (reading.noted() == noted).then_some((spec, backoff))
}
