//! A connection that is held for good and shared by all decisions.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use deadpool_redis::{Connection, Pool, PoolError, Timeouts, redis::aio::MultiplexedConnection};
use redis::{Cmd, RedisResult, Value};
use tokio::sync::watch;

use crate::{
    error::{Error, ErrorKind, Phase},
    sync::Mutex,
};

use super::failure;

/// A place for one connection out of the pool.
///
/// The connection is checked out once and multiplexed: checking it out per decision would cost a PING round trip each.
/// A lane that broke takes its connection out of the pool, which makes room for a new one.
#[derive(Debug)]
pub(super) struct Lane {
    pool: Pool,
    timeouts: Timeouts,
    generations: AtomicU64,
    state: Mutex<State>,
}

enum State {
    Down,
    /// One dial is under way; everybody who needs the lane waits for it.
    Dialling(watch::Receiver<Dialled>),
    Up {
        connection: Connection,
        /// Which of the lane's connections it is: a late failure of an old one must not end its successor.
        generation: u64,
    },
}

type Dialled = Option<Result<(), Error>>;

/// A lane's connection, for one decision.
pub(super) struct Held {
    connection: MultiplexedConnection,
    pub(super) generation: u64,
}

impl Held {
    /// Sends a command and waits for its reply; an error reply is an error.
    pub(super) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.connection
            .send_packed_command(command)
            .await?
            .extract_error()
    }
}

impl Lane {
    pub(super) fn new(pool: Pool, timeouts: Timeouts) -> Arc<Self> {
        Arc::new(Self {
            pool,
            timeouts,
            generations: AtomicU64::new(0),
            state: Mutex::new(State::Down),
        })
    }

    /// The lane's connection, dialling when there is none.
    ///
    /// # Cancel safety
    ///
    /// A dial goes on when its callers leave, and serves the next one.
    pub(super) async fn hold(self: &Arc<Self>) -> Result<Held, Error> {
        loop {
            let mut dialled = match self.held_or_dial() {
                Ok(held) => return Ok(held),
                Err(dialled) => dialled,
            };
            let result = dialled
                .wait_for(Option::is_some)
                .await
                .map_err(|_| Error::new(ErrorKind::Connect, "the dial to redis was abandoned"))?
                .clone();
            if let Some(Err(error)) = result {
                return Err(error);
            }
        }
    }

    /// The lane's connection if it has one; if not, a dial is under way from now on.
    pub(super) fn held(self: &Arc<Self>) -> Option<Held> {
        self.held_or_dial().ok()
    }

    /// Gives up the connection of this generation, if the lane still has it.
    pub(super) fn break_off(&self, generation: u64) {
        let mut state = self.state.lock();
        if matches!(&*state, State::Up { generation: current, .. } if *current == generation) {
            // ## Up => Down
            if let State::Up { connection, .. } = std::mem::replace(&mut *state, State::Down) {
                drop(Connection::take(connection));
            }
        }
    }

    fn held_or_dial(self: &Arc<Self>) -> Result<Held, watch::Receiver<Dialled>> {
        let mut state = self.state.lock();
        match &*state {
            State::Up {
                connection,
                generation,
            } => Ok(Held {
                connection: MultiplexedConnection::clone(connection),
                generation: *generation,
            }),
            State::Dialling(dialled) => Err(dialled.clone()),
            // ## Down => Dialling
            State::Down => {
                let (sender, receiver) = watch::channel(None);
                *state = State::Dialling(receiver.clone());
                let generation = self.generations.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(Arc::clone(self).dial(sender, generation));
                Err(receiver)
            }
        }
    }

    /// ## Dialling => (Up | Down)
    async fn dial(self: Arc<Self>, dialled: watch::Sender<Dialled>, generation: u64) {
        // Dropped in mid-dial (the runtime ends), the guard leaves the lane down instead of dialling for ever.
        let mut guard = Dial {
            lane: &self,
            done: State::Down,
        };
        let result = match self.pool.timeout_get(&self.timeouts).await {
            Ok(connection) => {
                guard.done = State::Up {
                    connection,
                    generation,
                };
                Ok(())
            }
            Err(error) => Err(failure_to_dial(error)),
        };
        drop(guard);
        dialled.send_replace(Some(result));
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Down => "Down",
            Self::Dialling(_) => "Dialling",
            Self::Up { .. } => "Up",
        })
    }
}

// === Dial ===

/// Ends a dial in every case.
struct Dial<'a> {
    lane: &'a Lane,
    done: State,
}

impl Drop for Dial<'_> {
    fn drop(&mut self) {
        *self.lane.state.lock() = std::mem::replace(&mut self.done, State::Down);
    }
}

fn failure_to_dial(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) => failure::classify(error),
        PoolError::Timeout(_) => Error::new(
            ErrorKind::Timeout(Phase::Connect),
            "no connection to redis within the connect timeout",
        )
        .with_source(error),
        error => Error::new(ErrorKind::Connect, "the pool gave no connection to redis")
            .with_source(error),
    }
}
