//! Decisions of many callers, sent to one server in few calls.
//!
//! # When a request is sent
//!
//! - If nothing is in flight and the latest call had one request: at once, in the caller's own future. No task, no
//!   queue.
//! - Otherwise it waits. A task, the *dispatcher*, gives way once so that everybody who is ready to run can submit. Then
//!   it sends up to 64 charges in one call. It does not wait for more: neither for a timer nor for the sockets. If 64 wait
//!   before its turn, the last of their callers sends them, if its runtime drives the connection, and they are written at once.
//! - Up to 16 calls are in flight, so a single request does not wait for the reply to another one. Beyond that a call
//!   must be full, or have a sixteenth of the charges in flight, four at least.
//! - The charges in flight are limited by a [`SendWindow`](window::SendWindow) to the number that the server makes in a
//!   sixth of the deadline, or in two round trips if they take longer. Beyond it the server's own queue would grow,
//!   where nothing can be shed. A call carries half of that number at most, so a slow server gets small calls.
//!
//! # Overload
//!
//! New requests are shed while the window is full and more wait than the server decides in an eighth of the deadline:
//! they would be decided too late. So those that wait are decided in time and in order, and the others fail at once and
//! at little cost. A burst is not an overload: shedding begins only when the oldest request has waited for a sixth of
//! the deadline. It then begins at once for four deadlines more.
//!
//! While a server becomes slower, too many may wait. Then the newest request is sent first, since it can still be in
//! time, and one that has waited for half of the deadline is shed. So is the oldest one when over 16,384 wait. Requests
//! that were shed were not sent. They fail with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded).
//!
//! # Deadlines
//!
//! The [`watchdog`] thread keeps them, one per store. So they hold whatever the runtimes do, and no decision needs a
//! timer.
//!
//! # Files
//!
//! ```text
//! submit --> scheduler <-- worker      scheduler: queue, calls and window under one lock
//!                ^                     worker: the tasks that send, and the call itself
//!                '------ watchdog
//! ```
//!
//! # Why are decisions sent in batches?
//!
//! Most of the cost of a small script is around it: the command, the socket and the reply. The dispatcher gives way once, because
//! callers that got their replies together ask again together, and then all of them are in one call. A decision that
//! finds nothing in flight waits too if the latest call had several, since their callers are about to ask again and would wait
//! for its reply. Without this exception, 64 callers in a loop made twice as many calls. The script decides each decision as if
//! it had come alone. A caller that leaves before the call is sent is not charged.
//!
//! # Why does the dispatcher not wait for the sockets?
//!
//! After `tokio::task::yield_now`, the requests of all sockets that became readable meanwhile would join the batch. With 64
//! connections of wrk on a current-thread runtime, a call then carried 61 requests, so all clients waited for the same reply. The
//! server had nothing to do until the reply came, and Redis had nothing to do until the clients had sent their next requests.
//! The server made 0.91 of the rate of a layer that sends each request in a call of its own. A dispatcher that only goes to the
//! end of the run queue sends 22 requests in a call, so three calls overlap, and the server makes 1.17 of that rate.
//!
//! # Why does a caller send the call that it fills?
//!
//! On one core, 256 connections of wrk become readable together. The dispatcher would run behind their 256 requests, and Redis
//! would get four calls at once and reply to them together, so server and Redis would take turns. It is not enough to begin the
//! call early, as its command is written by the task of the connection, which is at the end of the run queue too. So whoever
//! sends such a call polls the connection (`src/remote/connection/driver.rs`). The server then makes 1.17 of the rate of a layer
//! that sends each request in a call of its own, where it made 0.96. Smaller calls are better gathered, and written together: with
//! 64 connections, calls of 24 charges that were sent as early made 1.10 in place of 1.14, and with 16 connections, polling the
//! connection for every call made 1.02 in place of 1.10. So are calls beyond two full ones in flight: with a thousand callers at
//! a round trip of 1 ms, each call written on its own made 0.84 of the rate.
//!
//! # Why are several calls in flight?
//!
//! With one call in flight per connection, the round trip limits the rate. With a thousand callers, two lanes made 0.43 of the
//! rate of one plain multiplexed connection at a round trip of 2 ms, and 0.04 at 5 ms. More connections would hide this, and cost
//! a socket each. The real limit is the number of charges in flight (Little's law, see `window.rs`). More charges would wait in
//! the server's sockets, where nothing can be dropped, and every decision would come too late.

mod calls;
mod command;
#[cfg(test)]
#[path = "../../../tests/remote/batch_connections.rs"]
mod connections;
mod exchange;
mod queue;
mod scheduler;
mod send;
mod shedding;
#[cfg(test)]
#[path = "../../../tests/remote/batch_simulation.rs"]
mod simulation;
mod steps;
mod submit;
mod watchdog;
mod window;
mod worker;

pub(super) use self::command::run_command;
pub(super) use self::exchange::after_reply;
pub(super) use self::scheduler::Scheduler;
pub(super) use self::submit::{Answer, submit};
