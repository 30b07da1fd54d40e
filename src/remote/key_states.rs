//! The states of one key at a server: they are deleted or read without a decision.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Cmd, Value};

use crate::{
    charge::Charge,
    clock::{Clock, Timestamp},
    key::Key,
    policy::{BanRecord, Penalty, Policy},
    store::StoreFuture,
};

use super::{
    client::Client,
    connection::classify,
    protocol::{self, LeaseReport, Request, Script, has_leases, malformed},
    route, script_call,
};

/// Deletes the states of a key, without what instances have leased of it.
///
/// A cluster gets one command for each of them: as long as it moves the slot, no node deletes several keys at once of which one
/// is elsewhere or missing.
pub(super) fn reset(
    client: &Arc<Client>,
    policy: &Policy,
    key: &Key,
    may_be_leased: bool,
) -> StoreFuture<()> {
    let client = Arc::clone(client);
    let mut keys: Vec<_> = client.keyspace.all_keys(policy, key).collect();
    keys.push(client.keyspace.ban_key(policy, key));
    // Without what is leased, Redis would grant these units again.
    let leased = may_be_leased && has_leases(policy.counter());
    let leased = leased.then(|| policy.charge(*key));
    let leased = leased.map(|charge| {
        let own = client.keyspace.key_of(&charge);
        keys.retain(|key| *key != own);
        Request::lease(&client.keyspace, &charge, LeaseReport::RESET)
    });
    let keys_at_once = match client.mode.is_cluster() {
        Some(false) => keys.len(),
        Some(true) | None => 1,
    };
    let commands = keys.chunks(keys_at_once).map(|keys| {
        let mut command = redis::cmd("DEL");
        keys.iter().for_each(|key| {
            command.arg(key.as_slice());
        });
        command
    });
    let commands: Vec<Cmd> = commands.collect();
    StoreFuture::boxed(async move {
        let deleting = commands
            .iter()
            .map(|command| route::run_command(&client, command));
        let deleted = join_all(deleting).await;
        if let Some(request) = leased {
            route::submit(&client, Box::new(request)).await?.check()?;
        }
        deleted.into_iter().try_for_each(|reply| reply.map(drop))
    })
}

/// Counts a failure of a key. Returns when the delay that begins with it ends.
pub(super) fn count_failure(
    client: &Arc<Client>,
    (policy, key): (&Policy, &Key),
    penalty: &Penalty,
) -> StoreFuture<Option<Timestamp>> {
    let (client, policy, key, penalty) = (Arc::clone(client), policy.clone(), *key, *penalty);
    StoreFuture::boxed(async move {
        let command = |start: fn(&Script, usize) -> Cmd| {
            let now = client.clock.as_ref().map(Clock::now);
            protocol::failure(&client.keyspace, (&policy, &key), &penalty, start, now)
        };
        match script_call::run(&client, command).await? {
            Value::Int(micros) => {
                let micros = u64::try_from(micros).map_err(|_| malformed())?;
                Ok(Some(Timestamp::from_micros(micros)))
            }
            _ => Err(malformed()),
        }
    })
}

/// Reads the denials and the ban of a key.
pub(super) fn ban_record(
    client: &Arc<Client>,
    policy: &Policy,
    key: &Key,
) -> StoreFuture<Option<BanRecord>> {
    let client = Arc::clone(client);
    let mut command = redis::cmd("GET");
    command.arg(client.keyspace.ban_key(policy, key).as_slice());
    StoreFuture::boxed(async move {
        match route::run_command(&client, &command).await? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => {
                let state = BanRecord::from_stored(&bytes, Clock::system().now());
                state.map(Some).ok_or_else(classify::foreign_value)
            }
            _ => Err(malformed()),
        }
    })
}

/// Reads when the pause of a charge's key ends, from the field `u` of its line (`lua/pause.lua`).
pub(super) fn paused_until(
    client: &Arc<Client>,
    charge: &Charge<'_>,
) -> StoreFuture<Option<Timestamp>> {
    let client = Arc::clone(client);
    let mut command = redis::cmd("HGET");
    let line = client.keyspace.line_key(charge.policy(), charge.key());
    command.arg(line.as_slice()).arg("u");
    StoreFuture::boxed(async move {
        match route::run_command(&client, &command).await? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => {
                // As for the scripts, one that cannot be read is none.
                let packed: Option<[u8; 7]> = bytes.try_into().ok();
                let micros = packed.map(|packed| {
                    packed
                        .iter()
                        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
                });
                Ok(micros.map(Timestamp::from_micros))
            }
            _ => Err(malformed()),
        }
    })
}
