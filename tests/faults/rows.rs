//! The faults: how each begins, and how it ends.

use std::time::Duration;

use crate::{
    place::{self, Kind, Place},
    support::Mode,
};

/// A row of the table.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Runs before the load starts.
    pub(crate) prepare: fn(&mut Place),
    /// Runs one second before the fault.
    pub(crate) before: fn(&mut Place),
    pub(crate) strike: fn(&mut Place),
    /// Runs every 100 ms during the fault.
    pub(crate) repeat: fn(&mut Place),
    pub(crate) lasts: Duration,
    pub(crate) mend: fn(&mut Place),
    /// Callers for each key of each instance.
    pub(crate) callers: usize,
    /// Connections of each instance.
    pub(crate) connections: usize,
    /// Whether the instances log in as a user.
    pub(crate) has_user: bool,
    /// Whether the clock of one instance is 10 s ahead.
    pub(crate) is_one_ahead: bool,
}

impl Row {
    fn new(name: &'static str, strike: fn(&mut Place), mend: fn(&mut Place)) -> Self {
        Self {
            name,
            kind: Kind::One(&[]),
            prepare: |_| {},
            before: |_| {},
            strike,
            repeat: |_| {},
            lasts: Duration::from_secs(3),
            mend,
            callers: 1,
            connections: 2,
            has_user: false,
            is_one_ahead: false,
        }
    }

    /// A row in which the network of every instance is in this state.
    fn network(name: &'static str, strike: fn(&mut Place)) -> Self {
        Self::new(name, strike, |place| place.network(Mode::Pass))
    }

    /// A row in which the server has too little memory for the filler, and evicts keys.
    fn eviction(name: &'static str, strike: fn(&mut Place)) -> Self {
        Self {
            repeat: Place::fill,
            ..Self::new(name, strike, |place| {
                place.command(&["CONFIG", "SET", "maxmemory", "0"]);
            })
        }
    }

    fn lasts(self, seconds: u64) -> Self {
        Self {
            lasts: Duration::from_secs(seconds),
            ..self
        }
    }

    fn on(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Whether the soak may strike it again and again. Evicted keys are lost, so the limit is exceeded then.
    pub(crate) fn is_for_soak(&self) -> bool {
        self.kind == Kind::One(&[])
            && self.callers == 1
            && !self.has_user
            && !self.is_one_ahead
            && !self.name.starts_with(EVICTION)
    }
}

const EVICTION: &str = "eviction of keys";

pub(crate) fn all() -> Vec<Row> {
    [servers(), networks(), refusals(), fleets(), clusters()].concat()
}

/// The server ends, hangs, or comes back with other data.
fn servers() -> Vec<Row> {
    let restart: fn(&mut Place) = |place| place.server().restart();
    vec![
        Row::new("no fault", |_| {}, |_| {}),
        Row::new("kill -9", |place| place.server().kill(), restart),
        Row::new(
            "SIGSTOP",
            |place| place.server().pause(),
            |place| place.server().resume(),
        )
        .lasts(10),
        Row::new("restart with empty data", restart, |_| {}).lasts(1),
        Row {
            before: |place| {
                place.command(&["SAVE"]);
            },
            ..Row::new("restart with data of 1 s before", restart, |_| {}).lasts(1)
        },
        Row {
            prepare: |place| {
                place.command(&["DEBUG", "POPULATE", "20000", "filler", "10"]);
            },
            ..Row::new(
                "LOADING",
                |place| {
                    place.command(&["CONFIG", "SET", "key-load-delay", "1000"]);
                    place.begin(&["DEBUG", "RELOAD"]);
                },
                |place| {
                    place.command(&["CONFIG", "SET", "key-load-delay", "0"]);
                    place.join();
                },
            )
            .on(Kind::One(&[
                "--loading-process-events-interval-bytes",
                "1024",
            ]))
        },
        Row::new(
            "BUSY script",
            |place| {
                place.command(&["CONFIG", "SET", "busy-reply-threshold", "20"]);
                place.begin(&["EVAL", "while true do end", "0"]);
            },
            |place| {
                place.command(&["SCRIPT", "KILL"]);
                place.join();
            },
        ),
        Row::new(
            "CLIENT PAUSE",
            |place| {
                place.command(&["CLIENT", "PAUSE", "3000", "ALL"]);
            },
            |_| {},
        ),
    ]
}

/// The network is slow, or loses data.
fn networks() -> Vec<Row> {
    vec![
        Row::network("30 ms more round trip", |place| {
            place.network(Mode::RoundTrip(Duration::from_millis(30)));
        })
        .lasts(5),
        Row::network("60 ms more round trip", |place| {
            place.network(Mode::RoundTrip(Duration::from_millis(60)));
        })
        .lasts(5),
        Row::network("500 ms more round trip", |place| {
            place.network(Mode::RoundTrip(Duration::from_millis(500)));
        })
        .lasts(5),
        Row::network("1 % of packets lost", |place| place.network(Mode::Lose(10))).lasts(5),
        Row::network("50 % of packets lost", |place| {
            place.network(Mode::Lose(500));
        })
        .lasts(5),
        Row::network("black hole", |place| place.network(Mode::BlackHole)),
        Row::network("reset in mid-reply", |place| {
            place.network(Mode::ResetInReply);
        }),
        Row::network("reply lost after the script ran", |place| {
            place.network(Mode::SwallowReplies);
        }),
    ]
}

/// The server refuses to decide.
fn refusals() -> Vec<Row> {
    vec![
        Row {
            repeat: |place| {
                place.command(&["SCRIPT", "FLUSH"]);
            },
            ..Row::new("SCRIPT FLUSH every 100 ms", |_| {}, |_| {})
        },
        Row::new(
            "READONLY by REPLICAOF",
            |place| {
                place.command(&["REPLICAOF", "127.0.0.1", "1"]);
            },
            |place| {
                place.command(&["REPLICAOF", "NO", "ONE"]);
            },
        ),
        Row::new(
            "OOM with noeviction",
            |place| {
                place.command(&["CONFIG", "SET", "maxmemory", "1"]);
            },
            |place| {
                place.command(&["CONFIG", "SET", "maxmemory", "0"]);
            },
        ),
        Row::eviction("eviction of keys, allkeys-lru", |place| {
            place.evict("allkeys-lru");
        }),
        Row::eviction("eviction of keys, allkeys-lfu", |place| {
            place.evict("allkeys-lfu");
        }),
        Row::new(
            "maxclients reached",
            |place| {
                place.command(&["CONFIG", "SET", "maxclients", "1"]);
                place.close_connections();
            },
            |place| {
                place.command(&["CONFIG", "SET", "maxclients", "10000"]);
            },
        ),
        Row {
            has_user: true,
            prepare: |place| {
                place.command(&[
                    "ACL", "SETUSER", "limiter", "on", ">secret", "~*", "&*", "+@all",
                ]);
            },
            ..Row::new(
                "AUTH revoked",
                |place| {
                    place.command(&["ACL", "SETUSER", "limiter", "resetpass"]);
                    place.close_connections();
                },
                |place| {
                    place.command(&["ACL", "SETUSER", "limiter", ">secret"]);
                },
            )
        },
        Row::new(
            "certificate expired",
            |place| {
                let expired = place.authority().sign_expired("localhost");
                place.server().set_identity(&expired);
                place.close_connections();
            },
            |place| {
                let renewed = place.authority().sign("localhost");
                place.server().set_identity(&renewed);
            },
        )
        .on(Kind::Tls),
    ]
}

/// Faults of the instances themselves.
fn fleets() -> Vec<Row> {
    vec![
        Row {
            callers: 8,
            connections: 1,
            ..Row::new("one connection, 512 callers", |_| {}, |_| {})
        },
        Row {
            callers: 8,
            connections: 1,
            ..Row::new(
                "one connection, 512 callers, SIGSTOP",
                |place| place.server().pause(),
                |place| place.server().resume(),
            )
        },
        Row {
            is_one_ahead: true,
            ..Row::new(
                "kill -9, clock of one instance 10 s ahead",
                |place| place.server().kill(),
                |place| place.server().restart(),
            )
        },
    ]
}

/// A node of several fails.
fn clusters() -> Vec<Row> {
    vec![
        Row::new(
            "cluster: primary killed, until its replica is promoted",
            |place| place.cluster().nodes[0].kill(),
            |place| {
                place.wait("the replica is promoted", |place| {
                    place::is_primary(&place.cluster().nodes[3])
                });
            },
        )
        .on(Kind::Cluster)
        .lasts(0),
        Row::new(
            "cluster: slots moved under load",
            |place| {
                for key in 0..crate::load::KEYS {
                    let cluster = place.cluster();
                    let key = crate::fleet::key(key);
                    let slot = cluster.slot_of(key.as_str());
                    let from = cluster.primary_of(key.as_str());
                    cluster.move_slot(slot, from, (from + 1) % 3, || {});
                }
            },
            |_| {},
        )
        .on(Kind::ClusterWithoutReplicas)
        .lasts(1),
        Row::new(
            "cluster: CLUSTERDOWN, a primary without a replica hangs",
            |place| place.cluster().nodes[2].pause(),
            |place| {
                place.cluster().nodes[2].resume();
                place.wait("the cluster is up", Place::is_cluster_up);
            },
        )
        .on(Kind::ClusterWithoutReplicas)
        .lasts(5),
        Row::new(
            "sentinel: primary killed, until its replica is promoted and found",
            |place| place.sentinels().servers[0].kill(),
            |place| {
                place.wait("the replica is promoted", |place| {
                    let sentinels = place.sentinels();
                    place::is_primary(&sentinels.servers[1]) && place::is_found(sentinels)
                });
            },
        )
        .on(Kind::Sentinels)
        .lasts(0),
    ]
}
