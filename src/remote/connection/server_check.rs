//! Whether the server is fit to keep counts.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use redis::{Cmd, RedisResult, Value, cmd};

use crate::{
    clock::{Clock, Timestamp},
    diagnosis::{Code, SilencedCodes, Warning, WarningLog},
    spawn,
    timer::timeout,
};

use super::{classify, lane::Held};

/// Looks at the first answers of a server.
#[derive(Debug, Default)]
pub(in crate::remote) struct ServerCheck {
    has_asked: AtomicBool,
    is_clock_off: AtomicBool,
    pub(in crate::remote) ledger: Arc<WarningLog>,
}

impl ServerCheck {
    pub(in crate::remote) fn new(silenced: SilencedCodes) -> Self {
        Self {
            ledger: Arc::new(WarningLog::new(silenced)),
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
                Code::ClockSkew,
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
            spawn::on_current(async move {
                let mut command = cmd("INFO");
                let reply = timeout(PATIENCE, held.send(command.arg("memory"))).await;
                if let Some(Ok(reply)) = reply
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

/// Sends the first command on a connection, and with it the question whether the server runs in cluster mode.
///
/// A cluster of one node decides single keys like any other server, and fails under load, when decisions with keys in
/// different slots travel together. So it is refused by name at once. A server that does not answer the question is
/// taken for one that stands alone.
pub(in crate::remote) async fn with_mode(held: &mut Held, command: &Cmd) -> RedisResult<Value> {
    let mut other = held.again();
    let question = cmd("HELLO");
    let mut asking = pin!(other.send(&question));
    let mut sending = pin!(held.send(command));
    let mut mode = None;
    // The reply to the question comes first, since it was sent first.
    let reply = poll_fn(|context| {
        if mode.is_none()
            && let Poll::Ready(reply) = asking.as_mut().poll(context)
        {
            mode = Some(reply);
        }
        sending.as_mut().poll(context)
    })
    .await;
    match mode {
        Some(Ok(hello)) if is_cluster(&hello) => Err(classify::cluster_mode()),
        _ => reply,
    }
}

/// Whether the reply to `HELLO` names the mode `cluster`.
fn is_cluster(hello: &Value) -> bool {
    let fields: std::collections::HashMap<String, Value> =
        redis::from_redis_value_ref(hello).unwrap_or_default();
    let mode = fields.get("mode");
    mode.is_some_and(|mode| {
        redis::from_redis_value_ref(mode).is_ok_and(|mode: String| mode == "cluster")
    })
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
