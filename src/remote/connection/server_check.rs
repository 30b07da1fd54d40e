//! Whether the server is fit to keep counts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{Value, cmd};
use tokio::time::timeout;

use crate::{
    clock::{Clock, Timestamp},
    diagnosis::{Code, Ledger, Muted, Warning},
    task,
};

use super::lane::Held;

/// Looks at the first answers of a server.
#[derive(Debug, Default)]
pub(in crate::remote) struct ServerCheck {
    has_asked: AtomicBool,
    is_clock_off: AtomicBool,
    pub(in crate::remote) ledger: Arc<Ledger>,
}

impl ServerCheck {
    pub(in crate::remote) fn new(muted: Muted) -> Self {
        Self {
            ledger: Arc::new(Ledger::new(muted)),
            ..Self::default()
        }
    }

    /// Compares the server's time with the time of the call that it answered.
    #[inline]
    pub(in crate::remote) fn compare(&self, called: Timestamp, told: Timestamp) {
        let behind = called.since(told);
        let ahead = told.since(called);
        if behind.max(ahead) > TOLERANCE {
            self.judge(behind, told);
        }
    }

    /// A call that was long under way makes the server's clock look ahead: reads the time again before it says so.
    #[cold]
    fn judge(&self, behind: Duration, told: Timestamp) {
        let ahead = told.since(Clock::system().now());
        let by = behind.max(ahead);
        if by > TOLERANCE && !self.is_clock_off.swap(true, Ordering::Relaxed) {
            let side = if behind > ahead { "behind" } else { "ahead of" };
            let seconds = by.as_secs();
            self.ledger.report(Warning::new(
                Code::ClockOff,
                format!("the redis server's clock is {seconds} s {side} this process'"),
            ));
        }
    }

    /// Asks once, in the background, whether the server evicts keys.
    #[inline]
    pub(in crate::remote) fn ask(&self, held: impl FnOnce() -> Option<Held>) {
        if !self.has_asked.load(Ordering::Relaxed) {
            self.ask_now(held);
        }
    }

    #[cold]
    fn ask_now(&self, held: impl FnOnce() -> Option<Held>) {
        if self.has_asked.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(mut held) = held() {
            let ledger = Arc::clone(&self.ledger);
            // A user who may not ask, or a server that does not know it, gets no warning and keeps its connection.
            task::spawn(async move {
                let mut command = cmd("INFO");
                let reply = timeout(PATIENCE, held.send(command.arg("memory"))).await;
                if let Ok(Ok(reply)) = reply
                    && let Some(policy) = eviction(&reply)
                {
                    ledger.report(Warning::new(
                        Code::EvictingServer,
                        format!("the redis server evicts keys: maxmemory-policy is {policy}"),
                    ));
                }
            });
        }
    }
}

/// By what the server evicts keys when its memory is full, if it does.
fn eviction(info: &Value) -> Option<String> {
    let text: String = redis::from_redis_value_ref(info).ok()?;
    let field = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let has_limit = field("maxmemory").is_some_and(|bytes| bytes != "0");
    let policy = field("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
    has_limit.then(|| policy.to_owned())
}

/// How far apart two clocks may be.
const TOLERANCE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(1);
