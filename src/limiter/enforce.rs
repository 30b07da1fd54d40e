//! Decisions in handlers: a permit, or the rejection that the layer would respond with.

use std::{future::poll_fn, pin::pin, time::Duration};

use super::{known_policy::unknown_policy, limiter::RateLimiter};
use crate::{
    acquire::Permit,
    charge::{AsCharges, Receipt, Settlement},
    clock::{Clock, Moment},
    decision::Decision,
    error::Error,
    hold::{Hold, PlaceInQueue},
    policy::Policy,
    rejection::Rejection,
};

impl RateLimiter {
    /// Makes all charges, all or none, or returns the [`Rejection`] that the layer would respond with.
    ///
    /// For handlers, tasks of sockets, and whatever else decides after the layer. Takes one charge, or several. The
    /// [`Permit`] holds the slots of [concurrency](Policy::concurrency) policies until it is dropped, and has the
    /// [`decision`](Permit::decision). It can be dropped at once if the policies only count, and
    /// [settled](Permit::settle) if the cost turns out to be another. Under a
    /// [queue](crate::algorithm::Algorithm::LeakyQueue), the call waits for its turn, which needs a Tokio runtime with
    /// its timer enabled.
    ///
    /// With the feature `axum`, a [`Rejection`] is a response.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, RateLimiter, rejection::Rejection};
    ///
    /// async fn report(limiter: RateLimiter) -> Result<String, Rejection> {
    ///     let reports = limiter.policy("reports")?;
    ///     let permit = limiter.enforce(reports.charge(Key::new("ada"))).await?;
    ///     Ok(format!("{:?} left", permit.decision().remaining()))
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// - 429 if a policy is over its limit.
    /// - 503 if no policy could count and one [denies](crate::OnOutage::Deny) then, or if the store could not decide.
    ///   The first error of the store is logged, and [`Rejection::error`] returns it. It also has the errors of
    ///   [`check`](Self::check) for charges that cannot be made.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the store decides, the charges may or may not have been made. If it is dropped in
    /// a queue, they are refunded.
    pub async fn enforce<'a>(&self, charges: impl AsCharges<'a>) -> Result<Permit, Rejection> {
        let charges = charges.as_charges();
        let decision = match self.check_all(charges).await {
            Ok(decision) if decision.is_allowed() => decision,
            Ok(decision) => return Err(Rejection::of_decision(decision)),
            Err(error) => {
                let has_logged = &self.has_logged_failure;
                return Err(Rejection::store_failed(
                    error,
                    has_logged,
                    "enforced charges get 503",
                ));
            }
        };
        let receipt = Receipt::of(charges, &decision);
        let has_turn = |receipt: &Receipt| receipt.settlements().iter().any(Settlement::has_turn);
        match receipt {
            Some(receipt) if has_turn(&receipt) => Ok(self.wait(decision, receipt).await),
            receipt => Ok(Permit::new(decision, receipt, &self.holds)),
        }
    }

    /// Waits for the turn of charges in a queue.
    async fn wait(&self, decision: Decision, receipt: Receipt) -> Permit {
        let hold = self.hold(receipt);
        let others = || hold.has_others_before().then_some(Duration::ZERO);
        let Some(delay) = decision.delay().or_else(others) else {
            return Permit::of_hold(decision, hold, &self.holds);
        };
        let came = Clock::system().now();
        let hold = Queued::new(hold, delay).wait(delay).await;
        let waited = Clock::system().now().since(came);
        Permit::of_hold(decision, hold, &self.holds).after(waited)
    }

    /// Returns the policy with this name that the limiter or one of its layers was built with.
    ///
    /// So a handler charges a policy whose quota is written elsewhere, such as in a [rule file](crate#features). Quotas
    /// that [tiers](crate::tiers) replace are not included. It takes a lock and compares names: a handler that is
    /// called often can keep the policy.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if there is none. The message lists the names of
    /// all policies.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::builder().policy(Policy::new("reports", Quota::per_hour(5))).build()?;
    /// assert_eq!(limiter.policy("reports")?.quota(), Quota::per_hour(5));
    /// let error = limiter.policy("report").expect_err("it has another name");
    /// assert_eq!(error.to_string(), r#"the limiter has no policy "report"; its policies are "reports""#);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn policy(&self, name: &str) -> Result<Policy, Error> {
        let known = self.known.lock();
        let mut policies = known.iter().map(|known| &known.policy);
        let named = policies.find(|policy| policy.name().as_str() == name);
        let policies = known.iter().map(|known| &known.policy);
        named
            .cloned()
            .ok_or_else(|| unknown_policy("limiter", name, policies))
    }
}

/// Charges that wait for their turn. Dropped before that, they are refunded.
struct Queued {
    /// Taken at the turn.
    hold: Option<Hold>,
    place: Option<PlaceInQueue>,
}

impl Queued {
    fn new(hold: Hold, delay: Duration) -> Self {
        Self {
            place: hold.wait_in_queue(Moment::now() + delay),
            hold: Some(hold),
        }
    }

    async fn wait(mut self, delay: Duration) -> Hold {
        let mut sleep = pin!(tokio::time::sleep(delay));
        match &mut self.place {
            Some(place) => {
                let over = poll_fn(|context| place.poll(sleep.as_mut(), context)).await;
                self.hold_mut().set_turn(over);
            }
            None => sleep.await,
        }
        self.hold.take().expect(HELD)
    }

    fn hold_mut(&mut self) -> &mut Hold {
        self.hold.as_mut().expect(HELD)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let Some(mut hold) = self.hold.take() else {
            return;
        };
        if let Some(over) = self.place.take().and_then(PlaceInQueue::leave) {
            hold.set_turn(over);
        }
        hold.settle(|_, _| 0);
    }
}

const HELD: &str = "charges are held until their turn";
