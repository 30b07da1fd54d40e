//! One server: its client, and the guard in front of it.
//!
//! ```text
//! Node::decide
//!   Guard::before             decides here if the server is unavailable
//!   DenialCache::find         denies here what the server has denied until later
//!   Request::decide           keyspace.rs and codec.rs: keys and arguments
//!   route::submit             to where redirects lead
//!   batch::submit             sent at once, or queued for a worker; shed while too many wait
//!     Scheduler::submit         picks a lane, or adds the request to the queue
//!     Worker::call              one EVALSHA for up to 64 charges
//!       LaneConnection::send      the multiplexed connection
//!       reply::parse              one result per request
//!     Scheduler::end_call       makes room, and measures the server
//!   Reply::into_decision      codec.rs: the state of each policy
//!   Guard::conclude           notes the states, or replaces an error by the choice of each policy
//! ```
//!
//! A decision that takes slots goes through `slot_guard.rs` besides, which releases them if the caller leaves.
//!
//! # Why has each node its own guard?
//!
//! A breaker around the whole store would give up all nodes of a cluster for the fault of one. A breaker that wraps the future of
//! a decision adds a second future, with an allocation and a copy of the charges, on every request. So the node asks its guard
//! `before` it asks the server, and calls `conclude` at the end of the one future that it makes anyway. The guard is independent
//! of Redis: `ResilientStore` uses the same one.

use std::{sync::Arc, time::Duration};

use futures_util::future::{join, join_all};
use smallvec::SmallVec;

use crate::{
    charge::{Charge, Charges, Correction, OwnedCharge, Receipt, Settlement},
    clock::{Clock, Timestamp},
    decision::{CountedBy, Decision},
    diagnosis::Warning,
    error::{Error, ErrorKind, Phase},
    key::Key,
    policy::{BanRecord, Policy},
    resilience::{Before, Guard},
    store::{
        Health, ServerStats, Stats, StoreFuture,
        waited::{self, TimeLeft},
    },
};

#[cfg(feature = "top-keys")]
use crate::top_keys::Snapshot;

#[cfg(feature = "top-keys")]
use super::fleet_top_keys;

use super::{
    client::Client,
    denial_cache::{self, Found},
    denials::{DeniedBefore, denied_before, note_denial},
    key_states,
    protocol::{Redirect, Request, takes_slots},
    route, script_call,
    single_flight::Turn,
    slot_guard,
};

/// A server: the only one, or a node of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub client: Arc<Client>,
    /// `None` in a store whose errors are the caller's.
    guard: Option<Arc<Guard>>,
}

/// Decides charges in one part per slot, at a server that turned out to be a node of a cluster.
pub(super) type DecideInParts = fn(Node, &[OwnedCharge], Timestamp) -> StoreFuture<Decision>;

impl Node {
    /// Returns a server with a guard in front of it, or without one.
    pub fn new(client: Arc<Client>, guard: Option<Arc<Guard>>) -> Self {
        Self { client, guard }
    }

    /// Decides on charges whose keys are all at this server.
    pub fn decide(&self, charges: &[Charge<'_>], in_parts: DecideInParts) -> StoreFuture<Decision> {
        self.decide_or_wait(charges, in_parts, true)
    }

    /// Decides on charges. If the denial of one is just over, it may wait for other requests that ask for its key.
    fn decide_or_wait(
        &self,
        charges: &[Charge<'_>],
        in_parts: DecideInParts,
        may_wait: bool,
    ) -> StoreFuture<Decision> {
        let Some(guard) = &self.guard else {
            return send(&self.client, charges, None, in_parts);
        };
        let run_number = self.client.scheduler.run_number();
        if let Before::Decided(decision) = guard.before(charges, run_number) {
            return decision;
        }
        match denied_before(&self.client, guard, charges) {
            DeniedBefore::Denied(denial) => {
                guard.note_decided(1);
                return StoreFuture::ready(Ok(denial));
            }
            DeniedBefore::JustOver(key) if may_wait => {
                return self.decide_in_turn(key, charges, in_parts);
            }
            DeniedBefore::JustOver(_) | DeniedBefore::Nothing => {}
        }
        if let Some(result) = result_at_once(&self.client, charges) {
            let decision = guard.conclude(result, &mut charges.iter().copied());
            return StoreFuture::ready(Ok(decision));
        }
        let sending = Sending::new(&self.client, charges, Some(run_number));
        let guard = Arc::clone(guard);
        let client = Arc::clone(&self.client);
        // Before anything is sent: what relieves the key from now on makes a denial void.
        let validity = client.denials.validity();
        // One future serves the whole decision.
        StoreFuture::boxed(async move {
            let (result, charges, sent_at) = sending.run(in_parts).await;
            if let Ok(decision) = &result
                && !decision.is_allowed()
            {
                note_denial(&client, &charges, decision, (sent_at, validity));
            }
            Ok(guard.conclude(result, &mut charges.iter().map(OwnedCharge::borrow)))
        })
    }

    /// Decides as soon as no other request asks for a key, or it is denied, or a quarter of the deadline is over.
    #[cold]
    fn decide_in_turn(
        &self,
        key: u64,
        charges: &[Charge<'_>],
        in_parts: DecideInParts,
    ) -> StoreFuture<Decision> {
        let this = self.clone();
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        let time = TimeLeft::of_request(Some(self.client.deadline / 4));
        StoreFuture::boxed(async move {
            let (time, flights) = (time.restarted(), this.client.denials.flights());
            let borrowed = || -> Charges<'_> { charges.iter().map(OwnedCharge::borrow).collect() };
            let mut turn = flights.turn(key);
            while let Turn::Waits(asked) = turn {
                if time.limit(asked).await.is_none() {
                    // Whoever asks may never end.
                    flights.end(key);
                    break;
                }
                let guard = this.guard.as_ref();
                let before = guard.map(|guard| denied_before(&this.client, guard, &borrowed()));
                if !matches!(before, Some(DeniedBefore::JustOver(_))) {
                    break;
                }
                turn = flights.turn(key);
            }
            let decision = time.ask(|| this.decide_or_wait(&borrowed(), in_parts, false));
            decision.await
        })
    }

    /// Decides without the guard, for a part of a decision that the guard concludes.
    pub fn decide_since(
        &self,
        charges: &[Charge<'_>],
        submitted_at: Timestamp,
        in_parts: DecideInParts,
    ) -> StoreFuture<Decision> {
        if let Some(result) = result_at_once(&self.client, charges) {
            return StoreFuture::ready(result);
        }
        let mut sending = Sending::new(&self.client, charges, None);
        sending.submitted_at = Some(submitted_at);
        StoreFuture::boxed(async move { sending.run(in_parts).await.0 })
    }

    /// Returns whether the server has denied these charges until later.
    pub fn has_denial(&self, charges: &[Charge<'_>]) -> bool {
        let guard = self.guard.as_ref();
        guard.is_some_and(|guard| {
            let before = denied_before(&self.client, guard, charges);
            matches!(before, DeniedBefore::Denied(_))
        })
    }

    /// Returns for how long requests with this charge are denied without asking the server again.
    pub fn denied_for(&self, charge: &Charge<'_>) -> Option<Duration> {
        let guard = self.guard.as_ref()?;
        if guard.is_open() || !denial_cache::may_be_denied_here(charge) {
            return None;
        }
        let (denials, now) = (&self.client.denials, self.client.now());
        match denials.find(charge, denials.validity(), now) {
            Found::Holds(denial) => Some(denial.ask_from.since(now)),
            Found::JustOver(_) | Found::Nothing => None,
        }
    }

    /// Returns the server without the guard.
    pub fn unguarded(client: &Arc<Client>) -> Self {
        Self::new(Arc::clone(client), None)
    }

    /// Corrects charges where they were counted: at the server, or here during an outage.
    pub fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        let client = Arc::clone(&self.client);
        let refunded: SmallVec<[OwnedCharge; 1]> = receipt
            .settlements()
            .iter()
            .filter(|settlement| matches!(settlement.correction(), Correction::Refund(_)))
            .map(|settlement| settlement.charge().to_owned())
            .collect();
        let settling = match &self.guard {
            Some(guard) => guard.settle(receipt, |receipt| settle(&self.client, &receipt)),
            None => settle(&self.client, &receipt),
        };
        if refunded.is_empty() {
            return settling;
        }
        settling.map(move |result| {
            for charge in &refunded {
                client.denials.relieve(&charge.borrow());
            }
            result
        })
    }

    /// Marks slots that were taken here during an outage as held.
    pub fn hold(&self, receipt: &Receipt) {
        if let Some(guard) = &self.guard {
            guard.hold(receipt);
        }
    }

    /// Renews the leases of slots.
    pub fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        let renew = || renew(&self.client, charges);
        match &self.guard {
            Some(guard) => guard.call(
                "the shared store is unavailable: leases are not renewed",
                renew,
            ),
            None => renew(),
        }
    }

    /// Resets a key, also as it is counted here. Units of it may be leased.
    pub fn reset(&self, policy: &Policy, key: &Key, may_be_leased: bool) -> StoreFuture<()> {
        let reset = || key_states::reset(&self.client, policy, key, may_be_leased);
        let resetting = match &self.guard {
            Some(guard) => guard.reset(policy, key, reset),
            None => reset(),
        };
        let client = Arc::clone(&self.client);
        resetting.map(move |result| {
            client.denials.relieve_all();
            result
        })
    }

    /// Counts a failure of a key: at the server, or here during an outage.
    pub fn count_failure(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<Timestamp>> {
        let Some(penalty) = policy.failure_penalty() else {
            return StoreFuture::ready(Ok(None));
        };
        let count = || key_states::count_failure(&self.client, (policy, key), penalty);
        match &self.guard {
            Some(guard) => guard.count_failure(policy, key, count),
            None => count(),
        }
    }

    /// Returns the denials and the ban of a key.
    pub fn ban_record(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<BanRecord>> {
        let read = || key_states::ban_record(&self.client, policy, key);
        match &self.guard {
            Some(guard) => guard.ban_record(policy, key, read),
            None => read(),
        }
    }

    /// Returns when the pause of a charge's key ends.
    pub fn paused_until(&self, charge: &Charge<'_>) -> StoreFuture<Option<Timestamp>> {
        let read = || key_states::paused_until(&self.client, charge);
        match &self.guard {
            Some(guard) => guard.paused_until(read),
            None => read(),
        }
    }

    /// Returns what the instances share of their top keys.
    #[cfg(feature = "top-keys")]
    pub fn shared_top_keys(&self) -> StoreFuture<Vec<Snapshot>> {
        if self.guard.as_ref().is_some_and(|guard| guard.is_open()) {
            return StoreFuture::ready(Err(Error::new(
                ErrorKind::Unavailable,
                "the shared store is unavailable: only this instance is known",
            )));
        }
        let client = Arc::clone(&self.client);
        StoreFuture::boxed(async move { fleet_top_keys::read(&client).await })
    }

    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = self.client.check.warnings();
        if let Some(guard) = &self.guard {
            guard.add_warnings(&mut warnings);
        }
        warnings
    }

    pub fn stats(&self) -> Stats {
        let server = ServerStats::new(self.client.server());
        #[cfg(feature = "dashboard")]
        let server = server.with_latency(self.client.metrics.latency());
        let stats = Stats::default().server(self.client.scheduler.add_load(server));
        match &self.guard {
            Some(guard) => guard.add_stats(stats),
            None => stats,
        }
    }

    pub fn health(&self) -> Health {
        let health = self.guard.as_ref().map(|guard| guard.health());
        health.unwrap_or_default()
    }

    /// Returns the guard.
    pub fn guard(&self) -> Option<&Arc<Guard>> {
        self.guard.as_ref()
    }
}

// === Sending ===

/// A decision that is to be sent. The request is boxed: it is moved many times.
struct Sending {
    client: Arc<Client>,
    request: Box<Request>,
    charges: SmallVec<[OwnedCharge; 1]>,
    /// When the deadline began, if that is not when the decision is sent.
    submitted_at: Option<Timestamp>,
}

impl Sending {
    /// Without a run number, the decision is for the run of the server that is present when it is submitted.
    fn new(client: &Arc<Client>, charges: &[Charge<'_>], run_number: Option<u64>) -> Self {
        let waited = waited::so_far();
        let mut request = Box::new(Request::decide(&client.keyspace, charges));
        if let Some(run_number) = run_number {
            request.set_run_number(run_number);
        }
        Self {
            client: Arc::clone(client),
            request,
            charges: charges.iter().map(Charge::to_owned).collect(),
            submitted_at: (!waited.is_zero()).then(|| Clock::system().now() - waited),
        }
    }

    /// Sends the decision, alone or together with others, and reads it from the reply. Returns besides when it began.
    async fn run(
        self,
        in_parts: DecideInParts,
    ) -> (
        Result<Decision, Error>,
        SmallVec<[OwnedCharge; 1]>,
        Timestamp,
    ) {
        let Self {
            client,
            request,
            charges,
            submitted_at,
        } = self;
        let sent_at = Clock::system().now();
        let takes_slots = charges.iter().any(|charge| takes_slots(&charge.borrow()));
        let submitted_at = submitted_at.unwrap_or(sent_at);
        let reply = if takes_slots {
            slot_guard::submit(&client, request, &charges, submitted_at).await
        } else {
            route::submit_since(&client, request, submitted_at).await
        };
        let result = match reply {
            Ok(reply) => reply.into_decision(&charges),
            // The server turned out to be a node of a cluster. Later decisions are split before they are sent.
            Err(error) if Redirect::of(&error, charges.len()) == Some(Redirect::Split) => {
                client.note_mode(true);
                in_parts(Node::unguarded(&client), &charges, submitted_at).await
            }
            Err(error) => Err(error),
        };
        (result, charges, sent_at)
    }
}

/// Decides without a guard, in this run of the server or in the present one.
pub(super) fn send(
    client: &Arc<Client>,
    charges: &[Charge<'_>],
    run_number: Option<u64>,
    in_parts: DecideInParts,
) -> StoreFuture<Decision> {
    if let Some(result) = result_at_once(client, charges) {
        return StoreFuture::ready(result);
    }
    let sending = Sending::new(client, charges, run_number);
    StoreFuture::boxed(async move { sending.run(in_parts).await.0 })
}

/// Returns the result of a decision that sends nothing; `None` for all others.
///
/// It sends nothing if it has no charges, is shed, has too little time left, or cannot use the caller's clock.
fn result_at_once(client: &Client, charges: &[Charge<'_>]) -> Option<Result<Decision, Error>> {
    if charges.is_empty() {
        let now = client.clock.as_ref().unwrap_or(&Clock::system()).now();
        return Some(Ok(Decision::new(CountedBy::Shared, now, [])));
    }
    if let Err(error) = check_clock(client) {
        client.report_failure(&error);
        return Some(Err(error));
    }
    if waited::is_too_long(client.deadline) {
        let error = client.timeout_error(Phase::Queue);
        return Some(Err(error.into_not_executed()));
    }
    let shedding = &client.scheduler.shedding;
    shedding.is_on().then(|| Err(shedding.error()))
}

/// Checks that the script can store the time of the caller's clock. The server's time is not checked.
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`] for a time before 2001 or after 2255.
pub(super) fn check_clock(client: &Client) -> Result<(), Error> {
    let now = client.clock.as_ref().map(Clock::now);
    match now {
        Some(now) if !STORABLE_MICROS.contains(&now.as_micros()) => Err(Error::new(
            ErrorKind::InvalidConfig,
            "the clock given to client_time is before 2001 or after 2255: set it right",
        )),
        _ => Ok(()),
    }
}

// === Other calls ===

fn settle(client: &Arc<Client>, receipt: &Receipt) -> StoreFuture<()> {
    if let Err(error) = check_clock(client) {
        return StoreFuture::ready(Err(error));
    }
    let (waking, others): (Vec<Settlement>, Vec<Settlement>) = receipt
        .settlements()
        .iter()
        .cloned()
        .partition(|settlement| settlement.wakes() && takes_slots(&settlement.charge()));
    let requests = Request::settle_all(&client.keyspace, &others);
    if requests.is_empty() && waking.is_empty() {
        return StoreFuture::ready(Ok(()));
    }
    let client = Arc::clone(client);
    // Each on its own: the failure of one request does not keep the others from being sent.
    StoreFuture::boxed(async move {
        let requests = requests.into_iter().map(|(request, _)| request);
        let results = join_all(requests.map(|request| route::submit(&client, request)));
        let releases = join_all(
            waking
                .iter()
                .map(|slots| script_call::release(&client, slots)),
        );
        let (results, released) = join(results, releases).await;
        let settled = results.into_iter().try_for_each(|result| result?.check());
        settled.and(released.into_iter().collect())
    })
}

fn renew(client: &Arc<Client>, charges: &[Charge<'_>]) -> StoreFuture<()> {
    if let Err(error) = check_clock(client) {
        return StoreFuture::ready(Err(error));
    }
    let client = Arc::clone(client);
    let charges: Vec<OwnedCharge> = charges.iter().map(Charge::to_owned).collect();
    StoreFuture::boxed(async move { slot_guard::renew(&client, &charges).await })
}

/// Times that the script can store: from 2001, and below 2^53, where doubles are exact.
const STORABLE_MICROS: std::ops::Range<u64> = 1_000_000_000_000_000..1 << 53;
