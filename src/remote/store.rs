//! The Redis store.

use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::{
    charge::{Charge, OwnedCharge},
    clock::Clock,
    decision::Decision,
    diagnosis::Warning,
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
    state::CountedBy,
    store::{CallObserver, Fallback, Receipt, Store, StoreFuture},
};

use super::{batch, builder::RedisStoreBuilder, node::Node, protocol::Request, slot_guard};

/// Keeps counts in Redis. Clones share the connections.
///
/// See the [module docs](super) for what it waits for, what it costs, and what a failover does. By itself it answers
/// an outage with an error; the builders put a breaker and each policy's outage choice around it.
#[derive(Clone, Debug)]
pub struct RedisStore {
    node: Arc<Node>,
}

impl RedisStore {
    /// Settings to start from, for the server at this URL.
    pub fn builder(url: impl AsRef<str>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url.as_ref())
    }

    pub(super) fn with(node: Arc<Node>) -> Self {
        Self { node }
    }

    /// Has groups carried of which each stands for itself: one that fails does not keep the others from being done.
    fn carry(&self, groups: Vec<Request>) -> StoreFuture<()> {
        if groups.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        let node = Arc::clone(&self.node);
        StoreFuture::boxed(async move {
            let asked = groups
                .into_iter()
                .map(|group| batch::ask(&node, Box::new(group)));
            let verdicts = join_all(asked).await;
            verdicts
                .into_iter()
                .try_for_each(|verdict| verdict?.check())
        })
    }

    /// Returns the result of a decision that needs no call, or gets none.
    fn result_at_once(&self, charges: &[Charge<'_>]) -> Option<Result<Decision, Error>> {
        if charges.is_empty() {
            let now = self.node.clock.as_ref().unwrap_or(&Clock::system()).now();
            return Some(Ok(Decision::new(CountedBy::Shared, now, [])));
        }
        if let Err(error) = self.check() {
            self.node.report_failure(&error);
            return Some(Err(error));
        }
        let is_full = self.node.traffic.is_full();
        is_full.then(|| Err(batch::overloaded()))
    }

    /// What keeps the store from deciding, before anything is asked.
    fn check(&self) -> Result<(), Error> {
        let now = self.node.clock.as_ref().map(Clock::now);
        match now {
            Some(now) if !STORABLE.contains(&now.as_micros()) => Err(Error::new(
                ErrorKind::InvalidConfig,
                "the clock given with client_time stands before 2001 or after 2255: set it right",
            )),
            _ => Ok(()),
        }
    }
}

impl Store for RedisStore {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if let Some(result) = self.result_at_once(charges) {
            return StoreFuture::ready(result);
        }
        // Boxed here, before it becomes a part of the future: it is handed on many times.
        let request = Box::new(Request::decide(&self.node.keyspace, charges));
        let (node, charges) = (Arc::clone(&self.node), to_owned(charges));
        StoreFuture::boxed(async move { decide(&node, request, &charges).await })
    }

    fn decide_with_fallback(
        &self,
        charges: &[Charge<'_>],
        fallback: Arc<dyn Fallback>,
    ) -> StoreFuture<Decision> {
        if let Some(result) = self.result_at_once(charges) {
            return StoreFuture::ready(fallback.complete(result, &mut charges.iter().copied()));
        }
        // Boxed here, before it becomes a part of the future: it is handed on many times.
        let request = Box::new(Request::decide(&self.node.keyspace, charges));
        let (node, charges) = (Arc::clone(&self.node), to_owned(charges));
        StoreFuture::boxed(async move {
            let result = decide(&node, request, &charges).await;
            fallback.complete(result, &mut charges.iter().map(OwnedCharge::borrow))
        })
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        if let Err(error) = self.check() {
            return StoreFuture::ready(Err(error));
        }
        let requests = Request::settle_all(&self.node.keyspace, receipt.settlements());
        self.carry(requests.into_iter().map(|(request, _)| request).collect())
    }

    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        if let Err(error) = self.check() {
            return StoreFuture::ready(Err(error));
        }
        let node = Arc::clone(&self.node);
        let charges: Vec<OwnedCharge> = charges.iter().map(Charge::to_owned).collect();
        StoreFuture::boxed(async move { slot_guard::renew(&node, &charges).await })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let node = Arc::clone(&self.node);
        let mut command = redis::cmd("DEL");
        for key in node.keyspace.all_of(policy, key) {
            command.arg(key.as_slice());
        }
        StoreFuture::boxed(async move {
            batch::command(&node, &command).await?;
            Ok(())
        })
    }

    fn observe_calls(&self, observer: Weak<dyn CallObserver>) -> bool {
        // A second observer, of a second breaker over this store, judges it by decisions.
        self.node.observer.set(observer).is_ok()
    }

    fn warnings(&self) -> Vec<Warning> {
        self.node.check.ledger.warnings()
    }

    fn probe(&self) -> StoreFuture<()> {
        if let Err(error) = self.check() {
            return StoreFuture::ready(Err(error));
        }
        let node = Arc::clone(&self.node);
        StoreFuture::boxed(async move {
            node.dial_at_once();
            let group = Box::new(Request::probe(&node.keyspace));
            let verdict = batch::ask(&node, group).await?;
            if verdict.is_admitted() {
                return Ok(());
            }
            Err(Error::new(
                ErrorKind::ForeignValue,
                "the key of the probe holds a value that tollgate did not write",
            ))
        })
    }
}

/// Makes a call, or joins one, and reads the decision in its reply.
async fn decide(
    node: &Arc<Node>,
    request: Box<Request>,
    charges: &[OwnedCharge],
) -> Result<Decision, Error> {
    let reply = slot_guard::ask(node, request, charges).await?;
    reply.into_decision(charges)
}

fn to_owned(charges: &[Charge<'_>]) -> SmallVec<[OwnedCharge; 1]> {
    charges.iter().map(Charge::to_owned).collect()
}

/// Times that the script can store: from 2001 until 2255, when they are no longer exact in a double.
const STORABLE: std::ops::Range<u64> = 1_000_000_000_000_000..1 << 53;
