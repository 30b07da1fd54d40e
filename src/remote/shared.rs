//! What all clones of a Redis store share.

use std::{sync::Arc, time::Duration};

use redis::Cmd;
use tokio::{runtime::Handle, time::timeout};

use crate::{
    clock::Clock,
    error::{Error, ErrorKind, Phase},
};

use super::{
    batch::Queue,
    connection::{Lane, ServerCheck, classify},
    protocol::Keyspace,
};

/// The connections, what waits for them, and how long it may.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) lanes: Box<[Arc<Lane>]>,
    pub(super) queue: Queue,
    pub(super) keyspace: Keyspace,
    pub(super) deadline: Duration,
    pub(super) connect_timeout: Duration,
    /// The caller's clock, when the server's must not be used.
    pub(super) clock: Option<Clock>,
    pub(super) check: ServerCheck,
}

impl Shared {
    /// Runs a command that is no decision on the first lane that has a connection.
    pub(super) async fn command(&self, command: &Cmd) -> Result<(), Error> {
        Handle::try_current().map_err(classify::no_runtime)?;
        let up = self.lanes.iter().find(|lane| lane.is_up());
        let lane = up.unwrap_or(&self.lanes[0]);
        let mut used = None;
        let replied = timeout(self.deadline, async {
            let mut held = lane.hold().await?;
            used = Some(held.generation);
            let reply = held.send(command).await;
            if !held.is_gone {
                return Ok(reply);
            }
            lane.break_off(held.generation);
            let mut held = lane.hold().await?;
            used = Some(held.generation);
            Ok(held.send(command).await)
        })
        .await;
        let (error, is_broken) = match replied {
            Ok(Ok(Ok(_))) => return Ok(()),
            Ok(Ok(Err(error))) => classify::judge(error),
            Ok(Err(error)) => (error, false),
            Err(_) => (self.late(self.phase()), true),
        };
        if let Some(generation) = used.filter(|_| is_broken) {
            lane.break_off(generation);
        }
        Err(error)
    }

    /// What a decision that is late now is waiting for.
    pub(super) fn phase(&self) -> Phase {
        match self.lanes.iter().any(|lane| lane.is_up()) {
            true => Phase::Reply,
            false => Phase::Connect,
        }
    }

    pub(super) fn late(&self, phase: Phase) -> Error {
        let what = match phase {
            Phase::Connect => "no connection to redis",
            Phase::Reply => "no answer from redis",
        };
        Error::new(
            ErrorKind::Timeout(phase),
            format!("{what} within the deadline of {:?}", self.deadline),
        )
    }

    /// How long a worker may need for another's dial, its own and a call, if anybody drives it.
    pub(super) fn patience(&self) -> Duration {
        self.connect_timeout * 3 + self.deadline * 2 + Duration::from_secs(1)
    }
}
