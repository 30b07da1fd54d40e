//! The Lua scripts, each hashed once.

use std::sync::LazyLock;

use redis::Cmd;

/// A Lua script that tollgate sends to the server.
///
/// Public so that an operator can preload it or name it in an ACL; tollgate needs neither.
#[derive(Debug)]
pub struct Script {
    source: &'static str,
    script: LazyLock<redis::Script>,
}

impl Script {
    /// Decides groups of charges; its header says what it takes and answers.
    pub const DECIDE: &'static Self = &DECIDE;

    /// Every script there is.
    pub const ALL: [&'static Self; 1] = [Self::DECIDE];

    /// The Lua text.
    #[must_use]
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// The SHA-1 of the text in hexadecimal, as `EVALSHA` takes it.
    #[must_use]
    pub fn hash(&self) -> &str {
        self.script.get_hash()
    }

    /// Returns the start of a command that runs the script by its hash, with room for this many arguments.
    pub(in crate::remote) fn by_hash(&self, arguments: usize) -> Cmd {
        let mut command = Cmd::with_capacity(arguments + 5, arguments * ARGUMENT_LEN + 64);
        command.arg(b"EVALSHA").arg(self.hash());
        command
    }

    /// Returns the start of a command that runs the script by its text, which also makes the server remember it.
    pub(in crate::remote) fn by_text(&self, arguments: usize) -> Cmd {
        let data = self.source.len() + arguments * ARGUMENT_LEN;
        let mut command = Cmd::with_capacity(arguments + 5, data);
        command.arg(b"EVAL").arg(self.source);
        command
    }
}

static DECIDE: Script = Script {
    source: DECIDE_SOURCE,
    script: LazyLock::new(|| redis::Script::new(DECIDE_SOURCE)),
};

/// Room for an argument: keys are a few times longer than numbers.
const ARGUMENT_LEN: usize = 24;

const DECIDE_SOURCE: &str = concat!(
    include_str!("../../../lua/decide_begin.lua"),
    include_str!("../../../lua/token_bucket.lua"),
    include_str!("../../../lua/fixed_window.lua"),
    include_str!("../../../lua/sliding_window.lua"),
    include_str!("../../../lua/sliding_log.lua"),
    include_str!("../../../lua/concurrency.lua"),
    include_str!("../../../lua/decide_end.lua"),
);
