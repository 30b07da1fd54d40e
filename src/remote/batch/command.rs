//! Commands that go alone: questions of callers that wait, releases that wake others, `DEL`, `CLUSTER SLOTS` and more.
//!
//! They use a lane directly, under the same deadline as decisions.

use std::{future::poll_fn, pin::pin, sync::Arc};

use redis::{Cmd, Pipeline, Value};
use tokio::runtime::Handle;

use crate::{
    clock::Timestamp,
    error::{Error, Phase},
};

use super::{
    super::{
        client::Client,
        connection::{LaneConnection, SendError, classify},
    },
    exchange::watched,
    submit::{ensure_watched, until_expired},
    worker::Worker,
};

/// Sends a command that is not a decision to one server, and returns its reply. Its deadline began at `began_at`.
///
/// # Errors
///
/// Those of the connection and of the server, redirects too, and [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) at the deadline.
pub(in crate::remote) async fn run_command(
    client: &Arc<Client>,
    command: &Cmd,
    is_asking: bool,
    began_at: Timestamp,
) -> Result<Value, Error> {
    Handle::try_current().map_err(classify::no_runtime)?;
    ensure_watched(client)?;
    let call = client.scheduler.begin_command(began_at);
    // Ends the call when it is dropped.
    let _worker = Worker::calling(Arc::clone(client), call.id);
    ensure_watched(client)?;
    let sending = pin!(send_command(client, command, is_asking));
    let mut watched = pin!(watched(client, &call, sending));
    match poll_fn(|context| until_expired(watched.as_mut(), &call.alarm, context)).await {
        Some(Some(result)) => result,
        None | Some(None) => Err(client.timeout_error(if client.scheduler.is_up() {
            Phase::Reply
        } else {
            Phase::Connect
        })),
    }
}

/// Sends a command on a lane that is up, or on the first one. If it finds its connection closed, it tries another once.
async fn send_command(client: &Client, command: &Cmd, is_asking: bool) -> Result<Value, Error> {
    let lanes = client.scheduler.lanes();
    let up = lanes.iter().position(|lane| lane.connection_id().is_some());
    let lane = &lanes[up.unwrap_or(0)];
    let mut connection: LaneConnection = lane.connect(false).await?;
    let mut reply = send_on(&mut connection, command, is_asking).await;
    if reply.as_ref().is_err_and(|failed| !failed.was_sent) {
        lane.disconnect(connection.connection_id, None);
        connection = lane.connect(false).await?;
        reply = send_on(&mut connection, command, is_asking).await;
    }
    reply.map_err(|failed| {
        let error = classify::classify(failed.error);
        if classify::ends_connection(&error) {
            lane.disconnect(connection.connection_id, Some(&error));
        }
        error
    })
}

/// Sends a command, after ASKING if its slot is being moved to the node.
async fn send_on(
    connection: &mut LaneConnection,
    command: &Cmd,
    is_asking: bool,
) -> Result<Value, SendError> {
    if !is_asking {
        return connection.send(command).await;
    }
    let mut commands = Pipeline::with_capacity(2);
    commands.cmd("ASKING");
    commands.add_command(command.clone());
    let mut replies = connection.send_all(&commands).await?;
    let reply = replies.pop().unwrap_or(Value::Nil);
    reply.extract_error().map_err(SendError::after_sending)
}
