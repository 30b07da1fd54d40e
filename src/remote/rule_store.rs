//! The rules that all instances share, in one hash. `lua/rules.lua` describes its fields.
//!
//! ```text
//! push      EVALSHA rules.lua ──> stored as the next version, announced on the channel of the key's name
//! listen    SUBSCRIBE on a connection of its own ──> read
//! read      HMGET version time ──> others than the known ones? HSTRLEN 7:text .. ──> HMGET 7:text 7:format ..
//! ```
//!
//! The connection leads to the node that has the key. It is made at the first call, and again after an error. With a pool of
//! the application, whose connections cannot listen, commands go over a lane.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::{join_all, try_join_all};
use redis::{Cmd, RedisError, Value};
use tokio::sync::Mutex;

use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind, Phase},
    key::slot::slot_of,
    store::{RuleStore, RulesId, RulesText, StoreFuture},
    task::timer::timeout,
};

use super::{
    client::Client,
    cluster::Cluster,
    connection::{Endpoint, Listening, classify},
    protocol::{Keyspace, Redirect, Script},
};

/// The rules in Redis. Clones share the connection.
#[derive(Clone)]
pub(super) struct RedisRuleStore {
    cluster: Arc<Cluster>,
    /// `None` until it is needed, and after an error.
    link: Arc<Mutex<Option<Arc<RulesConnection>>>>,
    /// Whether a link was made, by whatever call, since [`rules_stored`](RuleStore::rules_stored) last returned.
    was_linked: Arc<AtomicBool>,
}

/// The way of commands to the server.
enum RulesConnection {
    /// A lane, since the connections of a pool cannot listen.
    Lane(Arc<Client>),
    Own(Listening, Arc<Client>),
}

impl RedisRuleStore {
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self {
            cluster,
            link: Arc::default(),
            was_linked: Arc::default(),
        }
    }

    fn key(&self) -> Vec<u8> {
        let keyspace = &self.cluster.first().client.keyspace;
        keyspace.rules_key().to_vec()
    }

    /// Returns the client of the node that has the key, as far as it is known.
    fn client(&self) -> Arc<Client> {
        let slot = slot_of(Keyspace::MEMBERS_IDENTITY);
        self.cluster.node_of(slot).client
    }

    /// Returns the connection, which is made if there is none.
    async fn link(&self) -> Result<Arc<RulesConnection>, Error> {
        let mut place = self.link.lock().await;
        if let Some(link) = &*place {
            return Ok(Arc::clone(link));
        }
        let client = self.client();
        let endpoint = client.scheduler.lanes()[0].endpoint().clone();
        let link = if let Endpoint::Pool(_) = endpoint {
            RulesConnection::Lane(client)
        } else {
            let opened = timeout(
                CONNECT_TIMEOUT,
                Listening::open(&endpoint, &self.key(), |_| ()),
            )
            .await;
            let opened = opened.unwrap_or_else(|| Err(too_slow(Phase::Connect)));
            match opened {
                Ok(listening) => RulesConnection::Own(listening, client),
                Err(error) => {
                    self.look_up_nodes(&client);
                    return Err(error);
                }
            }
        };
        let link = Arc::new(link);
        *place = Some(Arc::clone(&link));
        self.was_linked.store(true, Ordering::Relaxed);
        Ok(link)
    }

    /// Gives up a connection, unless another one has replaced it.
    async fn give_up(&self, link: &Arc<RulesConnection>) {
        let mut place = self.link.lock().await;
        place.take_if(|present| Arc::ptr_eq(present, link));
    }

    /// Looks in the background which node has the key: the one that had it may be down.
    fn look_up_nodes(&self, client: &Client) {
        if self.cluster.is_cluster()
            && let Some(nodes) = client.nodes()
        {
            nodes.refresh();
        }
    }

    /// Sends a command, to where a cluster redirects it. `commands` are the same one: if the server does not know the first,
    /// the next is sent.
    async fn run(&self, commands: &[Cmd]) -> Result<Value, Error> {
        let mut error = too_slow(Phase::Connect);
        for _ in 0..ATTEMPTS {
            let link = self.link().await?;
            let sent = timeout(TIMEOUT, link.send(commands)).await;
            error = match sent {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(error)) => error,
                None => too_slow(Phase::Reply),
            };
            match Redirect::of(&error, 1) {
                Some(redirect) => {
                    self.give_up(&link).await;
                    if link.client().follow(&redirect).is_none() {
                        return Err(classify::unreachable(&redirect));
                    }
                }
                None => {
                    if sent_in_vain(&error) {
                        self.give_up(&link).await;
                        self.look_up_nodes(link.client());
                    }
                    return Err(error);
                }
            }
        }
        Err(error)
    }

    /// Reads a version, unless a field of it is longer than tollgate stores: others may have written it.
    async fn read(&self, version: u64) -> Result<RulesText, Error> {
        let key = &self.key();
        let lengths = FIELDS.map(|(field, most)| async move {
            let mut command = redis::cmd("HSTRLEN");
            command.arg(key).arg(format!("{version}:{field}"));
            let length: u64 = parse(self.run(&[command]).await?)?;
            match length > most {
                true => Err(too_long(version, field)),
                false => Ok(()),
            }
        });
        try_join_all(lengths).await?;
        let mut command = redis::cmd("HMGET");
        command.arg(key);
        for (field, _) in FIELDS {
            command.arg(format!("{version}:{field}"));
        }
        let reply = self.run(&[command]).await?;
        let [format, text, author, comment]: [Option<String>; 4] = parse(reply)?;
        Ok(RulesText {
            format: format.ok_or_else(foreign)?,
            text: text.ok_or_else(foreign)?,
            author: author.unwrap_or_default(),
            comment: comment.unwrap_or_default(),
        })
    }

    async fn id(&self) -> Result<Option<RulesId>, Error> {
        let mut command = redis::cmd("HMGET");
        command.arg(self.key()).arg("version").arg("time");
        let reply = self.run(&[command]).await?;
        let (version, time): (Option<u64>, Option<u64>) = parse(reply)?;
        Ok(version.zip(time).map(|(version, micros)| RulesId {
            version,
            time: Timestamp::from_micros(micros),
        }))
    }

    async fn store(
        &self,
        rules: RulesText,
        (replaced, floor): (u64, u64),
    ) -> Result<Result<RulesId, u64>, Error> {
        let key = self.key();
        let command = |start: fn(&Script, usize) -> Cmd| {
            let mut command = start(Script::RULES, 8);
            command
                .arg(1)
                .arg(&key)
                .arg(replaced)
                .arg(floor)
                .arg(&rules.format)
                .arg(&rules.text)
                .arg(&rules.author)
                .arg(&rules.comment);
            if let Some(clock) = &self.cluster.first().client.clock {
                command.arg(clock.now().as_micros());
            }
            command
        };
        let commands = [command(Script::by_hash), command(Script::by_text)];
        let reply: Vec<u64> = parse(self.run(&commands).await?)?;
        match reply[..] {
            [0, stored] => Ok(Err(stored)),
            [1, version, micros] => Ok(Ok(RulesId {
                version,
                time: Timestamp::from_micros(micros),
            })),
            _ => Err(foreign()),
        }
    }

    async fn history(&self) -> Result<Vec<(RulesId, RulesText)>, Error> {
        let mut command = redis::cmd("HKEYS");
        command.arg(self.key());
        let fields: Vec<Vec<u8>> = parse(self.run(&[command]).await?)?;
        // Others than tollgate may have written fields too.
        let version = |field: &Vec<u8>| {
            let field = str::from_utf8(field).ok()?;
            field.strip_suffix(":text")?.parse().ok()
        };
        let mut versions: Vec<u64> = fields.iter().filter_map(version).collect();
        versions.sort_unstable();
        let latest = &versions[versions.len().saturating_sub(KEPT)..];
        let read = latest.iter().map(|version| self.read_old(*version));
        let read = join_all(read).await.into_iter();
        // One that cannot be read is left out, unless that is for all.
        let read = read.filter(|read| match read {
            Ok(_) => true,
            Err(error) => error.kind() != ErrorKind::ForeignValue,
        });
        read.collect()
    }

    /// Reads a version of the history, with the time when it was stored.
    async fn read_old(&self, version: u64) -> Result<(RulesId, RulesText), Error> {
        let mut command = redis::cmd("HMGET");
        command.arg(self.key()).arg(format!("{version}:time"));
        let (micros,): (Option<u64>,) = parse(self.run(&[command]).await?)?;
        let time = micros.map(Timestamp::from_micros).ok_or_else(foreign)?;
        Ok((RulesId { version, time }, self.read(version).await?))
    }

    async fn stored_since(&self) -> Result<bool, Error> {
        let link = self.link().await?;
        if self.was_linked.swap(false, Ordering::Relaxed) {
            // Anything may have been stored before it listened.
            return Ok(true);
        }
        let RulesConnection::Own(listening, client) = &*link else {
            return Ok(false);
        };
        let message = listening.message().await;
        if message.is_err() {
            self.give_up(&link).await;
            self.look_up_nodes(client);
        }
        message
    }
}

impl RuleStore for RedisRuleStore {
    fn rules_id(&self) -> StoreFuture<Option<RulesId>> {
        let store = self.clone();
        StoreFuture::boxed(async move { store.id().await })
    }

    fn read_rules(&self, id: RulesId) -> StoreFuture<RulesText> {
        let store = self.clone();
        StoreFuture::boxed(async move { store.read(id.version).await })
    }

    fn store_rules(
        &self,
        rules: RulesText,
        replaced: u64,
        floor: u64,
    ) -> StoreFuture<Result<RulesId, u64>> {
        let store = self.clone();
        StoreFuture::boxed(async move { store.store(rules, (replaced, floor)).await })
    }

    fn rules_history(&self) -> StoreFuture<Vec<(RulesId, RulesText)>> {
        let store = self.clone();
        StoreFuture::boxed(async move { store.history().await })
    }

    fn rules_stored(&self) -> StoreFuture<bool> {
        let store = self.clone();
        StoreFuture::boxed(async move { store.stored_since().await })
    }
}

impl fmt::Debug for RedisRuleStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRuleStore").finish_non_exhaustive()
    }
}

// === RulesConnection ===

impl RulesConnection {
    fn client(&self) -> &Arc<Client> {
        match self {
            Self::Lane(client) | Self::Own(_, client) => client,
        }
    }

    /// Sends the first of these commands that the server knows.
    async fn send(&self, commands: &[Cmd]) -> Result<Value, Error> {
        let mut reply = Err(classify::closed());
        for command in commands {
            match self.send_one(command).await? {
                Ok(value) => return Ok(value),
                Err(error) if classify::is_unknown_script(&error) => {
                    reply = Err(classify::classify(error));
                }
                Err(error) => return Err(classify::classify(error)),
            }
        }
        reply
    }

    async fn send_one(&self, command: &Cmd) -> Result<Result<Value, RedisError>, Error> {
        match self {
            Self::Own(listening, _) => Ok(listening.send(command).await),
            Self::Lane(client) => {
                let mut connection = client.scheduler.lanes()[0].connect(false).await?;
                let sent = connection.send(command).await;
                Ok(sent.map_err(|failed| failed.error))
            }
        }
    }
}

// === Replies ===

fn parse<T: redis::FromRedisValue>(reply: Value) -> Result<T, Error> {
    redis::from_redis_value(reply).map_err(|error| foreign().with_source(error))
}

fn foreign() -> Error {
    Error::new(
        ErrorKind::ForeignValue,
        "the key of the rules holds a value that tollgate did not write",
    )
}

fn too_long(version: u64, field: &str) -> Error {
    let message = format!(
        "version {version} of the rules in redis has a longer {field} than tollgate stores: push other rules"
    );
    Error::new(ErrorKind::ForeignValue, message)
}

fn too_slow(phase: Phase) -> Error {
    let message = match phase {
        Phase::Connect => "no connection for rules to redis in time",
        _ => "no reply about rules from redis in time",
    };
    Error::new(ErrorKind::Timeout(phase), message)
}

/// Returns whether a connection is of no more use after this error.
fn sent_in_vain(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Timeout(_)) || classify::ends_connection(error)
}

/// The fields of a version, and the most bytes that tollgate stores in each.
const FIELDS: [(&str, u64); 4] = [
    ("format", 16),
    ("text", 1 << 20),
    ("author", 1_024),
    ("comment", 4_096),
];
/// The number of versions in a history.
const KEPT: usize = 10;
/// The longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait for a reply: a text may have a megabyte.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Redirects are followed as often, and once less.
const ATTEMPTS: usize = 5;
