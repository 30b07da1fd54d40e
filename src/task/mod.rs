//! Background work: where it runs, when it retries, and how long it waits.

pub(crate) mod backoff;
pub(crate) mod home;
pub(crate) mod lane;
mod mutex;
mod retry;
pub(crate) mod spawn;
pub(crate) mod timer;

#[cfg(feature = "redis")]
pub(crate) use self::backoff::Backoff;
#[cfg(feature = "redis")]
pub(crate) use self::home::LastingTask;
pub(crate) use self::home::{Running, SingleTask};
pub(crate) use self::mutex::Mutex;
pub(crate) use self::retry::{RetryFuture, RetryOwner, RetryQueue};
