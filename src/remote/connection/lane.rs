//! A connection that is held for good and shared by all decisions.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool_redis::{Connection, Pool, redis::aio::MultiplexedConnection};
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::{runtime::Handle, sync::watch, time::timeout};

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind},
    sync::Mutex,
};

use super::{classify, dial::Attempt};

/// A place for one connection out of the pool.
///
/// The connection is checked out once and multiplexed: checking it out per decision would cost a PING round trip each.
/// A lane that broke takes its connection out of the pool, which makes room for a new one.
#[derive(Debug)]
pub(in crate::remote) struct Lane {
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
        attempt: Attempt,
    },
    Up {
        connection: Connection,
        /// Which of the lane's connections it is: a late failure of an old one must not end its successor.
        generation: u64,
        /// When the first call was made that was not awaited to its end, since the last reply.
        unanswered: Option<Timestamp>,
    },
}

type Dialled = Option<Result<(), Error>>;

/// A lane's connection, for one decision.
pub(in crate::remote) struct Held {
    connection: MultiplexedConnection,
    pub(in crate::remote) generation: u64,
    /// Whether the last call before it was not awaited to its end.
    pub(in crate::remote) is_doubtful: bool,
    /// Whether it had ended before it took the last command: nothing was sent, so it may be sent on another one.
    pub(in crate::remote) is_gone: bool,
}

impl Held {
    /// Sends a command and waits for its reply; an error reply is an error.
    pub(in crate::remote) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let mut sending = pin!(self.connection.send_packed_command(command));
        let mut is_first = true;
        let reply = poll_fn(|context| {
            let polled = sending.as_mut().poll(context);
            is_first &= polled.is_ready();
            polled
        })
        .await;
        // The client library does not say it: a command that was taken is still on its way when it is first looked for.
        self.is_gone = is_first && reply.as_ref().is_err_and(RedisError::is_io_error);
        reply?.extract_error()
    }
}

impl Lane {
    pub(in crate::remote) fn new(pool: Pool, connect_timeout: Duration) -> Arc<Self> {
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
    pub(in crate::remote) async fn hold(self: &Arc<Self>) -> Result<Held, Error> {
        // Twice at most: on a runtime that is ending each new dial is dropped at once, and its task could not end either.
        for _ in 0..2 {
            let mut dialled = match self.held_or_dial() {
                Ok(held) => return Ok(held),
                Err(dialled) => dialled,
            };
            // No result: the dial's task was dropped with its runtime, or nobody drives it. The lane is free again.
            let result = timeout(self.overdue(), dialled.wait_for(Option::is_some)).await;
            if let Ok(Ok(result)) = result
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
    pub(in crate::remote) fn is_up(&self) -> bool {
        matches!(&*self.state.lock(), State::Up { .. })
    }

    /// The lane's connection, if it has one.
    pub(in crate::remote) fn held(&self) -> Option<Held> {
        self.state.lock().held()
    }

    /// Gives up the connection of this generation, if the lane still has it.
    pub(in crate::remote) fn break_off(&self, generation: u64) {
        let mut state = self.state.lock();
        if matches!(&*state, State::Up { generation: current, .. } if *current == generation) {
            // ## Up => Down
            let broken = std::mem::replace(&mut *state, State::Down);
            drop(state);
            broken.end();
        }
    }

    /// Notes that the connection answered a call.
    pub(in crate::remote) fn answered(&self, generation: u64) {
        if let Some(unanswered) = self.state.lock().unanswered(generation) {
            *unanswered = None;
        }
    }

    /// Notes a call that its caller left before the reply, and before the deadline that would tell whether one comes.
    ///
    /// When that is all that happened for a deadline, nobody would ever find out that the connection is mute.
    pub(in crate::remote) fn left(&self, generation: u64, called: Timestamp, deadline: Duration) {
        let mut state = self.state.lock();
        let Some(unanswered) = state.unanswered(generation) else {
            return;
        };
        let first = *unanswered.get_or_insert(called);
        drop(state);
        if Clock::system().now().since(first) > deadline {
            self.break_off(generation);
        }
    }

    /// How long a dial takes at most, if anybody drives it.
    fn overdue(&self) -> Duration {
        self.connect_timeout * 2
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
        // ## (Down | Dialling, on a runtime that nobody drives) => Dialling
        let (sender, dialled) = watch::channel(None);
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        let attempt = Attempt::new(self.pool.clone(), self.connect_timeout);
        let before = std::mem::replace(
            &mut *state,
            State::Dialling {
                dialled: dialled.clone(),
                until: Clock::system().now() + self.overdue(),
                generation,
                attempt: attempt.clone(),
            },
        );
        drop(state);
        before.end();
        // Made here and not in the task: a task that is dropped before its first poll must end the dial too.
        let dial = Dial {
            lane: Arc::clone(self),
            generation,
            attempt,
            sender,
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(dial.run())),
            Err(error) => dial.end(Err(classify::no_runtime(error))),
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
                unanswered,
            } => Some(Held {
                connection: MultiplexedConnection::clone(connection),
                generation: *generation,
                is_doubtful: unanswered.is_some(),
                is_gone: false,
            }),
            Self::Dialling { .. } | Self::Down => None,
        }
    }

    /// What is known of calls without a reply, while the connection is the one of this generation.
    fn unanswered(&mut self, of: u64) -> Option<&mut Option<Timestamp>> {
        match self {
            Self::Up {
                generation,
                unanswered,
                ..
            } if *generation == of => Some(unanswered),
            _ => None,
        }
    }

    /// Gives back what it has of the pool. Not under the lane's lock: it wakes whoever waits for a connection.
    fn end(self) {
        match self {
            Self::Dialling { attempt, .. } => attempt.call_off(),
            Self::Down => {}
            Self::Up { connection, .. } => drop(Connection::take(connection)),
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
    attempt: Attempt,
    sender: watch::Sender<Dialled>,
}

impl Dial {
    async fn run(self) {
        let result = self.attempt.finish().await;
        self.end(result);
    }

    /// ## Dialling => (Up | Down), and tells everybody who waits.
    fn end(self, result: Result<Connection, Error>) {
        let told = match result {
            Ok(connection) => {
                self.leave(State::Up {
                    connection,
                    generation: self.generation,
                    unanswered: None,
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
