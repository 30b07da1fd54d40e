//! A time of overload, and its two log lines.
//!
//! # Why is its end logged late?
//!
//! A burst each second begins and ends an overload each second. So it is over for the log when none has come back for 10 s, and the
//! line has when it ended.

use std::time::Duration;

use crate::{clock::Timestamp, diagnosis::log};

use super::controller::Window;

/// The present overload, from its first window until none has come for a while.
#[derive(Debug, Default)]
pub(super) struct Spell {
    /// When it began, when a window was last overloaded, and how many requests were shed since.
    running: Option<(Timestamp, Timestamp)>,
    shed: f64,
}

impl Spell {
    /// Notes a window that has ended at `now`, its length, and how many requests may be in flight after it.
    pub fn note(
        &mut self,
        now: Timestamp,
        is_overloaded: bool,
        window: &Window,
        (length, limit): (Duration, u32),
    ) {
        match (&mut self.running, is_overloaded) {
            (None, false) => {}
            (None, true) => {
                self.running = Some((now, now));
                self.shed = window.shed;
                log::event!(
                    WARN,
                    "the service is overloaded",
                    limit = limit,
                    requests_per_sec = (window.asked / length.as_secs_f64()).round(),
                );
            }
            (Some((_, last)), true) => {
                *last = now;
                self.shed += window.shed;
            }
            (Some((began, last)), false) => {
                self.shed += window.shed;
                if now.since(*last) >= CALM {
                    log::event!(
                        INFO,
                        "the service is no longer overloaded",
                        lasted_secs = last.since(*began).as_secs_f64(),
                        shed = self.shed,
                    );
                    self.running = None;
                }
            }
        }
    }
}

const CALM: Duration = Duration::from_secs(10);
