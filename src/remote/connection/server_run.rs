//! Distinguishes one run of a server from the next, which may lack its data.

use std::{
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
};

use redis::{Cmd, Value, cmd};
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

/// A server from its start to its end, as it was met on a connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::remote) struct ServerRun {
    /// A hash of its `run_id`.
    id: u64,
    /// The order in which runs were met.
    met: NonZeroU64,
}

/// The run that was met last, and the latest ones before it.
#[derive(Debug, Default)]
pub(in crate::remote) struct LatestRun {
    latest: Option<ServerRun>,
    /// Hashes of runs that were met, the latest at last.
    known: SmallVec<[u64; KNOWN]>,
}

/// Returns the command whose reply contains the run of a server.
pub(super) fn info_server() -> Cmd {
    let mut info = cmd("INFO");
    info.arg("server");
    info
}

impl ServerRun {
    /// Returns the run in a reply to [`info_server`]; `None` if the user may not run it, or a proxy replied.
    pub(super) fn of(info: &Value) -> Option<Self> {
        let text: String = redis::from_redis_value_ref(info).ok()?;
        let mut lines = text.lines();
        let id = lines.find_map(|line| line.strip_prefix("run_id:"))?;
        Some(Self {
            id: SipHasher13::new_with_keys(0, 0).hash(id.as_bytes()),
            met: NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed))?,
        })
    }
}

impl LatestRun {
    /// Notes a run. Returns whether it has replaced another one.
    ///
    /// A connection may first be used long after it was made: then its run may be the one before. A run that was never met
    /// is a new one, though, also if a busy runtime has read its reply before that of the run it replaced.
    pub(in crate::remote) fn note(&mut self, run: ServerRun) -> bool {
        let before = self.latest;
        let is_known = self.known.contains(&run.id);
        let is_later = before.is_none_or(|before| before.met < run.met);
        if is_later || !is_known {
            self.latest = Some(run);
        }
        if !is_known {
            if self.known.len() == KNOWN {
                self.known.remove(0);
            }
            self.known.push(run.id);
        }
        before.is_some_and(|before| before.id != run.id && (is_later || !is_known))
    }
}

/// Runs that are remembered: more than a server has while one connection waits for its first use.
const KNOWN: usize = 8;

static NEXT: AtomicU64 = AtomicU64::new(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: &str) -> ServerRun {
        let info = format!("# Server\r\nredis_version:7.0.0\r\nrun_id:{id}\r\n");
        ServerRun::of(&Value::BulkString(info.into_bytes())).expect("it contains a run")
    }

    // Regression: a connection that was first used after a restart made it look like two more.
    #[test]
    fn restart_is_noted_once_although_an_older_connection_is_used_after_it() {
        let mut latest = LatestRun::default();
        let (first, unused, restarted, again) = (run("a"), run("a"), run("b"), run("b"));
        assert!(!latest.note(first));
        assert!(latest.note(restarted));
        assert!(!latest.note(unused), "it leads to the run before");
        assert!(!latest.note(again));
        assert!(latest.note(run("c")));
    }

    // Regression: a restart was missed if a busy runtime read the reply of the run before it last.
    #[test]
    fn restart_is_noted_although_the_reply_of_the_run_before_was_read_later() {
        let mut latest = LatestRun::default();
        assert!(!latest.note(run("a")));
        let (restarted, late) = (run("b"), run("a"));
        assert!(!latest.note(late));
        assert!(latest.note(restarted), "it was never met");
        assert!(!latest.note(restarted));
    }
}
