//! Overload: when requests are shed, and whose.
//!
//! Rate limits protect a service from one client. An [`Overload`] protects it from all of them together: while more requests come than
//! the service can serve in time, it sheds those that matter least, so that the others are served in time. It
//! needs no number: it follows the times of the responses.
//!
//! # Examples
//!
//! A layer outside of all others, so that a request that is shed costs nothing, and is charged to no policy:
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # fn example(app: axum::Router, limit: tollgate::RateLimitLayer) -> Result<axum::Router, tollgate::Error> {
//! use tollgate::{extract::PeerIp, overload::{Overload, Priority}};
//!
//! let overload = Overload::adaptive()
//!     .key(PeerIp)
//!     .priority_when("/pay", Priority::Critical)
//!     .priority_when("/export", Priority::Sheddable)
//!     .skip("/health")
//!     .build()?;
//! let app = app.layer(limit).layer(overload);
//! # Ok(app)
//! # }
//! ```
//!
//! Without HTTP:
//!
//! ```
//! use tollgate::{Key, overload::{Overload, Priority}};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let overload = Overload::adaptive().build()?;
//!
//! // For each request, before anything is done for it:
//! let place = overload.enter(Priority::Critical, Some(&Key::new("ada")))?;
//! // .. the handler ..
//! place.answered();
//! # Ok(())
//! # }
//! ```
//!
//! # The response
//!
//! 503 with [`Reason::Overloaded`](crate::rejection::Reason::Overloaded) and `Retry-After`, drawn between 1 and 10 s: clients that were shed
//! together come back one by one. With the feature `grpc`, gRPC clients get `UNAVAILABLE` with a `RetryInfo`.
//!
//! # Which class has a request?
//!
//! The first that applies decides:
//!
//! 1. the [header](OverloadBuilder::priority_header), from peers that you trust,
//! 2. the first [matcher](OverloadBuilder::priority_when) that matches,
//! 3. the [closure](OverloadBuilder::priority_by),
//! 4. without a closure, the one in the extensions of the request, where a layer around this one may have put it,
//! 5. `Normal`.
//!
//! A class other than `Normal` is in the extensions of the request. With axum, [`Priority`] is an extractor.
//!
//! # When is a request shed?
//!
//! An `Overload` counts the requests in flight: from [`enter`](Overload::enter) until the head of the response. How many there may be
//! changes with each window of 0.1 to 1 s:
//!
//! | the window | the limit |
//! |---|---|
//! | fewer than the limit were in flight | stays, and up to four times as many may be in flight |
//! | as many as the limit were always in flight, or a burst took all places, and responses came as quickly as ever | rises by a fifth |
//! | less than a quarter of the limit was needed | falls by a tenth a second, to 32 |
//! | as many as the limit were always in flight, and the quickest fifth took half as long again, and 2 ms longer | overload |
//!
//! In overload, each window moves the limit toward the number of requests with which the quickest fifth of responses takes half as
//! long again as with room. The limit is halved for two windows after each 64, and whenever it has fallen by half. If responses take as
//! long then, they wait for nothing: the service itself has become slower, and the limit rises again. Overload ends when less than 5 %
//! is shed in two windows, or when nothing is in flight for a second.
//!
//! [`Overload::limit`] returns how many may be in flight now: without overload, four times the limit of the table.
//!
//! Only the quickest fifth matters. So a service whose requests differ (most take a millisecond, some take seconds) is not throttled
//! because of the slow ones. Nor do these take the places: a request that is in flight for a whole window of 0.1 s or more is not
//! counted after it, if the quickest fifth of responses took less than a quarter of that window. If no request of a class ends for 5 s
//! while requests are shed, as many others are let in: those that never end do not keep the places.
//!
//! | the request | counted |
//! |---|---|
//! | has a response | as served, with its time |
//! | has 408 or 504, or gRPC's `DEADLINE_EXCEEDED` | as lost |
//! | has 503, gRPC's `UNAVAILABLE` or an error, or its client hangs up | as lost, if it took longer than the quickest fifth of responses |
//! | was rejected by a limit inside | not at all |
//!
//! If more are lost than served, of at least five, the limit falls to 5/8, unless those served are as quick as with room: then clients
//! hang up for another reason than a queue. While a [sign of yours](OverloadBuilder::crowded_when) shows that the
//! service is crowded, it falls by a sixth each window.
//!
//! # Handlers that never wait
//!
//! A handler that computes for long without an `await` keeps the requests behind it in the run queue of the executor, where nothing
//! counts them. So one request each 10 ms goes to the end of that queue once, after it was counted and before its handler runs. If
//! that takes more than a millisecond, all requests do so for 0.1 s. So what is in flight is the queue.
//!
//! # Whose requests are shed?
//!
//! - **By class.** A class gets a place while its requests and those of the classes above it are fewer than the limit; for each class
//!   below it, a quarter of the limit more, or 2.5 times the square root of the limit if that is more. Requests of lower classes do not count, also
//!   if they never end. So [`Priority::Critical`] is served as long as it alone fits. Requests may come in bunches, as where handlers
//!   never wait. So the highest class, while it alone fits, gets at least twice as many places more as the number in flight swings by,
//!   up to 15 times the square root of the limit.
//! - **By key, within a class.** A key gets a place while it has fewer than 16 times the free ones in this class. The last free one is
//!   for a key that has none. A key that tries more often than the fair rate of its class is filtered before that, so nine requests
//!   in ten from one tenant do not take the places of the others. A key with a [weight](OverloadBuilder::weight_by) gets so many
//!   times as much. Keys are counted by their hash in 64 KiB of counters, however many there are.
//!
//! There is no queue: a request that waits is served too late for somebody. The client's own retry is the queue.
//!
//! # Operation
//!
//! [`set_mode`](Overload::set_mode) is the kill switch, and in shadow nothing is shed. [`telemetry`](crate::telemetry) lists the
//! metrics. The log has no line per request, but one for each of these:
//!
//! | level | message | when |
//! |---|---|---|
//! | WARN | `requests are shed` | a burst or a key is above the limit, without overload |
//! | WARN | `the service is overloaded` | overload begins |
//! | INFO | `the service is no longer overloaded` | no overload has come back for 10 s |
//! | INFO | `requests are no longer shed` | nothing was shed for 10 s |
//!
//! For example, bursts that come each second for an hour have two lines in all. If overload follows on requests that are shed, only
//! the end of the overload has a line. All lines have a `mode`: in `shadow`, requests would be shed. The last two have `lasted_secs`,
//! and the number of requests that were `shed` since the first line.
//!
//! With the feature `explain`, `Overload::explain` returns the decision on a request, and its reason.
//!
//! # What it does not see
//!
//! Connections that were not accepted, requests that the server has not read, and those that wait in `poll_ready` of a service inside:
//! of a `ConcurrencyLimit` or a `Buffer` that is full. Routers of axum are always ready. Put `tower::load_shed` around a service that
//! is not.

mod adaptive;
mod builder;
mod classes;
mod controller;
#[cfg(feature = "explain")]
mod explanation;
mod future;
mod lag;
mod layer;
mod overload;
mod request_rules;
mod setup;
mod shares;
mod shed;
mod slow;
mod spell;
mod times;

pub use self::builder::OverloadBuilder;
#[cfg(feature = "explain")]
pub use self::explanation::{KeyShare, OverloadExplanation, OverloadFinding};
pub use self::future::SheddingFuture;
pub use self::layer::Shedding;
pub use self::overload::{InFlight, Overload};
#[cfg(feature = "reload")]
pub(crate) use self::setup::Setup;
pub use self::shed::Shed;
pub use crate::priority::priority::Priority;
