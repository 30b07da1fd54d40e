//! A time in which requests are shed, or of overload, and its log lines.
//!
//! ```text
//!          requests are shed            overloaded
//!   quiet ───────────────────▶ shedding ──────────▶ overload
//!     ▲ ▲                          │                  │
//!     │ └── none for 10 s ─────────┘                  │
//!     └──── none for 10 s ────────────────────────────┘
//! ```
//!
//! Each arrow is one line. From quiet, overload may also begin at once.
//!
//! # Why is the end logged late?
//!
//! A burst each second begins and ends an overload each second. So it is over for the log when none has come back for 10 s, and the
//! line has when it ended.

use std::time::Duration;

use crate::{clock::Timestamp, diagnosis::log, rules::RuleMode};

use super::controller::Window;

/// The present spell, from its first window until none has come for a while.
#[derive(Debug, Default)]
pub(super) struct Spell {
    running: Option<Running>,
    /// Requests that were shed since the first line.
    shed: f64,
}

#[derive(Debug)]
struct Running {
    state: State,
    began: Timestamp,
    /// When a window last had this state.
    last: Timestamp,
}

/// The lighter one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Without overload: a burst has taken all places, or some keys try too often.
    Shedding,
    Overloaded,
}

impl Spell {
    /// Notes a window that has ended at `now`, its length, how many requests may be in flight after it, and whether those that found
    /// no place got one in shadow.
    pub fn note(
        &mut self,
        now: Timestamp,
        is_overloaded: bool,
        window: &Window,
        (length, limit, is_shadow): (Duration, u32, bool),
    ) {
        self.shed += window.shed;
        let mode = if is_shadow {
            RuleMode::Shadow
        } else {
            RuleMode::Enforce
        };
        let found = match is_overloaded {
            true => Some(State::Overloaded),
            false => (window.shed > 0.0).then_some(State::Shedding),
        };
        let present = self.running.as_ref().map(|running| running.state);
        match (found, &mut self.running) {
            // ## (Quiet | Shedding) => (Shedding | Overloaded)
            (Some(state), _) if found > present => {
                let (began, last) = (now, now);
                self.running = Some(Running { state, began, last });
                let requests_per_sec = (window.asked / length.as_secs_f64()).round();
                state.log_begin(limit, requests_per_sec, mode);
            }
            // ## The same state
            (Some(_), Some(running)) if found == present => running.last = now,
            // ## (Shedding | Overloaded) => Quiet
            (_, Some(running)) if now.since(running.last) >= CALM => {
                let lasted = running.last.since(running.began);
                running.state.log_end(lasted, self.shed, mode);
                *self = Self::default();
            }
            _ => {}
        }
    }
}

impl State {
    fn log_begin(self, limit: u32, requests_per_sec: f64, mode: RuleMode) {
        match self {
            Self::Shedding => log::event!(
                WARN,
                "requests are shed",
                limit = limit,
                requests_per_sec = requests_per_sec,
                mode = mode.name(),
            ),
            Self::Overloaded => log::event!(
                WARN,
                "the service is overloaded",
                limit = limit,
                requests_per_sec = requests_per_sec,
                mode = mode.name(),
            ),
        }
    }

    fn log_end(self, lasted: Duration, shed: f64, mode: RuleMode) {
        match self {
            Self::Shedding => log::event!(
                INFO,
                "requests are no longer shed",
                lasted_secs = lasted.as_secs_f64(),
                shed = shed,
                mode = mode.name(),
            ),
            Self::Overloaded => log::event!(
                INFO,
                "the service is no longer overloaded",
                lasted_secs = lasted.as_secs_f64(),
                shed = shed,
                mode = mode.name(),
            ),
        }
    }
}

const CALM: Duration = Duration::from_secs(10);
