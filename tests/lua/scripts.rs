//! The decision script as a Redis command: its arguments, its replies and the values that it stores.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::Value;
use tokio::task::JoinSet;
use tollgate::{
    Decision, ErrorKind, Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, WindowStart},
    clock::{Clock, Timestamp},
    remote::{RedisStore, Script},
};

use crate::{
    lua::files,
    support::{Server, unpack},
};

fn store(server: &Server) -> RedisStore {
    let builder = RedisStore::builder(server.url()).deadline(Duration::from_secs(10));
    builder.build().expect("a usable store")
}

fn limiter(server: &Server, policy: &Policy) -> RateLimiter {
    RateLimiter::new(store(server), [policy.clone()]).expect("a usable policy")
}

fn run(server: &Server, arguments: &[&str]) -> redis::RedisResult<Vec<i64>> {
    let mut command = redis::cmd("EVAL");
    command.arg(Script::DECIDE.source());
    arguments
        .iter()
        .fold(&mut command, |command, argument| command.arg(argument));
    let reply = command.query(&mut server.connection())?;
    Ok(unpack(&reply))
}

/// A branch of the script, with one unit of ten a minute (or seven, or ten a month) taken at [`NOW`].
struct Branch {
    /// The tag and its arguments.
    charge: &'static [&'static str],
    /// The integers of the reply about the state.
    state: &'static [i64],
    /// The bytes it stores, in hexadecimal; of slots, members and scores with words between them.
    stored: &'static str,
    /// A charge that never fits, by a policy with another quota tag.
    changed: &'static [&'static str],
}

/// The length of [`BRANCHES`], as an argument.
const BRANCH_COUNT: &str = "9";

const BRANCHES: [Branch; 9] = [
    Branch {
        charge: &["wAAAA", "6000000", "60000000"],
        state: &[1_700_000_006_000_000],
        stored: "060a241879cd80 41414141",
        changed: &["wBBBB", "-1", "30000000"],
    },
    Branch {
        charge: &["lAAAA", "1", "60000001", "7", "60000000"],
        state: &[1_700_000_008_571_428],
        stored: "060a2418a10a24 41414141",
        changed: &["lBBBB", "-1", "90000000000", "7", "90000000000"],
    },
    Branch {
        charge: &["fAA", "1", "10", "60000"],
        state: &[1_700_000_040_000_000, 1],
        stored: "018bcfe60440 00000001 4141",
        changed: &["fBB", "11", "10", "90000000"],
    },
    Branch {
        charge: &["oAA", "1", "10", "60000"],
        state: &[1_700_000_060_000_000, 1],
        stored: "060a241bb1c700 00000001 4141",
        changed: &["oBB", "11", "10", "30000"],
    },
    Branch {
        charge: &["mAA", "1", "10", "2678400000"],
        state: &[1_701_388_800_000_000, 1],
        stored: "018c22acd000 00000001 4141",
        changed: &["mBB", "11", "10", "2419200000"],
    },
    Branch {
        charge: &["s", "1", "10", "60000", "1"],
        state: &[1_700_000_040_000_000, 0, 1],
        stored: "018bcfe60440 00000000 00000001 000000ea60",
        changed: &["s", "11", "10", "60001", "1"],
    },
    Branch {
        charge: &["g", "1", "10", "60000"],
        state: &[1, 0, 1_700_000_060_000_000],
        stored: "060a24181e4000 000000ea60 0000 181e4000 0001",
        changed: &["g", "11", "10", "90000000"],
    },
    Branch {
        charge: &["c", "1", "10", "30000", "ticket-1"],
        state: &[1],
        stored: "|1|7469636b65742d31 000001|1700000030000",
        changed: &["c", "11", "10", "30000", "ticket-2"],
    },
    Branch {
        charge: &["qAAAA", "1", "60000000", "1", "6000000"],
        state: &[1_700_000_006_000_000],
        stored: "060a241879cd80 41414141",
        changed: &["qBBBB", "-1", "30000000", "1", "6000000"],
    },
];

impl Branch {
    fn letter(&self) -> char {
        self.charge[0].chars().next().expect("a tag")
    }

    /// Returns a key in the same slot as all others.
    fn key(&self) -> String {
        format!("k:{{a}}:{}", self.letter())
    }

    fn stored(&self) -> Vec<u8> {
        bytes(self.stored)
    }

    fn is_slots(&self) -> bool {
        self.letter() == 'c'
    }

    /// Returns the result of [`get`] for the value that it stores.
    fn value(&self) -> Value {
        if !self.is_slots() {
            return Value::BulkString(self.stored());
        }
        let parts = self.stored.split('|').enumerate();
        let parts = parts.map(|(place, part)| match place % 2 {
            0 => bytes(part),
            _ => part.as_bytes().to_vec(),
        });
        Value::Array(parts.map(Value::BulkString).collect())
    }

    /// Returns the charge's part of the reply: it fits, and the state.
    fn reply(&self) -> Vec<i64> {
        [&[1], self.state].concat()
    }

    /// Microseconds after a charge for which the state that the reply holds still counts.
    fn life(&self, charge: &[&str], now: i64, state: &[i64]) -> i64 {
        let ends = match self.letter() {
            // The next window still looks back at this one.
            's' => state[0] + charge[3].parse::<i64>().expect("milliseconds") * 1_000,
            'g' => state[2],
            'c' => now + charge[3].parse::<i64>().expect("milliseconds") * 1_000,
            _ => state[0],
        };
        ends - now
    }

    /// Returns the same state with another time, in microseconds: the first one that is stored.
    fn at(&self, micros: u64) -> Vec<u8> {
        let mut value = self.stored();
        match self.letter() {
            'w' | 'l' | 'q' | 'g' | 'o' => value[..7].copy_from_slice(&micros.to_be_bytes()[1..]),
            _ => value[..6].copy_from_slice(&(micros / 1_000).to_be_bytes()[2..]),
        }
        value
    }

    /// Sets the key to the same state with another time, in microseconds: the first one that is stored.
    fn set_at(&self, server: &Server, micros: u64) {
        if self.is_slots() {
            let (key, millis) = (self.key(), (micros / 1_000).to_string());
            server.command(&["DEL", &key]);
            server.command(&["ZADD", &key, "1", "", &millis, "ticket-1\0\0\u{1}"]);
        } else {
            set(server, &self.key(), &self.at(micros));
        }
    }

    /// Returns strings that this branch never wrote.
    fn foreign(&self) -> Vec<Vec<u8>> {
        if self.is_slots() {
            return vec![Vec::new(), b"57".to_vec(), vec![0; 26]];
        }
        let (mut short, mut long) = (self.stored(), self.stored());
        short.pop();
        long.push(0);
        let size = self.stored().len();
        let mut values = vec![
            Vec::new(),
            b"57".to_vec(),
            // As earlier versions wrote it.
            b"1700000006000000".to_vec(),
            vec![b'x'; 10_000],
            vec![0; size],
            vec![0xFF; size],
            b"abcdefghijklmnopqrstuvwxyz"[..size].to_vec(),
            self.at(EARLIEST - 1),
            // The next time that every branch distinguishes, because some store milliseconds.
            self.at(NOW.cast_unsigned() + FURTHEST + 1_000),
            short,
            long,
        ];
        // A length of zero, which would be a divisor.
        let length = match self.letter() {
            's' => 14..19,
            'g' => 7..12,
            _ => return values,
        };
        let mut value = self.stored();
        value[length].fill(0);
        values.push(value);
        values
    }
}

const NOW: i64 = 1_700_000_000_000_000;
const EARLIEST: u64 = 1_000_000_000_000_000;
const FURTHEST: u64 = 1 << 50;

fn set(server: &Server, key: &str, value: &[u8]) {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(value);
    command
        .query::<()>(&mut server.connection())
        .expect("a value can be set");
}

/// Returns the bytes of a string, or the members and scores of a sorted set.
fn get(server: &Server, key: &str) -> Value {
    if server.command(&["TYPE", key]) == Value::SimpleString("zset".to_owned()) {
        return server.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
    }
    server.command(&["GET", key])
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<u8> = hexadecimal
        .bytes()
        .filter_map(|digit| char::from(digit).to_digit(16))
        .map(|digit| u8::try_from(digit).expect("a hexadecimal digit"))
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Runs groups of charges at [`NOW`].
fn decide(server: &Server, keys: &[String], groups: &[&[&str]]) -> Vec<i64> {
    let (count, now) = (keys.len().to_string(), NOW.to_string());
    let mut arguments = vec![count.as_str()];
    arguments.extend(keys.iter().map(String::as_str));
    arguments.extend(["@", &now]);
    arguments.extend(groups.concat());
    run(server, &arguments).expect("a reply")
}

/// Returns the charges of all branches as one group.
fn all_together() -> Vec<&'static str> {
    let charges = BRANCHES.iter().flat_map(|branch| branch.charge);
    ["*", BRANCH_COUNT].iter().chain(charges).copied().collect()
}

fn all_keys() -> Vec<String> {
    BRANCHES.iter().map(Branch::key).collect()
}

/// Asserts that the key expires when its state no longer counts: at most 1.001 s later, and never earlier.
#[track_caller]
fn assert_expiry(server: &Server, key: &str, life_micros: i64, since: Instant) {
    let left = match server.command(&["PTTL", key]) {
        Value::Int(milliseconds) => milliseconds,
        other => panic!("PTTL answered {other:?}"),
    };
    let took = i64::try_from(since.elapsed().as_millis()).expect("not for ever") + 1;
    assert!(left > 0, "{key} is immortal or gone: {left}");
    assert!(
        left + took >= life_micros / 1_000,
        "{key}: {left} ms left after {took} ms of {life_micros} us"
    );
    assert!(
        left <= life_micros / 1_000 + 1_001,
        "{key}: {left} ms left of {life_micros} us"
    );
}

#[test]
fn hash_of_the_script_is_pinned() {
    // A changed script is a changed protocol between instances of two versions: change this line knowingly.
    assert_eq!(Script::ACQUIRE.hash(), ACQUIRE_HASH);
    assert_eq!(Script::DECIDE.hash(), DECIDE_HASH);
    assert_eq!(Script::FAILURE.hash(), FAILURE_HASH);
    assert_eq!(Script::MEMBERS.hash(), MEMBERS_HASH);
    assert_eq!(Script::PAUSE.hash(), PAUSE_HASH);
    assert_eq!(Script::RELEASE.hash(), RELEASE_HASH);
    assert_eq!(Script::RULES.hash(), RULES_HASH);
    assert_eq!(Script::TOP_KEYS.hash(), TOP_KEYS_HASH);
    assert_eq!(Script::ADAPT.hash(), ADAPT_HASH);
    assert_eq!(Script::ALL.len(), 10);
    assert_eq!(Script::BLOCKS.hash(), BLOCKS_HASH);
}

#[test]
fn every_branch_replies_with_its_state_and_stores_it_in_packed_bytes() {
    let server = Server::start();
    for branch in &BRANCHES {
        let key = branch.key();
        let reply = decide(&server, std::slice::from_ref(&key), &[branch.charge]);
        assert_eq!(reply, [vec![NOW, 1], branch.reply()].concat(), "{key}");
        assert_eq!(get(&server, &key), branch.value(), "{key}");
    }
}

/// Tags that do not charge a limit: marks, leases, units of other regions, and the upkeep of slots.
const OTHER_TAGS: &str = "@*!+=#-&prek?/~;^";

#[test]
fn every_tag_that_charges_is_tried_here() {
    let mut tried: Vec<char> = BRANCHES.iter().map(Branch::letter).collect();
    tried.extend(OTHER_TAGS.chars());
    tried.sort_unstable();
    let mut tags: Vec<char> = files::tags().into_values().collect();
    tags.sort_unstable();
    assert_eq!(tried, tags, "add the new tag to BRANCHES");
    assert_eq!(BRANCHES.len().to_string(), BRANCH_COUNT);
}

#[test]
fn unknown_tag_is_an_error_and_writes_nothing() {
    let server = Server::start();
    let tags: Vec<char> = files::tags().into_values().collect();
    let unknown = (b' '..=b'~')
        .map(char::from)
        .filter(|byte| !tags.contains(byte));
    for byte in unknown {
        let (letter, long) = (byte.to_string(), format!("{byte}AAAA"));
        let charges: [&[&str]; 5] = [
            &[&letter, "1", "10", "60000"],
            &[&long, "1", "10", "60000"],
            &["!", &letter, "1", "10", "60000"],
            &["-", "1700000000000000", "0", &long, "1", "10", "60000"],
            &["*", "1", &letter, "1", "10", "60000"],
        ];
        for charge in charges {
            let error = run(&server, &[&["1", "k:{a}:p"], charge].concat());
            let error = error.expect_err("an unknown algorithm").to_string();
            assert!(error.contains("unknown tag"), "{charge:?}: {error}");
        }
    }
    // Marks come before a tag, and an empty argument is not a tag.
    for tag in ["", "@", "*", "!!", "##"] {
        let error = run(&server, &["1", "k:{a}:p", "+", tag, "1", "10", "60000"]);
        let error = error.expect_err("not an algorithm").to_string();
        assert!(error.contains("unknown tag"), "{tag}: {error}");
    }
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn groups_in_one_call_are_decided_one_after_the_other() {
    let server = Server::start();
    let keys = ["k:{a}:p", "k:{a}:p", "k:{b}:p"].map(str::to_owned);
    let group: &[&str] = &["wAAAA", "6000000", "6000000"];
    let spent = NOW + 6_000_000;
    assert_eq!(
        decide(&server, &keys, &[group, group, group]),
        [NOW, 1, 1, spent, 0, 0, spent, 1, 1, spent]
    );
}

#[test]
fn groups_of_all_algorithms_are_decided_in_one_call() {
    let server = Server::start();
    let (window, log) = (&BRANCHES[5], &BRANCHES[6]);
    let mut keys = vec!["k:{a}:single-window".to_owned()];
    keys.extend(all_keys());
    keys.push("k:{a}:single-log".to_owned());
    let together = all_together();
    let mut expected = vec![NOW, 1];
    expected.extend(window.reply());
    expected.push(1);
    expected.extend(BRANCHES.iter().flat_map(Branch::reply));
    expected.push(1);
    expected.extend(log.reply());
    let groups = [window.charge, &together, log.charge];
    assert_eq!(decide(&server, &keys, &groups), expected);
    for branch in &BRANCHES {
        let value = get(&server, &branch.key());
        assert_eq!(value, branch.value(), "{}", branch.letter());
    }
}

#[test]
fn group_that_one_algorithm_denies_leaves_every_value_as_it_was() {
    let server = Server::start();
    let keys = all_keys();
    decide(&server, &keys, &[&all_together()]);
    for (index, denier) in BRANCHES.iter().enumerate() {
        // All charges as before, except one that never fits.
        let mut group = vec!["*", BRANCH_COUNT];
        let mut expected = vec![NOW, 0];
        for (other, branch) in BRANCHES.iter().enumerate() {
            let mut charge = branch.charge.to_vec();
            let mut reply = branch.reply();
            if other == index {
                charge[1] = if "wl".contains(denier.letter()) {
                    "-1"
                } else {
                    "11"
                };
                reply[0] = 0;
            }
            group.extend(charge);
            expected.extend(reply);
        }
        assert_eq!(
            decide(&server, &keys, &[&group]),
            expected,
            "{}",
            denier.letter()
        );
        for branch in &BRANCHES {
            let value = get(&server, &branch.key());
            assert_eq!(value, branch.value(), "{}", branch.letter());
        }
    }
}

#[test]
fn call_without_a_charge_is_refused() {
    let server = Server::start();
    run(&server, &["0", "wAAAA", "1", "1"]).expect_err("no charge");
    run(&server, &["1", "k:{a}:p"]).expect_err("no charge");
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn every_key_expires_after_its_bucket_is_full_again_and_not_before() {
    let server = Server::start();
    for increment in ["1", "1500", "6000000", "86400000000"] {
        let (key, since) = (format!("k:{{{increment}}}:p"), Instant::now());
        let reply = run(&server, &["1", &key, "wAAAA", increment, "86400000000"]);
        let reply = reply.expect("a reply");
        assert_expiry(&server, &key, reply[3] - reply[0], since);
    }
}

#[test]
fn every_key_expires_when_its_state_no_longer_counts_and_not_before() {
    let server = Server::start();
    for branch in &BRANCHES {
        // By the server's clock, alone.
        let (key, since) = (branch.key(), Instant::now());
        let reply = run(&server, &[&["1", &key], branch.charge].concat()).expect("a reply");
        assert_eq!(reply[1..3], [1, 1], "{key}");
        let life = branch.life(branch.charge, reply[0], &reply[3..]);
        assert_expiry(&server, &key, life, since);
        // The limit was changed, and the charge is denied: only the state for the new quota is stored.
        let since = Instant::now();
        let reply = run(&server, &[&["1", &key], branch.changed].concat()).expect("a reply");
        assert_eq!(reply[1..3], [0, 0], "{key}");
        let life = branch.life(branch.changed, reply[0], &reply[3..]);
        assert_expiry(&server, &key, life, since);
        // A denied attempt that counts.
        let since = Instant::now();
        let counting = [&["1", &key, "!"], branch.changed].concat();
        let reply = run(&server, &counting).expect("a reply");
        assert_eq!(reply[1..3], [0, 0], "{key}");
        let life = branch.life(branch.changed, reply[0], &reply[3..]);
        assert_expiry(&server, &key, life, since);
    }
}

#[test]
fn keys_that_are_charged_together_expire_each_in_its_time() {
    let server = Server::start();
    let (keys, since) = (all_keys(), Instant::now());
    decide(&server, &keys, &[&all_together()]);
    for branch in &BRANCHES {
        assert_expiry(
            &server,
            &branch.key(),
            branch.life(branch.charge, NOW, branch.state),
            since,
        );
    }
    // One charge never fits, and all count denied attempts: the values are written in the second phase too.
    let mut counting = vec!["*", BRANCH_COUNT];
    for branch in &BRANCHES {
        counting.push("!");
        counting.extend(branch.charge);
    }
    let last = counting.len() - 4;
    counting[last] = "11";
    let since = Instant::now();
    let reply = decide(&server, &keys, &[&counting]);
    assert_eq!(reply[1], 0);
    let mut rest = &reply[2..];
    for branch in &BRANCHES {
        assert_expiry(
            &server,
            &branch.key(),
            branch.life(branch.charge, NOW, &rest[1..]),
            since,
        );
        rest = &rest[1 + branch.state.len()..];
    }
}

// Regression: a denied attempt took a slot for a lease, if the slot fitted and another charge did not.
#[test]
fn denied_attempt_takes_no_slot_although_it_is_counted() {
    let server = Server::start();
    let keys = ["k:{a}:c".to_owned(), "k:{a}:f".to_owned()];
    let slots = ["!", "c", "1", "10", "30000", "ticket-1"];
    let full = ["!", "fAA", "11", "10", "60000"];
    let reply = decide(&server, &keys, &[&["*", "2"], &slots, &full]);
    assert_eq!(reply, [NOW, 0, 1, 0, 0, 1_700_000_040_000_000, 10]);
    assert_eq!(server.keys(), [keys[1].as_str()]);
}

#[tokio::test]
async fn decision_is_one_script_call_and_nothing_else() {
    let server = Server::start();
    let policy = Policy::new("counted", Quota::per_hour(1_000));
    let limiter = limiter(&server, &policy);
    for _ in 0..4 {
        limiter
            .check(&[policy.charge(Key::new("warm"))])
            .await
            .expect("a decision");
    }
    server.flush_stats();
    for number in 0..100_u64 {
        limiter
            .check(&[policy.charge(Key::from(number))])
            .await
            .expect("a decision");
    }
    let calls = server.command_calls();
    assert_eq!(calls.get("evalsha"), Some(&100));
    for never in ["ping", "eval", "script|load", "unwatch", "multi"] {
        assert_eq!(calls.get(never), None, "{never} in {calls:?}");
    }
}

#[tokio::test]
async fn many_charges_are_still_one_script_call() {
    let server = Server::start();
    let policies: Vec<Policy> = (0..8)
        .map(|number| Policy::new(format!("p{number}"), Quota::per_hour(1_000)))
        .collect();
    let limiter = RateLimiter::new(store(&server), policies.clone()).expect("usable policies");
    let charges: Vec<_> = policies
        .iter()
        .map(|policy| policy.charge(Key::new("ada")))
        .collect();
    limiter.check(&charges).await.expect("a decision");
    server.flush_stats();
    for _ in 0..10 {
        limiter.check(&charges).await.expect("a decision");
    }
    assert_eq!(server.command_calls().get("evalsha"), Some(&10));
}

#[tokio::test]
async fn flushed_script_cache_costs_one_more_call_and_no_decision() {
    let server = Server::start();
    let policy = Policy::new("flushed", Quota::per_hour(1_000));
    let limiter = limiter(&server, &policy);
    let charge = policy.charge(Key::new("ada"));
    limiter.check(&[charge]).await.expect("a decision");
    for left in [998, 997] {
        server.command(&["SCRIPT", "FLUSH"]);
        server.flush_stats();
        let decision = limiter.check(&[charge]).await.expect("a decision");
        assert_eq!(
            decision.states()[0].usage().expect("counted").remaining,
            left
        );
        let calls = server.command_calls();
        assert_eq!(
            (calls.get("evalsha"), calls.get("eval")),
            (Some(&1), Some(&1))
        );
    }
}

#[test]
fn foreign_value_of_any_shape_fails_its_own_group_and_is_not_changed() {
    let server = Server::start();
    for branch in &BRANCHES {
        let key = branch.key();
        for value in branch.foreign() {
            set(&server, &key, &value);
            assert_foreign(&server, branch);
            let held = get(&server, &key);
            assert_eq!(held, Value::BulkString(value), "{key}");
            server.command(&["DEL", &key]);
        }
        for words in [["HSET", &key, "1", "1"], ["RPUSH", &key, "1", "1"]] {
            server.command(&words);
            assert_foreign(&server, branch);
            server.command(&["DEL", &key]);
        }
        for micros in [EARLIEST, NOW.cast_unsigned() + FURTHEST] {
            branch.set_at(&server, micros);
            let reply = decide(&server, std::slice::from_ref(&key), &[branch.charge]);
            assert_ne!(reply[1], 2, "{key}: {micros} is a time like others");
        }
        server.command(&["FLUSHALL"]);
    }
}

/// Asserts that the charge is not made, alone or in a group: nothing of the group is, and other groups are decided.
fn assert_foreign(server: &Server, branch: &Branch) {
    let (key, others) = (branch.key(), ["k:{a}:before", "k:{a}:after"]);
    let nothing = vec![0; branch.state.len()];
    let mut keys = vec![others[0].to_owned(), key.clone(), others[1].to_owned()];
    let bucket = &BRANCHES[0];
    let groups = [bucket.charge, branch.charge, bucket.charge];
    let good = [&[1], &bucket.reply()[..]].concat();
    let expected = [vec![NOW], good.clone(), vec![2, 0], nothing.clone(), good].concat();
    assert_eq!(decide(server, &keys, &groups), expected, "{key}");
    assert_eq!(server.keys().len(), 3);
    server.command(&["DEL", others[0], others[1]]);

    keys = all_keys();
    let mut expected = vec![NOW, 2];
    for other in &BRANCHES {
        if other.letter() == branch.letter() {
            expected.push(0);
            expected.extend(&nothing);
        } else {
            // The reply for a key without a value: for windows, the end that a new one would have.
            let fresh = decide(server, &[other.key()], &[&peek(other)]);
            expected.extend(&fresh[2..]);
        }
    }
    assert_eq!(decide(server, &keys, &[&all_together()]), expected, "{key}");
    assert_eq!(server.keys(), [key]);
}

// Regression: the reply to a report on a foreign value was too short, so that the whole call was malformed.
#[test]
fn report_on_a_foreign_value_leaves_the_others_of_its_call_alone() {
    let server = Server::start();
    let bucket = &BRANCHES[0];
    let good = [&[1], &bucket.reply()[..]].concat();
    let (lease, step) = ("\0".repeat(37), format!("\u{1}{}", "\0".repeat(87)));
    let leased = BRANCHES
        .iter()
        .filter(|branch| "wlfoms".contains(branch.letter()));
    let mut reports: Vec<(Vec<&str>, usize)> = leased
        .map(|branch| ([&["&", lease.as_str()], &peek(branch)[..]].concat(), 8))
        .collect();
    reports.push((vec!["r", &step], 16));
    for (report, numbers) in reports {
        server.command(&["FLUSHALL"]);
        server.command(&["RPUSH", "k:{a}:foreign", "a list"]);
        let keys = ["k:{a}:before", "k:{a}:foreign", "k:{a}:after"].map(str::to_owned);
        let reply = decide(&server, &keys, &[bucket.charge, &report, bucket.charge]);
        let foreign = [vec![2, 0], vec![0; numbers]].concat();
        let expected = [vec![NOW], good.clone(), foreign, good.clone()].concat();
        assert_eq!(reply, expected, "{report:?}");
    }
}

fn peek(branch: &Branch) -> Vec<&'static str> {
    let mut peek = branch.charge.to_vec();
    peek[1] = "0";
    peek
}

/// Fills a log with this many entries, one per millisecond before [`NOW`]. Returns a charge under the same limit.
fn fill_log(server: &Server, key: &str, entries: i64) -> [&'static str; 4] {
    for entry in (1..=entries).rev() {
        let now = (NOW - entry * 1_000).to_string();
        let reply = run(server, &["1", key, "@", &now, "g", "1", "10000", "60000"]);
        assert_eq!(reply.expect("a reply")[1], 1);
    }
    ["g", "1", "10000", "60000"]
}

#[test]
fn long_log_is_read_and_written_in_parts() {
    let server = Server::start();
    let key = "k:{a}:log".to_owned();
    let charge = fill_log(&server, &key, 1_000);
    let both = [&["*", "2"], &charge[..], &["wAAAA", "6000000", "60000000"]].concat();
    let groups: [(&[&str], &[String]); 2] = [
        (&charge, std::slice::from_ref(&key)),
        (&both, &[key.clone(), "k:{a}:bucket".to_owned()]),
    ];
    for (group, keys) in groups {
        let (before, since) = (server.command(&["STRLEN", &key]), Instant::now());
        server.command(&["PEXPIRE", &key, "1000000"]);
        server.flush_stats();
        assert_eq!(decide(&server, keys, &[group])[1], 1);
        let calls = server.command_calls();
        let bucket = (keys.len() == 2).then_some(&1);
        assert_eq!(
            (calls.get("get"), calls.get("set")),
            (bucket, bucket),
            "{calls:?}"
        );
        assert_eq!(
            (calls.get("getrange"), calls.get("setrange")),
            (Some(if bucket.is_some() { &3 } else { &2 }), Some(&2))
        );
        assert_eq!(server.command(&["STRLEN", &key]), before);
        assert_expiry(&server, &key, 60_000_000, since);
    }
}

#[test]
fn value_like_a_long_log_is_foreign_if_it_is_inconsistent() {
    let server = Server::start();
    let key = "k:{a}:log".to_owned();
    let charge = fill_log(&server, &key, 200);
    let Value::BulkString(good) = get(&server, &key) else {
        panic!("a string");
    };
    let changed = |at: usize, bytes: &[u8]| {
        let mut value = good.clone();
        value[at..at + bytes.len()].copy_from_slice(bytes);
        value
    };
    let foreign = [
        good[..good.len() - 1].to_vec(),
        [&good[..], &[0]].concat(),
        good[..good.len() - 6].to_vec(),
        [&good[..], &[0; 6]].concat(),
        // No time, no length, no entry, more entries than places, a first one after the last place, other places.
        changed(0, &[0; 7]),
        changed(0, &[0xFF; 7]),
        changed(7, &[0; 5]),
        changed(16, &[0; 2]),
        changed(16, &[0x7F; 2]),
        changed(18, &good[20..22]),
        changed(20, &[0x7F; 2]),
        // As long as a list of entries would be.
        [&good[..14], &[7; 6 * 500]].concat(),
    ];
    for value in foreign {
        set(&server, &key, &value);
        let nothing = vec![NOW, 2, 0, 0, 0, 0];
        let keys = std::slice::from_ref(&key);
        assert_eq!(decide(&server, keys, &[&charge]), nothing);
        assert_eq!(get(&server, &key), Value::BulkString(value));
    }
    set(&server, &key, &good);
    assert_eq!(
        decide(&server, std::slice::from_ref(&key), &[&charge])[1..4],
        [1, 1, 201]
    );
}

#[tokio::test]
async fn foreign_value_is_an_error_with_its_own_kind() {
    let server = Server::start();
    let algorithms = [
        ("", Algorithm::TokenBucket),
        ("#f", Algorithm::FixedWindow(WindowStart::FirstHit)),
        ("#s", Algorithm::SlidingWindow),
        ("#g", Algorithm::SlidingLog),
    ];
    for (mark, algorithm) in algorithms {
        let policy = Policy::new("foreign", Quota::per_hour(10)).algorithm(algorithm);
        let limiter = limiter(&server, &policy);
        // Regression: text as long as a bucket's state made a number beyond what doubles hold exactly, so the whole
        // reply was rejected, with all decisions in the same call.
        for length in [0, 5, 11, 12, 16, 19, 20, 26, 1_000] {
            let key = format!("tollgate:{{text-{length}}}:foreign{mark}");
            let value = "x".repeat(length);
            server.command(&["SET", &key, &value]);
            let charge = policy.charge(Key::new(format!("text-{length}")));
            let error = limiter.check(&[charge]).await.expect_err("a foreign value");
            assert_eq!(error.kind(), ErrorKind::ForeignValue, "{key}: {error:?}");
            assert!(!error.is_transient());
            assert_eq!(get(&server, &key), Value::BulkString(value.into()), "{key}");
        }
        server.command(&[
            "HSET",
            &format!("tollgate:{{hash}}:foreign{mark}"),
            "field",
            "1",
        ]);
        let charge = policy.charge(Key::new("hash"));
        let error = limiter.check(&[charge]).await.expect_err("a foreign value");
        assert_eq!(error.kind(), ErrorKind::ForeignValue, "{mark}: {error:?}");
    }
}

// Regression: an error in one group failed the whole call, after earlier groups had been charged.
#[test]
fn foreign_value_in_one_group_leaves_the_others_decided() {
    let server = Server::start();
    server.command(&["SET", "k:{bad}:p", "hello"]);
    server.command(&["HSET", "k:{hash}:p", "field", "1"]);
    let keys = ["a", "bad", "hash", "b", "bad"].map(|identity| format!("k:{{{identity}}}:p"));
    let group: &[&str] = &["wAAAA", "6000000", "6000000"];
    let both = [&["*", "2"], group, group].concat();
    let spent = NOW + 6_000_000;
    assert_eq!(
        decide(&server, &keys, &[group, group, group, &both]),
        [NOW, 1, 1, spent, 2, 0, 0, 2, 0, 0, 2, 1, 0, 0, 0]
    );
    assert_eq!(
        server.keys(),
        ["k:{a}:p", "k:{bad}:p", "k:{hash}:p"],
        "the last group wrote nothing"
    );
}

#[tokio::test]
async fn decisions_that_arrive_together_are_one_call() {
    let server = Server::start();
    let policy = Arc::new(Policy::new("batched", Quota::per_hour(1_000)));
    let limiter = limiter(&server, &policy);
    limiter
        .check(&[policy.charge(Key::new("warm"))])
        .await
        .expect("a decision");
    server.flush_stats();
    let callers: JoinSet<_> = (0..500_u64)
        .map(|number| {
            let (limiter, policy) = (limiter.clone(), Arc::clone(&policy));
            async move {
                limiter
                    .check(&[policy.charge(Key::from(number))])
                    .await
                    .expect("a decision")
            }
        })
        .collect();
    assert!(callers.join_all().await.iter().all(Decision::is_allowed));
    let calls = server.command_calls();
    assert_eq!(
        (calls.get("get"), calls.get("set")),
        (Some(&500), Some(&500))
    );
    assert!(calls["evalsha"] <= 12, "{calls:?}");
}

#[tokio::test]
async fn foreign_value_under_one_key_charges_none_of_the_others() {
    let server = Server::start();
    let (good, bad) = (
        Policy::new("good", Quota::per_hour(10)),
        Policy::new("bad", Quota::per_hour(10)),
    );
    let limiter =
        RateLimiter::new(store(&server), [good.clone(), bad.clone()]).expect("usable policies");
    server.command(&["SET", "tollgate:{ada}:bad", "hello"]);
    let charges = [good.charge(Key::new("ada")), bad.charge(Key::new("ada"))];
    limiter.check(&charges).await.expect_err("a foreign value");
    assert_eq!(server.keys(), ["tollgate:{ada}:bad"]);
}

#[tokio::test]
async fn prefix_keeps_two_applications_apart() {
    let server = Server::start();
    let policy = Policy::new("shared-name", Quota::per_hour(1));
    for prefix in ["shop", "blog"] {
        let store = RedisStore::builder(server.url())
            .prefix(prefix)
            .deadline(Duration::from_secs(10));
        let limiter = RateLimiter::new(store.build().expect("a usable store"), [policy.clone()]);
        let decision = limiter
            .expect("a usable policy")
            .check(&[policy.charge(Key::new("ada"))])
            .await;
        assert!(decision.expect("a decision").is_allowed());
    }
    assert_eq!(
        server.keys(),
        ["blog:{ada}:shared-name", "shop:{ada}:shared-name"]
    );
}

#[tokio::test]
async fn client_clock_that_cannot_be_stored_is_an_error() {
    let server = Server::start();
    let policy = Policy::new("early", Quota::per_day(1));
    let clock = Clock::manual(Timestamp::from_micros(999_999_999_999_999));
    let store = RedisStore::builder(server.url())
        .client_time(clock.clone())
        .deadline(Duration::from_secs(10));
    let limiter = RateLimiter::new(store.build().expect("a usable store"), [policy.clone()])
        .expect("a usable policy");
    let charge = policy.charge(Key::new("ada"));
    let error = limiter.check(&[charge]).await.expect_err("fifteen digits");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    clock.advance(Duration::from_micros(1));
    assert!(
        limiter
            .check(&[charge])
            .await
            .expect("a decision")
            .is_allowed()
    );
    assert!(
        !limiter
            .check(&[charge])
            .await
            .expect("a decision")
            .is_allowed()
    );
}

// Regression: from 2255 on, the error claimed that a proxy changed the reply.
#[tokio::test]
async fn client_clock_fails_by_name_when_times_are_no_longer_exact() {
    const END: u64 = 1 << 53;
    let server = Server::start();
    let policy = Policy::new("late", Quota::per_minute(1));
    let clock = Clock::manual(Timestamp::from_micros(END - 61_000_000));
    let store = RedisStore::builder(server.url())
        .client_time(clock.clone())
        .deadline(Duration::from_secs(10));
    let limiter = RateLimiter::new(store.build().expect("a usable store"), [policy.clone()])
        .expect("a usable policy");
    let charge = policy.charge(Key::new("ada"));
    for is_allowed in [true, false] {
        let decision = limiter.check(&[charge]).await.expect("a decision");
        assert_eq!(decision.is_allowed(), is_allowed);
    }
    for micros in [END, END + 1_000_000, 9_999_999_999_999_999] {
        clock.set(Timestamp::from_micros(micros));
        let error = limiter.check(&[charge]).await.expect_err("it is too late");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{micros}: {error}");
        assert!(error.to_string().contains("after 2255"), "{error}");
    }
}

#[tokio::test]
async fn server_counts_by_its_own_time() {
    let server = Server::start();
    let policy = Policy::new("timed", Quota::per_day(1));
    let decision = limiter(&server, &policy)
        .check(&[policy.charge(Key::new("ada"))])
        .await
        .expect("a decision");
    let now: (u64, u64) = redis::cmd("TIME")
        .query(&mut server.connection())
        .expect("the time");
    let now = now.0 * 1_000_000 + now.1;
    let decided = decision.decided_at().as_micros();
    assert!(
        decided <= now && now - decided < 60_000_000,
        "{decided} against {now}"
    );
}

const ACQUIRE_HASH: &str = "51ed5f3a691136aacf3719e9a05e215aea52d532";
const ADAPT_HASH: &str = "85f3a2c56601b28bc9cb8fbfc823d503a7ec9d0b";
const FAILURE_HASH: &str = "81ae421ba53ea9146c8e12fefb539844b08f3201";
const PAUSE_HASH: &str = "6ca9f323ad1f51099cb266fad146059e52f71c91";
const RELEASE_HASH: &str = "6c95877aaa9f361eda597e89cd584e8ec6453a16";
const RULES_HASH: &str = "32d1270a0dd051bd5567f52ff8941d9f197a7b3b";
const TOP_KEYS_HASH: &str = "7c7309fe2a061ec89397311d906f02786ea074d2";
const BLOCKS_HASH: &str = "24ca7bccd1aab16c1819923145ba9f430f776509";
const DECIDE_HASH: &str = "b239b3c11a864448d1a43cbea7d10389db59b6a6";
const MEMBERS_HASH: &str = "de2f63bcf3e823d2fa58ac09c74e6a1d0ffcf68a";
