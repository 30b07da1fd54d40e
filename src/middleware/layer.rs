//! The layer.

use std::{fmt, sync::Arc};

use tokio::sync::watch;
use tower::Layer;

use crate::{
    diagnosis::Warning,
    error::Error,
    limiter::RateLimiter,
    rules::RuleMode,
    store::{Health, Mode},
};

#[cfg(feature = "dashboard")]
use crate::rules::Rule;

use super::{clone_service::CloneService, current_rules::CurrentRules, service::RateLimit};

/// Limits requests to a Tower service.
///
/// It has no type parameters, so a struct field can hold it. Clones, and the services made from them, share their
/// counts. See the [module docs](crate::middleware) for its guarantees.
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp};
///
/// let limit = RateLimitLayer::builder()
///     .policy(Policy::new("per-ip", Quota::per_minute(100).burst(20)).key(PeerIp))
///     .build()?;
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limit);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone)]
pub struct RateLimitLayer {
    pub(crate) rules: CurrentRules,
}

impl RateLimitLayer {
    /// Returns the health of the store: in use, or in an outage.
    #[must_use]
    pub fn health(&self) -> Health {
        self.limiter().health()
    }

    /// Returns a channel that holds the present mode of the store, and reports each change.
    ///
    /// See [`RateLimiter::mode_changes`].
    #[must_use]
    pub fn mode_changes(&self) -> watch::Receiver<Mode> {
        self.limiter().mode_changes()
    }

    /// Returns the limiter that decides, to peek at keys, reset them, or charge for other things than requests.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        self.rules.limiter()
    }

    /// Returns the mode of the layer.
    #[must_use]
    pub fn mode(&self) -> RuleMode {
        self.rules.load().mode.get().mode()
    }

    /// Changes what the layer does with requests, from the next one on: a kill switch.
    ///
    /// All clones of the layer change, in this process. Counts stay as they are.
    pub fn set_mode(&self, mode: RuleMode) {
        self.rules.change(|admission| admission.mode.set_mode(mode));
    }

    /// Returns the mode of a rule, by the name of its policy; `None` if the layer has no such policy.
    #[must_use]
    pub fn rule_mode(&self, policy: &str) -> Option<RuleMode> {
        let admission = self.rules.load();
        let rule = admission.rule(policy).ok()?;
        Some(rule.mode.get().mode())
    }

    /// Changes the mode of a rule, by the name of its policy, from the next request on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the layer has no such policy.
    pub fn set_rule_mode(&self, policy: &str, mode: RuleMode) -> Result<(), Error> {
        self.rules.change(|admission| {
            admission.rule(policy)?.mode.set_mode(mode);
            Ok(())
        })
    }

    /// Changes the [percentage of keys](crate::rules::Rule::rollout) for which a rule denies requests, from the next request
    /// on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the layer has no such policy, or `percent` is not a
    /// number from 0 to 100.
    pub fn set_rollout(&self, policy: &str, percent: f64) -> Result<(), Error> {
        self.rules
            .change(|admission| admission.rule(policy)?.mode.set_rollout(percent))
    }

    /// Returns the percentage of keys for which a rule denies requests; `None` if the layer has no such policy.
    #[must_use]
    pub fn rollout(&self, policy: &str) -> Option<f64> {
        let admission = self.rules.load();
        let rule = admission.rule(policy).ok()?;
        Some(rule.mode.get().rollout())
    }

    /// Returns the current rules.
    #[cfg(feature = "dashboard")]
    pub(crate) fn present_rules(&self) -> Arc<[Rule]> {
        Arc::clone(&self.rules.load().rules)
    }

    /// Returns the misconfigurations that the layer and its store have found so far. Each was logged once.
    ///
    /// See [`diagnosis`](crate::diagnosis) for the codes and the checks.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let log = Arc::clone(&self.rules.load().warnings);
        let mut warnings = log.warnings();
        let is_heard = |warning: &Warning| !log.is_silenced(warning.code());
        warnings.extend(self.limiter().warnings().into_iter().filter(is_heard));
        warnings
    }
}

// The bound is needed to call the service. Here, the compiler names it where the service is given.
impl<S: CloneService> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, self.rules.clone())
    }
}

// Not derived: the rules, and where they are counted, are what an operator looks for.
impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("mode", &self.mode())
            .field("rules", &self.rules.load().rules)
            .field("store", &self.limiter().store)
            .finish_non_exhaustive()
    }
}
