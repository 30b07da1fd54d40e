//! Commands that are not decisions: `DEL` and `CLUSTER SLOTS`.
//!
//! They need no queue, since they are rare. They use a lane directly, under the same deadline as decisions.

use std::{future::poll_fn, pin::pin, sync::Arc};

use redis::{Cmd, Pipeline, Value};
use tokio::runtime::Handle;

use crate::{
    clock::Clock,
    error::{Error, Phase},
    task::timer::sleep,
};

use super::{
    super::{
        client::Client,
        connection::{LaneConnection, SendError, classify},
        protocol::Redirect,
    },
    exchange::watched,
    submit::{MAX_REDIRECTS, USUAL_REDIRECTS, ensure_watched, moving_wait, until_expired},
    worker::Worker,
};

/// Sends a command that is not a decision, to where a cluster redirects it, and returns its reply.
///
/// # Errors
///
/// Those of the connection and of the server, and [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) at the deadline.
pub(in crate::remote) async fn run_command(
    client: &Arc<Client>,
    command: &Cmd,
) -> Result<Value, Error> {
    Handle::try_current().map_err(classify::no_runtime)?;
    ensure_watched(client)?;
    let call = client.scheduler.begin_command(Clock::system().now());
    // Ends the call when it is dropped.
    let _worker = Worker::calling(Arc::clone(client), call.id);
    ensure_watched(client)?;
    let sending = pin!(send_redirected(client, command));
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

/// Sends a command, and follows redirects until the call is abandoned.
async fn send_redirected(client: &Arc<Client>, command: &Cmd) -> Result<Value, Error> {
    let mut node = Arc::clone(client);
    let (mut redirects, mut waits, mut is_asking) = (0, 0, false);
    loop {
        let error = match send_command(&node, command, is_asking).await {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let Some(redirect) = Redirect::of(&error, 1).filter(|_| redirects < MAX_REDIRECTS) else {
            return Err(error);
        };
        redirects += 1;
        is_asking = matches!(redirect, Redirect::Ask(_));
        let is_moving = matches!(redirect, Redirect::Split | Redirect::TryAgain);
        if is_moving || redirects > USUAL_REDIRECTS {
            waits += 1;
            sleep(moving_wait(waits)).await;
        }
        node = match redirect {
            Redirect::Ask(_) | Redirect::Moved { .. } => {
                let next = node.follow(&redirect);
                next.ok_or_else(|| classify::unreachable(&redirect))?
            }
            Redirect::Split | Redirect::TryAgain => Arc::clone(client),
        };
    }
}

/// Sends a command on a lane that is up, or on the first one. If it finds its connection closed, it tries another once.
async fn send_command(client: &Client, command: &Cmd, is_asking: bool) -> Result<Value, Error> {
    let lanes = client.scheduler.lanes();
    let up = lanes.iter().position(|lane| lane.generation().is_some());
    let lane = &lanes[up.unwrap_or(0)];
    let mut connection: LaneConnection = lane.connect(false).await?;
    let mut reply = send_on(&mut connection, command, is_asking).await;
    if reply.as_ref().is_err_and(|failed| !failed.was_sent) {
        lane.disconnect(connection.generation, None);
        connection = lane.connect(false).await?;
        reply = send_on(&mut connection, command, is_asking).await;
    }
    reply.map_err(|failed| {
        let error = classify::classify(failed.error);
        if classify::ends_connection(&error) {
            lane.disconnect(connection.generation, Some(&error));
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
