//! The ban of a key, and its denials that count towards one, as JSON.

use serde::Serialize;

use crate::{
    clock::Timestamp,
    policy::{BanStatus, Penalty},
};

/// A key under the penalty of a policy. Times are in milliseconds from or before now.
#[derive(Serialize)]
pub(super) struct PenaltyView {
    /// How long the key stays banned; `None` if it is not.
    banned_millis: Option<u128>,
    /// How long it has been banned, or how long this instance knows it.
    since_millis: Option<u128>,
    /// Bans that are not forgiven, with the present one.
    bans: u32,
    /// Denials that count towards the next ban, and how many lead to it.
    denials: u32,
    most_denials: u32,
    forgiven_millis: u128,
}

impl PenaltyView {
    pub(super) fn of(penalty: &Penalty, ban_status: &BanStatus, now: Timestamp) -> Self {
        Self {
            banned_millis: ban_status
                .banned_until()
                .map(|until| until.since(now).as_millis()),
            since_millis: ban_status
                .banned_since()
                .map(|since| now.since(since).as_millis()),
            bans: ban_status.bans(),
            denials: ban_status.denials(),
            most_denials: penalty.denials(),
            forgiven_millis: ban_status.forgiven_at().since(now).as_millis(),
        }
    }
}
