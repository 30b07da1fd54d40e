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
    clock::{Clock, Timestamp},
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

    /// The caller's time for a script call: `None` to take the server's.
    fn now(&self) -> Result<Option<Timestamp>, Error> {
        let now = self.shared.clock.as_ref().map(Clock::now);
        match now {
            Some(now) if !STORABLE.contains(&now.as_micros()) => Err(Error::new(
                ErrorKind::InvalidConfig,
                "the clock given with client_time stands before 2001 or after 2286: set it right",
            )),
            now => Ok(now),
        }
    }
}

impl Store for RedisStore {
    fn decide(&self, charges: &[Charge<'_>]) -> Answer<Decision> {
        if charges.is_empty() {
            let now = self.shared.clock.as_ref().unwrap_or(&Clock::system()).now();
            return Answer::ready(Ok(Decision::new(crate::state::CountedBy::Shared, now, [])));
        }
        let shared = Arc::clone(&self.shared);
        let request = match self.now() {
            Ok(now) => Request::decide(&self.shared.keyspace, charges, now),
            Err(error) => return Answer::ready(Err(error)),
        };
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        Answer::later(async move {
            shared
                .run(request, |reply| wire::decision(&charges, &reply))
                .await
        })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let shared = Arc::clone(&self.shared);
        let key = self.shared.keyspace.of(policy.name(), key);
        Answer::later(async move {
            let command = redis::cmd("DEL").arg(key.as_slice()).to_owned();
            let delete = async |held: &mut Held| held.send(&command).await;
            shared.within_deadline(delete, |_| Ok(())).await
        })
    }

    fn probe(&self) -> Answer<()> {
        let shared = Arc::clone(&self.shared);
        let request = match self.now() {
            Ok(now) => Request::probe(&self.shared.keyspace, now),
            Err(error) => return Answer::ready(Err(error)),
        };
        Answer::later(async move { shared.run(request, |reply| wire::probed(&reply)).await })
    }
}

impl Shared {
    /// Runs the decision script.
    async fn run<T>(
        &self,
        request: Request,
        read: impl FnOnce(Value) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let call = async |held: &mut Held| {
            let command = request.complete(Script::DECIDE.by_hash());
            match held.send(&command).await {
                // A new, restarted or flushed server: nothing was done, so asking again is safe.
                Err(error) if failure::is_unknown_script(&error) => {
                    let command = request.complete(Script::DECIDE.by_text());
                    held.send(&command).await
                }
                result => result,
            }
        };
        self.within_deadline(call, read).await
    }

    /// Does something on a lane, and gives the lane's connection up when it is to blame for the failure.
    async fn within_deadline<T>(
        &self,
        call: impl AsyncFnOnce(&mut Held) -> Result<Value, RedisError>,
        read: impl FnOnce(Value) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (lane, held) = self.lane();
        let mut used = None;
        let replied = timeout(self.deadline, async {
            let mut held = match held {
                Some(held) => held,
                None => lane.hold().await?,
            };
            used = Some(held.generation);
            Ok(call(&mut held).await)
        })
        .await;
        let (result, is_broken) = match replied {
            Ok(Ok(Ok(value))) => {
                let result = read(value);
                // Another reply than the one asked for: requests and replies may have got out of step.
                let is_broken = result.is_err();
                (result, is_broken)
            }
            Ok(Ok(Err(error))) => {
                let is_broken = failure::breaks_connection(&error);
                (Err(failure::classify(error)), is_broken)
            }
            Ok(Err(error)) => (Err(error), false),
            // On a half-open connection the reply never comes: the next decision needs another.
            Err(_) if used.is_some() => (Err(self.late(Phase::Reply)), true),
            Err(_) => (Err(self.late(Phase::Connect)), false),
        };
        if let Some(generation) = used.filter(|_| is_broken) {
            lane.break_off(generation);
        }
        result
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

/// Times of 16 digits, which is what the script stores.
const STORABLE: std::ops::Range<u64> = 1_000_000_000_000_000..10_000_000_000_000_000;
