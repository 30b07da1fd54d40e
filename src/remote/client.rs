//! The client of one Redis server: the state that all decisions on it share.
//!
//! ```text
//! Node ------> Client --> Scheduler --> queue, calls, window
//!                 |          '-------> lanes: the connections
//!                 |--> Calls           reports each call to the breaker
//!                 |--> DenialCache     denials that still hold
//!                 |--> Leases          units that this instance has leased
//!                 |--> releases        slots to release in the background
//!                 |--> Nodes           the other nodes of a cluster
//!                 |
//!                 |    shared with the clients of these nodes:
//!                 |--> Keyspace        makes the keys
//!                 |--> ServerCheck     warns about the clock and the eviction policy
//!                 |--> Registration    registers this instance, and learns the number of instances
//!                 |--> ServerMode      whether there is a cluster
//!                 '--> Watchdog        the thread that keeps the deadlines; it holds weak references
//! ```

use std::{
    fmt::{self, Debug},
    io,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::Thread,
    time::Duration,
};

#[cfg(feature = "metrics")]
use crate::telemetry::CallMetrics;

use crate::{
    charge::Settlement,
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind, Phase},
    key::slot::slot_of,
    resilience::Calls,
    task::{Mutex, RetryQueue, home::CallersRuntime},
};

use super::{
    batch::Scheduler,
    connection::{Lane, LaneConnection, LatestRuns, ServerCheck, ServerMode, ServerRun},
    denial_cache::DenialCache,
    leases::Leases,
    protocol::{Keyspace, NodeAddress, Redirect},
    registration::Registration,
};

/// Finds the nodes of a cluster, for the clients of its nodes.
pub(super) trait Nodes: Debug + Send + Sync {
    /// Returns the client of the node that a redirect leads to. After [`Redirect::Moved`] the node has the slot.
    ///
    /// `from` is the node that sent the redirect: an address without a host has the same one.
    fn follow(&self, redirect: &Redirect, from: Option<&NodeAddress>) -> Option<Arc<Client>>;

    /// Returns the client of the node that has this slot, as far as it is known.
    fn client_of(&self, slot: u16) -> Option<Arc<Client>>;

    /// Returns an identity that only probes use, whose slot is at this client; `None` if it has none.
    fn probe_identity(&self, client: &Client) -> Option<String>;

    /// Looks in the background which node has which slot.
    fn refresh(&self);

    /// Settles a charge in the background, at the node that has its slot.
    fn settle_later(&self, settlement: Settlement);
}

/// The client of one Redis server.
///
/// Clones of a store, its workers and the watchdog thread share it. Only the scheduler and the lanes have a lock that
/// every decision takes.
pub(super) struct Client {
    /// The address of the server; `None` if only the application's pool has it.
    pub address: Option<NodeAddress>,
    /// The waiting requests, the calls in flight and the connections.
    pub scheduler: Scheduler,
    /// Makes the keys.
    pub keyspace: Arc<Keyspace>,
    /// The longest time that a decision takes, with all waits.
    pub deadline: Duration,
    /// The caller's clock, if the script must not take the server's time.
    pub clock: Option<Clock>,
    /// Warns about a server that is not fit to keep counts.
    pub check: Arc<ServerCheck>,
    /// The thread that keeps the deadlines.
    pub watchdog: Arc<Watchdog>,
    /// Records the latency of calls.
    #[cfg(feature = "metrics")]
    pub metrics: CallMetrics,
    /// Reports the calls to the breaker.
    pub calls: Calls,
    /// Registers this instance among those that share the server.
    pub registration: Arc<Registration>,
    /// Denials that still hold.
    pub denials: DenialCache,
    /// Units that this instance has leased, at all servers.
    pub leases: Arc<Leases>,
    /// Slots that nobody holds, whose release is not confirmed.
    pub releases: RetryQueue<Settlement>,
    /// Whether the check of the server's eviction policy was started.
    pub has_checked_eviction: AtomicBool,
    /// Whether the next dial begins at once, although the last ones failed.
    skips_next_backoff: AtomicBool,
    runs: Mutex<LatestRuns>,
    /// Where dispatchers start.
    pub callers: CallersRuntime,
    /// When it was found to have been promoted the last time, in microseconds since the Unix epoch; 0 for never.
    promoted_at: AtomicU64,
    /// Whether the server has replied to a call.
    has_replied: AtomicBool,
    /// Whether the server is part of a cluster. All its nodes share this.
    pub mode: Arc<ServerMode>,
    /// The other nodes of the cluster.
    nodes: OnceLock<Weak<dyn Nodes>>,
}

impl Client {
    /// Returns the client of a store's first server, without connections. Lanes connect, and the watchdog starts, with
    /// the first decision.
    ///
    /// `address` is `None` if only the application's pool has it.
    pub fn new(
        address: Option<NodeAddress>,
        lanes: Box<[Arc<Lane>]>,
        keyspace: Keyspace,
        deadline: Duration,
        clock: Option<Clock>,
        check: ServerCheck,
        keeps_denials: bool,
    ) -> Arc<Self> {
        let denials = DenialCache::new(keeps_denials, now_by(clock.as_ref()));
        let registration = Registration::new(keyspace.members_key(), clock.clone());
        // With the caller's clock, leases would end at different moments for different instances.
        let leases = Arc::new(Leases::new(clock.is_none(), deadline));
        Self {
            #[cfg(feature = "metrics")]
            metrics: CallMetrics::new(address.as_ref().map(ToString::to_string)),
            address,
            scheduler: Scheduler::new(deadline, lanes),
            keyspace: Arc::new(keyspace),
            deadline,
            clock,
            check: Arc::new(check),
            watchdog: Arc::new(Watchdog::new(deadline)),
            calls: Calls::new(),
            registration,
            denials,
            leases,
            releases: RetryQueue::default(),
            has_checked_eviction: AtomicBool::new(false),
            skips_next_backoff: AtomicBool::new(false),
            runs: Mutex::default(),
            callers: CallersRuntime::default(),
            promoted_at: AtomicU64::new(0),
            has_replied: AtomicBool::new(false),
            mode: Arc::default(),
            nodes: OnceLock::new(),
        }
        .watched()
    }

    /// Returns a client for another node of the same cluster, without connections.
    pub fn for_node(&self, address: NodeAddress, lanes: Box<[Arc<Lane>]>) -> Arc<Self> {
        Self {
            #[cfg(feature = "metrics")]
            metrics: CallMetrics::new(Some(address.to_string())),
            address: Some(address),
            scheduler: Scheduler::new(self.deadline, lanes),
            keyspace: Arc::clone(&self.keyspace),
            deadline: self.deadline,
            clock: self.clock.clone(),
            check: Arc::clone(&self.check),
            watchdog: Arc::clone(&self.watchdog),
            calls: Calls::new(),
            registration: Arc::clone(&self.registration),
            denials: DenialCache::new(self.denials.is_on(), now_by(self.clock.as_ref())),
            leases: Arc::clone(&self.leases),
            releases: RetryQueue::default(),
            has_checked_eviction: AtomicBool::new(false),
            skips_next_backoff: AtomicBool::new(false),
            runs: Mutex::default(),
            callers: CallersRuntime::default(),
            promoted_at: AtomicU64::new(0),
            has_replied: AtomicBool::new(false),
            mode: Arc::clone(&self.mode),
            nodes: self.nodes.clone(),
        }
        .watched()
    }

    /// Adds the client to those that the watchdog looks at.
    fn watched(self) -> Arc<Self> {
        let client = Arc::new(self);
        client.watchdog.clients.lock().push(Arc::downgrade(&client));
        client
    }

    /// Sets the cluster that the server may be part of. Only the first call has an effect.
    pub fn join(&self, nodes: Weak<dyn Nodes>) {
        let _ = self.nodes.set(nodes);
    }

    /// Returns the client of the node that a redirect leads to; `None` if it cannot be reached, since only the
    /// application's pool has the settings of connections.
    pub fn follow(&self, redirect: &Redirect) -> Option<Arc<Self>> {
        self.note_mode(true);
        self.nodes()?.follow(redirect, self.address.as_ref())
    }

    /// Returns an identity that only probes use. In a cluster its slot is at this server, if it has any.
    pub fn probe_identity(&self) -> String {
        let nodes = self
            .nodes()
            .filter(|_| self.mode.is_cluster() == Some(true));
        let identity = nodes.and_then(|nodes| nodes.probe_identity(self));
        identity.unwrap_or_else(|| "!".to_owned())
    }

    /// Returns the client of the node that has this slot now; `None` if that is not known.
    pub fn client_of(&self, slot: u16) -> Option<Arc<Self>> {
        let nodes = self
            .nodes()
            .filter(|_| self.mode.is_cluster() == Some(true));
        nodes?.client_of(slot)
    }

    /// Returns a connection to the server that has the keys of this identity, if there is one already. If there is none,
    /// dials in the background.
    ///
    /// `own` returns a connection to this server, which may have the keys, or redirects to their server.
    pub fn connection_for(
        &self,
        identity: &[u8],
        own: impl FnOnce() -> Option<LaneConnection>,
    ) -> Option<LaneConnection> {
        let Some(client) = self.client_of(slot_of(identity)) else {
            return own();
        };
        let lanes = client.scheduler.lanes();
        let connection = lanes.iter().find_map(|lane| lane.side_connection());
        if connection.is_none() {
            lanes[0].start_dial();
        }
        connection
    }

    /// Returns the present time by the clock of kept denials: that of the caller if the script takes it, else of this process.
    #[inline]
    pub fn now(&self) -> Timestamp {
        now_by(self.clock.as_ref())
    }

    /// Notes whether the server is part of a cluster.
    pub fn note_mode(&self, is_cluster: bool) {
        if self.mode.set(is_cluster) {
            self.refresh_nodes();
        }
    }

    /// Notes the run of the server that a connection leads to. If this run has replaced another one, the server may
    /// have lost its states. The breaker then gets a report, and this method returns the output of `replaced`.
    ///
    /// The first calls on other connections to the same run wait here until that is done.
    pub fn note_run<T>(&self, run: ServerRun, replaced: impl FnOnce() -> T) -> Option<T> {
        let mut runs = self.runs.lock();
        let is_replaced = runs.note(run, self.is_one_server());
        if is_replaced {
            self.void_knowledge();
        }
        (is_replaced && self.calls.have_guard()).then(|| {
            self.calls.replaced();
            replaced()
        })
    }

    /// Makes void what this instance knows of states that the server may have lost.
    fn void_knowledge(&self) {
        self.denials.relieve_all();
        self.leases.void_all();
    }

    /// Returns whether there is no connection since the server failed. To an idle server there may be none either.
    pub fn is_down(&self) -> bool {
        !self.scheduler.is_up() && self.scheduler.lanes().iter().any(|lane| lane.has_failed())
    }

    /// Returns whether all connections lead to one server, whatever its address. The name of a whole cluster leads to any of
    /// its nodes.
    fn is_one_server(&self) -> bool {
        match self.mode.is_cluster() {
            Some(true) => {
                let nodes = self.nodes();
                nodes.is_some_and(|nodes| nodes.probe_identity(self).is_some())
            }
            Some(false) => true,
            None => false,
        }
    }

    /// Notes that this node has taken the place of another one, whose latest states it may lack.
    pub fn note_promoted(&self) {
        self.calls.replaced();
        self.note_taken_over();
    }

    /// Notes that slots of the node whose place it has taken are found here from now on. Decisions that were submitted
    /// before have passed the breaker of the other node, which restores nothing here.
    pub fn note_taken_over(&self) {
        self.void_knowledge();
        let now = Clock::system().now().as_micros();
        self.promoted_at.fetch_max(now, Ordering::Release);
    }

    /// Returns whether the node was found to have been promoted at this time or after it. A request that was submitted before
    /// would be decided without the states that it may lack.
    pub fn was_promoted_since(&self, time: Timestamp) -> bool {
        self.promoted_at.load(Ordering::Acquire) >= time.as_micros()
    }

    /// Looks in the background which node has which slot, if the server is part of a cluster.
    fn refresh_nodes(&self) {
        if self.mode.is_cluster() == Some(true)
            && let Some(nodes) = self.nodes()
        {
            nodes.refresh();
        }
    }

    /// Returns the nodes of the cluster, unless the store was dropped.
    pub fn nodes(&self) -> Option<Arc<dyn Nodes>> {
        self.nodes.get().and_then(Weak::upgrade)
    }

    /// Lets the next dial begin at once, although the last ones failed. The probe of the breaker has its own backoff.
    pub fn skip_next_backoff(&self) {
        self.skips_next_backoff.store(true, Ordering::Relaxed);
    }

    /// Returns whether a dial now skips the backoff, and resets that choice.
    pub fn take_backoff_skip(&self) -> bool {
        self.skips_next_backoff.swap(false, Ordering::Relaxed)
    }

    /// Reports a call with a reply to the breaker. `took` is without the delays of this process.
    ///
    /// `decided_at` is the time in a reply that came just now.
    pub fn report_reply(&self, took: Duration, decided_at: Option<Timestamp>) {
        if !self.has_replied.load(Ordering::Relaxed) {
            self.has_replied.store(true, Ordering::Relaxed);
        }
        self.calls.replied_at(took, decided_at);
    }

    /// Reports a call that failed to the breaker. Another node may have the slots by now.
    pub fn report_failure(&self, error: &Error) {
        self.refresh_nodes();
        let is_node = self.mode.is_cluster() == Some(true);
        if is_node
            && matches!(
                error.kind(),
                ErrorKind::Connect | ErrorKind::Timeout(Phase::Connect)
            )
            && !self.has_replied.load(Ordering::Relaxed)
        {
            self.check.warn_of_unreachable(
                "a node of the redis cluster was never reached at the address that the cluster gives",
            );
        }
        self.calls.failed(error);
    }

    /// Returns the address of the server, for log events and metrics.
    pub fn server(&self) -> Option<String> {
        self.scheduler.lanes()[0].server()
    }

    /// Returns the error of a decision that the deadline ended in this phase.
    pub fn timeout_error(&self, phase: Phase) -> Error {
        let (missing, advice) = match phase {
            Phase::Connect => ("no connection to redis", self.scheduler.lanes()[0].advice()),
            Phase::Queue => ("no room for another call to redis", ""),
            Phase::Reply => ("no reply from redis", ""),
        };
        let place = match &self.address {
            Some(address) => format!(" at {address}"),
            None => String::new(),
        };
        Error::new(
            ErrorKind::Timeout(phase),
            format!(
                "{missing}{place} within the deadline of {:?}{advice}",
                self.deadline
            ),
        )
    }
}

// Not derived: connections, calls and leases are large, and change while they are read.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.address)
            .field("keyspace", &self.keyspace)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Drop for Client {
    /// Ends the dials under way: their tasks keep the lanes alive, and the watchdog does not see them any more.
    fn drop(&mut self) {
        for lane in self.scheduler.lanes() {
            lane.cancel_dial();
        }
    }
}

/// Returns the present time by the clock that the script is given, or by that of this process.
fn now_by(clock: Option<&Clock>) -> Timestamp {
    clock.unwrap_or(&Clock::system()).now()
}

// === Watchdog ===

/// A handle on the thread that keeps the deadlines, see `batch/watchdog.rs`.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// The longest time that a decision takes. The thread looks three times as often.
    pub deadline: Duration,
    clients: Mutex<Vec<Weak<Client>>>,
    /// Whether the thread looks without being woken. Every decision reads it.
    is_awake: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Watchdog {
    /// Returns a watchdog without a thread.
    fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            clients: Mutex::new(Vec::new()),
            is_awake: AtomicBool::new(false),
            thread: Mutex::new(None),
        }
    }

    /// Returns the clients to look at.
    pub fn clients(&self) -> Vec<Arc<Client>> {
        let mut clients = self.clients.lock();
        clients.retain(|client| client.strong_count() > 0);
        clients.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns whether the thread looks without being woken.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.is_awake.load(Ordering::Acquire)
    }

    /// Notes whether the thread looks without being woken.
    pub fn set_awake(&self, is_awake: bool) {
        self.is_awake.store(is_awake, Ordering::Release);
    }

    /// Wakes the thread, or calls `start` if there is none yet.
    ///
    /// # Errors
    ///
    /// That of `start`. The next call tries again.
    pub fn wake_or_start(&self, start: impl FnOnce() -> io::Result<Thread>) -> io::Result<()> {
        let mut thread = self.thread.lock();
        self.set_awake(true);
        if let Some(thread) = &*thread {
            thread.unpark();
            return Ok(());
        }
        *thread = Some(start().inspect_err(|_| self.set_awake(false))?);
        Ok(())
    }
}

impl Drop for Watchdog {
    /// Wakes the thread, which ends since all its clients are dropped.
    fn drop(&mut self) {
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }
}
