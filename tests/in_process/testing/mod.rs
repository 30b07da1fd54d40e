//! The kit with which users test their own limits.

mod assertions;
#[cfg(feature = "redis")]
mod outage;
mod replays;
mod scripted;
