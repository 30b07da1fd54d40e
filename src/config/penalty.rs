//! The penalty of a rule. Each setting is checked alone, so that one that cannot work is noted where it is.

use std::time::Duration;

use crate::policy::Penalty;

use super::{
    fields::{Fields, whole},
    node::LocatedValue,
    quota::duration,
    reading::FileReading,
    spec::PenaltySpec,
    units::write_duration,
};

/// Reads a penalty. `None` if it has faults.
pub(super) fn read(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(PenaltySpec, Penalty)> {
    let noted = reading.noted();
    let mut fields = Fields::of(node, "write `{ denials: 10, within: 1m }`", reading)?;
    let remedy = "add the denials that lead to a ban";
    let denials = fields.require("denials", remedy, whole);
    let remedy = "add the time within which denials are counted together";
    let within = fields.require("within", remedy, duration);
    let ban = fields.read("ban", duration);
    let factor = fields.read("factor", whole);
    let longest = fields.read("longest_ban", duration);
    let forgiven_after = fields.read("forgiven_after", duration);

    let default = Penalty::after(1, MINUTE);
    let growth = factor.map_or(default.factor(), number);
    let counted = |denials| Penalty::after(number(denials), MINUTE);
    // The first ban and the longest one are equal there, as one of them may be wrong.
    let lasting = |ban| default.ban(ban).growing(1, ban);
    for (name, penalty) in [
        ("denials", denials.map(counted)),
        ("within", within.map(|within| Penalty::after(1, within))),
        ("ban", ban.map(lasting)),
        ("factor", factor.map(|_| default.growing(growth, MINUTE))),
        ("longest_ban", longest.map(lasting)),
        (
            "forgiven_after",
            forgiven_after.map(|time| default.forgiven_after(time)),
        ),
    ] {
        if let Some(Err(error)) = penalty.as_ref().map(Penalty::validate) {
            fields.refuse(name, &error);
        }
    }
    let penalty = Penalty::after(denials.map_or(1, number), within.unwrap_or(MINUTE))
        .ban(ban.unwrap_or(default.first_ban()))
        .growing(growth, longest.unwrap_or(default.longest_ban()))
        .forgiven_after(forgiven_after.unwrap_or(default.forgiveness()));
    check_lengths(&mut fields, &penalty, (ban, longest));
    fields.finish();
    let spec = PenaltySpec {
        denials: denials?,
        within: write_duration(within?),
        ban: ban.map(write_duration),
        factor,
        longest_ban: longest.map(write_duration),
        forgiven_after: forgiven_after.map(write_duration),
    };
    (reading.noted() == noted).then_some((spec, penalty))
}

/// Notes a first ban that is longer than the longest. Either may be a default.
fn check_lengths(
    fields: &mut Fields<'_, '_>,
    penalty: &Penalty,
    written: (Option<Duration>, Option<Duration>),
) {
    let (first, longest) = (penalty.first_ban(), penalty.longest_ban());
    if first <= longest {
        return;
    }
    let (first, longest) = (write_duration(first), write_duration(longest));
    let (position, default, remedy) = match written {
        (Some(_), None) => ("ban", ", the default", "add a longer `longest_ban`"),
        (None, _) => (
            "longest_ban",
            "",
            "add a shorter `ban`, whose default is `1m`",
        ),
        (Some(_), Some(_)) => ("longest_ban", "", "lengthen it"),
    };
    let reason = format!("the longest ban, {longest}{default}, is shorter than the first, {first}");
    fields.add(position, reason, remedy);
}

/// Returns a count for a penalty. One that does not fit is above every bound.
fn number(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

const MINUTE: Duration = Duration::from_secs(60);
