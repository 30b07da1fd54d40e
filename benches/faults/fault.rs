//! The rows: each fault, its traffic, and its end.

use std::time::Duration;

use tollgate::{Key, Policy, Quota, algorithm::Algorithm};

use crate::{environment::Environment, support::Mode};

/// One row. The defaults are those of [`Fault::usual`].
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) callers: usize,
    /// Pause of a caller between two decisions.
    pub(crate) pause: Duration,
    pub(crate) keys: Keys,
    /// Rate per second, and burst.
    pub(crate) rate: u64,
    pub(crate) algorithm: Algorithm,
    pub(crate) connections: usize,
    /// Whether the callers share one thread.
    pub(crate) has_one_thread: bool,
    /// Whether the limiter has no connection when the callers start.
    pub(crate) is_cold: bool,
    /// Whether the limiter connects to the server without the proxy.
    pub(crate) is_direct: bool,
    /// Whether the limiter logs in as a user whose permissions the row revokes.
    pub(crate) has_user: bool,
    pub(crate) round_trip: Duration,
    pub(crate) server_arguments: &'static [&'static str],
    /// Sets the server up before the callers start.
    pub(crate) prepare: fn(&mut Environment),
    /// Length of the phase before the fault.
    pub(crate) before: Duration,
    pub(crate) strike: fn(&mut Environment),
    pub(crate) lasts: Duration,
    pub(crate) mend: fn(&mut Environment),
}

impl Fault {
    /// Returns a row with 64 callers on one key, 1,000 per second.
    fn usual(name: &'static str, strike: fn(&mut Environment), mend: fn(&mut Environment)) -> Self {
        Self {
            name,
            callers: 64,
            pause: Duration::from_millis(2),
            keys: Keys::One,
            rate: 1_000,
            algorithm: Algorithm::TokenBucket,
            connections: 2,
            has_one_thread: false,
            is_cold: false,
            is_direct: false,
            has_user: false,
            round_trip: Duration::ZERO,
            server_arguments: &[],
            prepare: |_| {},
            before: Duration::from_secs(2),
            strike,
            lasts: Duration::from_secs(3),
            mend,
        }
    }

    /// Returns a row in which the network stalls once, during the first decisions of 30 callers. They ask seldom, so few
    /// good decisions outweigh the late ones.
    fn stall(name: &'static str, millis: u64, strike: fn(&mut Environment)) -> Self {
        Self {
            callers: 30,
            pause: Duration::from_millis(50),
            before: Duration::ZERO,
            lasts: Duration::from_millis(millis),
            ..Self::usual(name, strike, |_| {})
        }
    }

    /// Lets the fault begin with the first decision, without a connection.
    fn struck_from_the_start(self) -> Self {
        Self {
            is_cold: true,
            before: Duration::ZERO,
            ..self
        }
    }

    pub(crate) fn policy(&self) -> Policy {
        let quota = match (self.keys, self.algorithm) {
            (Keys::MostlyDenied, _) => Quota::per_day(1),
            (_, Algorithm::TokenBucket) => Quota::per_second(self.rate).burst(self.rate),
            _ => Quota::per_second(self.rate),
        };
        Policy::new("faults", quota).algorithm(self.algorithm)
    }

    /// Returns the limit for a run of this length, or `None` if it depends on the number of keys.
    pub(crate) fn limit(&self, span: Duration) -> Option<u64> {
        let keys = match self.keys {
            Keys::MostlyDenied => return None,
            Keys::One => 1,
            Keys::OneEach => self.callers as u64,
        };
        Some(keys * (self.rate + self.rate * span.as_millis() as u64 / 1_000))
    }
}

// === Keys ===

/// The keys of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// One exhausted key, and a new key every tenth time: nine in ten decisions write nothing.
    MostlyDenied,
    One,
    OneEach,
}

impl Keys {
    pub(crate) fn pick(self, caller: usize, turn: u64) -> Key {
        match self {
            Self::MostlyDenied if turn % 10 == caller as u64 % 10 => {
                Key::new(format!("caller-{caller}-{turn}"))
            }
            Self::MostlyDenied | Self::One => Key::GLOBAL,
            Self::OneEach => Key::new(format!("caller-{caller}")),
        }
    }
}

// === Rows ===

pub(crate) fn all() -> Vec<Fault> {
    let mut faults = outages();
    faults.extend(loads());
    faults.extend(refusals());
    faults
}

/// The server or the network is down.
fn outages() -> Vec<Fault> {
    vec![
        Fault::usual("no fault", |_| {}, |_| {}),
        Fault::usual(
            "kill -9, restart",
            |env| env.server.kill(),
            |env| env.server.restart(),
        ),
        Fault {
            is_direct: true,
            ..Fault::usual(
                "kill -9, connection refused",
                |env| env.server.kill(),
                |env| env.server.restart(),
            )
        },
        Fault::usual(
            "SIGSTOP, SIGCONT",
            |env| env.server.pause(),
            |env| env.server.resume(),
        ),
        Fault::usual("restart at once", |env| env.server.restart(), |_| {}),
        Fault::usual(
            "SCRIPT FLUSH",
            |env| env.command(&["SCRIPT", "FLUSH"]),
            |_| {},
        ),
        Fault::usual(
            "black hole",
            |env| env.proxy.set(Mode::BlackHole),
            |env| env.proxy.set(Mode::Pass),
        ),
        Fault::stall("stall of 35 ms", 35, |env| {
            env.proxy.stall(Duration::from_millis(35));
        }),
        Fault::stall("stall of 100 ms", 100, |env| {
            env.proxy.stall(Duration::from_millis(100));
        }),
        Fault::stall("stall of 500 ms", 500, |env| {
            env.proxy.stall(Duration::from_millis(500));
        }),
    ]
}

/// Something is slow: the network, the server, or this process.
fn loads() -> Vec<Fault> {
    vec![
        Fault {
            callers: 40,
            round_trip: Duration::from_millis(10),
            ..Fault::usual("cold start at 10 ms", |_| {}, |_| {}).struck_from_the_start()
        },
        Fault {
            callers: 30,
            has_one_thread: true,
            before: Duration::ZERO,
            lasts: Duration::from_secs(10),
            ..Fault::usual(
                "busy runtime: ten tasks of 1 ms a poll",
                |env| env.set_busy(true),
                |env| env.set_busy(false),
            )
        },
        Fault {
            lasts: Duration::from_secs(10),
            ..Fault::usual(
                "slow network: replies 30 ms late",
                |env| env.proxy.set(Mode::Delay(Duration::from_millis(30))),
                |env| env.proxy.set(Mode::Pass),
            )
        },
        Fault {
            lasts: Duration::from_secs(10),
            ..Fault::usual(
                "slow server: another client's commands of 30 ms",
                Environment::start_neighbour,
                Environment::stop_neighbour,
            )
        },
        Fault {
            callers: 512,
            pause: Duration::from_millis(16),
            connections: 1,
            ..Fault::usual("pool of 1, 512 callers", |_| {}, |_| {})
        },
        Fault {
            callers: 512,
            pause: Duration::from_millis(16),
            connections: 1,
            ..Fault::usual(
                "pool of 1, 512 callers, SIGSTOP",
                |env| env.server.pause(),
                |env| env.server.resume(),
            )
        },
    ]
}

/// The server answers with errors.
fn refusals() -> Vec<Fault> {
    let read_only = |name| {
        Fault::usual(
            name,
            |env| env.command(&["REPLICAOF", "127.0.0.1", "1"]),
            |env| env.command(&["REPLICAOF", "NO", "ONE"]),
        )
    };
    vec![
        read_only("read-only replica"),
        Fault {
            callers: 8,
            pause: Duration::from_millis(5),
            keys: Keys::MostlyDenied,
            lasts: Duration::from_secs(10),
            ..read_only("read-only replica, mostly denials")
        },
        Fault::usual(
            "out of memory",
            |env| env.command(&["CONFIG", "SET", "maxmemory", "1"]),
            |env| env.command(&["CONFIG", "SET", "maxmemory", "0"]),
        ),
        Fault {
            has_user: true,
            prepare: Environment::allow_everything,
            ..Fault::usual(
                "no permission to write",
                |env| env.forbid("-@write"),
                Environment::allow_everything,
            )
        },
        Fault {
            algorithm: Algorithm::SlidingLog,
            has_user: true,
            prepare: Environment::allow_everything,
            ..Fault::usual(
                "no permission to GETRANGE, sliding log",
                |env| env.forbid("-getrange"),
                Environment::allow_everything,
            )
        },
        Fault {
            keys: Keys::OneEach,
            rate: 100,
            server_arguments: &["--cluster-enabled", "yes"],
            prepare: Environment::own_all_slots,
            ..Fault::usual("cluster of one shard", |_| {}, |_| {}).struck_from_the_start()
        },
    ]
}

pub(crate) const DEADLINE: Duration = Duration::from_millis(50);
