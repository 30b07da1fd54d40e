//! How much may be in flight to one server.

use std::time::Duration;

use crate::clock::Timestamp;

/// The number of charges that may be in flight, by what the server answers.
///
/// By Little's law, `rate * time` charges in flight keep a server busy that answers `rate` of them and takes `time` for
/// each. Fewer leave it idle, more wait in its sockets. `time` is a sixth of the deadline, or two round trips if they are
/// longer, and three turns of the client's runtime: a call is written, read and answered in turns of their own.
///
/// The rate is measured by replies. It rises to any higher measurement at once and falls half of the way to a lower one,
/// but only if the window was full meanwhile, or calls took longer than `time`: few replies to few calls show nothing about
/// the server. A measurement lasts until the window has been answered twice, or 256 charges, or a deadline has passed: so
/// calls that are answered together do not look like a faster server.
///
/// The round trip is the shortest that was seen. Under load all calls wait for each other, so it may be the server's time
/// and not the network's, or the network may have become longer. While that would matter, a [`Probe`] measures it.
#[derive(Debug)]
pub(super) struct Window {
    deadline: Duration,
    /// Charges that the server answers per second; 0 while unknown.
    rate: u64,
    /// How long a turn of the runtime takes, smoothed.
    turn: Duration,
    least_round_trip: Option<Duration>,
    /// Charges answered since `since`.
    answered: u64,
    since: Timestamp,
    /// Whether something had to wait for the window since `since`.
    was_full: bool,
    /// Whether any measurement was made with a full window, so that the rate is the server's and not the demand.
    is_measured: bool,
    probe: Probe,
    /// The youngest connection that was used.
    generation: u64,
    /// Since when anything can be sent.
    usable_since: Timestamp,
}

impl Window {
    pub(super) fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            rate: 0,
            turn: Duration::ZERO,
            least_round_trip: None,
            answered: 0,
            since: Timestamp::default(),
            was_full: false,
            is_measured: false,
            probe: Probe::default(),
            generation: 0,
            usable_since: Timestamp::default(),
        }
    }

    /// Returns how many charges may be in flight.
    pub(super) fn capacity(&self) -> usize {
        let least = if self.is_measured { LEAST } else { FIRST };
        self.answered_in(self.time()).max(least)
    }

    /// Returns how long a charge may be in flight.
    fn time(&self) -> Duration {
        let round_trips = self.least_round_trip.unwrap_or_default() * 2;
        (self.deadline / 6).max(round_trips) + self.turn * 3
    }

    /// Whether what is in flight is to end first, and one charge to go alone then: so the network is measured.
    pub(super) fn wants_probe(&self, now: Timestamp) -> bool {
        // A call of a blocked runtime or on a mute connection does not end soon, and others can go on.
        let is_fresh = |since| now.since(since) < self.deadline / 2;
        self.probe.wanted_since.is_some_and(is_fresh)
    }

    #[cfg(test)]
    pub(super) fn want_probe(&mut self, now: Timestamp) {
        self.probe.want(now);
    }

    /// Whether such a charge is under way.
    pub(super) fn is_probing(&self) -> bool {
        self.probe.call.is_some()
    }

    /// Notes that a call is made with nothing else in flight: a probe that was under way got no reply.
    pub(super) fn note_idle(&mut self) {
        self.probe.call = None;
    }

    /// Notes the number of a call that measures the network.
    pub(super) fn note_probe(&mut self, call: u64) {
        self.probe.wanted_since = None;
        self.probe.call = Some(call);
    }

    /// Whether the server has shown what it answers.
    pub(super) fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// Returns how long a turn of the client's runtime takes.
    pub(super) fn turn(&self) -> Duration {
        self.turn
    }

    /// Notes how long a turn of the runtime took.
    pub(super) fn note_turn(&mut self, turn: Duration) {
        // More is no turn but a runtime that stood still.
        let turn = turn.min(self.deadline / 6);
        self.turn = (self.turn * 3 + turn) / 4;
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

    /// Notes what a call shows that was answered now.
    pub(super) fn note_reply(&mut self, now: Timestamp, sample: Sample) {
        let round_trip = sample.round_trip;
        if self
            .probe
            .ends(sample.call, round_trip, self.least_round_trip)
        {
            self.least_round_trip = Some(round_trip);
        }
        let least = *self.least_round_trip.get_or_insert(round_trip);
        let least = least.min(round_trip);
        self.least_round_trip = Some(least);
        // They waited for each other: what is answered is what the server can do.
        self.was_full |= sample.in_flight >= CROWD && round_trip > self.time();
        self.answered += sample.charges as u64;
        let elapsed = now.since(self.since);
        let enough = (2 * self.capacity() as u64).min(ENOUGH);
        let is_enough = self.rate == 0 || self.answered >= enough;
        if elapsed < least.max(INTERVAL) || !is_enough && elapsed < self.deadline {
            return;
        }
        // After a pause the first reply only begins a measurement.
        if elapsed < PAUSE.max(self.deadline * 2) {
            self.is_measured |= self.was_full;
            let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
            let measured = self.answered.saturating_mul(1_000_000) / micros.max(1);
            if measured > self.rate {
                self.rate = measured;
            } else if self.was_full {
                self.rate = measured.midpoint(self.rate);
            }
            // A small window comes from a slow server or a longer network, a long time from a network or from a queue.
            let is_doubtful = self.capacity() <= DOUBTFUL || least * 2 > self.deadline / 6;
            if self.was_full && is_doubtful {
                self.probe.want(now);
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
        if is_idle {
            self.least_round_trip = None;
            self.usable_since = now;
        }
    }

    /// Returns how long a decision that was asked for at this time has waited while it could be sent: a wait for a
    /// connection is no sign of overload.
    pub(super) fn waited(&self, asked_at: Timestamp, now: Timestamp) -> Duration {
        now.since(asked_at.max(self.usable_since))
    }
}

/// The measurements of one answered call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// The number of the call.
    pub(super) call: u64,
    pub(super) charges: usize,
    /// Charges that were in flight when the reply came, those of the call included.
    pub(super) in_flight: usize,
    pub(super) round_trip: Duration,
}

// === Probe ===

/// Measures the network by a call with nothing else in flight, up to 8 s apart.
#[derive(Debug, Default)]
struct Probe {
    wanted_since: Option<Timestamp>,
    call: Option<u64>,
    asked_at: Timestamp,
    /// How often the last probes in a row found what was known.
    confirmed: u32,
}

impl Probe {
    /// Asks for a probe, unless the last one was just made. One that confirms the last doubles the time to the next.
    fn want(&mut self, now: Timestamp) {
        if now.since(self.asked_at) > PROBES * (1 << self.confirmed) {
            self.asked_at = now;
            self.wanted_since = Some(now);
        }
    }

    /// Whether this call was the probe. Notes whether it confirms the round trip that is known.
    fn ends(&mut self, call: u64, round_trip: Duration, known: Option<Duration>) -> bool {
        let is_probe = self.call == Some(call);
        if is_probe {
            self.call = None;
            let is_close = known.is_some_and(|known| round_trip.abs_diff(known) < known / 4);
            self.confirmed = if is_close {
                (self.confirmed + 1).min(5)
            } else {
                0
            };
        }
        is_probe
    }
}

/// Charges that may be in flight before the server has shown what it answers: two full calls.
const FIRST: usize = 128;
/// Charges that may always be in flight. A server that answers 200 a second takes 20 ms for them.
const LEAST: usize = 4;
/// Charges that are enough to measure a rate.
const ENOUGH: u64 = 256;
/// The shortest time to measure a rate in.
const INTERVAL: Duration = Duration::from_millis(5);
/// A window of this many charges may have become so small without need.
const DOUBTFUL: usize = 64;
/// Charges in flight from which on the load is not light.
const CROWD: usize = 16;
/// After a longer time, unless two deadlines are longer, nothing is measured.
const PAUSE: Duration = Duration::from_secs(1);
/// The shortest time between two probes.
const PROBES: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(50);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000)
    }

    fn reply(window: &mut Window, millis: u64, charges: usize, round_trip: Duration) {
        let sample = Sample {
            call: 0,
            charges,
            in_flight: charges,
            round_trip,
        };
        window.note_reply(at(millis), sample);
    }

    /// Replies of 64 charges each, `calls` in every 5 ms, over this many milliseconds.
    fn serve(window: &mut Window, millis: std::ops::Range<u64>, calls: u64, is_full: bool) {
        for step in millis.step_by(5) {
            for _ in 0..calls {
                if is_full {
                    window.note_full();
                }
                reply(window, step, 64, Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn holds_what_a_sixth_of_the_deadline_answers() {
        let mut window = Window::new(DEADLINE);
        assert_eq!(window.capacity(), FIRST);
        // 20 calls of 64 charges in 5 ms are 256,000 a second, of which 10 ms, two round trips, take 2,560.
        serve(&mut window, 0..100, 20, true);
        assert_eq!(window.capacity(), 2_560);
        window.least_round_trip = None;
        assert_eq!(window.capacity(), 2_133);
    }

    // Regression: a busy client took the server for a slow one, and more and more so.
    #[test]
    fn holds_what_is_answered_within_three_turns_of_a_busy_runtime_besides() {
        let mut window = Window::new(DEADLINE);
        serve(&mut window, 0..100, 20, true);
        for _ in 0..40 {
            window.note_turn(Duration::from_millis(6));
        }
        // 10 ms and three times 6 ms.
        assert!(
            (7_100..=7_168).contains(&window.capacity()),
            "{}",
            window.capacity()
        );
        window.note_turn(Duration::from_secs(1));
        assert!(
            window.turn() < Duration::from_millis(7),
            "it stood still once"
        );
    }

    // Regression: calls that were answered together made a slow server look two or three times as fast.
    #[test]
    fn replies_that_come_together_make_no_server_look_faster() {
        let mut window = Window::new(DEADLINE);
        // Four replies of 64 charges each 16 ms, which are 16,000 a second: three at once, and one 5 ms later.
        for step in 0..100 {
            for millis in [0, 0, 0, 5] {
                window.note_full();
                reply(
                    &mut window,
                    step * 16 + millis,
                    64,
                    Duration::from_millis(4),
                );
            }
            let rate = window.answered_in(Duration::from_secs(1));
            // The first measurement is a quick one, which the next ones correct.
            assert!(step < 5 || rate <= 24_000, "{rate} a second");
        }
    }

    // Regression: 128 charges were in flight to any server, which took slow ones longer than the deadline.
    #[test]
    fn slow_server_has_little_in_flight() {
        let mut window = Window::new(DEADLINE);
        for step in 0..20 {
            window.note_full();
            reply(&mut window, step * 10, 20, Duration::from_millis(1));
        }
        // 2,000 a second, for 8.3 ms.
        assert_eq!(window.capacity(), 16);
    }

    /// Whether the window holds two round trips of 5 ms within so many milliseconds. The server answers whatever is in
    /// flight once per round trip, up to 1,280 charges.
    fn grows_within(window: &mut Window, millis: u64) -> bool {
        for now in (0..millis).step_by(5) {
            let in_flight = window.capacity().min(1_280);
            window.note_full();
            reply(window, now, in_flight, Duration::from_millis(5));
        }
        window.capacity() >= 2_560
    }

    #[test]
    fn grows_to_a_fast_server_within_a_few_round_trips() {
        assert!(grows_within(&mut Window::new(DEADLINE), 50));
    }

    #[test]
    fn grows_again_after_a_stall_within_a_few_round_trips() {
        let mut window = Window::new(DEADLINE);
        (window.rate, window.is_measured) = (1, true);
        assert_eq!(window.capacity(), LEAST);
        assert!(grows_within(&mut window, 150));
    }

    // Regression: a network that became longer than a sixth of the deadline left a healthy server with 16 in flight.
    #[test]
    fn network_that_becomes_longer_strangles_no_server() {
        let mut window = Window::new(DEADLINE);
        let mut now = 0;
        for millis in [2, 12] {
            let round_trip = Duration::from_millis(millis);
            for call in 1..200 {
                now += millis;
                if window.wants_probe(at(now)) {
                    window.note_probe(call);
                    let sample = Sample {
                        call,
                        charges: 1,
                        in_flight: 1,
                        round_trip,
                    };
                    window.note_reply(at(now), sample);
                    continue;
                }
                let in_flight = window.capacity().min(2_000);
                window.note_full();
                reply(&mut window, now, in_flight, round_trip);
            }
            assert!(window.capacity() > 1_000, "{}", window.capacity());
        }
    }

    // Regression: what few clients asked for was taken for what the server can do, and their first burst was shed.
    #[test]
    fn light_load_does_not_make_the_window_small() {
        let mut window = Window::new(DEADLINE);
        for step in 0..10 {
            reply(&mut window, step * 100, 1, Duration::from_millis(5));
        }
        assert_eq!(window.capacity(), FIRST);
    }

    // Regression: with a long deadline no measurement of a slow server was ever made.
    #[test]
    fn long_deadline_does_not_keep_the_window_wide() {
        let mut window = Window::new(Duration::from_secs(2));
        serve(&mut window, 0..1_000, 20, true);
        let wide = window.capacity();
        for step in 0..300 {
            window.note_full();
            reply(&mut window, 1_000 + step * 100, 10, Duration::from_secs(1));
        }
        assert!(
            window.capacity() * 10 < wide,
            "{} of {wide}",
            window.capacity()
        );
    }

    #[test]
    fn follows_a_server_that_becomes_slow_within_a_few_intervals() {
        let mut window = Window::new(DEADLINE);
        serve(&mut window, 0..100, 20, true);
        serve(&mut window, 100..160, 2, true);
        assert!(window.capacity() < 400, "{}", window.capacity());
    }

    #[test]
    fn few_calls_do_not_make_a_server_look_slow() {
        let mut window = Window::new(DEADLINE);
        serve(&mut window, 0..100, 20, true);
        serve(&mut window, 100..10_000, 1, false);
        assert_eq!(window.capacity(), 2_560);
    }

    #[test]
    fn long_round_trips_hold_twice_what_they_answer() {
        let mut window = Window::new(DEADLINE);
        for step in 0..10 {
            reply(&mut window, step * 20, 1_000, Duration::from_millis(20));
        }
        assert_eq!(window.capacity(), 2_000);
    }
}
