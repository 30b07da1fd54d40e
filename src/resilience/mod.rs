//! Decisions while the shared store is unavailable, slow, or overloaded.
//!
//! # When the breaker opens
//!
//! A circuit breaker judges the calls to the server. A call may carry many decisions, and only the time that the server and
//! the network took counts: dials and waits in this process do not. The breaker opens when
//!
//! | condition | cause, for example | with a deadline of 50 ms |
//! |---|---|---|
//! | 5 consecutive calls failed, over two deadlines (at least 100 ms, at most 1 s) | a server that is down or hangs | 150 ms after the server hung |
//! | the server refused 5 writes over the same time, with no successful write between them | a demoted primary, a server without memory | after 100 ms, however many denials it makes |
//! | 3 calls failed with a permanent error, each within 10 s of the one before | a user without permission, a server without `EVALSHA`: also a warning, TG020 | at the third call |
//! | of the last 16 intervals of 250 ms with calls, 8 were bad and at most 60 s old: at least half of their calls failed or took more than half the deadline | a slow server, one bad connection of two | after 2 s |
//!
//! One stall ends many calls at once, so each condition but the third takes time: a single stall of 100 ms fails the decisions
//! that it delays and does not open the breaker. Decisions that fail while the breaker is closed are not retried, since the
//! charge may have been made: the [`OnOutage`](crate::OnOutage) setting of each policy applies.
//!
//! A custom [`Store`](crate::store::Store) that does not [report its calls](Calls) is
//! judged by its decisions. If no caller gets a reply for a deadline, callers who leave early count as failures.
//!
//! # While the breaker is open
//!
//! No request waits. One background task probes the store, at first every 50 to 100 ms, then at intervals that double up to
//! 1 s. So Redis decides again within 2 s of the end of the fault. Each interval is shortened by up to half at random, so
//! that a fleet does not probe in step. After a permanent error, all intervals are long. If the breaker opens again within
//! 10 s, the intervals continue where they were. A probe is a script call that does what decisions did before: it writes a key
//! for every algorithm in use, with its commands, and in a cluster in a slot of the node. So it fails on a read-only replica,
//! and for a user who lacks a command. After two consecutive probes that succeed within half of the deadline, the breaker
//! closes.
//!
//! The Redis store also calls and dials on its own, once or twice a second, while it has slots to release that no request
//! holds: those of decisions that got no reply or were dropped. That ends with their leases.
//!
//! # Slots that no node decides on
//!
//! A node of a cluster may decide on all of its slots but one: it was left half moved (`TRYAGAIN`), nodes redirect in a circle, or
//! no node has it. That is a reply in time, from a node that must not be given up. So the slot has a breaker of its own, which
//! opens at the third decision on it that fails, each within 10 s of the one before, over two deadlines. Decisions on other
//! keys of the slot do not close it: only some may be stuck. From then on the slot's decisions take the `OnOutage` setting
//! at once, [`Health`](crate::store::Health) has an outage with the number of such slots, and TG015 is among the warnings. A
//! background task repeats a decision that failed, as a peek, every 0.5 s or more often, for up to 64 slots at a time. So Redis
//! decides again within about a second of the end of the fault. The memory is bounded by the 16,384 slots of a
//! cluster: 3 MB with two policies a request, if all of them are stuck.
//!
//! # Overload
//!
//! A process may ask for more decisions than the server can make in time, or be too busy itself to send them in time. Those that
//! would come too late are not sent
//! ([`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded), whose message says which): the `OnOutage` setting of each policy
//! applies at once. They do not count as failures of the store and do not open the breaker.
//! [`Health`](crate::store::Health) counts them separately.
//!
//! # Whether the store is well
//!
//! A decision that fails or is shed now and then is not a state of the store.
//! [`Health::is_well`](crate::store::Health::is_well) is false in an outage, and while at least 1 % of the decisions of the last
//! 10 s were made without the store; a state ends below 0.5 %. The modes `failing` and `shedding` distinguish why, and
//! [`Health::affected_share`](crate::store::Health::affected_share) is the share. Failures count only after a second: an outage
//! opens the breaker before. The shares begin anew as an outage begins or ends.
//!
//! A burst to a distant server can be too large even if the server is idle: 128 charges are sent at first, and up to twice as
//! many with each round trip. A decision that has waited for half of the deadline is shed. With the default deadline and
//! an optimized build, 300 decisions at once were all made over a round trip of 10 ms. A burst of 1,000 lost up to a fifth
//! over 5 ms, and up to 60 % over 10 ms. A longer deadline admits larger bursts.
//!
//! # Cost
//!
//! While the breaker is closed, a decision in Redis costs seven atomic loads, an atomic addition and one reference count more
//! than without a breaker: no timer and no allocation. The lock of the breaker is taken once per call to the server. A custom store that does
//! not report its calls costs an allocation and that lock per decision, and a timer if it keeps no
//! [deadline](crate::store::Store::deadline) itself.
//!
//! The table of last states costs one lock, which four keys share, for each decision and policy: 45 ns for one key, and 110 ns
//! over 100,000 keys (`cargo bench --bench decision -- mirror`). With [`warm_keys(0)`](ResilientStoreBuilder::warm_keys) it
//! costs nothing.
//!
//! # Limits during an outage
//!
//! Under [`OnOutage::Local`](crate::OnOutage::Local), each live instance grants its share of the quota. The instances
//! register in Redis and learn how many are alive every two seconds, behind a decision. During an outage the last known
//! number counts. A limit `q` over `n` instances becomes `q / n` for each of them, rounded down, and one unit more for the
//! `q mod n` instances that rank first for the policy and the key. Rates, bursts, windows and slots follow the same rule.
//! So the shares of the whole fleet sum to `q`, also if `q` is less than `n`: then `q` instances grant one unit each, and
//! the others deny with a `Retry-After` of 5 s.
//!
//! The last state that Redis returned for a key is kept in a table of [`warm_keys`], and local counting continues from it:
//! the share is that of the units that were left. A state shows how much was used, but not when. So the units of a sliding
//! log count as if all had been used with the latest one, and those of a sliding window as if the estimate had just been
//! reached. Slots in flight in Redis count for one lease. If the table is full, the keys leave first whose quota is back
//! soonest.
//!
//! Local decisions are made in the time of Redis, which replies contain: windows of all instances end together, whatever
//! their own clocks show. Clients see the whole limit, and the units that are left of this instance's share.
//!
//! # After an outage
//!
//! Each instance charges to Redis what it admitted and what is still outstanding: the part of its share by which a TAT moved,
//! or the units in a window. A custom store takes no such charges. The debt of a bucket is that of the time when Redis came back, since Redis refills the whole
//! bucket from then on. The units of a sliding log come back together, when the latest of them does. A merge adds up to the
//! limit.
//!
//! A merge is made once: it leaves a mark in Redis (`prefix:{key}:policy#m..`) for 60 s, of about 110 bytes, and is sent again
//! for up to 30 s if no reply comes. A decision on a key with local charges merges them first, unless decisions are shed. All
//! other keys follow in the background, after up to 0.5 s: up to 100,000 keys, at most 3,200 a second. Local charges of a
//! decision that failed or was shed outside of an outage are merged in the same way.
//!
//! The instances notice the end of the outage within 2 s of each other. For 2.5 s, a key that was decided locally stays within
//! the share besides the count in Redis, until the others have merged their charges.
//!
//! # After a restart or a failover
//!
//! A server that restarts may lose its data, and a replica that is promoted may lack the latest charges. An instance notices
//! a restart when it connects, by the `run_id` of the server, and a failover also by the slots of a cluster, once they have
//! another node. From then on, a decision under a policy with [`OnOutage::Local`](crate::OnOutage::Local), on a key of that
//! server in its table, first merges the usage that Redis had returned before, if Redis has less now, whether or not the
//! breaker opened. That goes on until one such merge of the key is confirmed; they count once. Prices that this instance
//! settled count as settled. Decisions that wait for the connection to a restarted server, or are redirected to a promoted
//! one, are not sent: [`OnOutage`](crate::OnOutage) applies. A reset by another instance is not known here, and can be undone in this way.
//!
//! The units of a sliding log and of a sliding window are restored as above, so such a key can be denied longer after a
//! failover that lost nothing: with a log until the latest unit is back that this instance had seen, with a window for up to
//! two periods.
//!
//! # Residuals
//!
//! For one key under one policy, in one outage. A *share* is the part of its quota that an instance grants.
//!
//! | case | what the fleet admits |
//! |---|---|
//! | all instances know each other, and decided on the key just before | the quota, together with Redis |
//! | an instance decided on the key long before, or never, or has it no longer in its table | up to one share more |
//! | instances start or end, and Redis fails within 2 s | at most one share more for each that started |
//! | an instance starts while one node of a cluster is down, on the keys of that node | up to one share more for each |
//! | the failover of the server in the URL, in a cluster whose slots the user may not look up | what the replica lacked |
//! | in such a cluster, the server in the URL gets the slots of a node that died | the quota once more |
//! | the clocks of a cluster's nodes differ by a time | units that return up to this much too early: the instance keeps one clock for all of them |
//! | instances that made no decision for 10 s: they do not count, and grant the share of the fleet that they saw last | up to the quota for each of them |
//! | an instance ended up to 20 s before | less: its share is granted by nobody |
//! | an instance that was never registered since its start, as on a server without `EVALSHA` | the whole quota once more, unless [`instances`] is set |
//! | a hash slot that no node decides on, on the keys in it | the quota once more for each time that it is decided again: there are no first seconds within the share |
//! | decisions are shed, or fail while the breaker is closed | the quota once more: Redis and the shares admit at the same time |
//! | the store is a custom one behind a [`ResilientStore`], which takes no merges | the quota once more |
//! | only `k` of `n` instances lose Redis | `k` shares more |
//! | a limit or tier changes during the outage, or between it and the merge | what was admitted under the new limit beyond the old share |
//! | a fixed number of [`instances`] | at most `q + n - 1` |
//! | a request costs more than a share | it is denied until Redis is back, which does not count toward a ban |
//! | an instance ends during the outage | its local charges are lost: up to one share more |
//! | Redis decides on a key for an instance without local charges on it, before another instance has merged its own | those charges more |
//! | an instance finds Redis available more than 2.5 s after another one, as on an overloaded machine | what it admitted locally, once more |
//! | an outage of so many keys that merging takes longer than 2.5 s, on the keys that come last | what an instance admitted that has neither merged the key nor decided on it again |
//! | a key that another instance refunded or reset after this one saw it last | less, until Redis is back |
//! | a local charge that is settled at a higher price after it was merged | the difference |
//! | a charge whose reply was lost | counted twice: in Redis, and here |
//! | a restart of a server whose `run_id` cannot be read: the user lacks `INFO`, or it is Dragonfly | the quota once more |
//! | Redis loses its data, on keys that are not in the table of the instance that decides on them next | the quota once more |
//! | Redis loses its data, on keys that another instance decided on after the one that decides on them next | what that one admitted since |
//! | Redis loses data without a restart: `FLUSHALL`, eviction | the quota once more |
//! | Redis loses its data, under a policy with [`OnOutage::Allow`](crate::OnOutage::Allow) or [`Deny`](crate::OnOutage::Deny) | the quota once more: states are kept for `Local` only |
//! | a key that was [blocked](crate::RateLimiter::block) in the last second before the outage, or before an instance started in it | the quota, from instances that have not seen the block |
//! | a key that is [banned](crate::policy), and that this instance has not seen banned | a share of the quota; bans that begin in an outage hold for the instance only |
//! | Redis loses its data: bans and the denials before them | the quota; they are not restored |
//! | requests in flight (concurrency) | local slots are not merged, and slots that Redis has lost are not restored: up to the limit more, while those requests run |
//! | keys that share one count, since the local store is [full](crate::memory#when-it-is-full) | less: each is merged with the units of all |
//! | more than 100,000 keys decided locally | further keys are not merged: up to the quota more on each |
//! | no reply to a merge for 30 s | the merge counts as made: up to one share more ([`unconfirmed_merges`]) |
//!
//! [`instances`]: ResilientStoreBuilder::instances
//! [`unconfirmed_merges`]: crate::store::Health::unconfirmed_merges
//! [`warm_keys`]: ResilientStoreBuilder::warm_keys

mod admitted;
mod all_servers;
mod attempts;
mod breaker;
mod call_guard;
mod calls;
mod deciding;
mod fallback;
mod fleet;
mod guard;
mod history;
mod journal;
mod local;
mod merge;
mod mirror;
mod modes;
mod primary;
mod probe_backoff;
mod probing;
mod recent;
mod settings;
mod shares;
mod slot_probes;
mod store;
mod stuck_slots;

pub use self::calls::Calls;
pub(crate) use self::deciding::Before;
pub(crate) use self::fleet::Fleet;
pub(crate) use self::guard::{Guard, Guards};
pub(crate) use self::primary::Primary;
pub(crate) use self::settings::GuardSettings;
pub use self::store::{ResilientStore, ResilientStoreBuilder};
