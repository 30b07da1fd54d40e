//! Calls of scripts that go alone: not with other decisions in one call.

use std::sync::Arc;

use redis::{Cmd, RedisError, Value};

use crate::{
    charge::Settlement,
    clock::Clock,
    error::{Error, ErrorKind, Phase},
};

use super::{
    client::Client,
    protocol::{self, Script, check_release},
    route,
};

/// Releases the slots of a settlement, and wakes callers that wait for them.
pub(super) async fn release(client: &Arc<Client>, settlement: &Settlement) -> Result<(), Error> {
    let command = |start: fn(&Script, usize) -> Cmd| {
        let now = client.clock.as_ref().map(Clock::now);
        protocol::release(&client.keyspace, settlement, start, now)
    };
    let sent_at = Clock::system().now();
    let reply = run(client, command).await;
    match reply.and_then(|reply| check_release(&reply, settlement)) {
        Ok(()) => {
            let took = Clock::system().now().since(sent_at);
            client.report_reply(took, None);
            Ok(())
        }
        Err(error) => {
            if !matches!(error.kind(), ErrorKind::Timeout(Phase::Reply)) {
                client.report_failure(&error);
            }
            Err(error)
        }
    }
}

/// Runs a script, by its text if the server does not have it.
pub(super) async fn run(
    client: &Arc<Client>,
    command: impl Fn(fn(&Script, usize) -> Cmd) -> Cmd,
) -> Result<Value, Error> {
    match route::run_command(client, &command(Script::by_hash)).await {
        // After any other error, a part may have been executed.
        Err(error) if is_unknown_script(&error) => {
            route::run_command(client, &command(Script::by_text)).await
        }
        reply => reply,
    }
}

/// Returns whether the server does not have the script.
fn is_unknown_script(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<RedisError>());
    source.is_some_and(|source| source.code() == Some("NOSCRIPT"))
}
