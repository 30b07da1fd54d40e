//! A connection that is held for good and shared by all decisions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool_redis::{Connection, Pool, PoolError, Timeouts, redis::aio::MultiplexedConnection};
use redis::{Cmd, RedisResult, Value};
use tokio::{runtime::Handle, sync::watch, time::timeout};

use crate::{
    clock::{Clock, Timestamp},
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
    connect_timeout: Duration,
    generations: AtomicU64,
    state: Mutex<State>,
}

enum State {
    Down,
    /// One dial is under way; everybody who needs the lane waits for it.
    Dialling {
        dialled: watch::Receiver<Dialled>,
        /// When its task must have ended, if anybody drives it.
        until: Timestamp,
        generation: u64,
    },
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
    pub(super) fn new(pool: Pool, connect_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            pool,
            connect_timeout,
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
        // Twice at most: on a runtime that is ending each new dial is dropped at once, and its task could not end either.
        for _ in 0..2 {
            let mut dialled = match self.held_or_dial() {
                Ok(held) => return Ok(held),
                Err(dialled) => dialled,
            };
            // No result: the dial's task was dropped with its runtime, and the lane is down again.
            if let Ok(result) = dialled.wait_for(Option::is_some).await
                && let Some(Err(error)) = &*result
            {
                return Err(error.clone());
            }
        }
        self.held().ok_or_else(|| {
            Error::new(
                ErrorKind::Connect,
                "the connection to redis was lost as soon as it was made",
            )
        })
    }

    /// Whether the lane has a connection.
    pub(super) fn is_up(&self) -> bool {
        matches!(&*self.state.lock(), State::Up { .. })
    }

    /// The lane's connection, if it has one.
    pub(super) fn held(&self) -> Option<Held> {
        self.state.lock().held()
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
        if let Some(held) = state.held() {
            return Ok(held);
        }
        if let State::Dialling { dialled, until, .. } = &*state
            && Clock::system().now() < *until
        {
            return Err(dialled.clone());
        }
        // ## (Down | Dialling, overdue: its task is on a runtime that nobody drives) => Dialling
        let (sender, dialled) = watch::channel(None);
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        *state = State::Dialling {
            dialled: dialled.clone(),
            until: Clock::system().now() + self.connect_timeout * 2,
            generation,
        };
        drop(state);
        // Made here and not in the task: a task that is dropped before its first poll must end the dial too.
        let dial = Dial {
            lane: Arc::clone(self),
            generation,
            sender,
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(dial.run())),
            Err(error) => dial.end(Err(failure::no_runtime(error))),
        }
        Err(dialled)
    }
}

impl State {
    fn held(&self) -> Option<Held> {
        match self {
            Self::Up {
                connection,
                generation,
            } => Some(Held {
                connection: MultiplexedConnection::clone(connection),
                generation: *generation,
            }),
            Self::Dialling { .. } | Self::Down => None,
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Down => "Down",
            Self::Dialling { .. } => "Dialling",
            Self::Up { .. } => "Up",
        })
    }
}

// === Dial ===

/// A dial under way; dropped without an end, it leaves the lane down.
struct Dial {
    lane: Arc<Lane>,
    generation: u64,
    sender: watch::Sender<Dialled>,
}

impl Dial {
    async fn run(self) {
        // One timeout over all phases: a pool that the application made may have no timer of its own.
        let phases = Timeouts::new();
        let dialled = timeout(
            self.lane.connect_timeout,
            self.lane.pool.timeout_get(&phases),
        );
        let result = match dialled.await {
            Ok(result) => result.map_err(failure_to_dial),
            Err(late) => Err(Error::new(
                ErrorKind::Timeout(Phase::Connect),
                "no connection to redis within the connect timeout",
            )
            .with_source(late)),
        };
        self.end(result);
    }

    /// ## Dialling => (Up | Down), and tells everybody who waits.
    fn end(self, result: Result<Connection, Error>) {
        let told = match result {
            Ok(connection) => {
                let generation = self.generation;
                self.leave(State::Up {
                    connection,
                    generation,
                });
                Ok(())
            }
            Err(error) => {
                self.leave(State::Down);
                Err(error)
            }
        };
        self.sender.send_replace(Some(told));
    }

    /// Sets the lane's state, unless the dial was overdue and another has taken its place.
    fn leave(&self, next: State) {
        let mut state = self.lane.state.lock();
        if matches!(&*state, State::Dialling { generation, .. } if *generation == self.generation) {
            *state = next;
        }
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        self.leave(State::Down);
    }
}

fn failure_to_dial(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) => failure::classify(error),
        error => Error::new(ErrorKind::Connect, "the pool gave no connection to redis")
            .with_source(error),
    }
}
