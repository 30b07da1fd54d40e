//! The kit with which users test their own limits.

#[cfg(feature = "redis")]
mod outage;
mod scripted;
