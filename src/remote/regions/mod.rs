//! Regions: one limit over servers that are far from each other, decided at the latency of the nearest one.
//!
//! ```text
//! eu-west                                             us-east: the home of this key
//!   request ──▶ its server: units in the pot? ── yes ──▶ admitted       request ──▶ its server: a charge as ever
//!                           │ few are left, or they end soon                            ▲
//!                           ▼                                                           │
//!   one instance reports: spent, left, wanted ───────── 80 ms ──────────────▶ lua/lease.lua: units for eu-west
//! ```
//!
//! Each key has a home: the region whose server keeps its account. Requests in the home are charged there, as without regions.
//! Every other region holds units of the key, its pot, at its own server, where all instances of the region spend them. It reports
//! and gets them as an instance reports and gets its leased units (`src/remote/leases/mod.rs` has the rules and the proof that no
//! span admits more than the limit), and the home sees one holder for each region.
//!
//! # Which region is the home of a key?
//!
//! That with the highest hash of the region's name and the key's hash slot (rendezvous hashing), so that all policies of a key have
//! one home, and a new region takes keys from all others and moves no others. [`Regions::fixed_home`] chooses the home by the key
//! instead: one region for all keys, or for those of its tenants. A choice by the country of a request would give a key two homes,
//! so `fixed_home` gets only the key.
//!
//! All instances need the same names, and the same fixed homes. While they have different ones, in a deployment, a key may have two
//! homes, and twice its limit. Keys of one request may have different homes, since it is decided at its own region's server.
//!
//! # Why does the instance that finds few units report, and no leader?
//!
//! The pot itself is the lock: a script marks the beginning of a report, so that one is under way at a time, and ends it by its
//! time of beginning. If the instance dies, the report counts as lost after 2 s: the units that are left can be spent until they end,
//! and are not reported again.
//!
//! # How long does a region keep units?
//!
//! The home counts the units of a key that regions lease in turns of 5 s, so units end after 5 to 10 s, and a report moves them to the
//! next turn a second before. After 0.1 to 1 s without a request, a region gives back all but a reserve: what it was asked for in 1.5
//! round trips, and at most an eighth of the burst. With the reserve, the first requests after a pause need not wait. If nobody asks
//! within a turn, it goes back before it ends. With turns of a second, as instances have, units ended while the region was idle.
//!
//! # When does a request wait for the home?
//!
//! | the region's units | and the home, as far as is known | the request |
//! |---|---|---|
//! | are enough | | is admitted at once |
//! | are not enough | may have units for all that were denied since the last report | waits for the report, at most [`Regions::wait`] |
//! | are not enough | has none, or too few | is denied at once |
//! | are not enough | cannot be reached | is admitted by this region's [share](Regions::share), or at once by the policy's `OnOutage` if that is to allow or to deny |
//!
//! So a key that is new to a region waits once for the long way, and a busy one never: its report begins while it has units for
//! 2 round trips.
//!
//! # What is admitted, over all regions?
//!
//! | | in any time `t` |
//! |---|---|
//! | all regions reach each other | `burst + rate * t`, and with `Consistency::Delayed` the overshoot |
//! | a region is cut off | its pot, which was charged, and `share * (burst + rate * t)` besides |
//! | a region's server loses its writes of the last second | the pots that it had, once |
//! | a home loses its states | what the regions hold then, besides what any loss of states admits |
//!
//! Units of a region whose server fails, or of a report that is lost, count as spent after 5 to 10 s. They are missing to other regions
//! until then.
//!
//! What a cut-off region admits is charged to the home by the next report of the key that reaches it. During an outage of its own
//! server, the instances of a region admit what they do in any outage.

mod home;
mod placement;
mod pots;
mod refund;
mod report;
mod settings;
mod size;
mod store;
#[cfg(feature = "test-util")]
mod trial;

pub use self::settings::Regions;
#[cfg(feature = "test-util")]
pub use self::trial::RegionTrial;
