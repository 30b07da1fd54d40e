//! Requests in flight: holds on their charges, renewals of slot leases, and settlements at the end.
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

mod guard;
mod key_batches;
mod registry;
mod renewal;
mod schedule;
mod settler;

pub use self::guard::Hold;
pub(crate) use self::registry::HoldRegistry;
