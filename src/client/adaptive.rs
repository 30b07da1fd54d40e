//! Settings of a rule whose rate adapts.

use crate::{
    algorithm::{MicroRate, Quota, RateReport},
    error::{Error, ErrorKind},
    policy::Policy,
};

/// Finds the rate of an API that shows no limit, between a floor and the policy's quota.
///
/// A key begins at the floor, and grows by 10 % a second until the API refuses a call. Each refusal lowers it to 85 %, and it then
/// grows by 1 % of the refused rate a second, and slower near it. It grows only while at least 80 % of it is used. All instances
/// share one rate per key, and remember it for a day.
///
/// Calls are spread evenly: the burst is 1, unless the quota of the policy sets one.
///
/// # Examples
///
/// ```
/// use tollgate::{Policy, Quota, client::Adaptive, extract::HostHeader};
///
/// let api = Policy::new("api", Quota::per_second(100))
///     .outgoing_key(HostHeader)
///     .adaptive(Adaptive::default().floor(Quota::per_second(5)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Adaptive {
    floor: Option<Quota>,
}

impl Adaptive {
    /// Sets the lowest rate, at which a new key begins. Its burst does not matter.
    ///
    /// Default: 1 % of the policy's quota, and at least one unit in 10 s.
    pub fn floor(mut self, floor: Quota) -> Self {
        self.floor = Some(floor);
        self
    }

    /// Returns a report without any use, which holds the lowest and the highest rate.
    pub(super) fn report(self, policy: &Policy) -> RateReport {
        let ceiling = MicroRate::of(policy.quota());
        let floor = match self.floor {
            Some(floor) => MicroRate::of(floor),
            None => LEAST_FLOOR.max(MicroRate::from_micros(ceiling.as_micros() / 100)),
        };
        RateReport::new(floor, ceiling)
    }

    pub(super) fn validate(self, policy: &Policy) -> Result<(), Error> {
        let error = |reason: &str| {
            let message = format!("policy {:?}: {reason}", policy.name());
            Err(Error::new(ErrorKind::InvalidPolicy, message))
        };
        #[cfg(feature = "redis")]
        if policy.is_leased() {
            return error(
                "the consistency of an adaptive policy is Strict: each call waits for its turn anyway",
            );
        }
        if let Some(floor) = self.floor {
            if floor.count() == 0 || floor.period().is_zero() {
                return error("the floor of an adaptive rate is at least one unit in some time");
            }
            if MicroRate::of(floor) > MicroRate::of(policy.quota()) {
                return error("the floor of its adaptive rate is above its quota: lower the floor");
            }
        }
        let floor = MicroRate::from_micros(self.report(policy).floor.as_micros());
        policy.at_rate(floor, policy.counter().limit()).map(drop)
    }
}

/// One unit in 10 s.
const LEAST_FLOOR: MicroRate = MicroRate::from_micros(100_000);
