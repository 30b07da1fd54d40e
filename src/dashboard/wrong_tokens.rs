//! Limits how many tokens a client can try.

use std::{fmt, time::Duration};

use http::request::Parts;

use crate::{
    algorithm::Quota,
    charge::Charge,
    clock::{Clock, Timestamp},
    decision::{Decision, PolicyState},
    diagnosis::log::event,
    error::Error,
    extract::{Extracted, KeyExtractor},
    key::Key,
    limiter::RateLimiter,
    policy::Policy,
    task::Mutex,
};

/// Counts wrong tokens in this process, for each client and in all.
///
/// ```text
/// token   client is known                                      client is not known
/// wrong   401, or 429 if its own or the common quota is used   401, or 429 if the common quota is used
/// right   429 if its own quota is used, or if the common       429 if the common quota is used
///         quota is used and it sent a wrong token too
/// ```
///
/// A right token is refused in these cases too: otherwise a client could go on trying until a response is not a 429. A
/// client that has sent no wrong token is never refused, whatever others send, unless nobody can tell the clients apart.
pub(super) struct WrongTokens {
    limiter: RateLimiter,
    client_key: Box<dyn KeyExtractor>,
    per_client: Policy,
    in_all: Policy,
    clock: Clock,
    /// When the log last reported that clients have to wait.
    reported: Mutex<Option<Timestamp>>,
}

impl WrongTokens {
    /// # Errors
    ///
    /// The error of [`KeyExtractor::validate`].
    pub fn new(client_key: Box<dyn KeyExtractor>, clock: Clock) -> Result<Self, Error> {
        client_key.validate()?;
        let per_client = Quota::per_minute(PER_CLIENT);
        let per_client = Policy::new("dashboard-tokens-of-a-client", per_client);
        let in_all = Policy::new("dashboard-tokens", Quota::per_minute(IN_ALL));
        let limiter = RateLimiter::builder()
            .policy(per_client.clone())
            .policy(in_all.clone())
            .max_keys(MAX_CLIENTS)
            .clock(clock.clone());
        Ok(Self {
            limiter: limiter.build()?,
            client_key,
            per_client,
            in_all,
            clock,
            reported: Mutex::default(),
        })
    }

    /// Counts a wrong token.
    ///
    /// # Errors
    ///
    /// How long the client has to wait, if it or all clients together have sent too many.
    pub fn count(&self, parts: &Parts) -> Result<(), Duration> {
        // One after the other: the client is charged even if all together have to wait.
        let own = self
            .client(parts)
            .map(|client| self.per_client.charge(client));
        let in_all = self.in_all.charge(Key::GLOBAL);
        for charge in own.into_iter().chain([in_all]) {
            if let Some(wait) = self.decide(&charge).retry_after() {
                self.report();
                return Err(wait);
            }
        }
        Ok(())
    }

    /// Checks whether a client with a right token may use it.
    ///
    /// # Errors
    ///
    /// As for [`count`](Self::count).
    pub fn check(&self, parts: &Parts) -> Result<(), Duration> {
        let in_all = self.wait(&self.in_all, Key::GLOBAL);
        let Some(client) = self.client(parts) else {
            return in_all.map_or(Ok(()), Err);
        };
        let own = self.wait(&self.per_client, client);
        let has_guessed = self.left(&self.per_client, client) < PER_CLIENT;
        let wait = own.or(in_all.filter(|_| has_guessed));
        wait.map_or(Ok(()), Err)
    }

    /// Returns the key of a client; `None` if nothing distinguishes it from others.
    pub fn client(&self, parts: &Parts) -> Option<Key> {
        match self.client_key.extract(&parts.into()) {
            Extracted::Found(client) => Some(client),
            Extracted::Absent | Extracted::Ambiguous => None,
        }
    }

    /// Returns how long a key has to wait until it has quota again; `None` if it has.
    fn wait(&self, policy: &Policy, key: Key) -> Option<Duration> {
        let is_used = self.left(policy, key) == 0;
        // The longest time until the next unit.
        is_used
            .then(|| policy.quota().period() / u32::try_from(policy.quota().count()).unwrap_or(1))
    }

    fn left(&self, policy: &Policy, key: Key) -> u64 {
        let decision = self.decide(&policy.charge(key).cost(0));
        let usage = decision.states().first().and_then(PolicyState::usage);
        usage.map_or(0, |usage| usage.remaining)
    }

    fn report(&self) {
        let now = self.clock.now();
        let mut reported = self.reported.lock();
        if reported.is_none_or(|last| now.since(last) >= REPORT_INTERVAL) {
            *reported = Some(now);
            drop(reported);
            event!(WARN, "dashboard: clients with wrong tokens have to wait");
        }
    }

    fn decide(&self, charge: &Charge<'_>) -> Decision {
        let mut decision = self.limiter.check(std::slice::from_ref(charge));
        let decision = decision.take_ready().expect("memory decides at once");
        decision.expect("the policies here are valid")
    }
}

impl fmt::Debug for WrongTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrongTokens")
            .field("client_key", &self.client_key.label())
            .finish_non_exhaustive()
    }
}

/// Wrong tokens of one client, and of all clients, in a minute.
const PER_CLIENT: u64 = 10;
const IN_ALL: u64 = 100;
/// Clients with a count of their own. A flood of more shares counts: they wait together.
const MAX_CLIENTS: usize = 10_000;
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
