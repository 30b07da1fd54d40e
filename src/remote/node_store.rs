//! The store of one server, and the way of a decision through it.
//!
//! ```text
//! decide_with_fallback
//!   Request::decide           keyspace.rs and codec.rs: keys and arguments
//!   batch::submit             sent at once, or queued for a worker; shed while too many wait
//!     Scheduler::submit         picks a lane, or adds the request to the queue
//!     Worker::call              one EVALSHA for up to 64 charges
//!       LaneConnection::send      the multiplexed connection
//!       reply::parse              one result per request
//!     Scheduler::end_call       makes room, and measures the server
//!   Reply::into_decision      codec.rs: the state of each policy
//!   Fallback::complete        replaces an error, by the choice of each policy
//! ```
//!
//! A decision that takes slots goes through `slot_guard.rs` besides, which releases them if the caller leaves.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use redis::Value;
use smallvec::SmallVec;

use crate::{
    charge::{Charge, Charges, Merge, OwnedCharge, Receipt, Settlement},
    clock::{Clock, Timestamp},
    decision::{CountedBy, Decision},
    diagnosis::Warning,
    error::{Error, ErrorKind, Phase},
    key::Key,
    policy::{BanState, Policy},
    store::{CallObserver, Fallback, Fleet, ServerStats, Stats, Store, StoreFuture, waited},
};

#[cfg(feature = "top-keys")]
use crate::top_keys::Snapshot;

#[cfg(feature = "top-keys")]
use super::fleet_top_keys;

use super::{
    batch,
    client::Client,
    cluster::split::{self, SplitStore},
    connection::classify,
    protocol::{Redirect, Request, malformed, takes_slots},
    slot_guard,
};

/// Decides on one server, or on one node of a cluster.
#[derive(Clone, Debug)]
pub(super) struct NodeStore {
    client: Arc<Client>,
    /// When the deadline of its decisions began, if that is not when they are made.
    submitted_at: Option<Timestamp>,
}

impl NodeStore {
    /// Returns a store over a client.
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self {
            client,
            submitted_at: None,
        }
    }

    /// Returns the result of a decision that sends nothing; `None` for all others.
    ///
    /// It sends nothing if it has no charges, is shed, has too little time left, or cannot use the caller's clock.
    fn result_at_once(&self, charges: &[Charge<'_>]) -> Option<Result<Decision, Error>> {
        if charges.is_empty() {
            let now = self.client.clock.as_ref().unwrap_or(&Clock::system()).now();
            return Some(Ok(Decision::new(CountedBy::Shared, now, [])));
        }
        if let Err(error) = self.check_clock() {
            self.client.report_failure(&error);
            return Some(Err(error));
        }
        if waited::is_too_long(self.client.deadline) {
            let error = self.client.timeout_error(Phase::Queue);
            return Some(Err(error.into_not_executed()));
        }
        let shedding = &self.client.scheduler.shedding;
        shedding.is_on().then(|| Err(shedding.error()))
    }

    /// Checks that the script can store the time of the caller's clock. The server's time is not checked.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a time before 2001 or after 2255.
    fn check_clock(&self) -> Result<(), Error> {
        let now = self.client.clock.as_ref().map(Clock::now);
        match now {
            Some(now) if !STORABLE_MICROS.contains(&now.as_micros()) => Err(Error::new(
                ErrorKind::InvalidConfig,
                "the clock given to client_time is before 2001 or after 2255: set it right",
            )),
            _ => Ok(()),
        }
    }

    /// Returns a copy of the charges and the request to decide them.
    ///
    /// The request is boxed before it becomes part of a future: it is moved many times.
    fn prepare(&self, charges: &[Charge<'_>]) -> Prepared {
        let request = Request::decide(&self.client.keyspace, charges);
        let charges = charges.iter().map(Charge::to_owned).collect();
        let mut store = self.clone();
        let waited = waited::so_far();
        if !waited.is_zero() {
            store.submitted_at = Some(Clock::system().now() - waited);
        }
        (store, Box::new(request), charges)
    }

    /// Sends a decision, alone or together with others, and reads it from the reply.
    ///
    /// # Errors
    ///
    /// Those of [`batch::submit`], and [`ErrorKind::ForeignValue`].
    async fn decide_prepared(
        &self,
        request: Box<Request>,
        charges: &[OwnedCharge],
    ) -> Result<Decision, Error> {
        let takes_slots = charges.iter().any(|charge| takes_slots(&charge.borrow()));
        let now = Clock::system().now();
        let submitted_at = self.submitted_at.unwrap_or(now);
        let reply = if takes_slots {
            slot_guard::submit(&self.client, request, charges, submitted_at).await
        } else {
            batch::submit_since(&self.client, request, submitted_at).await
        };
        match reply {
            Ok(reply) => reply.into_decision(charges),
            // The server turned out to be a node of a cluster. Later decisions are split before they are sent.
            Err(error) if Redirect::of(&error, charges.len()) == Some(Redirect::Split) => {
                self.client.note_mode(true);
                let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
                let parts = Self {
                    client: Arc::clone(&self.client),
                    submitted_at: Some(submitted_at),
                };
                split::decide(&charges, &(Arc::new(parts) as _)).await
            }
            Err(error) => Err(error),
        }
    }
}

impl SplitStore for NodeStore {
    fn store_of(&self, _: u16) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn settle_later(&self, settlement: Settlement) {
        if let Some(nodes) = self.client.nodes() {
            nodes.settle_later(settlement);
        }
    }
}

/// A decision that is to be sent: the store that sends it, its request, and its charges.
type Prepared = (NodeStore, Box<Request>, SmallVec<[OwnedCharge; 1]>);

impl Store for NodeStore {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if let Some(result) = self.result_at_once(charges) {
            return StoreFuture::ready(result);
        }
        let (store, request, charges) = self.prepare(charges);
        StoreFuture::boxed(async move { store.decide_prepared(request, &charges).await })
    }

    fn decide_with_fallback(
        &self,
        charges: &[Charge<'_>],
        fallback: Arc<dyn Fallback>,
    ) -> StoreFuture<Decision> {
        if let Some(result) = self.result_at_once(charges) {
            return StoreFuture::ready(fallback.complete(result, &mut charges.iter().copied()));
        }
        let (store, request, charges) = self.prepare(charges);
        StoreFuture::boxed(async move {
            let result = store.decide_prepared(request, &charges).await;
            fallback.complete(result, &mut charges.iter().map(OwnedCharge::borrow))
        })
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        if let Err(error) = self.check_clock() {
            return StoreFuture::ready(Err(error));
        }
        let requests = Request::settle_all(&self.client.keyspace, receipt.settlements());
        if requests.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        let client = Arc::clone(&self.client);
        // Each on its own: the failure of one request does not keep the others from being sent.
        StoreFuture::boxed(async move {
            let requests = requests.into_iter().map(|(request, _)| request);
            let results = join_all(requests.map(|request| batch::submit(&client, request))).await;
            results.into_iter().try_for_each(|result| result?.check())
        })
    }

    fn merge(&self, merge: &Merge) -> StoreFuture<()> {
        if let Err(error) = self.check_clock() {
            return StoreFuture::ready(Err(error));
        }
        let Some(request) = Request::merge(&self.client.keyspace, merge) else {
            return StoreFuture::ready(Ok(()));
        };
        let client = Arc::clone(&self.client);
        // A merge that was made before is denied, which is as good.
        StoreFuture::boxed(async move { batch::submit(&client, Box::new(request)).await?.check() })
    }

    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        if let Err(error) = self.check_clock() {
            return StoreFuture::ready(Err(error));
        }
        let client = Arc::clone(&self.client);
        let charges: Vec<OwnedCharge> = charges.iter().map(Charge::to_owned).collect();
        StoreFuture::boxed(async move { slot_guard::renew(&client, &charges).await })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let client = Arc::clone(&self.client);
        let mut command = redis::cmd("DEL");
        for key in client.keyspace.all_keys(policy, key) {
            command.arg(key.as_slice());
        }
        command.arg(client.keyspace.ban_key(policy, key).as_slice());
        StoreFuture::boxed(async move {
            batch::run_command(&client, &command).await?;
            Ok(())
        })
    }

    fn ban_state(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<BanState>> {
        let client = Arc::clone(&self.client);
        let mut command = redis::cmd("GET");
        command.arg(client.keyspace.ban_key(policy, key).as_slice());
        StoreFuture::boxed(async move {
            match batch::run_command(&client, &command).await? {
                Value::Nil => Ok(None),
                Value::BulkString(bytes) => {
                    let state = BanState::from_stored(&bytes, Clock::system().now());
                    state.map(Some).ok_or_else(classify::foreign_value)
                }
                _ => Err(malformed()),
            }
        })
    }

    fn observe_calls(&self, observer: Weak<dyn CallObserver>) -> bool {
        // A second breaker around this store judges it by its decisions.
        self.client.observer.set(observer).is_ok()
    }

    fn serves(&self, key: &Key) -> bool {
        let owner = self.client.client_of(key.slot());
        owner.is_none_or(|owner| Arc::ptr_eq(&owner, &self.client))
    }

    fn deadline(&self) -> Option<Duration> {
        Some(self.client.deadline)
    }

    fn server(&self) -> Option<String> {
        self.client.scheduler.lanes()[0].server()
    }

    fn fleet(&self) -> Option<Arc<Fleet>> {
        Some(self.client.registration.start())
    }

    fn stats(&self) -> Stats {
        let server = ServerStats::new(self.server());
        #[cfg(feature = "dashboard")]
        let server = server.with_latency(self.client.metrics.latency());
        Stats::default().server(self.client.scheduler.add_load(server))
    }

    #[cfg(feature = "top-keys")]
    fn shared_top_keys(&self) -> StoreFuture<Vec<Snapshot>> {
        let client = Arc::clone(&self.client);
        StoreFuture::boxed(async move { fleet_top_keys::read(&client).await })
    }

    fn warnings(&self) -> Vec<Warning> {
        self.client.check.warnings()
    }

    fn probe(&self) -> StoreFuture<()> {
        if let Err(error) = self.check_clock() {
            return StoreFuture::ready(Err(error));
        }
        let client = Arc::clone(&self.client);
        StoreFuture::boxed(async move {
            client.skip_next_backoff();
            let request = Request::probe(&client.keyspace, client.probe_identity().as_bytes());
            let reply = batch::submit(&client, Box::new(request)).await?;
            if reply.is_admitted() {
                return Ok(());
            }
            Err(Error::new(
                ErrorKind::ForeignValue,
                "a key of tollgate's probe holds a value that tollgate did not write",
            ))
        })
    }
}

/// Times that the script can store: from 2001, and below 2^53, where doubles are exact.
const STORABLE_MICROS: std::ops::Range<u64> = 1_000_000_000_000_000..1 << 53;
