//! The Lua scripts, each composed and hashed once.
//!
//! ```text
//! lua/decide.lua, one branch per algorithm     the composed script
//!   if kind == BUCKET ... then                   if kind == BUCKET ... then
//!     include('token_bucket.lua')        -->       the lines of lua/token_bucket.lua
//!   elseif kind == SLIDING_LOG then              elseif kind == SLIDING_LOG then
//!     include('sliding_log.lua')         -->       the lines of lua/sliding_log.lua
//! ```
//!
//! A server that has the script runs it by its hash (`EVALSHA`). The first call of each connection, and a call after
//! `NOSCRIPT`, sends the text (`EVAL`, about 53 kB).
//!
//! # Why are states packed bytes and not hashes or sorted sets?
//!
//! One string per policy and key is the smallest state that Redis can hold. A hash with two fields takes a quarter more. A sorted
//! set with the times of a log takes 22 to 132 bytes per entry, where packed bytes take 6: a time modulo 2^32 ticks, and a
//! running sum of costs modulo 2^16. A binary search finds the entries that still count, whatever they cost. Slots in flight are
//! the exception (`src/algorithm/concurrency.rs`).
//!
//! # Why is the decision script composed of one file per algorithm?
//!
//! Readers and tools want one file per algorithm that parses on its own. Redis wants one script, so that one call decides all
//! policies, and no functions: creating and calling them took a quarter of the time that a decision costs the server. `luacheck`
//! reads the files with a list of the names that they share. It reads the composed script without that list, and so finds every
//! name that is unused, unknown or shadowed.
//!
//! Comments and indentation are left out. They are half of the files, every new connection sends the text once, and the server
//! hashes it. A changed comment also keeps the hash, so old and new instances share the script during a deployment. Tags are
//! local constants at the top, 17 of about 240 Lua instructions of a decision. Other changes save more than that: the server
//! executes about 1 % fewer machine instructions per decision than with literal tags (callgrind, Redis 7.0, every algorithm). An
//! unknown tag is an error, and never selects the branch of another algorithm.

use std::{fmt, sync::LazyLock};

use redis::Cmd;

/// A Lua script that tollgate sends to the server.
///
/// Public so that an operator can preload it or name it in an ACL; tollgate needs neither.
pub struct Script {
    /// Composes it at the first use. A function, because in Rust 1.88 a constant cannot refer to a `LazyLock`.
    text: fn() -> &'static Text,
}

impl Script {
    /// Decides for callers that wait their turn: [`DECIDE`](Self::DECIDE) with the lines of `lua/line_open.lua`, which documents
    /// its keys, its arguments and its reply.
    pub const ACQUIRE: &'static Self = &Self { text: || &ACQUIRE };

    /// Adapts the rate of a key. `lua/adapt.lua` documents its key, its arguments and its reply.
    pub const ADAPT: &'static Self = &Self { text: || &ADAPT };

    /// Decides groups of charges. `lua/decide.lua` documents its keys, its arguments and its reply.
    pub const DECIDE: &'static Self = &Self { text: || &DECIDE };

    /// Registers an instance. `lua/members.lua` documents its key, its arguments and its reply.
    pub const MEMBERS: &'static Self = &Self { text: || &MEMBERS };

    /// Pauses a key for callers that wait. `lua/pause.lua` documents its keys, its arguments and its reply.
    pub const PAUSE: &'static Self = &Self { text: || &PAUSE };

    /// Blocks keys for all instances. `lua/blocks.lua` documents its keys, its arguments and its reply.
    pub const BLOCKS: &'static Self = &Self { text: || &BLOCKS };

    /// Counts a failure of a key. `lua/failure.lua` documents its key, its arguments and its reply.
    pub const FAILURE: &'static Self = &Self { text: || &FAILURE };

    /// Releases slots, and wakes callers that wait for them. `lua/release_open.lua` documents its keys, its arguments and its reply.
    pub const RELEASE: &'static Self = &Self { text: || &RELEASE };

    /// Stores rules for all instances. `lua/rules.lua` documents its key, its arguments and its reply.
    pub const RULES: &'static Self = &Self { text: || &RULES };

    /// Shares the top keys of an instance, with the feature `top-keys`. `lua/top_keys.lua` documents its key, its arguments and
    /// its reply.
    pub const TOP_KEYS: &'static Self = &Self { text: || &TOP_KEYS };

    /// Every script there is.
    pub const ALL: [&'static Self; 10] = [
        Self::ACQUIRE,
        Self::ADAPT,
        Self::BLOCKS,
        Self::DECIDE,
        Self::FAILURE,
        Self::MEMBERS,
        Self::PAUSE,
        Self::RELEASE,
        Self::RULES,
        Self::TOP_KEYS,
    ];

    /// The Lua text, without comments.
    #[must_use]
    pub fn source(&self) -> &str {
        &(self.text)().source
    }

    /// The SHA-1 of the text in hexadecimal, as `EVALSHA` takes it.
    #[must_use]
    pub fn hash(&self) -> &str {
        &(self.text)().hash
    }

    /// Returns the start of a command that runs the script by its hash, with room for this many arguments.
    pub(in crate::remote) fn by_hash(&self, arguments: usize) -> Cmd {
        let mut command = Cmd::with_capacity(arguments + 5, arguments * ARGUMENT_LEN + 64);
        command.arg(b"EVALSHA").arg(self.hash());
        command
    }

    /// Returns the start of a command that runs the script by its text, which also makes the server remember it.
    pub(in crate::remote) fn by_text(&self, arguments: usize) -> Cmd {
        let data = self.source().len() + arguments * ARGUMENT_LEN;
        let mut command = Cmd::with_capacity(arguments + 5, data);
        command.arg(b"EVAL").arg(self.source());
        command
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("hash", &self.hash())
            .finish_non_exhaustive()
    }
}

static ACQUIRE: LazyLock<Text> = LazyLock::new(|| Text::composed(&LINE_PARTS));

static ADAPT: LazyLock<Text> = LazyLock::new(|| Text::of(include_str!("../../../lua/adapt.lua")));

static BLOCKS: LazyLock<Text> = LazyLock::new(|| Text::of(include_str!("../../../lua/blocks.lua")));

static DECIDE: LazyLock<Text> = LazyLock::new(|| Text::composed(&[]));

static FAILURE: LazyLock<Text> =
    LazyLock::new(|| Text::of(include_str!("../../../lua/failure.lua")));

static MEMBERS: LazyLock<Text> =
    LazyLock::new(|| Text::of(include_str!("../../../lua/members.lua")));

static PAUSE: LazyLock<Text> = LazyLock::new(|| Text::of(include_str!("../../../lua/pause.lua")));

static RELEASE: LazyLock<Text> = LazyLock::new(|| Text::composed(&RELEASE_PARTS));

static RULES: LazyLock<Text> = LazyLock::new(|| Text::of(include_str!("../../../lua/rules.lua")));

static TOP_KEYS: LazyLock<Text> =
    LazyLock::new(|| Text::of(include_str!("../../../lua/top_keys.lua")));

/// A script once it is composed.
#[derive(Debug)]
struct Text {
    /// The Lua text, without comments and indentation.
    source: String,
    /// Its SHA-1 in hexadecimal, in lower case.
    hash: String,
}

impl Text {
    /// Puts the file of each algorithm into its branch of `lua/decide.lua`, and these parts where they belong.
    fn composed(parts: &[(&str, &str)]) -> Self {
        let mut whole = include_str!("../../../lua/decide.lua").to_owned();
        for (include, part) in parts {
            whole = whole.replace(include, part);
        }
        for (include, _) in LINE_PARTS {
            whole = whole.replace(include, "");
        }
        for (include, branch) in BRANCHES {
            whole = whole.replace(include, branch);
        }
        Self::of(&whole)
    }

    /// Leaves out indentation and lines of comment: they are half of a text that every new connection sends.
    fn of(whole: &str) -> Self {
        let lines = whole.lines().map(str::trim);
        let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
        let source = code.collect::<Vec<_>>().join("\n");
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}

/// Lines of `lua/decide.lua`, and the files that replace them.
const BRANCHES: [(&str, &str); 13] = [
    (
        "include('concurrency.lua')",
        include_str!("../../../lua/concurrency.lua"),
    ),
    (
        "include('denial.lua')",
        include_str!("../../../lua/denial.lua"),
    ),
    (
        "include('fixed_window.lua')",
        include_str!("../../../lua/fixed_window.lua"),
    ),
    (
        "include('lease.lua')",
        include_str!("../../../lua/lease.lua"),
    ),
    (
        "include('penalty.lua')",
        include_str!("../../../lua/penalty.lua"),
    ),
    ("include('pot.lua')", include_str!("../../../lua/pot.lua")),
    (
        "include('sliding_log.lua')",
        include_str!("../../../lua/sliding_log.lua"),
    ),
    (
        "include('sliding_window.lua')",
        include_str!("../../../lua/sliding_window.lua"),
    ),
    (
        "include('token_bucket.lua')",
        include_str!("../../../lua/token_bucket.lua"),
    ),
    // After those that include them.
    (
        "include('ended_leases.lua')",
        include_str!("../../../lua/ended_leases.lua"),
    ),
    (
        "include('lattice.lua')",
        include_str!("../../../lua/lattice.lua"),
    ),
    (
        "include('lease_report.lua')",
        include_str!("../../../lua/lease_report.lua"),
    ),
    (
        "include('window_leases.lua')",
        include_str!("../../../lua/window_leases.lua"),
    ),
];

/// Lines of `lua/decide.lua`, and the files that replace them in the script for callers that wait.
const LINE_PARTS: [(&str, &str); 5] = [
    (
        "include('line_charge.lua')",
        include_str!("../../../lua/line_charge.lua"),
    ),
    (
        "include('line_check.lua')",
        include_str!("../../../lua/line_check.lua"),
    ),
    (
        "include('line_close.lua')",
        include_str!("../../../lua/line_close.lua"),
    ),
    (
        "include('line_next.lua')",
        include_str!("../../../lua/line_next.lua"),
    ),
    (
        "include('line_open.lua')",
        include_str!("../../../lua/line_open.lua"),
    ),
];

/// Lines of `lua/decide.lua`, and the files that replace them in the script that releases slots of such callers.
const RELEASE_PARTS: [(&str, &str); 2] = [
    (
        "include('line_close.lua')",
        include_str!("../../../lua/release_close.lua"),
    ),
    (
        "include('line_open.lua')",
        include_str!("../../../lua/release_open.lua"),
    ),
];

/// Room for an argument: keys are a few times longer than numbers.
const ARGUMENT_LEN: usize = 24;
