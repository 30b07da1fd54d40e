//! The Redis store.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::{
    clock::Clock,
    decision::Decision,
    diagnosis::Warning,
    error::{Error, ErrorKind},
    key::Key,
    policy::{Charge, OwnedCharge, Policy},
    state::CountedBy,
    store::{Answer, Receipt, Store},
};

use super::{builder::RedisStoreBuilder, claim, shared::Shared, wire::Group, worker};

/// Keeps counts in Redis. Clones share the connections.
///
/// See the [module docs](super) for what it waits for, what it costs, and what a failover does. By itself it answers
/// an outage with an error; the builders put a breaker and each policy's outage choice around it.
#[derive(Clone, Debug)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

impl RedisStore {
    /// Settings to start from, for the server at this URL.
    pub fn builder(url: impl AsRef<str>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url.as_ref())
    }

    pub(super) fn with(shared: Shared) -> Self {
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Has groups carried of which each stands for itself: one that fails does not keep the others from being done.
    fn carry(&self, groups: Vec<Group>) -> Answer<()> {
        if groups.is_empty() {
            return Answer::ready(Ok(()));
        }
        let shared = Arc::clone(&self.shared);
        Answer::later(async move {
            let asked = groups.into_iter().map(|group| worker::ask(&shared, group));
            let verdicts = join_all(asked).await;
            verdicts
                .into_iter()
                .try_for_each(|verdict| verdict?.check())
        })
    }

    /// What keeps the store from deciding, before anything is asked.
    fn check(&self) -> Result<(), Error> {
        let now = self.shared.clock.as_ref().map(Clock::now);
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
    fn decide(&self, charges: &[Charge<'_>]) -> Answer<Decision> {
        if charges.is_empty() {
            let now = self.shared.clock.as_ref().unwrap_or(&Clock::system()).now();
            return Answer::ready(Ok(Decision::new(CountedBy::Shared, now, [])));
        }
        if let Err(error) = self.check() {
            return Answer::ready(Err(error));
        }
        let shared = Arc::clone(&self.shared);
        let group = Group::decide(&shared.keyspace, charges);
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        Answer::later(async move {
            let verdict = claim::ask(&shared, group, &charges).await?;
            verdict.into_decision(&charges)
        })
    }

    fn settle(&self, receipt: Receipt) -> Answer<()> {
        if let Err(error) = self.check() {
            return Answer::ready(Err(error));
        }
        let settlements = receipt.settlements().iter();
        let groups = settlements.filter_map(|one| Group::settle(&self.shared.keyspace, one));
        self.carry(groups.collect())
    }

    fn renew(&self, charges: &[Charge<'_>]) -> Answer<()> {
        if let Err(error) = self.check() {
            return Answer::ready(Err(error));
        }
        let groups = charges.iter();
        let groups = groups.filter_map(|charge| Group::renew(&self.shared.keyspace, charge));
        self.carry(groups.collect())
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let shared = Arc::clone(&self.shared);
        let mut command = redis::cmd("DEL");
        for key in shared.keyspace.all_of(policy, key) {
            command.arg(key.as_slice());
        }
        Answer::later(async move { shared.command(&command).await })
    }

    fn warnings(&self) -> Vec<Warning> {
        self.shared.checkup.ledger.warnings()
    }

    fn probe(&self) -> Answer<()> {
        if let Err(error) = self.check() {
            return Answer::ready(Err(error));
        }
        let shared = Arc::clone(&self.shared);
        Answer::later(async move {
            let group = Group::probe(&shared.keyspace);
            let verdict = worker::ask(&shared, group).await?;
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

/// Times that the script can store: from 2001 until 2255, when they are no longer exact in a double.
const STORABLE: std::ops::Range<u64> = 1_000_000_000_000_000..1 << 53;
