//! The settings of a limit: fixed, or replaced while the service runs.

use std::{ops::Deref, sync::Arc, time::Duration};

#[cfg(feature = "reload")]
use arc_swap::Guard;
use bytes::Bytes;
use http::{Request, Response};

use crate::{
    clock::whole_seconds,
    middleware::{ResponseBody, respond::respond_plainly},
    rejection::{MakeRejection, Rejection},
    rules::ModeSwitch,
    task::backoff::random,
    telemetry::{OverloadMetrics, OverloadOutcome},
};
#[cfg(feature = "reload")]
use crate::{limiter::Replaceable, rules::ModeSetting};

use super::{classes::Classes, request_rules::RequestRules, shed::Shed};

/// The settings.
pub(crate) struct Setup {
    pub(super) classes: Classes,
    pub(super) rules: RequestRules,
    pub mode: ModeSwitch,
    /// The mode that the settings were built with.
    #[cfg(feature = "reload")]
    pub written_mode: ModeSetting,
    pub format: Arc<dyn MakeRejection>,
    pub max_retry_after: Duration,
    pub metrics: OverloadMetrics,
}

impl Setup {
    /// Counts a request that is shed, or would be.
    #[cold]
    pub fn note_shed(&self, class: usize, is_shadow: bool) {
        self.classes.note_shed(class);
        let outcome = match is_shadow {
            true => OverloadOutcome::WouldShed,
            false => OverloadOutcome::Shed,
        };
        self.metrics.count(class, outcome);
    }

    /// Returns the rejection of a request that is shed. Its client waits for 1 s to the longest time, at random: the clients of an
    /// overload would come back together.
    #[cold]
    pub fn rejection(&self, shed: Shed) -> Rejection {
        let most = whole_seconds(self.max_retry_after);
        Rejection::overloaded(shed.priority, Duration::from_secs(1 + random() % most))
    }

    #[cold]
    pub fn respond<A, B>(
        &self,
        rejection: Rejection,
        request: Request<A>,
    ) -> Response<ResponseBody<B>> {
        let (parts, text): (_, Bytes) = respond_plainly(rejection, &*self.format, request);
        Response::from_parts(parts, ResponseBody::rejection(text))
    }

    /// Takes over what requests have counted under other settings, and the mode if it was changed while the service ran and both
    /// were built with the same one.
    #[cfg(feature = "reload")]
    pub fn take_over(&mut self, old: &Self) {
        self.classes.take_over(&old.classes);
        if self.written_mode == old.written_mode {
            self.mode.set(old.mode.get());
        }
    }
}

// === Current ===

/// The settings for the next request.
#[cfg_attr(
    feature = "reload",
    expect(clippy::large_enum_variant, reason = "a limit has only one")
)]
pub(super) enum Current {
    /// As they were built.
    Fixed(Setup),
    /// Replaced while the service runs.
    #[cfg(feature = "reload")]
    Replaceable(Arc<Replaceable<Setup>>),
}

impl Current {
    /// Takes no lock.
    #[inline]
    pub fn load(&self) -> Loaded<'_> {
        match self {
            Self::Fixed(setup) => Loaded::Fixed(setup),
            #[cfg(feature = "reload")]
            Self::Replaceable(replaceable) => Loaded::Guarded(replaceable.load()),
        }
    }

    /// Changes a setting. No replacement happens meanwhile, so the change is not lost.
    pub fn change(&self, change: impl FnOnce(&Setup)) {
        match self {
            Self::Fixed(setup) => change(setup),
            #[cfg(feature = "reload")]
            Self::Replaceable(replaceable) => replaceable.change(change),
        }
    }
}

/// Settings that a request is about to use.
pub(super) enum Loaded<'a> {
    Fixed(&'a Setup),
    #[cfg(feature = "reload")]
    Guarded(Guard<Arc<Setup>>),
}

impl Deref for Loaded<'_> {
    type Target = Setup;

    #[inline]
    fn deref(&self) -> &Setup {
        match self {
            Self::Fixed(setup) => setup,
            #[cfg(feature = "reload")]
            Self::Guarded(setup) => setup,
        }
    }
}
