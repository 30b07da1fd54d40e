//! Registers this instance in Redis, and learns how many instances are alive.
//!
//! ```text
//! a decision's reply ── 2 s since the last registration? ── no ──> nothing
//!                                  | yes
//!                                  '──> a task: one EVALSHA of lua/members.lua on the same connection
//!                                         reply: the version, and the ids if they have changed ──> Fleet
//! ```
//!
//! If the instances share their top keys, the task then writes those of this instance (`shared_top_keys.rs`).
//!
//! No decision waits for a registration, and no timer runs: an instance without decisions does not register. A failed
//! registration has no effect on the breaker, and leaves the known instances as they are.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, Value};

use crate::{
    clock::{Clock, Timestamp},
    error::ErrorKind,
    resilience::Fleet,
    task::{home, timer::timeout},
};

use super::{
    connection::{LaneConnection, ServerCheck, classify},
    protocol::{Redirect, RedisKey, Script},
};

#[cfg(feature = "top-keys")]
use super::shared_top_keys::SharedTopKeys;

/// The needs of a registration.
pub(super) struct Turn {
    pub connection: LaneConnection,
    /// Warns of a server that refuses.
    pub check: Arc<ServerCheck>,
    /// Finds the node that a redirect leads to. Returns whether it can be reached.
    pub follow: Box<dyn FnOnce(&Redirect) -> bool + Send>,
}

/// The registration of this instance, once a breaker needs to know the fleet.
#[derive(Debug)]
pub(super) struct Registration {
    /// The key of the live instances.
    key: RedisKey,
    /// The caller's clock, if the script must not take the server's time.
    clock: Option<Clock>,
    fleet: OnceLock<Arc<Fleet>>,
    /// When the next registration is due, in microseconds since the Unix epoch.
    due: AtomicU64,
    /// The version of the instances that are known; 0 for none.
    version: AtomicU64,
    /// Whether the latest registration was redirected.
    was_redirected: AtomicBool,
    /// The top keys that this instance shares.
    #[cfg(feature = "top-keys")]
    pub top_keys: OnceLock<SharedTopKeys>,
}

impl Registration {
    /// Returns a registration under this key, which does nothing until it is started.
    pub fn new(key: RedisKey, clock: Option<Clock>) -> Arc<Self> {
        Arc::new(Self {
            key,
            clock,
            fleet: OnceLock::new(),
            due: AtomicU64::new(0),
            version: AtomicU64::new(0),
            was_redirected: AtomicBool::new(false),
            #[cfg(feature = "top-keys")]
            top_keys: OnceLock::new(),
        })
    }

    /// Returns the fleet, and registers this instance from now on.
    pub fn start(&self) -> Arc<Fleet> {
        Arc::clone(self.fleet.get_or_init(Arc::default))
    }

    /// Returns the number of live instances, as far as it is known; 1 otherwise.
    pub fn instances(&self) -> u32 {
        let known = self.fleet.get().and_then(|fleet| fleet.instances());
        known.map_or(1, |known| known.try_into().unwrap_or(u32::MAX))
    }

    /// Registers this instance in the background, if that is due. `turn` returns `None` without a connection.
    #[inline]
    pub fn renew_if_due(self: &Arc<Self>, now: Timestamp, turn: impl FnOnce() -> Option<Turn>) {
        if let Some(fleet) = self.fleet.get()
            && self.take_turn(now)
            && let Some(turn) = turn()
        {
            let renewing = Arc::clone(self).renew(Arc::clone(fleet), turn);
            home::spawn(renewing);
        }
    }

    /// Returns whether a registration is due, for one of all callers.
    #[inline]
    fn take_turn(&self, now: Timestamp) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        due <= now.as_micros()
            && self
                .due
                .compare_exchange(
                    due,
                    (now + INTERVAL).as_micros(),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Takes over the instances in a reply. Any other reply changes nothing.
    fn learn(&self, fleet: &Fleet, reply: &Value) {
        let Value::Array(parts) = reply else { return };
        let [Value::Int(version), ids @ ..] = parts.as_slice() else {
            return;
        };
        let Ok(version) = u64::try_from(*version) else {
            return;
        };
        let now = Clock::system().now();
        if version == self.version.load(Ordering::Relaxed) {
            fleet.confirm(now);
            return;
        }
        let id = |value: &Value| match value {
            Value::BulkString(bytes) => Some(u64::from_be_bytes(bytes.as_slice().try_into().ok()?)),
            _ => None,
        };
        if let Some(ids) = ids.iter().map(id).collect::<Option<Vec<u64>>>() {
            fleet.learn(&ids, now);
            self.version.store(version, Ordering::Relaxed);
        }
    }

    /// Registers this instance once.
    async fn renew(self: Arc<Self>, fleet: Arc<Fleet>, turn: Turn) {
        let mut connection = turn.connection;
        let by_hash = self.command(&fleet, Script::by_hash);
        let mut reply = timeout(TIMEOUT, connection.send(&by_hash)).await;
        if let Some(Err(failed)) = &reply
            && classify::is_unknown_script(&failed.error)
        {
            let by_text = self.command(&fleet, Script::by_text);
            reply = timeout(TIMEOUT, connection.send(&by_text)).await;
        }
        match reply {
            Some(Ok(reply)) => {
                self.was_redirected.store(false, Ordering::Relaxed);
                self.learn(&fleet, &reply);
                #[cfg(feature = "top-keys")]
                if let Some(top_keys) = self.top_keys.get() {
                    top_keys.write(&mut connection, fleet.instance()).await;
                }
            }
            Some(Err(failed)) => {
                let error = classify::classify(failed.error);
                if let Some(redirect) = Redirect::of(&error, 1) {
                    if (turn.follow)(&redirect) {
                        // The next decision registers it there, once: while a slot is moved, each one would be redirected.
                        if !self.was_redirected.swap(true, Ordering::Relaxed) {
                            self.due.store(0, Ordering::Relaxed);
                        }
                    } else {
                        let finding = classify::unreachable(&redirect).to_string();
                        turn.check.warn_of_registration(finding);
                    }
                    return;
                }
                // Any other error passes, or is one of the decisions too.
                let stays = matches!(error.kind(), ErrorKind::ForeignValue | ErrorKind::Script);
                if stays {
                    turn.check.warn_of_registration(error.to_string());
                }
            }
            None => {}
        }
    }

    /// Returns the command that registers this instance. `start` is [`Script::by_hash`] or [`Script::by_text`].
    fn command(&self, fleet: &Fleet, start: fn(&Script, usize) -> Cmd) -> Cmd {
        let mut command = start(Script::MEMBERS, 5);
        command
            .arg(1)
            .arg(self.key.as_slice())
            .arg(&fleet.instance().to_be_bytes())
            .arg(LIFETIME_MILLIS)
            .arg(self.version.load(Ordering::Relaxed));
        if let Some(clock) = &self.clock {
            command.arg(clock.now().as_micros());
        }
        command
    }
}

/// The shortest time between two registrations.
const INTERVAL: Duration = Duration::from_secs(2);
/// How long an instance counts after its last registration, in milliseconds.
const LIFETIME_MILLIS: u64 = 10_000;
/// The longest wait for a reply.
const TIMEOUT: Duration = Duration::from_secs(1);
