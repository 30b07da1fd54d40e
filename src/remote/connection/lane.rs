//! A lane: a place for one connection that decisions share, dialled again when it breaks.
//!
//! ```text
//!            a decision needs it                    the dial succeeds
//!   Down ---------------------------> Dialling ---------------------------> Up
//!    ^ ^                                 |                                   |
//!    | '---------------------------------'                                   |
//!    |          the dial fails, or outlasts the connect timeout              |
//!    |                                                                       |
//!    '-----------------------------------------------------------------------'
//!        the connection breaks, does not reply for a deadline, or is of a pool and its runtime ends
//!
//!   transition        by whom                          the next dial waits
//!   Down => Dialling  connect, start_dial              -
//!   Dialling => Up    the dial's task                  -
//!   Dialling => Down  the dial's task: it failed       yes, longer each time
//!                     watchdog: it took too long       yes, longer each time
//!   Up => Down        disconnect, after an error       only if the previous connection also broke early
//!                     disconnect, never used           yes, longer each time
//!                     disconnect, idle and closed      no
//!                     disconnect, runtime ended        no; only if it is of a pool
//! ```
//!
//! While the next dial waits, the lane returns its last error at once. [`DialBackoff`] computes the waits.
//!
//! # Generations
//!
//! Each dial of any lane has a number, the *connection_id* of its connection. A call notes the connection_id that it was sent
//! on, and [`Lane::disconnect`] names it, so a late failure of an old connection never ends its successor.
//!
//! # Runtimes
//!
//! The runtime of the caller that dialled drives the connection. When that runtime ends, the connection goes
//! [home](crate::task::home), with the replies that are on their way. A dial begins again there. Work at home, such as a probe,
//! dials on the runtime of the latest caller, unless the last such dial was in vain.
//!
//! A connection of a pool ends with its runtime, since the pool drives it. The library reports that as if the server had
//! closed the connection, and commands that it took may never get a reply. A [`RuntimeGuard`] shows the difference: such an
//! end is not a failure of the server.

use std::{
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::{runtime::Handle, sync::watch, task::AbortHandle};

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind},
    task::{
        Mutex,
        home::{self, CallersRuntime},
    },
};

use super::{
    classify,
    dial::{self, Dial},
    dial_backoff::DialBackoff,
    endpoint::Endpoint,
    multiplexed::{Connection, ConnectionHandle},
    server_run::ServerRun,
};

/// A place for one connection.
///
/// The connection is multiplexed. One of a pool is checked out once, since a checkout per decision would cost a PING
/// round trip each. If it breaks it is taken out of the pool, which makes room for a new one.
#[derive(Debug)]
pub(in crate::remote) struct Lane {
    endpoint: Endpoint,
    /// The longest time of a dial. The watchdog cancels a longer one.
    connect_timeout: Duration,
    /// The number of the connection that is up; 0 without one. Every decision reads it without the lock.
    connection_id: AtomicU64,
    /// The number of the latest connection whose server's run was noted.
    noted: AtomicU64,
    link: Mutex<LaneState>,
    callers: CallersRuntime,
}

/// The state of a lane, and what remains of earlier connections.
#[derive(Debug)]
struct LaneState {
    state: LinkState,
    /// The waits before the next dials.
    backoff: DialBackoff,
    /// The error that ended the last connection or dial.
    last_error: Option<Error>,
}

/// The state of a lane, see the [module docs](self).
enum LinkState {
    /// There is neither a connection nor a dial.
    Down,
    /// One dial is under way; everybody who needs the lane waits for it.
    Dialling {
        result: watch::Receiver<DialResult>,
        /// When the connect timeout ends it.
        due: Timestamp,
        connection_id: u64,
        /// Cancels the dial.
        dial: Dial,
    },
    /// Decisions are sent on the connection.
    Up {
        connection: Connection,
        connection_id: u64,
        /// When the dial succeeded.
        made_at: Timestamp,
        /// Whether no decision was sent on it yet.
        is_unused: bool,
        /// The runtime that drives the connection, if it is of a pool.
        runtime: Option<Arc<RuntimeGuard>>,
    },
}

/// The result of a dial; `None` while it is under way.
type DialResult = Option<Result<(), Error>>;

/// The lane's connection, or the dial to wait for.
enum LaneAccess {
    Connected(LaneConnection),
    Dialling(watch::Receiver<DialResult>),
}

impl Lane {
    /// Returns a lane without a connection. The first decision dials.
    pub fn new(endpoint: Endpoint, connect_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            connect_timeout,
            connection_id: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            link: Mutex::new(LaneState {
                state: LinkState::Down,
                backoff: DialBackoff::default(),
                last_error: None,
            }),
            callers: CallersRuntime::default(),
        })
    }

    /// Returns the address of the server; `None` if only the application's pool has it.
    pub fn server(&self) -> Option<String> {
        self.endpoint.server()
    }

    /// Returns what makes its connections.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// See [`Endpoint::advice`].
    pub fn advice(&self) -> &'static str {
        self.endpoint.advice()
    }

    /// Returns the connection_id of the lane's connection; `None` without one.
    #[inline]
    pub fn connection_id(&self) -> Option<u64> {
        match self.connection_id.load(Ordering::Acquire) {
            0 => None,
            connection_id => Some(connection_id),
        }
    }

    /// Makes the lane look as if it had a connection of this connection_id.
    #[cfg(test)]
    pub fn simulate(&self, connection_id: u64) {
        self.connection_id.store(connection_id, Ordering::Release);
    }

    /// Returns the connection of this connection_id for a decision; `None` if the lane no longer has it.
    ///
    /// The first decision on a connection finds it unused, see [`LaneConnection::is_first_use`].
    pub fn connection(&self, connection_id: u64) -> Option<LaneConnection> {
        let mut link = self.link.lock();
        let connection = link
            .connection()
            .filter(|connection| connection.connection_id == connection_id)?;
        if let LinkState::Up { is_unused, .. } = &mut link.state {
            *is_unused = false;
        }
        Some(connection)
    }

    /// Has `note` note the run of the server that this connection leads to, unless that is done.
    ///
    /// Several of the first calls may do so, since none of them must be sent before.
    #[inline]
    pub fn note_run(&self, connection: &LaneConnection, note: impl FnOnce(ServerRun)) {
        if self.noted.load(Ordering::Acquire) != connection.connection_id {
            if let Some(run) = connection.run {
                note(run);
            }
            self.noted
                .store(connection.connection_id, Ordering::Release);
        }
    }

    /// Returns the connection, if there is one, for a command other than a decision.
    pub fn side_connection(&self) -> Option<LaneConnection> {
        self.link.lock().connection()
    }

    /// Returns the lane's connection, and dials if there is none.
    ///
    /// # Errors
    ///
    /// Those of the dial. While the next dial must wait, the last error at once, unless `skip_backoff` is set.
    ///
    /// # Cancel safety
    ///
    /// A dial continues when its callers leave, and serves the next one.
    pub async fn connect(self: &Arc<Self>, skip_backoff: bool) -> Result<LaneConnection, Error> {
        // Twice at most: without a thread for home, a runtime that is ending drops each new dial at once.
        for _ in 0..2 {
            let mut result = match self.access(skip_backoff)? {
                LaneAccess::Connected(connection) => return Ok(connection),
                LaneAccess::Dialling(result) => result,
            };
            // No result means that the dial's task was dropped and could not go home. The lane is down again.
            if let Ok(result) = result.wait_for(Option::is_some).await
                && let Some(Err(error)) = &*result
            {
                return Err(error.clone());
            }
        }
        self.link.lock().connection().ok_or_else(|| {
            Error::new(
                ErrorKind::Connect,
                "the connection to redis was lost as soon as it was made",
            )
        })
    }

    /// Returns whether the current runtime drives the lane's connection, as far as is known.
    pub fn is_driven_here(&self) -> bool {
        match &self.link.lock().state {
            LinkState::Up { connection, .. } => connection.is_driven_here(),
            LinkState::Down | LinkState::Dialling { .. } => false,
        }
    }

    /// Starts a dial in the background, if the lane is down and no dial must wait.
    pub fn start_dial(self: &Arc<Self>) {
        let _ = self.access(false);
    }

    /// Gives up the connection of this connection_id, if the lane still has it.
    ///
    /// `error` is the cause; `None` if the connection was found closed before anything was sent.
    pub fn disconnect(&self, connection_id: u64, error: Option<&Error>) {
        let mut link = self.link.lock();
        let LinkState::Up {
            connection_id: current,
            made_at,
            is_unused,
            ref runtime,
            ..
        } = link.state
        else {
            return;
        };
        if current != connection_id {
            return;
        }
        let is_losing_runtime = is_losing(runtime.as_ref());
        // ## Up => Down
        let now = Clock::system().now();
        match error {
            // The end of a pool's runtime shows nothing about the server.
            _ if is_losing_runtime => {}
            Some(error) => {
                link.backoff.record_broken(made_at, now);
                link.last_error = Some(error.clone());
            }
            // The connection was closed unused, so the server accepts and drops connections: a failure.
            None if is_unused => link.record_failure(classify::closed(), now),
            // Servers and networks close idle connections.
            None => {}
        }
        self.connection_id.store(0, Ordering::Release);
        let broken = std::mem::replace(&mut link.state, LinkState::Down);
        drop(link);
        if let LinkState::Up { connection, .. } = broken {
            // Makes room in the pool. After the lock is released: it wakes a task that waits for a connection.
            connection.discard();
        }
    }

    /// Gives up the connection if its runtime has ended, and returns its connection_id.
    pub fn disconnect_if_runtime_ended(&self) -> Option<u64> {
        let connection_id = match &self.link.lock().state {
            LinkState::Up {
                connection_id,
                runtime,
                ..
            } if has_lost(runtime.as_ref()) => *connection_id,
            LinkState::Down | LinkState::Dialling { .. } | LinkState::Up { .. } => return None,
        };
        self.disconnect(connection_id, None);
        Some(connection_id)
    }

    /// Returns whether an error ended a connection or a dial.
    pub fn has_failed(&self) -> bool {
        self.link.lock().last_error.is_some()
    }

    /// Returns whether a dial is under way.
    pub fn is_dialling(&self) -> bool {
        matches!(self.link.lock().state, LinkState::Dialling { .. })
    }

    /// Cancels a dial that took longer than the connect timeout. Returns when a dial under way must be looked at again.
    pub fn cancel_late_dial(&self, now: Timestamp) -> Option<Timestamp> {
        let mut link = self.link.lock();
        let LinkState::Dialling { due, dial, .. } = &link.state else {
            return None;
        };
        if *due > now {
            return Some(*due);
        }
        // ## Dialling => Down; its task finds the dial cancelled, and wakes everybody who waits
        let dial = dial.clone();
        link.state = LinkState::Down;
        link.record_failure(dial::timed_out(&self.endpoint), now);
        drop(link);
        self.callers.forget();
        dial.cancel();
        None
    }

    /// Cancels a dial under way, since nobody needs the connection any more.
    pub fn cancel_dial(&self) {
        let link = self.link.lock();
        if let LinkState::Dialling { dial, .. } = &link.state {
            let dial = dial.clone();
            drop(link);
            dial.cancel();
        }
    }

    /// Returns the connection or the dial under way, and starts a dial if there is neither.
    ///
    /// # Errors
    ///
    /// The last error of the lane while the next dial must wait, and that of a caller outside a Tokio runtime.
    fn access(self: &Arc<Self>, skip_backoff: bool) -> Result<LaneAccess, Error> {
        let mut link = self.link.lock();
        if let Some(connection) = link.connection() {
            return Ok(LaneAccess::Connected(connection));
        }
        if let LinkState::Dialling { result, .. } = &link.state {
            return Ok(LaneAccess::Dialling(result.clone()));
        }
        let now = Clock::system().now();
        if !skip_backoff
            && !link.backoff.is_over(now)
            && let Some(error) = &link.last_error
        {
            return Err(error.clone());
        }
        let runtime = Handle::try_current().map_err(classify::no_runtime)?;
        // ## Down => Dialling
        let (sender, result) = watch::channel(None);
        let connection_id = NEXT_GENERATION.fetch_add(1, Ordering::Relaxed);
        let dial = Dial::new(self.endpoint.clone());
        link.state = LinkState::Dialling {
            result: result.clone(),
            due: now + self.connect_timeout,
            connection_id,
            dial: dial.clone(),
        };
        drop(link);
        // Made outside the task: a task that is dropped before its first poll must go home too.
        let task = DialTask {
            lane: Arc::clone(self),
            connection_id,
            dial,
            result: sender,
            is_at_home: false,
        };
        self.callers.choose(runtime).spawn(task.run());
        Ok(LaneAccess::Dialling(result))
    }
}

impl LaneState {
    /// Returns a handle on the connection, if there is one.
    fn connection(&self) -> Option<LaneConnection> {
        match &self.state {
            LinkState::Up {
                connection,
                connection_id,
                is_unused,
                runtime,
                ..
            } => Some(LaneConnection {
                writes_at_once: false,
                connection: connection.handle(),
                runtime: runtime.clone(),
                connection_id: *connection_id,
                is_first_use: *is_unused,
                run: connection.run,
            }),
            LinkState::Dialling { .. } | LinkState::Down => None,
        }
    }

    /// Records a dial that failed, or a connection that was never of use.
    fn record_failure(&mut self, error: Error, now: Timestamp) {
        self.backoff.record_failed_dial(now);
        self.last_error = Some(error);
    }
}

impl std::fmt::Debug for LinkState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Down => "Down",
            Self::Dialling { .. } => "Dialling",
            Self::Up { .. } => "Up",
        })
    }
}

// === LaneConnection ===

/// A handle on a lane's connection, for one call.
///
/// The connection is multiplexed: handles send independently, and the server replies in the order of the commands.
#[derive(Clone)]
pub(in crate::remote) struct LaneConnection {
    connection: ConnectionHandle,
    /// As in [`LinkState::Up`].
    runtime: Option<Arc<RuntimeGuard>>,
    pub connection_id: u64,
    /// Whether commands are written before the connection's task has its turn.
    pub writes_at_once: bool,
    /// Whether this call is the first decision on the connection.
    pub is_first_use: bool,
    /// The run of the server, if it is known.
    run: Option<ServerRun>,
}

/// The error of a command.
///
/// A command that was not sent can be sent on another connection. One that was sent may have been executed.
#[derive(Debug)]
pub(in crate::remote) struct SendError {
    pub error: RedisError,
    /// `false` if the connection had ended before it took the command, which may then be sent on another connection.
    pub was_sent: bool,
}

impl LaneConnection {
    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    ///
    /// Those of the connection, and error replies.
    pub async fn send(&mut self, command: &Cmd) -> Result<Value, SendError> {
        let driven = self.writes_at_once.then(|| self.connection.clone());
        let sending = self.connection.multiplexed.send_packed_command(command);
        let reply = track(sending, driven.as_ref(), self.runtime.as_ref()).await?;
        reply.extract_error().map_err(SendError::after_sending)
    }

    /// Sends several commands at once and waits for all their replies, of which some may be errors.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub async fn send_all(&mut self, commands: &Pipeline) -> Result<Vec<Value>, SendError> {
        let sending = self
            .connection
            .multiplexed
            .send_packed_commands(commands, 0, commands.len());
        track(sending, None, self.runtime.as_ref()).await
    }

    /// Returns whether the connection is of a pool and its runtime has ended, so that no reply will come.
    pub fn has_lost_runtime(&self) -> bool {
        has_lost(self.runtime.as_ref())
    }

    /// As [`has_lost_runtime`](Self::has_lost_runtime), also while the runtime ends. For a connection that broke.
    pub fn is_losing_runtime(&self) -> bool {
        is_losing(self.runtime.as_ref())
    }
}

impl SendError {
    /// Returns the error of a command that was sent.
    pub fn after_sending(error: RedisError) -> Self {
        Self {
            error,
            was_sent: true,
        }
    }
}

/// Awaits replies, and finds out whether the connection took the commands.
///
/// # Errors
///
/// Those of the connection. A connection whose runtime has ended is not used.
async fn track<T>(
    sending: impl Future<Output = RedisResult<T>>,
    driven: Option<&ConnectionHandle>,
    runtime: Option<&Arc<RuntimeGuard>>,
) -> Result<T, SendError> {
    if has_lost(runtime) {
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        return Err(SendError {
            error: broken.into(),
            was_sent: false,
        });
    }
    let mut sending = pin!(sending);
    let mut was_ready_at_first_poll = true;
    let reply = poll_fn(|context| {
        let polled = sending.as_mut().poll(context);
        if was_ready_at_first_poll && polled.is_pending() {
            // The commands are with the connection.
            was_ready_at_first_poll = false;
            if let Some(connection) = driven {
                connection.drive();
            }
        }
        polled
    })
    .await;
    // The library does not report whether it took the commands, but if it did, the first poll is pending. If the
    // runtime of the connection ended within that poll, the commands may have been written all the same.
    reply.map_err(|error| {
        let was_refused = was_ready_at_first_poll && error.is_io_error() && !is_losing(runtime);
        SendError {
            was_sent: !was_refused,
            error,
        }
    })
}

// === DialTask ===

/// The task of a dial. If it is dropped before it ends, the dial begins again at home.
struct DialTask {
    lane: Arc<Lane>,
    connection_id: u64,
    dial: Dial,
    result: watch::Sender<DialResult>,
    is_at_home: bool,
}

impl DialTask {
    /// Dials, and sets the lane's state by the result.
    async fn run(self) {
        let result = self.dial.finish().await;
        self.finish(result);
    }

    /// ## Dialling => (Up | Down); wakes everybody who waits
    fn finish(self, result: Result<Connection, Error>) {
        let now = Clock::system().now();
        let result = match result {
            Ok(connection) => {
                let guard = || Arc::new(RuntimeGuard::of_current());
                let runtime = connection.is_of_pool().then(guard);
                self.leave_dialling(|link, lane| {
                    link.state = LinkState::Up {
                        connection,
                        connection_id: self.connection_id,
                        made_at: now,
                        is_unused: true,
                        runtime,
                    };
                    lane.connection_id
                        .store(self.connection_id, Ordering::Release);
                });
                Ok(())
            }
            Err(error) => {
                self.leave_dialling(|link, _| {
                    link.state = LinkState::Down;
                    link.record_failure(error.clone(), now);
                });
                Err(error)
            }
        };
        self.result.send_replace(Some(result));
    }

    /// Runs `change` on the lane's link, unless the dial was cancelled.
    fn leave_dialling(&self, change: impl FnOnce(&mut LaneState, &Lane)) {
        let mut link = self.lane.link.lock();
        if matches!(&link.state, LinkState::Dialling { connection_id, .. } if *connection_id == self.connection_id)
        {
            change(&mut link, &self.lane);
        }
    }
}

impl Drop for DialTask {
    fn drop(&mut self) {
        if self.is_at_home || self.dial.is_cancelled() {
            self.leave_dialling(|link, _| link.state = LinkState::Down);
            return;
        }
        // Its sockets are those of the former runtime.
        let again = Dial::new(self.lane.endpoint.clone());
        let mut is_dialling = false;
        self.leave_dialling(|link, _| {
            if let LinkState::Dialling { dial, .. } = &mut link.state {
                *dial = again.clone();
                is_dialling = true;
            }
        });
        if is_dialling {
            let task = Self {
                lane: Arc::clone(&self.lane),
                connection_id: self.connection_id,
                dial: again,
                result: self.result.clone(),
                is_at_home: true,
            };
            home::spawn(task.run());
        }
    }
}

// === RuntimeGuard ===

/// Shows whether the runtime that drives a connection of a pool has ended.
#[derive(Debug)]
struct RuntimeGuard {
    /// A task that never ends while the runtime lives.
    task: AbortHandle,
    runtime: Handle,
}

impl RuntimeGuard {
    /// Returns a guard for the current runtime.
    fn of_current() -> Self {
        Self {
            task: tokio::spawn(pending::<()>()).abort_handle(),
            runtime: Handle::current(),
        }
    }

    /// Returns whether the runtime has ended.
    fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Returns whether the runtime has ended or drops its tasks, which it does in no order.
    fn is_ending(&self) -> bool {
        let probe = self.runtime.spawn(pending::<()>()).abort_handle();
        let was_dropped = probe.is_finished();
        probe.abort();
        was_dropped || self.has_ended()
    }
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns whether a connection has lost the runtime that drives it.
fn has_lost(runtime: Option<&Arc<RuntimeGuard>>) -> bool {
    runtime.is_some_and(|runtime| runtime.has_ended())
}

/// As [`has_lost`], also while the runtime ends. Costs a task.
fn is_losing(runtime: Option<&Arc<RuntimeGuard>>) -> bool {
    runtime.is_some_and(|runtime| runtime.is_ending())
}

/// The number of the next connection of any lane.
static NEXT_GENERATION: AtomicU64 = AtomicU64::new(1);
