//! Checks of the server that need no decision: its clock, its eviction policy and its mode.
//!
//! ```text
//! check            when                              finding
//! clock            every reply                       warning, once, if it is over 5 s off
//! eviction policy  first reply of each node, by INFO warning, once, if keys can be evicted
//! cluster mode     first call of a connection        calls have one command per slot
//! slots            decisions on several slots        warning, once, if the keys have a part in common
//! reach            errors of single slots            warning, once, if no node serves one or a pool cannot reach it
//! blocks           replies with blocks               warning, once, if there are more than an instance holds
//! registration     every 2 s                         warning, once, if this instance cannot be registered
//! ```
//!
//! None of them fails a decision.
//!
//! # Why does tollgate read the memory policy of Redis, but not set it?
//!
//! An evicted key silently forgives a caller in debt. `INFO memory` is sent once, behind the first decision on its connection,
//! and delays nobody. A user without the permission gets no warning, and keeps the connection. Setting the policy is the
//! operator's decision, because other applications may use the server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use redis::{Value, cmd};

use crate::{
    charge::Charge,
    clock::{Clock, Timestamp},
    diagnosis::{Code, SilencedCodes, Warning, WarningLog},
    key::Key,
    task::{home, timer::timeout},
};

use super::{handshake::hello_field, lane::LaneConnection};

/// Warns about a server that is not fit to keep counts.
#[derive(Debug, Default)]
pub(in crate::remote) struct ServerCheck {
    /// Whether the clock's offset was reported: once per store.
    has_warned_of_clock: AtomicBool,
    /// Number of decisions on several slots that were looked at.
    decisions_on_slots: AtomicU32,
    /// Whether a slot that cannot be reached was reported.
    has_warned_of_reach: AtomicBool,
    /// Collects the warnings, and logs each once.
    warnings: Arc<WarningLog>,
}

impl ServerCheck {
    /// Returns a check that does not report these codes.
    pub fn new(silenced: SilencedCodes) -> Self {
        Self {
            warnings: Arc::new(WarningLog::new(silenced)),
            ..Self::default()
        }
    }

    /// Returns the warnings so far.
    pub fn warnings(&self) -> Vec<Warning> {
        self.warnings.warnings()
    }

    /// Warns if two charges in different slots could be in one, by a part that both keys have. Looks at the first 1,000
    /// decisions.
    pub fn check_slots(&self, charges: &[Charge<'_>]) {
        if self.decisions_on_slots.load(Ordering::Relaxed) >= MAX_DECISIONS_ON_SLOTS {
            return;
        }
        self.decisions_on_slots.fetch_add(1, Ordering::Relaxed);
        for (index, charge) in charges.iter().enumerate() {
            let mut before = charges[..index].iter();
            let Some(other) = before.find(|other| {
                other.key().slot() != charge.key().slot()
                    && has_common_part(charge.key(), other.key())
            }) else {
                continue;
            };
            self.decisions_on_slots
                .store(MAX_DECISIONS_ON_SLOTS, Ordering::Relaxed);
            let (one, name) = (other.policy().name(), charge.policy().name());
            self.warnings.report(Warning::new(
                Code::SeveralSlots,
                format!("the policies {one} and {name} are in different slots, though their keys have a part in common"),
            ));
        }
    }

    /// Warns about a slot whose decisions nobody makes. `finding` is the reason.
    pub fn warn_of_unreachable(&self, finding: &str) {
        if !self.has_warned_of_reach.swap(true, Ordering::Relaxed) {
            let warning = Warning::new(Code::UnreachableSlots, finding);
            self.warnings.report(warning);
        }
    }

    /// Warns that the server has more blocks than an instance holds.
    pub fn warn_of_blocks(&self) {
        let finding = "redis has more than 100,000 blocks: the others do not hold here";
        self.warnings
            .report(Warning::new(Code::TooManyBlocks, finding));
    }

    /// Warns that the server refused to register this instance. `finding` is its reason.
    pub fn warn_of_registration(&self, finding: String) {
        let warning = Warning::new(Code::UnregisteredInstance, finding);
        self.warnings.report(warning);
    }

    /// Compares the server's time in a reply with the time of the call.
    #[inline]
    pub fn compare_clocks(&self, called_at: Timestamp, decided_at: Timestamp) {
        let behind = called_at.since(decided_at);
        let ahead = decided_at.since(called_at);
        if behind.max(ahead) > MAX_CLOCK_OFFSET {
            self.warn_of_clock(behind, decided_at);
        }
    }

    /// Warns unless the offset comes from a slow call. `behind` is how far the server was behind when the call began.
    #[cold]
    fn warn_of_clock(&self, behind: Duration, decided_at: Timestamp) {
        // A call that took long makes the server's clock look ahead, so the time is read again.
        let ahead = decided_at.since(Clock::system().now());
        let offset = behind.max(ahead);
        if offset > MAX_CLOCK_OFFSET && !self.has_warned_of_clock.swap(true, Ordering::Relaxed) {
            let side = if behind > ahead { "behind" } else { "ahead of" };
            let seconds = offset.as_secs();
            self.warnings.report(Warning::new(
                Code::ClockSkew,
                format!("the redis server's clock is {seconds} s {side} this process'"),
            ));
        }
    }

    /// Checks the eviction policy of a server in the background, on this connection.
    #[cold]
    pub fn check_eviction(&self, mut connection: LaneConnection) {
        let warnings = Arc::clone(&self.warnings);
        // A server that refuses INFO is not warned about, and keeps its connection.
        home::spawn(async move {
            let mut command = cmd("INFO");
            let reply = timeout(INFO_TIMEOUT, connection.send(command.arg("memory"))).await;
            if let Some(Ok(reply)) = reply
                && let Some(policy) = eviction_policy(&reply)
            {
                warnings.report(Warning::new(
                    Code::EvictingServer,
                    format!("the redis server evicts keys: maxmemory-policy is {policy}"),
                ));
            }
        });
    }
}

/// Returns whether a reply to HELLO contains the mode `cluster`; `None` if it contains no mode.
pub(in crate::remote) fn is_cluster(hello: &Value) -> Option<bool> {
    hello_field(hello, "mode").map(|mode| mode == "cluster")
}

/// Returns the policy by which the server evicts keys; `None` if it has no memory limit or never evicts.
///
/// INFO is lines of `name:value`; these are `maxmemory` in bytes, 0 for no limit, and `maxmemory_policy`.
fn eviction_policy(info: &Value) -> Option<String> {
    let text: String = redis::from_redis_value_ref(info).ok()?;
    let field = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let has_limit = field("maxmemory").is_some_and(|bytes| bytes != "0");
    let policy = field("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
    has_limit.then(|| policy.to_owned())
}

/// Returns whether two keys were joined from parts of which one is the same, and belongs to somebody.
fn has_common_part(one: &Key, other: &Key) -> bool {
    let is_shared = |part: &[u8]| {
        [&Key::GLOBAL, &Key::UNIDENTIFIED]
            .map(Key::as_bytes)
            .contains(&part)
    };
    one.parts()
        .any(|part| !is_shared(part) && other.parts().any(|other| other == part))
}

/// Decisions on several slots that are looked at.
const MAX_DECISIONS_ON_SLOTS: u32 = 1_000;
/// The largest offset between two clocks without a warning.
const MAX_CLOCK_OFFSET: Duration = Duration::from_secs(5);
/// The longest wait for the reply to INFO.
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
