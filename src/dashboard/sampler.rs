//! Reads the numbers of a limiter once a second.
//!
//! ```text
//! each second: tally, stats, health --> history
//!                                  \--> state as JSON, made once --> every client that follows
//! ```

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use serde_json::Value;

use crate::{
    store::{Health, Stats},
    task::{Running, timer},
};

use super::{shared::SharedDashboard, state};

/// Starts the sampler, unless it runs. Each request calls this, since the system may have had no thread for it before.
pub(super) fn start(shared: &Arc<SharedDashboard>) {
    let this = Arc::downgrade(shared);
    shared
        .sampler
        .start(|running| sample_every_second(this, running));
}

/// Returns the present state.
pub(super) fn state(shared: &SharedDashboard) -> Value {
    let limiter = shared.watched.limiter();
    let (stats, health) = (limiter.stats(), limiter.health());
    state::state(shared, &stats, &health)
}

/// Samples until the dashboard and its routes are dropped.
async fn sample_every_second(shared: Weak<SharedDashboard>, _running: Running) {
    while let Some(shared) = shared.upgrade() {
        sample(&shared);
        let past_second = shared.clock.now().as_micros() % SECOND;
        drop(shared);
        // Shortly after the second has ended, so that a sample that is a little late belongs to it too.
        let wait = SECOND - past_second + AFTER_SECOND;
        timer::sleep(Duration::from_micros(wait)).await;
    }
}

/// Records what happened since the last sample, and sends the state to the clients that follow.
fn sample(shared: &SharedDashboard) {
    let limiter = shared.watched.limiter();
    let (stats, health) = (limiter.stats(), limiter.health());
    let latency = shared.latency.lock().add(&stats);
    let now = shared.clock.now();
    let mut history = shared.history.lock();
    history.record(now, limiter.tally().counts(), &latency);
    drop(history);
    publish(shared, &stats, &health);
}

fn publish(shared: &SharedDashboard, stats: &Stats, health: &Health) {
    let live = shared.live.lock();
    if let Some(sender) = &*live
        && sender.receiver_count() > 0
    {
        let state = state::state(shared, stats, health).to_string();
        sender.send_replace(state.into());
    }
}

/// In microseconds.
const SECOND: u64 = 1_000_000;
const AFTER_SECOND: u64 = 20_000;
