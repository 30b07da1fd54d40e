//! Policies, and their penalties: keys that are denied again and again are banned for a time.
//!
//! A [`Policy`] is a named quota. Its [`Penalty`] is set by [`Policy::penalty`](crate::Policy::penalty):
//!
//! ```text
//! Penalty::after(3, 1 min).ban(30 s).growing(2, 1 h).forgiven_after(10 min)
//!
//! denials   x x x          x   (not counted)         x x x                         x
//!           |---|=============================|------|---|==========...==|---------|----
//!                ban 1: 30 s                              ban 2: 1 min    10 min without a denial: all is forgiven
//! ```
//!
//! A denial counts if the quota of this policy causes it. Requests during a ban are denied, count nothing and do not prolong
//! it. A key is forgiven when the policy has not denied it for a while after the end of its ban: then its next ban is as
//! short as the first.
//!
//! # Lengths to choose
//!
//! A denied request has a wait without a ban as well: up to the window of the quota, or for a bucket the time of one request.
//! A ban that is shorter ends first, and clients do not notice it. For example, a ban of 1 s has no effect with a quota
//! of 12 an hour, since a denied client waits for up to 300 s anyway. A layer reports such a first ban as
//! [TG018](crate::diagnosis::Code::ShortBan). If no ban can ever be noticed, since the policy also [counts denied
//! requests](crate::Policy::count_denied), `build()` fails.
//!
//! # Where it counts
//!
//! The ban is decided in the same step as the quota. In Redis it is a second key in the slot of the first
//! (`prefix:{key}:policy#b`, 26 bytes and about 80 of Redis), which only policies with a penalty read, and which only denials
//! that count write. On Redis 7.0, a charge to a token bucket took the server 12.6 us with a penalty and 10.5 us without, a
//! denial 14.5 instead of 6.6 us, and a request during a ban 9.5 us (medians of 15 rounds).
//!
//! In process, up to [`max_keys`] keys have a record until they are forgiven. While the table is full, denials and failures
//! of further keys do not count. Neither do denials by the count that new keys share while the store is full, since these keys
//! have not used that quota.
//!
//! During an outage of Redis, an instance denies the keys that it has seen banned, and counts its own denials. Bans that begin
//! then hold for that instance only.
//!
//! [`max_keys`]: crate::memory::MemoryStoreBuilder::max_keys
//!
//! # Clock steps
//!
//! If the clock is set back to before the begin of a ban, the ban lasts at most as long as the longest one from the next
//! request on.
//!
//! # Other settings
//!
//! A policy may get another penalty while keys are banned. Running bans stay, and end at the latest as long after they began
//! as the new longest ban. A policy without a penalty bans nobody; what was noted is kept until it is forgiven, and counts
//! again if the policy gets a penalty until then.

#[cfg(feature = "client")]
mod at_rate;
mod backoff;
mod beside;
pub(crate) mod consistency;
mod loan;
pub(crate) mod on_outage;
mod penalty;
pub(crate) mod policy;
#[cfg(feature = "client")]
mod present_rate;
mod reserve;

pub use self::backoff::Backoff;
#[cfg(any(feature = "dashboard", feature = "rules", all(feature = "redis", test)))]
pub(crate) use self::consistency::Consistency;
#[cfg(any(feature = "redis", feature = "rules"))]
pub(crate) use self::consistency::Percent;
pub(crate) use self::loan::{Loan, LoanStep};
#[cfg(any(feature = "explain", feature = "redis", feature = "rules"))]
pub(crate) use self::on_outage::OnOutage;
pub use self::penalty::{BanRecord, BanStatus, Penalty};
#[cfg(feature = "top-keys")]
pub(crate) use self::policy::NameHash;
pub(crate) use self::policy::Policy;
#[cfg(feature = "client")]
pub(crate) use self::present_rate::PresentRate;
