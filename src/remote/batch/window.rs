//! How much may be in flight to one server.

use std::time::Duration;

use crate::clock::Timestamp;

/// The number of charges that may be in flight, by what the server answers.
///
/// By Little's law, `rate * time` charges in flight keep a server busy that answers `rate` of them and takes `time` for
/// each. Fewer leave it idle, more wait in its sockets. `time` is a quarter of the deadline, or two round trips if they
/// are longer. The rate is measured by replies. It rises to any higher measurement at once and falls half of the way to a
/// lower one, but only if the window was full meanwhile: few replies to few calls show nothing about the server.
#[derive(Debug)]
pub(super) struct Window {
    /// The least time that a charge is in flight for, if the server is not to be idle.
    span: Duration,
    /// Charges that the server answers per second; 0 while unknown.
    rate: u64,
    least_round_trip: Option<Duration>,
    /// Charges answered since `since`.
    answered: u64,
    since: Timestamp,
    /// Whether something had to wait for the window since `since`.
    was_full: bool,
    /// The youngest connection that was used.
    generation: u64,
    /// Since when anything can be sent.
    usable_since: Timestamp,
}

impl Window {
    pub(super) fn new(deadline: Duration) -> Self {
        Self {
            span: deadline / 4,
            rate: 0,
            least_round_trip: None,
            answered: 0,
            since: Timestamp::default(),
            was_full: false,
            generation: 0,
            usable_since: Timestamp::default(),
        }
    }

    /// Returns how many charges may be in flight.
    pub(super) fn capacity(&self) -> usize {
        let round_trips = self.least_round_trip.unwrap_or_default() * 2;
        self.answered_in(self.span.max(round_trips)).max(LEAST)
    }

    /// Returns how many charges the server answers in this time, as far as it is known.
    pub(super) fn answered_in(&self, time: Duration) -> usize {
        let charges = u128::from(self.rate) * time.as_micros() / 1_000_000;
        usize::try_from(charges).unwrap_or(usize::MAX)
    }

    /// Notes that a decision waits because the window is full.
    pub(super) fn note_full(&mut self) {
        self.was_full = true;
    }

    /// Notes the reply to a call with this many charges.
    pub(super) fn note_reply(&mut self, now: Timestamp, charges: usize, round_trip: Duration) {
        let least = *self.least_round_trip.get_or_insert(round_trip);
        let least = least.min(round_trip);
        self.least_round_trip = Some(least);
        self.answered += charges as u64;
        let elapsed = now.since(self.since);
        if elapsed < least.max(INTERVAL) {
            return;
        }
        // After a pause the first reply only begins a measurement.
        if elapsed < PAUSE {
            let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
            let measured = self.answered.saturating_mul(1_000_000) / micros.max(1);
            if measured > self.rate {
                self.rate = measured;
            } else if self.was_full {
                self.rate = measured.midpoint(self.rate);
            }
        }
        self.answered = 0;
        self.since = now;
        self.was_full = false;
    }

    /// Notes the connection of a call. One that was just made may lead elsewhere; if nothing is in flight on others, nothing
    /// could be sent before.
    pub(super) fn note_connection(&mut self, generation: u64, now: Timestamp, is_idle: bool) {
        if generation <= self.generation {
            return;
        }
        self.generation = generation;
        self.least_round_trip = None;
        if is_idle {
            self.usable_since = now;
        }
    }

    /// Returns how long a decision that was asked for at this time has waited while it could be sent: a wait for a
    /// connection is no sign of overload.
    pub(super) fn waited(&self, asked_at: Timestamp, now: Timestamp) -> Duration {
        now.since(asked_at.max(self.usable_since))
    }
}

/// Charges that may always be in flight: two full calls. More would take a server that answers 10,000 charges per second
/// half of the usual deadline.
const LEAST: usize = 128;
/// The shortest time to measure a rate in.
const INTERVAL: Duration = Duration::from_millis(5);
/// The longest.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(50);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000)
    }

    /// Replies of 64 charges each, `calls` in every 5 ms, over this many milliseconds.
    fn serve(window: &mut Window, millis: std::ops::Range<u64>, calls: u64, is_full: bool) {
        for step in millis.step_by(5) {
            for _ in 0..calls {
                if is_full {
                    window.note_full();
                }
                window.note_reply(at(step), 64, Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn holds_what_a_quarter_of_the_deadline_answers() {
        let mut window = Window::new(DEADLINE);
        assert_eq!(window.capacity(), LEAST);
        // 20 calls of 64 charges in 5 ms are 256,000 a second, of which 12.5 ms take 3,200.
        serve(&mut window, 0..100, 20, true);
        assert_eq!(window.capacity(), 3_200);
    }

    #[test]
    fn grows_from_the_least_to_a_fast_server_within_a_few_round_trips() {
        let mut window = Window::new(DEADLINE);
        let mut now = 0;
        // The server answers whatever is in flight once per round trip of 5 ms, up to 1,280 charges.
        while window.capacity() < 3_200 {
            let in_flight = window.capacity().min(1_280);
            window.note_full();
            window.note_reply(at(now), in_flight, Duration::from_millis(5));
            now += 5;
            assert!(now < 50, "still at {} charges", window.capacity());
        }
    }

    #[test]
    fn follows_a_server_that_becomes_slow_within_a_few_intervals() {
        let mut window = Window::new(DEADLINE);
        serve(&mut window, 0..100, 20, true);
        serve(&mut window, 100..150, 2, true);
        assert!(window.capacity() < 400, "{}", window.capacity());
    }

    #[test]
    fn few_calls_do_not_make_a_server_look_slow() {
        let mut window = Window::new(DEADLINE);
        serve(&mut window, 0..100, 20, true);
        serve(&mut window, 100..10_000, 1, false);
        assert_eq!(window.capacity(), 3_200);
    }

    #[test]
    fn long_round_trips_hold_twice_what_they_answer() {
        let mut window = Window::new(DEADLINE);
        for step in 0..10 {
            window.note_reply(at(step * 20), 1_000, Duration::from_millis(20));
        }
        assert_eq!(window.capacity(), 2_000);
    }
}
