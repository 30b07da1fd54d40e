//! Requests in flight: holds on their charges, renewals of slot leases, and settlements at the end.
//!
//! ```text
//! RateLimiter::hold ─▶ Hold ── drop or settle ─▶ HoldRegistry ─▶ Settler ─▶ store
//!                       │                            ▲             └▶ RetryQueue, if not confirmed
//!                       └─ registers its slots ─▶ RenewalTask ─▶ store
//! ```
//!
//! | the request ends by | charges | slots |
//! |---|---|---|
//! | [`Hold::settle`] | corrected to the actual cost | released |
//! | dropping the [`Hold`], also by a panic or a disconnect | stand | released |
//! | `Hold::forget` | stand | end with their lease |
//! | the end of the process | stand | end with their lease |
//!
//! Only slots of the shared store have leases, so only they are renewed. Slots in process stay taken until they are released.
//!
//! All background work of a limiter is two tasks at most: one renews, and one retries settlements. Each ends when it has
//! nothing to do, and is replaced on another runtime if its own ends or is not driven.

mod guard;
mod key_batches;
mod registry;
mod renewal;
mod schedule;
mod settler;

pub use self::guard::Hold;
pub(crate) use self::registry::HoldRegistry;
