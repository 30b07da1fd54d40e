//! The parts of a dashboard that its routes share.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::watch;

use crate::{
    clock::Clock,
    key::HashSecret,
    overload::Overload,
    store::{CallLatency, Stats},
    task::{Mutex, SingleTask},
};

#[cfg(feature = "reload")]
use crate::config::reload::RulesHandle;

use super::{history::DecisionHistory, permits::StreamPermits, watched::Watched};

/// A limiter with the history of its decisions, and the clients that follow it.
#[derive(Debug)]
pub(super) struct SharedDashboard {
    pub watched: Watched,
    pub title: Box<str>,
    pub hash_secret: Option<HashSecret>,
    pub overload: Option<Overload>,
    #[cfg(feature = "reload")]
    pub rules: Option<RulesHandle>,
    pub history: Mutex<DecisionHistory>,
    pub latency: Mutex<TotalLatency>,
    pub clock: Clock,
    /// The latest state as JSON, for clients that follow. Its sender is taken when the dashboard is closed.
    pub live: Mutex<Option<watch::Sender<Arc<str>>>>,
    pub permits: Arc<StreamPermits>,
    /// The task that samples.
    pub sampler: SingleTask,
}

impl SharedDashboard {
    pub fn new(
        watched: Watched,
        title: Box<str>,
        hash_secret: Option<HashSecret>,
        overload: Option<Overload>,
        #[cfg(feature = "reload")] rules: Option<RulesHandle>,
        clock: Clock,
        max_clients: usize,
    ) -> Self {
        let limiter = watched.limiter();
        let mut latency = TotalLatency::default();
        let calls = latency.add(&limiter.stats());
        // From now on, decisions are counted, if no other dashboard counts them already.
        let history = DecisionHistory::new(clock.now(), limiter.tally().counts(), &calls);
        Self {
            watched,
            title,
            hash_secret,
            overload,
            #[cfg(feature = "reload")]
            rules,
            history: Mutex::new(history),
            latency: Mutex::new(latency),
            permits: StreamPermits::new(max_clients, clock.clone()),
            clock,
            live: Mutex::new(Some(watch::Sender::new(Arc::from("")))),
            sampler: SingleTask::default(),
        }
    }

    /// Returns the present time in milliseconds since the Unix epoch: by the wall clock, and by the clock of the history.
    pub fn now_millis(&self) -> [u64; 2] {
        let now = self.clock.now();
        [self.clock.wall_time(now), now].map(|time| time.as_micros() / 1_000)
    }

    /// Ends all streams, and accepts no more.
    pub fn close(&self) {
        drop(self.live.lock().take());
    }
}

// === TotalLatency ===

/// The calls to all servers since the start. Those of a server that has left the cluster stay in it.
#[derive(Debug, Default)]
pub(super) struct TotalLatency {
    total: CallLatency,
    servers: HashMap<Option<String>, CallLatency>,
}

impl TotalLatency {
    /// Adds the calls since the last time, and returns all.
    pub fn add(&mut self, stats: &Stats) -> CallLatency {
        let mut servers = HashMap::with_capacity(stats.servers().len());
        for server in stats.servers() {
            let Some(latest) = server.latency() else {
                continue;
            };
            let address = server.address().map(str::to_owned);
            let before = self.servers.remove(&address).unwrap_or_default();
            let queue_wait = latest.queue_wait.since(&before.queue_wait);
            self.total.queue_wait.add(&queue_wait);
            let round_trip = latest.round_trip.since(&before.round_trip);
            self.total.round_trip.add(&round_trip);
            servers.insert(address, latest.clone());
        }
        self.servers = servers;
        self.total.clone()
    }
}
