//! The rows: what breaks, for whom, and how it is mended.

use std::time::Duration;

use tollgate::{Key, Policy, Quota, algorithm::Algorithm};

use crate::{scene::Scene, support::Mode};

/// One row. What it does not say is as in [`Fault::usual`].
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) callers: usize,
    /// How long a caller waits between two decisions.
    pub(crate) pause: Duration,
    pub(crate) keys: Keys,
    /// The rate a second, which is the burst too.
    pub(crate) rate: u64,
    pub(crate) algorithm: Algorithm,
    pub(crate) connections: usize,
    /// Whether the callers share one thread.
    pub(crate) has_one_thread: bool,
    /// Whether callers begin all at once on a limiter that nobody has asked.
    pub(crate) is_cold: bool,
    /// Whether there is no proxy between the limiter and the server.
    pub(crate) is_direct: bool,
    /// Whether the limiter logs in as a user whose permissions are taken away.
    pub(crate) has_user: bool,
    pub(crate) round_trip: Duration,
    pub(crate) server_arguments: &'static [&'static str],
    /// What the server is told before anybody asks it.
    pub(crate) prepare: fn(&mut Scene),
    /// How long all is well first.
    pub(crate) well: Duration,
    pub(crate) strike: fn(&mut Scene),
    pub(crate) lasts: Duration,
    pub(crate) mend: fn(&mut Scene),
}

impl Fault {
    /// 64 callers on one key, 1,000 a second.
    fn usual(name: &'static str, strike: fn(&mut Scene), mend: fn(&mut Scene)) -> Self {
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
            well: Duration::from_secs(2),
            strike,
            lasts: Duration::from_secs(3),
            mend,
        }
    }

    /// One stall of everything between the limiter and the server. It hits the first decisions of 30 callers, who ask
    /// seldom: no good ones before it speak for the server.
    fn stall(name: &'static str, millis: u64, strike: fn(&mut Scene)) -> Self {
        Self {
            callers: 30,
            pause: Duration::from_millis(50),
            well: Duration::ZERO,
            lasts: Duration::from_millis(millis),
            ..Self::usual(name, strike, |_| {})
        }
    }

    /// The fault is there from the beginning, and nothing was asked before.
    fn struck_from_the_start(self) -> Self {
        Self {
            is_cold: true,
            well: Duration::ZERO,
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

    /// The most that may be allowed in this span; `None` when that depends on how many keys were asked about.
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

/// What the callers ask about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// One key that is used up, and a new one every tenth time: nine in ten decisions write nothing.
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

/// The server or the network is gone.
fn outages() -> Vec<Fault> {
    vec![
        Fault::usual("no fault", |_| {}, |_| {}),
        Fault::usual(
            "kill -9, restart",
            |scene| scene.server.kill(),
            |scene| scene.server.restart(),
        ),
        Fault {
            is_direct: true,
            ..Fault::usual(
                "kill -9, connection refused",
                |scene| scene.server.kill(),
                |scene| scene.server.restart(),
            )
        },
        Fault::usual(
            "SIGSTOP, SIGCONT",
            |scene| scene.server.pause(),
            |scene| scene.server.resume(),
        ),
        Fault::usual("restart at once", |scene| scene.server.restart(), |_| {}),
        Fault::usual(
            "SCRIPT FLUSH",
            |scene| scene.command(&["SCRIPT", "FLUSH"]),
            |_| {},
        ),
        Fault::usual(
            "black hole",
            |scene| scene.proxy.set(Mode::BlackHole),
            |scene| scene.proxy.set(Mode::Pass),
        ),
        Fault::stall("stall of 35 ms", 35, |scene| {
            scene.proxy.stall(Duration::from_millis(35));
        }),
        Fault::stall("stall of 100 ms", 100, |scene| {
            scene.proxy.stall(Duration::from_millis(100));
        }),
        Fault::stall("stall of 500 ms", 500, |scene| {
            scene.proxy.stall(Duration::from_millis(500));
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
            lasts: Duration::from_secs(10),
            ..Fault::usual(
                "busy runtime: ten tasks of 1 ms a poll",
                |scene| scene.set_busy(true),
                |scene| scene.set_busy(false),
            )
        },
        Fault::usual(
            "slow network: replies 30 ms late",
            |scene| scene.proxy.set(Mode::Delay(Duration::from_millis(30))),
            |scene| scene.proxy.set(Mode::Pass),
        ),
        Fault::usual(
            "slow server: another's commands of 30 ms",
            Scene::start_neighbour,
            Scene::stop_neighbour,
        ),
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
                |scene| scene.server.pause(),
                |scene| scene.server.resume(),
            )
        },
    ]
}

/// The server answers, and refuses.
fn refusals() -> Vec<Fault> {
    let read_only = |name| {
        Fault::usual(
            name,
            |scene| scene.command(&["REPLICAOF", "127.0.0.1", "1"]),
            |scene| scene.command(&["REPLICAOF", "NO", "ONE"]),
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
            |scene| scene.command(&["CONFIG", "SET", "maxmemory", "1"]),
            |scene| scene.command(&["CONFIG", "SET", "maxmemory", "0"]),
        ),
        Fault {
            has_user: true,
            prepare: Scene::allow_everything,
            ..Fault::usual(
                "no permission to write",
                |scene| scene.forbid("-@write"),
                Scene::allow_everything,
            )
        },
        Fault {
            algorithm: Algorithm::SlidingLog,
            has_user: true,
            prepare: Scene::allow_everything,
            ..Fault::usual(
                "no permission to GETRANGE, sliding log",
                |scene| scene.forbid("-getrange"),
                Scene::allow_everything,
            )
        },
        Fault {
            keys: Keys::OneEach,
            rate: 100,
            server_arguments: &["--cluster-enabled", "yes"],
            prepare: Scene::own_all_slots,
            ..Fault::usual("cluster of one shard", |_| {}, |_| {}).struck_from_the_start()
        },
    ]
}

pub(crate) const DEADLINE: Duration = Duration::from_millis(50);
