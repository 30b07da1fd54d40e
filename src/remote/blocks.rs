//! The blocks of all instances, in Redis: `lua/blocks.lua` keeps them, and returns what has changed.
//!
//! ```text
//! RateLimiter::block ── BLOCK ──> prefix:{!}:blocks ──┐
//! each instance, at most every 400 ms ── CHANGES ─────┴──> BlockList: decisions look there
//! ```
//!
//! A reply has at most 1,000 changes. They are taken over one reply after the other. More of them arrive in a task, since a
//! refresh has the deadline of a decision, and the next refresh goes on where an error ended the last one.
//!
//! A list has at most 100,000 blocks, so that a server with more costs an instance bounded time and memory: it warns, and
//! the others do not hold.
//!
//! An instance that has not asked for half an hour gets all blocks anew, since changes are kept for an hour.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, Value};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use crate::{
    block::{ActiveBlock, Block, BlockChange, BlockList, BlockTarget},
    clock::{self, Clock, Timestamp},
    decision::PolicyName,
    diagnosis::{log, outside_text::shown},
    error::{Error, ErrorKind},
    key::{Key, slot::slot_of},
    task::{Mutex, home},
};

use super::{
    client::Client,
    cluster::Cluster,
    protocol::{Keyspace, Script, malformed},
    route,
};

/// The blocks of one store.
#[derive(Debug)]
pub(super) struct SharedBlocks {
    list: Arc<BlockList>,
    /// The caller's clock, if the script must not take the server's time.
    clock: Option<Clock>,
    progress: Mutex<ReadProgress>,
    /// Held while a long list arrives, so that it is asked for once.
    arrival: AsyncMutex<()>,
    /// Whether it was logged that blocks cannot be read.
    has_logged_unread: AtomicBool,
    /// Whether it was reported that there are too many blocks.
    has_warned_of_number: AtomicBool,
}

impl SharedBlocks {
    /// Returns blocks of which none is known yet.
    pub fn new(clock: Option<Clock>) -> Arc<Self> {
        let server_clock = clock.clone();
        let server_clock = server_clock.unwrap_or_else(|| Clock::of_server(Clock::system()));
        Arc::new(Self {
            list: Arc::new(BlockList::shared(server_clock)),
            clock,
            progress: Mutex::default(),
            arrival: AsyncMutex::default(),
            has_logged_unread: AtomicBool::new(false),
            has_warned_of_number: AtomicBool::new(false),
        })
    }

    pub fn list(&self) -> &Arc<BlockList> {
        &self.list
    }

    /// Makes a change in Redis, then here.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run), and [`ErrorKind::Unavailable`] if too many keys are blocked.
    pub async fn change(&self, cluster: &Cluster, change: &BlockChange) -> Result<(), Error> {
        let reply = self.run(cluster, |command| match change {
            BlockChange::Block(block) => command
                .arg("B")
                .arg(text_of(block.target()))
                .arg(clock::micros(block.duration()))
                .arg(block.reason_text())
                .arg(BlockList::MAX_BLOCKS),
            BlockChange::Unblock(target) => command
                .arg("U")
                .arg(text_of(target))
                .arg(BlockList::MAX_BLOCKS),
        });
        match reply.await? {
            Value::Int(1) => {
                // More would make the caller wait for a long list. What is missing here arrives with the next decisions.
                self.take_over(cluster).await.map(drop)
            }
            Value::Int(0) => Err(BlockList::full()),
            Value::Int(2) => {
                let message = "too many blocks have ended within an hour: block again later, or a larger group by a rule";
                Err(Error::new(ErrorKind::Unavailable, message))
            }
            _ => Err(malformed()),
        }
    }

    /// Takes over the changes since the last time.
    ///
    /// A long list goes on to arrive if the caller stops waiting.
    ///
    /// # Errors
    ///
    /// Those of [`take_over`](Self::take_over). What came before stays.
    pub async fn refresh(self: &Arc<Self>, cluster: &Arc<Cluster>) -> Result<(), Error> {
        if !self.take_over(cluster).await? {
            return Ok(());
        }
        let (this, cluster) = (Arc::clone(self), Arc::clone(cluster));
        let (sender, result) = oneshot::channel();
        // At home: while it arrives, others wait for it, and the runtime of this caller may not be driven.
        home::spawn(async move {
            let _turn = this.arrival.lock().await;
            let _ = sender.send(this.take_over_all(&cluster).await);
        });
        let ended = "no thread can be started: not all blocks were read";
        let result = result.await;
        result.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, ended)))
    }

    async fn take_over_all(&self, cluster: &Cluster) -> Result<(), Error> {
        while self.take_over(cluster).await? {}
        Ok(())
    }

    /// Takes over the changes of one reply. Returns whether there are further ones.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    async fn take_over(&self, cluster: &Cluster) -> Result<bool, Error> {
        let now = Clock::system().now();
        let version = self.progress.lock().begin(now);
        let reply = self.run(cluster, |command| {
            let command = command.arg("C").arg(version);
            command.arg(BlockList::MAX_BLOCKS).arg(Block::MAX_REASON)
        });
        let changes = Changes::parse(&reply.await?)?;
        let latency = Clock::system().now().since(now);
        self.list.clock().learn(changes.now, latency);
        if changes.unread > 0 && !self.has_logged_unread.swap(true, Ordering::Relaxed) {
            log::event!(
                WARN,
                "blocks that another version of tollgate made cannot be read and do not hold here",
                blocks = changes.unread,
            );
        }
        let mut progress = self.progress.lock();
        if progress.version != version {
            // Another caller took over changes meanwhile, which may be later than this reply.
            return Ok(true);
        }
        let (has_more, excess) = (changes.has_more, changes.excess);
        let left_out = progress.take_over(changes, now, &self.list);
        drop(progress);
        if (left_out > 0 || excess > 0) && !self.has_warned_of_number.swap(true, Ordering::Relaxed)
        {
            cluster.first().client.check.warn_of_blocks();
        }
        Ok(has_more)
    }

    /// Runs the script with these arguments, at the server that has the keys.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] at once while the breaker of that server is open. Otherwise those of
    /// [`route::run_command`].
    async fn run(
        &self,
        cluster: &Cluster,
        arguments: impl Fn(&mut Cmd) -> &mut Cmd,
    ) -> Result<Value, Error> {
        let node = cluster.node_of(slot_of(Keyspace::MEMBERS_IDENTITY));
        let health = node.health();
        let mut outages = health.outages().iter();
        if outages.any(|outage| outage.stuck_slots().is_none()) {
            let message = "the shared store is unavailable: blocks were neither read nor changed";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let command = |start: fn(&Script, usize) -> Cmd| {
            let mut command = self.command(&node.client, start);
            arguments(&mut command);
            command
        };
        let reply = route::run_command(&node.client, &command(Script::by_hash)).await;
        match reply {
            // The server may not have the script.
            Err(error) if error.kind() == ErrorKind::Script => {
                route::run_command(&node.client, &command(Script::by_text)).await
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

// === ReadProgress ===

/// Which changes were taken over.
#[derive(Debug, Default)]
struct ReadProgress {
    /// The latest of them; 0 for none.
    version: u64,
    /// When the latest reply was asked for, by the system clock.
    at: Timestamp,
    /// The blocks that have arrived so far, while all are read anew: until then, the list stays as it is.
    arriving: Option<HashMap<BlockTarget, ActiveBlock>>,
}

impl ReadProgress {
    /// Returns the version after which changes are needed now.
    fn begin(&mut self, now: Timestamp) -> u64 {
        if self.version > 0 && now >= self.at + MAX_AGE {
            (self.version, self.arriving) = (0, Some(HashMap::new()));
        }
        self.version
    }

    /// Takes over the changes that follow, which were asked for at this time. Returns the number of blocks for which the
    /// list has no room.
    fn take_over(&mut self, new: Changes, at: Timestamp, list: &BlockList) -> usize {
        (self.version, self.at) = (new.version, at);
        let Some(arriving) = &mut self.arriving else {
            return list.update(new.changes);
        };
        for (target, block) in new.changes {
            match block {
                // Those that have ended are not kept: all replies together have at most twice as many blocks as a list.
                Some(block) if block.until() > new.now => drop(arriving.insert(target, block)),
                _ => drop(arriving.remove(&target)),
            }
        }
        if new.has_more {
            return 0;
        }
        let arrived = self.arriving.take().unwrap_or_default();
        list.replace(arrived.into_values())
    }
}

// === Changes ===

/// The reply with the changes since a version.
#[derive(Debug)]
struct Changes {
    now: Timestamp,
    has_more: bool,
    version: u64,
    /// How many targets the server has too many. It leaves out the oldest ones.
    excess: u64,
    /// The targets, and their blocks unless they were unblocked.
    changes: Vec<(BlockTarget, Option<ActiveBlock>)>,
    /// Number of changes that this version of tollgate cannot read.
    unread: usize,
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
            Value::Int(excess),
            changes @ ..,
        ] = parts.as_slice()
        else {
            return Err(malformed());
        };
        let number = |number: &i64| u64::try_from(*number).map_err(|_| malformed());
        let mut read = Vec::with_capacity(changes.len() / 2);
        let mut unread = 0;
        for change in changes.chunks(2) {
            let [Value::BulkString(target), Value::BulkString(block)] = change else {
                return Err(malformed());
            };
            match parse_change(target, block) {
                Some(change) => read.push(change),
                None => unread += 1,
            }
        }
        Ok(Self {
            now: Timestamp::from_micros(number(now)?),
            has_more: *has_more == 1,
            version: number(version)?,
            excess: number(excess)?,
            changes: read,
            unread,
        })
    }
}

fn parse_change(target: &[u8], block: &[u8]) -> Option<(BlockTarget, Option<ActiveBlock>)> {
    let target = parse_target(target)?;
    if block.is_empty() {
        return Some((target, None));
    }
    Some((target, Some(parse_block(target, block)?)))
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
    let reason = shown(&String::from_utf8_lossy(reason), Block::MAX_REASON);
    Some(ActiveBlock::new(target, time(since), time(until), reason))
}
