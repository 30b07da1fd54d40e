//! The layer.

use std::sync::Arc;

use tokio::sync::watch;
use tower::Layer;

use crate::{
    diagnosis::Warning,
    error::{Error, ErrorKind},
    limiter::RateLimiter,
    rules::{Rule, RuleMode},
    store::{Health, Mode},
};

use super::{admission::Admission, service::RateLimit};

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
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    admission: Arc<Admission>,
}

impl RateLimitLayer {
    /// Returns the health of the store: in use, or in an outage.
    #[must_use]
    pub fn health(&self) -> Health {
        self.admission.limiter.health()
    }

    /// Returns a channel that holds the present mode of the store, and reports each change.
    ///
    /// See [`RateLimiter::mode_changes`].
    #[must_use]
    pub fn mode_changes(&self) -> watch::Receiver<Mode> {
        self.admission.limiter.mode_changes()
    }

    /// Returns the limiter that decides, to peek at keys, reset them, or charge for other things than requests.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.admission.limiter
    }

    /// Returns the mode of the layer.
    #[must_use]
    pub fn mode(&self) -> RuleMode {
        self.admission.mode.get().mode()
    }

    /// Changes what the layer does with requests, from the next one on: a kill switch.
    ///
    /// All clones of the layer change, in this process. Counts stay as they are.
    pub fn set_mode(&self, mode: RuleMode) {
        self.admission.mode.set_mode(mode);
    }

    /// Returns the mode of a rule, by the name of its policy; `None` if the layer has no such policy.
    #[must_use]
    pub fn rule_mode(&self, policy: &str) -> Option<RuleMode> {
        let rule = self.rule(policy).ok()?;
        Some(rule.mode.get().mode())
    }

    /// Changes the mode of a rule, by the name of its policy, from the next request on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the layer has no such policy.
    pub fn set_rule_mode(&self, policy: &str, mode: RuleMode) -> Result<(), Error> {
        self.rule(policy)?.mode.set_mode(mode);
        Ok(())
    }

    /// Changes the [percentage of keys](crate::rules::Rule::rollout) for which a rule denies requests, from the next request
    /// on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the layer has no such policy, or `percent` is not a number from 0 to 100.
    pub fn set_rollout(&self, policy: &str, percent: f64) -> Result<(), Error> {
        self.rule(policy)?.mode.set_rollout(percent)
    }

    /// Returns the percentage of keys for which a rule denies requests; `None` if the layer has no such policy.
    #[must_use]
    pub fn rollout(&self, policy: &str) -> Option<f64> {
        let rule = self.rule(policy).ok()?;
        Some(rule.mode.get().rollout())
    }

    /// Returns the rules in force.
    #[cfg(feature = "dashboard")]
    pub(crate) fn present_rules(&self) -> Arc<[Rule]> {
        Arc::clone(&self.admission.rules)
    }

    fn rule(&self, policy: &str) -> Result<&Rule, Error> {
        let mut rules = self.admission.rules.iter();
        let named = rules.find(|rule| rule.policy().name().as_str() == policy);
        named.ok_or_else(|| {
            let rules = self.admission.rules.iter();
            let names: Vec<_> = rules.map(|rule| rule.policy().name().as_str()).collect();
            let names = names.join("\", \"");
            Error::new(
                ErrorKind::InvalidConfig,
                format!("the layer has no policy {policy:?}; its policies are \"{names}\""),
            )
        })
    }

    /// Returns the misconfigurations that the layer and its store have found so far. Each was logged once.
    ///
    /// See [`diagnosis`](crate::diagnosis) for the codes and the checks.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = self.admission.warnings.warnings();
        let is_heard = |warning: &Warning| !self.admission.warnings.is_silenced(warning.code());
        warnings.extend(
            self.admission
                .limiter
                .warnings()
                .into_iter()
                .filter(is_heard),
        );
        warnings
    }

    pub(crate) fn with(admission: Admission) -> Self {
        Self {
            admission: Arc::new(admission),
        }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::clone(&self.admission))
    }
}
