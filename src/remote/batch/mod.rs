//! Decisions of many callers, carried to one server in few calls.
//!
//! # When a decision is sent
//!
//! - Nothing is in flight, and the latest call carried one decision: at once, in the caller's own future. No task, no queue.
//! - Otherwise it waits. A task gathers: it yields once, so that everybody who is ready to run asks first, and then sends
//!   what waits, up to 64 charges in one call. There is no timer.
//! - Up to 16 calls are in flight, so a single decision does not wait for the reply to another one. Beyond that a call must
//!   be full, or have a sixteenth of the charges in flight, four at least.
//! - The number of charges in flight is limited to what the server answers in a sixth of the deadline, or in two round
//!   trips if they take longer, and in three turns of the client's runtime besides (Little's law): at least 4, and 128
//!   until the rate is known, see [`Window`](window::Window). Beyond it the server's own queue would grow, where nothing
//!   can be dropped. A call carries half of that number at most, so a slow server gets small calls.
//!
//! # Overload
//!
//! No decision is let in while the window is full and more waits than the server answers in an eighth of the deadline and a
//! turn of the runtime, 4 charges at least: it would come too late. So those that wait are answered in time, in their
//! order, and the others are shed at once and at little cost. A burst is no overload: the first time the door closes only
//! when the oldest decision has waited for a sixth of the deadline and a turn, and then at once for four deadlines more.
//!
//! While the server becomes slower, what waits may be too much. Then the newest goes first, since it can still be answered
//! in time, and what has waited for half of the deadline is shed too. So is the oldest one when over 16,384 wait. Shed
//! decisions were not sent and fail with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded).
//!
//! # Deadlines
//!
//! A [`Watch`] thread keeps them, one per store. So they hold whatever the runtimes do, and a decision needs no timer.

mod alarm;
mod ask;
mod calls;
mod exchange;
#[cfg(test)]
mod overload;
mod queue;
#[cfg(test)]
mod simulation;
mod state;
mod step;
mod traffic;
mod watch;
mod window;
mod worker;

pub(super) use self::ask::{ask, command};
pub(super) use self::traffic::Traffic;
pub(super) use self::watch::Watch;
pub(super) use self::worker::overloaded;
