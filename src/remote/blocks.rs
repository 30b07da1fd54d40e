//! The blocks of all instances, in Redis: `lua/blocks.lua` keeps them, and returns what has changed.
//!
//! ```text
//! RateLimiter::block ── BLOCK ──> prefix:{!}:blocks ──┐
//! each instance, at most every 400 ms ── CHANGES ─────┴──> BlockList: decisions look there
//! ```
//!
//! An instance that has not asked for half an hour gets all blocks anew, since changes are kept for an hour.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Value};

use crate::{
    block::{ActiveBlock, BlockChange, BlockTarget},
    block_list::BlockList,
    clock::{self, Clock, Timestamp},
    error::{Error, ErrorKind},
    key::Key,
    slot::slot_of,
    state::PolicyName,
    sync::Mutex,
};

use super::{
    batch,
    client::Client,
    cluster::Cluster,
    protocol::{Keyspace, Script, malformed},
};

/// The blocks of one store.
#[derive(Debug)]
pub(super) struct SharedBlocks {
    list: Arc<BlockList>,
    /// The caller's clock, if the script must not take the server's time.
    clock: Option<Clock>,
    known: Mutex<Known>,
}

/// The latest change that this instance knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    version: u64,
    /// When it asked, by the system clock.
    at: Timestamp,
}

impl SharedBlocks {
    /// Returns blocks of which none is known yet.
    pub(super) fn new(clock: Option<Clock>) -> Arc<Self> {
        let server_clock = clock.clone();
        let server_clock = server_clock.unwrap_or_else(|| Clock::of_server(Clock::system()));
        Arc::new(Self {
            list: Arc::new(BlockList::shared(server_clock)),
            clock,
            known: Mutex::default(),
        })
    }

    pub(super) fn list(&self) -> &Arc<BlockList> {
        &self.list
    }

    /// Makes a change in Redis, then here.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run), and [`ErrorKind::Unavailable`] if too many keys are blocked.
    pub(super) async fn change(
        &self,
        cluster: &Cluster,
        change: &BlockChange,
    ) -> Result<(), Error> {
        let reply = self.run(cluster, |command| match change {
            BlockChange::Block(block) => command
                .arg("B")
                .arg(text_of(block.target()))
                .arg(clock::micros(block.duration()))
                .arg(block.reason_text())
                .arg(BlockList::MAX_BLOCKS),
            BlockChange::Unblock(target) => command.arg("U").arg(text_of(target)),
        });
        match reply.await? {
            Value::Int(1) => self.refresh(cluster).await,
            Value::Int(0) => Err(BlockList::full()),
            _ => Err(malformed()),
        }
    }

    /// Takes over the changes since the last time.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub(super) async fn refresh(&self, cluster: &Cluster) -> Result<(), Error> {
        let mut all = Vec::new();
        let mut known = self.latest();
        let is_whole = known == Known::default();
        loop {
            let now = Clock::system().now();
            let reply = self.run(cluster, |command| command.arg("C").arg(known.version));
            let changes = Changes::parse(&reply.await?)?;
            let latency = Clock::system().now().since(now);
            self.list.clock().learn(changes.now, latency);
            let next = Known {
                version: changes.version,
                at: now,
            };
            if is_whole {
                all.extend(changes.changes);
                if !changes.has_more {
                    let mut latest = self.known.lock();
                    self.list
                        .replace(all.into_iter().filter_map(|(_, block)| block));
                    *latest = next;
                    return Ok(());
                }
                known = next;
                continue;
            }
            let mut latest = self.known.lock();
            if *latest == known {
                for (target, block) in changes.changes {
                    match block {
                        Some(block) => self.list.insert(block)?,
                        None => self.list.remove(&target),
                    }
                }
                *latest = next;
                if !changes.has_more {
                    return Ok(());
                }
            }
            // Otherwise another caller took over changes meanwhile, which may be older than this reply.
            known = *latest;
        }
    }

    /// Returns the latest known change; the default if all blocks are needed.
    fn latest(&self) -> Known {
        let latest = *self.known.lock();
        if Clock::system().now() < latest.at + MAX_AGE {
            latest
        } else {
            Known::default()
        }
    }

    /// Runs the script with these arguments, at the server that has the keys.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] at once while the breaker of that server is open. Otherwise those of
    /// [`batch::run_command`].
    async fn run(
        &self,
        cluster: &Cluster,
        arguments: impl Fn(&mut Cmd) -> &mut Cmd,
    ) -> Result<Value, Error> {
        let node = cluster.node_of(slot_of(Keyspace::MEMBERS_IDENTITY));
        if node.store.health().is_degraded() {
            let message = "the shared store is unavailable: blocks were neither read nor changed";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let command = |start: fn(&Script, usize) -> Cmd| {
            let mut command = self.command(&node.client, start);
            arguments(&mut command);
            command
        };
        let reply = batch::run_command(&node.client, &command(Script::by_hash)).await;
        match reply {
            // The server may not have the script.
            Err(error) if error.kind() == ErrorKind::Script => {
                batch::run_command(&node.client, &command(Script::by_text)).await
            }
            reply => reply,
        }
    }

    /// Returns the start of a command, up to the time.
    fn command(&self, client: &Client, start: fn(&Script, usize) -> Cmd) -> Cmd {
        let mut command = start(Script::BLOCKS, 9);
        let keys = client.keyspace.block_keys();
        command.arg(keys.len());
        for key in &keys {
            command.arg(key.as_slice());
        }
        match &self.clock {
            Some(clock) => command.arg(clock.now().as_micros()),
            None => command.arg(""),
        };
        command
    }
}

/// Returns a target as it is stored: `user:ada` for one policy, `:ada` for all.
fn text_of(target: &BlockTarget) -> String {
    let policy = target.policy.as_ref().map_or("", PolicyName::as_str);
    format!("{policy}:{}", target.key.as_str())
}

/// How long changes are asked for. They are kept for twice as long.
const MAX_AGE: Duration = Duration::from_secs(1_800);

// === Changes ===

/// The reply with the changes since a version.
#[derive(Debug)]
struct Changes {
    now: Timestamp,
    has_more: bool,
    version: u64,
    /// The targets, and their blocks unless they were unblocked.
    changes: Vec<(BlockTarget, Option<ActiveBlock>)>,
}

impl Changes {
    /// # Errors
    ///
    /// [`ErrorKind::Protocol`] if it is not a reply of the script.
    fn parse(reply: &Value) -> Result<Self, Error> {
        let Value::Array(parts) = reply else {
            return Err(malformed());
        };
        let [
            Value::Int(now),
            Value::Int(has_more),
            Value::Int(version),
            changes @ ..,
        ] = parts.as_slice()
        else {
            return Err(malformed());
        };
        let number = |number: &i64| u64::try_from(*number).map_err(|_| malformed());
        let changes = changes.chunks(2).map(|change| match change {
            [Value::BulkString(target), Value::BulkString(block)] => {
                let target = parse_target(target).ok_or_else(malformed)?;
                let block = (!block.is_empty())
                    .then(|| parse_block(target, block).ok_or_else(malformed))
                    .transpose()?;
                Ok((target, block))
            }
            _ => Err(malformed()),
        });
        Ok(Self {
            now: Timestamp::from_micros(number(now)?),
            has_more: *has_more == 1,
            version: number(version)?,
            changes: changes.collect::<Result<_, Error>>()?,
        })
    }
}

fn parse_target(text: &[u8]) -> Option<BlockTarget> {
    let (policy, key) = std::str::from_utf8(text).ok()?.split_once(':')?;
    let policy = match policy {
        "" => None,
        name => Some(PolicyName::new(name).ok()?),
    };
    let key = Key::from_identity(key)?;
    Some(BlockTarget { key, policy })
}

fn parse_block(target: BlockTarget, block: &[u8]) -> Option<ActiveBlock> {
    let (since, rest) = block.split_first_chunk()?;
    let (until, reason) = rest.split_first_chunk()?;
    let time = |bytes: &[u8; 8]| Timestamp::from_micros(u64::from_be_bytes(*bytes));
    let reason = String::from_utf8_lossy(reason);
    Some(ActiveBlock::new(
        target,
        time(since),
        time(until),
        reason.as_ref(),
    ))
}
