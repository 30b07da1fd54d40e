//! A connection that is held permanently and shared by all decisions.

use std::{
    future::{pending, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool_redis::{Connection, Pool, redis::aio::MultiplexedConnection};
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::{runtime::Handle, sync::watch, task::AbortHandle};

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind},
    sync::Mutex,
};

use super::{
    classify,
    dial::{self, Dial},
    dial_backoff::DialBackoff,
};

/// A place for one connection from the pool.
///
/// The connection is checked out once and multiplexed: checking it out per decision would cost a PING round trip each.
/// A lane that broke takes its connection out of the pool, which makes room for a new one.
#[derive(Debug)]
pub(in crate::remote) struct Lane {
    pool: Pool,
    connect_timeout: Duration,
    /// The generation of the connection that is up; 0 without one.
    up: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    backoff: DialBackoff,
    /// The error that ended the last connection or dial.
    last_error: Option<Error>,
}

enum Phase {
    Down,
    /// One dial is under way; everybody who needs the lane waits for it.
    Dialling {
        dialled: watch::Receiver<Dialled>,
        due: Timestamp,
        generation: u64,
        dial: Dial,
    },
    Up {
        connection: Connection,
        /// Tells connections apart: a late failure of an old one must not end its successor.
        generation: u64,
        made_at: Timestamp,
        is_first: bool,
        runtime: Arc<RuntimeGuard>,
    },
}

type Dialled = Option<Result<(), Error>>;

/// A lane's connection, for one call.
pub(in crate::remote) struct Held {
    connection: MultiplexedConnection,
    runtime: Arc<RuntimeGuard>,
    pub(in crate::remote) generation: u64,
    /// Whether it is for the first decision on the connection.
    pub(in crate::remote) is_first: bool,
    /// Whether the connection had ended before it took the last command. Nothing was sent then, so the command may be
    /// sent on another one.
    pub(in crate::remote) is_closed: bool,
}

impl Held {
    /// Sends a command and waits for its reply; an error reply is an error.
    pub(in crate::remote) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        if self.runtime.has_ended() {
            self.is_closed = true;
            return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
        }
        let mut sending = pin!(self.connection.send_packed_command(command));
        let mut is_first_poll = true;
        let reply = poll_fn(|context| {
            let polled = sending.as_mut().poll(context);
            is_first_poll &= polled.is_ready();
            polled
        })
        .await;
        // The client library does not report it: a command that was taken is pending when it is first polled. Unless the
        // runtime of the connection ends within that poll: then the command may have been written.
        self.is_closed = is_first_poll
            && reply.as_ref().is_err_and(RedisError::is_io_error)
            && !self.runtime.has_ended();
        reply?.extract_error()
    }

    /// Whether the connection has ended with its runtime, so that no reply will come.
    pub(in crate::remote) fn is_orphan(&self) -> bool {
        self.runtime.has_ended()
    }

    /// Another handle on the same connection.
    pub(in crate::remote) fn again(&self) -> Self {
        Self {
            connection: self.connection.clone(),
            runtime: Arc::clone(&self.runtime),
            generation: self.generation,
            is_first: false,
            is_closed: false,
        }
    }
}

impl Lane {
    pub(in crate::remote) fn new(pool: Pool, connect_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            pool,
            connect_timeout,
            up: AtomicU64::new(0),
            state: Mutex::new(State {
                phase: Phase::Down,
                backoff: DialBackoff::default(),
                last_error: None,
            }),
        })
    }

    /// Returns the generation of the lane's connection, if it has one.
    #[inline]
    pub(in crate::remote) fn generation(&self) -> Option<u64> {
        match self.up.load(Ordering::Acquire) {
            0 => None,
            generation => Some(generation),
        }
    }

    /// Makes the lane look as if it had a connection of this generation.
    #[cfg(test)]
    pub(in crate::remote) fn pretend(&self, generation: u64) {
        self.up.store(generation, Ordering::Release);
    }

    /// Returns the lane's connection for a decision, if it still is the one of this generation.
    pub(in crate::remote) fn held(&self, generation: u64) -> Option<Held> {
        let mut state = self.state.lock();
        let held = state.held()?;
        if held.generation != generation {
            return None;
        }
        if let Phase::Up { is_first, .. } = &mut state.phase {
            *is_first = false;
        }
        Some(held)
    }

    /// Returns the lane's connection, and dials when there is none. While the lane backs off after failures, the last
    /// error is returned at once, unless `now` is set.
    ///
    /// # Cancel safety
    ///
    /// A dial goes on when its callers leave, and serves the next one.
    pub(in crate::remote) async fn hold(self: &Arc<Self>, now: bool) -> Result<Held, Error> {
        // Twice at most: on a runtime that is ending each new dial is dropped at once, and its task could not end either.
        for _ in 0..2 {
            let mut dialled = match self.held_or_dial(now)? {
                Ok(held) => return Ok(held),
                Err(dialled) => dialled,
            };
            // No result: the dial's task was dropped with its runtime, or nobody drives it. The lane is free again.
            if let Ok(result) = dialled.wait_for(Option::is_some).await
                && let Some(Err(error)) = &*result
            {
                return Err(error.clone());
            }
        }
        self.state.lock().held().ok_or_else(|| {
            Error::new(
                ErrorKind::Connect,
                "the connection to redis was lost as soon as it was made",
            )
        })
    }

    /// Starts a dial if the lane is down and does not back off. Nobody waits for it.
    pub(in crate::remote) fn dial(self: &Arc<Self>) {
        let _ = self.held_or_dial(false);
    }

    /// Gives up the connection of this generation, if the lane still has it. `error` shows why; without one it was found
    /// closed before anything was sent.
    pub(in crate::remote) fn disconnect(&self, generation: u64, error: Option<&Error>) {
        let mut state = self.state.lock();
        let Phase::Up {
            generation: current,
            made_at,
            is_first,
            ref runtime,
            ..
        } = state.phase
        else {
            return;
        };
        if current != generation {
            return;
        }
        let has_runtime = !runtime.has_ended();
        // ## Up => Down
        let now = Clock::system().now();
        match error {
            // It ended with the runtime that it was made on, which shows nothing about the server.
            _ if !has_runtime => {}
            Some(error) => {
                state.backoff.broke(made_at, now);
                state.last_error = Some(error.clone());
            }
            // Never used: the server closes what it accepts.
            None if is_first => state.fail(classify::closed(), now),
            // Idle connections are closed by servers, networks and runtimes that end.
            None => {}
        }
        self.up.store(0, Ordering::Release);
        let broken = std::mem::replace(&mut state.phase, Phase::Down);
        drop(state);
        broken.end();
    }

    /// Gives the connection up if it has ended with its runtime. Returns its generation.
    pub(in crate::remote) fn disconnect_orphan(&self) -> Option<u64> {
        let generation = match &self.state.lock().phase {
            Phase::Up {
                generation,
                runtime,
                ..
            } if runtime.has_ended() => *generation,
            _ => return None,
        };
        self.disconnect(generation, None);
        Some(generation)
    }

    /// Whether a dial is under way.
    pub(in crate::remote) fn is_dialling(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Dialling { .. })
    }

    /// Ends a dial that took too long. Returns when to look at the one that is under way.
    pub(in crate::remote) fn end_late_dial(&self, now: Timestamp) -> Option<Timestamp> {
        let mut state = self.state.lock();
        let Phase::Dialling { due, dial, .. } = &state.phase else {
            return None;
        };
        if *due > now {
            return Some(*due);
        }
        // ## Dialling => Down: its task finds that it was called off, and reports it
        let dial = dial.clone();
        state.phase = Phase::Down;
        state.fail(dial::late(), now);
        drop(state);
        dial.call_off();
        None
    }

    /// Returns the connection, or else the dial to wait for.
    fn held_or_dial(
        self: &Arc<Self>,
        at_once: bool,
    ) -> Result<Result<Held, watch::Receiver<Dialled>>, Error> {
        let mut state = self.state.lock();
        if let Some(held) = state.held() {
            return Ok(Ok(held));
        }
        if let Phase::Dialling { dialled, .. } = &state.phase {
            return Ok(Err(dialled.clone()));
        }
        let now = Clock::system().now();
        if !at_once
            && !state.backoff.is_over(now)
            && let Some(error) = &state.last_error
        {
            return Err(error.clone());
        }
        let runtime = Handle::try_current().map_err(classify::no_runtime)?;
        // ## Down => Dialling
        let (sender, dialled) = watch::channel(None);
        let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
        let dial = Dial::new(self.pool.clone());
        state.phase = Phase::Dialling {
            dialled: dialled.clone(),
            due: now + self.connect_timeout,
            generation,
            dial: dial.clone(),
        };
        drop(state);
        // Made here and not in the task: a task that is dropped before its first poll must end the dial too.
        let task = DialTask {
            lane: Arc::clone(self),
            generation,
            dial,
            sender,
        };
        runtime.spawn(task.run());
        Ok(Err(dialled))
    }
}

impl State {
    fn held(&self) -> Option<Held> {
        match &self.phase {
            Phase::Up {
                connection,
                generation,
                is_first,
                runtime,
                ..
            } => Some(Held {
                connection: MultiplexedConnection::clone(connection),
                runtime: Arc::clone(runtime),
                generation: *generation,
                is_first: *is_first,
                is_closed: false,
            }),
            Phase::Dialling { .. } | Phase::Down => None,
        }
    }

    fn fail(&mut self, error: Error, now: Timestamp) {
        self.backoff.dial_failed(now);
        self.last_error = Some(error);
    }
}

impl Phase {
    /// Returns what it has to the pool. Not under the lane's lock: it wakes whoever waits for a connection.
    fn end(self) {
        match self {
            Self::Dialling { dial, .. } => dial.call_off(),
            Self::Down => {}
            Self::Up { connection, .. } => drop(Connection::take(connection)),
        }
    }
}

impl std::fmt::Debug for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Down => "Down",
            Self::Dialling { .. } => "Dialling",
            Self::Up { .. } => "Up",
        })
    }
}

// === DialTask ===

/// The task of a dial under way; dropped without an end, it leaves the lane down.
struct DialTask {
    lane: Arc<Lane>,
    generation: u64,
    dial: Dial,
    sender: watch::Sender<Dialled>,
}

impl DialTask {
    async fn run(self) {
        // Made before the connection's own task: a runtime that ends drops older tasks first.
        let runtime = RuntimeGuard::of_current();
        let result = self.dial.finish().await;
        self.end(result.map(|connection| (connection, runtime)));
    }

    /// ## Dialling => (Up | Down), and wakes everybody who waits.
    fn end(self, result: Result<(Connection, RuntimeGuard), Error>) {
        let now = Clock::system().now();
        let result = match result {
            Ok((connection, runtime)) => {
                self.leave(|state, lane| {
                    state.phase = Phase::Up {
                        connection,
                        generation: self.generation,
                        made_at: now,
                        is_first: true,
                        runtime: Arc::new(runtime),
                    };
                    lane.up.store(self.generation, Ordering::Release);
                });
                Ok(())
            }
            Err(error) => {
                self.leave(|state, _| {
                    state.phase = Phase::Down;
                    state.fail(error.clone(), now);
                });
                Err(error)
            }
        };
        self.sender.send_replace(Some(result));
    }

    /// Changes the lane's state, unless the dial was called off.
    fn leave(&self, change: impl FnOnce(&mut State, &Lane)) {
        let mut state = self.lane.state.lock();
        if matches!(&state.phase, Phase::Dialling { generation, .. } if *generation == self.generation)
        {
            change(&mut state, &self.lane);
        }
    }
}

impl Drop for DialTask {
    fn drop(&mut self) {
        self.leave(|state, _| state.phase = Phase::Down);
    }
}

// === RuntimeGuard ===

/// Shows whether the runtime that drives a connection has ended.
///
/// The client library reports a connection whose runtime has ended like one that the server closed.
#[derive(Debug)]
struct RuntimeGuard(AbortHandle);

impl RuntimeGuard {
    /// Watches the current runtime, by a task that never ends while the runtime lives.
    fn of_current() -> Self {
        Self(tokio::spawn(pending::<()>()).abort_handle())
    }

    fn has_ended(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The number of the next connection of any lane.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);
