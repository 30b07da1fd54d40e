//! The penalty of a rule, made setting by setting, so that a setting that cannot work is noted where it is.

use std::time::Duration;

use crate::policy::Penalty;

use super::{
    fields::{self, Faults, Fields},
    node::Node,
    quota::duration,
    spec::PenaltySpec,
    units,
};

/// Reads a penalty. `None` if it has faults.
pub(super) fn read(node: &Node, faults: &mut Faults) -> Option<(PenaltySpec, Penalty)> {
    let noted = faults.noted();
    let mut fields = Fields::of(node, "write `{ denials: 10, within: 1m }`", faults)?;
    let remedy = "add the denials that lead to a ban";
    let denials = fields.require("denials", remedy, faults);
    let denials = denials.and_then(|node| fields::whole(node, faults));
    let remedy = "add the time within which denials are counted together";
    let within = fields.require("within", remedy, faults);
    let within = within.and_then(|node| duration(node, faults));
    let ban = fields.read("ban", faults, duration);
    let factor = fields.read("factor", faults, fields::whole);
    let longest = fields.read("longest_ban", faults, duration);
    let forgiven_after = fields.read("forgiven_after", faults, duration);

    let default = Penalty::after(1, MINUTE);
    // Each setting alone. The lengths of bans are equal there, as one of them may be wrong.
    let growth = factor.map_or(default.factor(), number);
    for (name, penalty) in [
        (
            "denials",
            denials.map(|denials| Penalty::after(number(denials), MINUTE)),
        ),
        ("within", within.map(|within| Penalty::after(1, within))),
        ("ban", ban.map(|ban| default.ban(ban).growing(1, ban))),
        ("factor", factor.map(|_| default.growing(growth, MINUTE))),
        (
            "longest_ban",
            longest.map(|longest| default.ban(longest).growing(1, longest)),
        ),
        (
            "forgiven_after",
            forgiven_after.map(|time| default.forgiven_after(time)),
        ),
    ] {
        if let Some(Err(error)) = penalty.as_ref().map(Penalty::validate) {
            faults.refuse(fields.place_of(name), &error);
        }
    }
    let penalty = Penalty::after(denials.map_or(1, number), within.unwrap_or(MINUTE))
        .ban(ban.unwrap_or(default.first_ban()))
        .growing(growth, longest.unwrap_or(default.longest_ban()))
        .forgiven_after(forgiven_after.unwrap_or(default.forgiveness()));
    check_lengths(&mut fields, &penalty, (ban, longest), faults);
    fields.finish(faults);
    let spec = PenaltySpec {
        denials: denials?,
        within: units::write_duration(within?),
        ban: ban.map(units::write_duration),
        factor,
        longest_ban: longest.map(units::write_duration),
        forgiven_after: forgiven_after.map(units::write_duration),
    };
    (faults.noted() == noted).then_some((spec, penalty))
}

/// Notes a first ban that is longer than the longest. Either may be a default.
fn check_lengths(
    fields: &mut Fields<'_>,
    penalty: &Penalty,
    written: (Option<Duration>, Option<Duration>),
    faults: &mut Faults,
) {
    let (first, longest) = (penalty.first_ban(), penalty.longest_ban());
    if first <= longest {
        return;
    }
    let (first, longest) = (units::write_duration(first), units::write_duration(longest));
    let (place, default, remedy) = match written {
        (Some(_), None) => ("ban", ", the default", "add a longer `longest_ban`"),
        (None, _) => (
            "longest_ban",
            "",
            "add a shorter `ban`, whose default is `1m`",
        ),
        (Some(_), Some(_)) => ("longest_ban", "", "lengthen it"),
    };
    let reason = format!("the longest ban, {longest}{default}, is shorter than the first, {first}");
    faults.add(fields.place_of(place), reason, remedy);
}

/// Returns a count for a penalty. One that does not fit is above every bound.
fn number(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

const MINUTE: Duration = Duration::from_secs(60);
