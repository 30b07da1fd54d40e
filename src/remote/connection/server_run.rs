//! Distinguishes one run of a server from the next, which may lack its data.

use std::{
    hash::{Hash, Hasher},
    net::SocketAddr,
    num::NonZeroU32,
    sync::atomic::{AtomicU32, Ordering},
};

use redis::{Cmd, Value, cmd};
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use crate::error::Error;

use super::classify;

/// A server from its start to its end, as it was met on a connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::remote) struct ServerRun {
    /// A hash of its `run_id`.
    id: u64,
    /// The order in which runs were met.
    met: NonZeroU32,
    /// A hash of the address that the connection leads to; of `None` if it is not known.
    peer: u32,
}

/// The latest runs that were met.
#[derive(Debug, Default)]
pub(in crate::remote) struct LatestRuns {
    /// The last one of each id, the latest at last.
    runs: SmallVec<[ServerRun; KNOWN]>,
}

/// Returns the command whose reply contains the run of a server.
pub(super) fn info_server() -> Cmd {
    let mut info = cmd("INFO");
    info.arg("server");
    info
}

impl ServerRun {
    /// Returns the run in a reply to [`info_server`]; `None` if the user may not run it, or a proxy replied.
    ///
    /// # Errors
    ///
    /// That of a server that runs a slow script: it replies later.
    pub fn of(info: &Value, peer: Option<SocketAddr>) -> Result<Option<Self>, Error> {
        if let Value::ServerError(error) = info
            && error.code() == "BUSY"
        {
            return Err(classify::classify(error.clone().into()));
        }
        let text: String = redis::from_redis_value_ref(info).unwrap_or_default();
        let mut lines = text.lines();
        let id = lines.find_map(|line| line.strip_prefix("run_id:"));
        let met = NonZeroU32::new(NEXT.fetch_add(1, Ordering::Relaxed));
        Ok(id.zip(met).map(|(id, met)| Self {
            id: hash_of(id),
            met,
            peer: u32::try_from(hash_of(peer) >> 32).unwrap_or_default(),
        }))
    }
}

impl LatestRuns {
    /// Notes a run. Returns whether it has replaced another one: of the same address, unless `is_one_server` is set.
    ///
    /// A connection may first be used long after it was made: then its run may be the one before. A run that was never met
    /// is a new one, though, also if a busy runtime has read its reply before that of the run it replaced.
    pub fn note(&mut self, run: ServerRun, is_one_server: bool) -> bool {
        let mut before = self.runs.iter().rev();
        let before = before.find(|before| is_one_server || before.peer == run.peer);
        let before = before.copied();
        let known = self.runs.iter().position(|known| known.id == run.id);
        let is_later = before.is_none_or(|before| before.met < run.met);
        if is_later || known.is_none() {
            if let Some(known) = known {
                self.runs.remove(known);
            } else if self.runs.len() == KNOWN {
                self.runs.remove(0);
            }
            self.runs.push(run);
        }
        before.is_some_and(|before| before.id != run.id && (is_later || known.is_none()))
    }
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    value.hash(&mut hasher);
    hasher.finish()
}

/// Runs that are remembered: more than a server has while one connection waits for its first use.
const KNOWN: usize = 8;

static NEXT: AtomicU32 = AtomicU32::new(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn run_at(id: &str, port: u16) -> ServerRun {
        let info = format!("# Server\r\nredis_version:7.0.0\r\nrun_id:{id}\r\n");
        let info = Value::BulkString(info.into_bytes());
        let run = ServerRun::of(&info, Some(([127, 0, 0, 1], port).into()));
        run.expect("not busy").expect("it contains a run")
    }

    fn run(id: &str) -> ServerRun {
        run_at(id, 1)
    }

    // Regression: a connection that was first used after a restart made it look like two more.
    #[test]
    fn restart_is_noted_once_although_an_older_connection_is_used_after_it() {
        let mut latest = LatestRuns::default();
        let (first, unused, restarted, again) = (run("a"), run("a"), run("b"), run("b"));
        assert!(!latest.note(first, true));
        assert!(latest.note(restarted, true));
        assert!(!latest.note(unused, true), "it leads to the run before");
        assert!(!latest.note(again, true));
        assert!(latest.note(run("c"), true));
    }

    // Regression: a restart was missed if a busy runtime read the reply of the run before it last.
    #[test]
    fn restart_is_noted_although_the_reply_of_the_run_before_was_read_later() {
        let mut latest = LatestRuns::default();
        assert!(!latest.note(run("a"), true));
        let (restarted, late) = (run("b"), run("a"));
        assert!(!latest.note(late, true));
        assert!(latest.note(restarted, true), "it was never met");
        assert!(!latest.note(restarted, true));
    }

    // Regression: while the slots of a cluster were not known, no restart was noted.
    #[test]
    fn name_of_several_servers_is_replaced_only_where_one_of_them_is() {
        let mut latest = LatestRuns::default();
        for (id, port) in [("a", 1), ("b", 2), ("a", 1), ("b", 2)] {
            assert!(!latest.note(run_at(id, port), false), "{id}");
        }
        assert!(latest.note(run_at("c", 1), false));
        assert!(!latest.note(run_at("b", 2), false));
        assert!(
            latest.note(run_at("c", 1), true),
            "as one server it is another one"
        );
    }
}
