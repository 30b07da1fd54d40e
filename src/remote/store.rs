//! The Redis store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{RedisError, Value};
use smallvec::SmallVec;
use tokio::time::timeout;

use crate::{
    clock::Clock,
    decision::Decision,
    error::{Error, ErrorKind, Phase},
    key::Key,
    policy::{Charge, OwnedCharge, Policy},
    store::{Answer, Store},
};

use super::{
    builder::RedisStoreBuilder,
    failure,
    keyspace::Keyspace,
    lane::{Held, Lane},
    script::Script,
    wire::{self, Request},
};

/// Keeps counts in Redis. Clones share the connections.
///
/// See the [module docs](super) for what it waits for, what it costs, and what a failover does. By itself it answers
/// an outage with an error; the builders put a breaker and each policy's outage choice around it.
#[derive(Clone, Debug)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) lanes: Box<[Arc<Lane>]>,
    pub(super) turn: AtomicUsize,
    pub(super) keyspace: Keyspace,
    pub(super) deadline: Duration,
    /// The caller's clock, when the server's must not be used.
    pub(super) clock: Option<Clock>,
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

    fn request(&self, charges: &[Charge<'_>]) -> Request {
        let now = self.shared.clock.as_ref().map(Clock::now);
        Request::decide(&self.shared.keyspace, charges, now)
    }
}

impl Store for RedisStore {
    fn decide(&self, charges: &[Charge<'_>]) -> Answer<Decision> {
        if charges.is_empty() {
            let now = self.shared.clock.as_ref().unwrap_or(&Clock::system()).now();
            return Answer::ready(Ok(Decision::new(crate::state::CountedBy::Shared, now, [])));
        }
        let shared = Arc::clone(&self.shared);
        let request = self.request(charges);
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        Answer::later(async move {
            let reply = shared.run(request).await?;
            wire::decision(&charges, &reply)
        })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let shared = Arc::clone(&self.shared);
        let key = self.shared.keyspace.of(policy.name(), key);
        Answer::later(async move {
            let command = redis::cmd("DEL").arg(key.as_slice()).to_owned();
            let delete = async |held: &mut Held| held.send(&command).await;
            shared.within_deadline(delete).await.map(drop)
        })
    }

    fn probe(&self) -> Answer<()> {
        let shared = Arc::clone(&self.shared);
        let now = self.shared.clock.as_ref().map(Clock::now);
        let request = Request::probe(&self.shared.keyspace, now);
        Answer::later(async move { shared.run(request).await.map(drop) })
    }
}

impl Shared {
    /// Runs the decision script.
    async fn run(&self, request: Request) -> Result<Value, Error> {
        self.within_deadline(async |held: &mut Held| {
            let command = request.complete(Script::DECIDE.by_hash());
            match held.send(&command).await {
                // A new, restarted or flushed server: nothing was done, so asking again is safe.
                Err(error) if failure::is_unknown_script(&error) => {
                    let command = request.complete(Script::DECIDE.by_text());
                    held.send(&command).await
                }
                result => result,
            }
        })
        .await
    }

    /// Does something on a lane, and gives the lane's connection up when it is to blame for the failure.
    async fn within_deadline(
        &self,
        call: impl AsyncFnOnce(&mut Held) -> Result<Value, RedisError>,
    ) -> Result<Value, Error> {
        let (lane, held) = self.lane();
        let mut used = None;
        let result = timeout(self.deadline, async {
            let mut held = match held {
                Some(held) => held,
                None => lane.hold().await?,
            };
            used = Some(held.generation);
            Ok::<_, Error>(call(&mut held).await)
        })
        .await;
        match (result, used) {
            (Ok(Ok(Ok(value))), _) => Ok(value),
            (Ok(Ok(Err(error))), used) => {
                if let Some(generation) = used.filter(|_| failure::breaks_connection(&error)) {
                    lane.break_off(generation);
                }
                Err(failure::classify(error))
            }
            (Ok(Err(error)), _) => Err(error),
            (Err(_), Some(generation)) => {
                // On a half-open connection the reply never comes: the next decision needs another.
                lane.break_off(generation);
                Err(self.late(Phase::Reply))
            }
            (Err(_), None) => Err(self.late(Phase::Connect)),
        }
    }

    /// The lanes take turns. One without a connection dials and is passed over meanwhile, unless none has one.
    fn lane(&self) -> (&Arc<Lane>, Option<Held>) {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let in_turn = |step: usize| &self.lanes[turn.wrapping_add(step) % self.lanes.len()];
        let ready = (0..self.lanes.len())
            .map(in_turn)
            .find_map(|lane| Some((lane, Some(lane.held()?))));
        ready.unwrap_or((in_turn(0), None))
    }

    fn late(&self, phase: Phase) -> Error {
        let what = match phase {
            Phase::Connect => "no connection to redis",
            Phase::Reply => "no answer from redis",
        };
        Error::new(
            ErrorKind::Timeout(phase),
            format!("{what} within the deadline of {:?}", self.deadline),
        )
    }
}
