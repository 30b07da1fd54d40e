//! Requests in flight: holds on their charges, turns in queues, renewals of slot leases, and settlements at the end.
//!
//! ```text
//! RateLimiter::hold ─▶ Hold ── drop or settle ─▶ HoldRegistry ─▶ Settler ─▶ store
//!                       │                            ▲             └▶ RetryQueue, if not confirmed
//!                       └─ registers its slots ─▶ renewal task ─▶ store
//! ```
//!
//! | the request ends by | charges | slots |
//! |---|---|---|
//! | [`Hold::settle`] | corrected to the actual cost | released |
//! | dropping the [`Hold`], also by a panic or a disconnect | are kept | released |
//! | `Hold::forget`, only for charges without slots | are kept | - |
//! | the end of the process | are kept in Redis, lost in process | end with their lease in Redis, lost in process |
//!
//! Only slots of the shared store keep their lease while they are held, so only they are renewed. In process, holding a
//! slot ends its lease: it stays taken until it is released.
//!
//! All background work of a limiter is two tasks at most: one renews, and one retries settlements. Each ends when it
//! has nothing to do. Both run [at home](crate::task::home), whatever becomes of the runtimes of callers.
//!
//! # When slots are renewed
//!
//! Each slot is renewed at a random time between a sixth and a third of its lease, so that slots taken together are not renewed
//! together. A failed renewal is repeated about 12 times before the lease ends, and at least 8 times. Up to 50 tickets of one key
//! travel in one request. Each request is confirmed on its own, so a key that cannot be renewed does not affect others. A renewal
//! takes missing slots again, since their requests are in flight. It may reach Redis after the release of the same slots: see
//! `registry.rs`.

mod guard;
mod key_batches;
mod registry;
mod renewal;
mod schedule;
mod settler;
mod turns;

pub use self::guard::Hold;
pub(crate) use self::registry::HoldRegistry;
pub(crate) use self::turns::PlaceInQueue;
