//! Leases: units of busy keys that this instance spends without a round trip.
//!
//! ```text
//! a charge under a leased policy ──▶ its key has units here? ── yes ──▶ admitted here (`table.rs`, `lease.rs`)
//!                                            │ no                            │ few are left, or they end soon
//!                                            ▼                               ▼
//!             more than one in a round trip? ──── yes, they wait ──▶ a report, in the background (`upkeep.rs`):
//!                                            │ no     (`waiters.rs`)  spent, left, wanted ──▶ lua/lease.lua ──▶ granted
//!                                            ▼
//!                                  a plain charge in Redis
//! ```
//!
//! # Why is more than the quota never admitted?
//!
//! Redis keeps, beside the state of a key, the units that are leased and not reported: sigma, as two numbers, one for each of
//! the last two turns of a second, or of 5 s if other regions lease the key. A bucket grants a charge or a lease only if its
//! debt and sigma fit into the span together. A report moves units from sigma into the debt. Units that are not reported when
//! their lease ends count as spent then, and their holder spends none of them later. So at each moment `t` that Redis decides,
//! `max(TAT, t) + sigma * T <= t + span`, where `T` is the time of a unit. Reported units of a span `(s, t]` number at most
//! `(TAT - s) / T`, and unreported ones at most sigma. Together, a span has at most `capacity + (t - s) / T` units, as with a
//! strict bucket, for any number of instances, and whatever is lost, late or out of order.
//!
//! A fixed window has `used + sigma <= limit`. Its leases end with their turn or with the window, whichever comes first, and count as
//! used in that window. So units are spent in the window in which Redis debited them, and their sum is at most the limit. A sliding
//! window counter has `current + sigma + weighted(previous) <= limit` when it grants, and within a window the weight only falls. When
//! the window ends, all of sigma becomes a part of `previous`. The next window begins without leases and with another `born`, so that
//! reports of the window before are too late.
//!
//! A delayed policy has `max(TAT, t) + sigma * T <= t + span * (1 + overshoot)` while any units are leased, and so admits at most
//! `capacity * (1 + overshoot) + (t - s) / T` in a span; of a window, `limit * (1 + overshoot)`. While nothing is leased, it admits what
//! a strict policy would.
//!
//! That needs three rules of the holder:
//!
//! | rule | since |
//! |---|---|
//! | each unit is in one report at most, also if the fate of the report is unknown | a second report of it would free a unit that is in use |
//! | a lease ends here before it ends in Redis, or its window: its time is counted from before the call, and 3 ms or a thousandth are left out | clocks run apart |
//! | held units are reported as kept until their decision is admitted | as spent, they would turn into debt that decays, while they are not yet spent |
//!
//! # Why debit in advance, and not only count?
//!
//! A lease that was simply charged would over-admit: while it is idle the bucket refills, so Redis grants the same units to
//! others. In a random test of that way, 3,986 of 4,000 runs broke the limit.
//!
//! # How large is a lease?
//!
//! As large as what the key is asked for here in 0.2 s, or until its window ends, and at most a quarter of what is free times
//! this instance's part of the requests. It covers a whole turn, 1 s, if that is at most a sixteenth of what is free times that
//! part. Fewer than 4 units are not worth a call, unless requests wait for them. All leases of a key together are at most a
//! quarter of its capacity or limit. So a denial, or the idle time of a holder, costs others a constant number of units, and
//! never a part of the rate. Under a delayed policy, the instance's part of the overshoot is leased as well.
//!
//! # Why do requests wait for a report?
//!
//! At a multiple of the limit there is nothing to lease in advance: each unit is admitted as soon as it is back. If each request
//! asked for itself, Redis would have as much to do as without leases. So the requests that come in the time of a round trip
//! wait for one report, which asks for their units. They get them in their order, or are denied. Each waits for one or two round
//! trips, and never for more than a quarter of its deadline; if the report fails, each asks for itself. A request for more than a sixteenth of the
//! capacity asks for itself at once: it would lease units while it waits, and be denied because of them.
//!
//! # What a failure costs
//!
//! | | |
//! |---|---|
//! | an instance crashes | its units count as spent within 2 s, or 10 s if other regions lease units of the key |
//! | a report or its reply is lost | the same; the units that are left are spent until their lease ends |
//! | Redis stalls, or is down for a second | nothing: units are spent until their lease ends, or until a restart is noticed |
//! | Redis loses its states | what is leased, a quarter of the capacity and the overshoot at most, on top of what any loss of states admits |
//! | the server's clock is set forward | what is leased, once, on top of what a strict bucket gains |

mod demand;
mod key;
mod lease;
mod refunds;
mod table;
#[cfg(feature = "test-util")]
mod trial;
mod upkeep;
mod waiters;

pub(super) use self::refunds::{is_refund, settle_here};
pub(super) use self::table::Leases;
#[cfg(feature = "test-util")]
pub use self::trial::{LeaseTrial, TrialTaken};
pub(super) use self::upkeep::{LeasedDecision, decide, drain, note_all_decided};
