//! Reads the top keys that all instances share.
//!
//! In pages of about [`PAGE`] snapshots, since decisions wait behind a large reply.

use std::{collections::BTreeMap, sync::Arc};

use redis::Value;

use crate::{
    error::{Error, ErrorKind},
    top_keys::Snapshot,
};

use super::{
    client::Client,
    protocol::RedisKey,
    route,
    shared_top_keys::{MOST_INSTANCES, SharedTopKeys},
};

/// Reads what all instances share, of the current half of the window and of the previous one. Nothing, unless this
/// instance shares too. The first snapshot contains the number of those that cannot be read.
///
/// # Errors
///
/// Those of [`route::run_command`] for each page, and [`ErrorKind::ForeignValue`] if none of the snapshots can be read.
pub(super) async fn read(client: &Arc<Client>) -> Result<Vec<Snapshot>, Error> {
    let (mut snapshots, mut unread) = (Vec::new(), Vec::new());
    let keys = client.registration.top_keys.get().map(SharedTopKeys::keys);
    for key in keys.iter().flatten() {
        for value in read_hash(client, key).await? {
            match Snapshot::decode(&value) {
                Ok(snapshot) => snapshots.push(snapshot),
                Err(error) => unread.push(error),
            }
        }
    }
    match (snapshots.first_mut(), unread.first()) {
        (Some(first), _) => first.set_unread(unread.len() as u64),
        (None, Some(error)) => return Err(error.clone()),
        (None, None) => {}
    }
    Ok(snapshots)
}

/// Reads the values of a hash in pages. A field that comes twice counts once, with its latest value.
async fn read_hash(client: &Arc<Client>, key: &RedisKey) -> Result<Vec<Vec<u8>>, Error> {
    let mut fields: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut cursor = 0_u64;
    loop {
        let mut command = redis::cmd("HSCAN");
        command.arg(key.as_slice()).arg(cursor);
        let reply = route::run_command(client, command.arg("COUNT").arg(PAGE)).await?;
        let (next, page) = page_of(reply).ok_or_else(unreadable)?;
        fields.extend(page);
        if next == 0 {
            return Ok(fields.into_values().collect());
        }
        // Others may add fields while this one reads, but only so many that the hash has room for.
        if fields.len() > MOST_INSTANCES {
            return Err(unreadable());
        }
        cursor = next;
    }
}

/// Returns the next cursor, and the fields with their values.
fn page_of(reply: Value) -> Option<(u64, Page)> {
    redis::from_redis_value(reply).ok()
}

#[cold]
fn unreadable() -> Error {
    Error::new(
        ErrorKind::ForeignValue,
        "a key of shared top keys holds a value that tollgate did not write",
    )
}

/// Fields, each with its value.
type Page = Vec<(Vec<u8>, Vec<u8>)>;

/// The number of instances to ask for at once.
const PAGE: usize = 16;
