//! Messages to callers that wait for slots which other instances release.
//!
//! ```text
//! release at instance A ──> lua/release_close.lua: the oldest queue is due now ──> PUBLISH prefix:wake:<instance B> queue
//! instance B, SUBSCRIBE on a connection of its own ──> the line asks at once
//! ```
//!
//! A message may be lost, late or doubled: each leads to a question, and callers also ask now and then without one. In a cluster,
//! a message reaches the subscribers of all nodes, so one connection is enough.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    diagnosis::log,
    error::{Error, ErrorKind, Phase},
    store::{OnSlotMessage, SlotMessage},
    task::{
        Backoff, home,
        timer::{sleep, timeout},
    },
};

use super::{cluster::Cluster, connection::Listening};

/// Listens to the messages for these queues while somebody else holds the function.
pub(super) fn listen(cluster: &Arc<Cluster>, queues: u32, received: Weak<OnSlotMessage>) {
    let cluster = Arc::downgrade(cluster);
    home::spawn(async move {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        while let Some(open) = cluster.upgrade().filter(|_| received.strong_count() > 0) {
            let ended = listen_once(open, queues, &received).await;
            tell(&received, SlotMessage::Ended);
            match ended {
                Ok(()) => backoff.reset(),
                Err(error) if error.kind() == ErrorKind::InvalidConfig => return,
                Err(error) => log::event!(
                    DEBUG,
                    "no messages about slots: callers that wait for them ask now and then",
                    error = error,
                ),
            }
            sleep(backoff.wait()).await;
        }
    });
}

/// Listens on one connection, until it ends.
///
/// # Errors
///
/// If there is no such connection. [`ErrorKind::InvalidConfig`] if there never is one: the user may not listen, or the
/// connections are those of a pool.
async fn listen_once(
    cluster: Arc<Cluster>,
    queues: u32,
    received: &Weak<OnSlotMessage>,
) -> Result<(), Error> {
    let client = Arc::clone(&cluster.first().client);
    drop(cluster);
    let channel = format!("{}{queues:08x}", client.keyspace.wake_channel());
    let endpoint = client.scheduler.lanes()[0].endpoint().clone();
    drop(client);
    let on_message = {
        let received = Weak::clone(received);
        move |message: &[u8]| {
            if let Ok(queue) = message.try_into() {
                tell(&received, SlotMessage::Freed(u64::from_be_bytes(queue)));
            }
        }
    };
    let opening = Listening::open(&endpoint, channel.as_bytes(), on_message);
    let listening = timeout(CONNECT_TIMEOUT, opening).await;
    let listening = listening.unwrap_or_else(|| {
        let message = "no connection for messages about slots to redis in time";
        Err(Error::new(ErrorKind::Timeout(Phase::Connect), message))
    })?;
    if !listening.may_listen() {
        let message = "the user may not subscribe to the channels of messages about slots";
        return Err(Error::new(ErrorKind::InvalidConfig, message));
    }
    tell(received, SlotMessage::Began);
    while received.strong_count() > 0 {
        // Also looks now and then whether somebody still wants to know.
        if let Some(Err(_closed)) = timeout(LOOK, listening.message()).await {
            return Ok(());
        }
    }
    Ok(())
}

fn tell(received: &Weak<OnSlotMessage>, message: SlotMessage) {
    if let Some(received) = received.upgrade() {
        received(message);
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(10);
