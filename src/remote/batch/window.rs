//! How many charges may be in flight to one server.
//!
//! By Little's law, `throughput * time` charges in flight keep a server busy that makes `throughput` charges a second
//! and takes `time` for each. Fewer leave it idle. More wait in its sockets, where nothing can be shed.
//!
//! ```text
//! capacity = throughput * time                       4 at least, and 128 until the throughput is measured
//! time     = max(deadline / 6, 2 round trips)        the shortest round trip that was seen
//!            + 3 scheduling delays                   a call is written, read and completed by different polls
//! ```
//!
//! Example: the deadline is 50 ms, and 20 replies of 64 charges come in each 5 ms, the round trip. So the throughput is
//! 256,000 a second, the time is 10 ms, and the capacity is 2,560.
//!
//! # Throughput
//!
//! A measurement lasts until replies have come for twice the capacity or for 256 charges, or until a deadline has
//! passed; and 5 ms and a round trip at least. So replies that arrive together do not make the server look faster. The
//! first one ends earlier, after 128 charges or a call that took longer than `time`. The throughput rises to a higher
//! measurement at once, so the capacity doubles with each round trip of a burst. It falls half of the way to a lower
//! one, and only if the client was *limited* meanwhile: a request waited for the window, or calls took longer than
//! `time`. Under a light load few replies show nothing about the server, so a measurement without a limit begins anew
//! when nothing is in flight.
//!
//! # Round trip
//!
//! Under load, calls wait for each other. So the shortest round trip may be that of the server's queue, or the network
//! may have become longer since. When that would matter and the throughput no longer rises, a *probe* measures
//! the network: everything in flight ends, then one charge is sent alone. Probes are 250 ms apart, and up to 8 s while
//! they confirm each other.
//!
//! # Why does a separate call measure the network?
//!
//! Under load, every call waits behind others in the server's queue, and the shortest measured round trip contains that queue. A
//! longer round trip makes the window larger, and a larger window makes the queue longer. A server that decides 1,000 charges a
//! second had 43 in flight, and nearly all replies came late. The opposite error exists too: a network that becomes longer looks
//! like a slow server. A probe runs when the window is full, and is either small or the result of a long round trip.

use std::time::Duration;

use crate::{clock::Timestamp, store::ServerStats};

/// The number of charges that may be in flight, and the measurements that it follows from. See the [module docs](self).
#[derive(Debug)]
pub(super) struct SendWindow {
    deadline: Duration,
    /// Charges that the server makes in a second; 0 while unknown.
    throughput: u64,
    /// The time from waking a task until it runs, smoothed.
    scheduling_delay: Duration,
    min_round_trip: Option<Duration>,
    measurement: Measurement,
    /// Whether a measurement was ever limited by the window, so that the throughput is the server's and not the demand.
    is_measured: bool,
    probe: Probe,
    /// The youngest connection that was used.
    connection_id: u64,
    /// Since when requests can be sent.
    usable_since: Timestamp,
}

/// The measurement of the throughput that is under way.
#[derive(Debug, Default)]
struct Measurement {
    since: Timestamp,
    /// Charges in the replies since then.
    charges: u64,
    /// Whether a request had to wait for the window, or calls waited for each other.
    was_limited: bool,
}

/// The measurements of one call with a reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowSample {
    /// The number of the call.
    pub call: u64,
    pub charges: usize,
    /// Charges in flight when the reply came, with those of the call.
    pub in_flight: usize,
    pub round_trip: Duration,
}

impl SendWindow {
    pub fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            throughput: 0,
            scheduling_delay: Duration::ZERO,
            min_round_trip: None,
            measurement: Measurement::default(),
            is_measured: false,
            probe: Probe::default(),
            connection_id: 0,
            usable_since: Timestamp::default(),
        }
    }

    /// Returns the number of charges that may be in flight.
    pub fn capacity(&self) -> usize {
        let min = if self.is_measured {
            MIN_CAPACITY
        } else {
            FIRST_CAPACITY
        };
        self.charges_in(self.time()).max(min)
    }

    /// Adds the shortest round trip that was measured to the stats of the server.
    pub fn add_to(&self, stats: ServerStats) -> ServerStats {
        stats.network(self.min_round_trip)
    }

    /// Returns how long a charge may be in flight.
    fn time(&self) -> Duration {
        let round_trips = self.min_round_trip.unwrap_or_default() * 2;
        (self.deadline / 6).max(round_trips) + self.scheduling_delay * 3
    }

    /// Returns the number of charges that the server makes in this time; 0 while the throughput is unknown.
    pub fn charges_in(&self, time: Duration) -> usize {
        let charges = u128::from(self.throughput) * time.as_micros() / 1_000_000;
        usize::try_from(charges).unwrap_or(usize::MAX)
    }

    /// Returns whether the throughput of the server was measured.
    pub fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// Returns the time from waking a task of the client until it runs.
    pub fn scheduling_delay(&self) -> Duration {
        self.scheduling_delay
    }

    /// Returns whether tasks of the client run so late that decisions are, whatever the server does.
    pub fn is_process_slow(&self) -> bool {
        self.scheduling_delay > self.deadline / SLOW_PART
    }

    /// Returns how long a request may wait before it is late, if this many charges wait or are in flight: for half of the
    /// deadline, or if the window has room for all of them, while the server can decide it in time.
    pub fn latest_send(&self, charges: usize) -> Duration {
        if charges > self.capacity() {
            return self.deadline / 2;
        }
        let round_trips = self.min_round_trip.unwrap_or_default() * 2;
        let time = round_trips.max(self.deadline / 8) + self.scheduling_delay;
        self.deadline.saturating_sub(time).max(self.deadline / 2)
    }

    /// Returns how long a request that was submitted at this time has waited. A wait for a connection does not count,
    /// since it is not a sign of overload.
    pub fn waited(&self, submitted_at: Timestamp, now: Timestamp) -> Duration {
        now.since(submitted_at.max(self.usable_since))
    }

    /// Returns whether everything in flight must end, so that one charge can then measure the network.
    pub fn wants_probe(&self, now: Timestamp) -> bool {
        // A call of a blocked runtime or on an unresponsive connection does not end soon. Others must not wait for it.
        let is_fresh = |since| now.since(since) < self.deadline / 2;
        self.probe.wanted_since.is_some_and(is_fresh)
    }

    /// Returns whether a charge that measures the network is in flight.
    pub fn is_probing(&self) -> bool {
        self.probe.call.is_some()
    }

    /// Notes the number of a call that measures the network.
    pub fn note_probe(&mut self, call: u64) {
        self.probe.wanted_since = None;
        self.probe.call = Some(call);
    }

    /// Notes that nothing was in flight until now: a probe that was under way got no reply.
    pub fn note_idle(&mut self, now: Timestamp) {
        self.probe.call = None;
        if !self.measurement.was_limited {
            // Requests before a pause would make the server look slow to the burst after it.
            self.measurement = Measurement {
                since: now,
                ..Measurement::default()
            };
        }
    }

    /// Notes that a request waits because the window is full.
    pub fn note_limited(&mut self) {
        self.measurement.was_limited = true;
    }

    /// Notes the time from starting a task until it ran.
    pub fn note_scheduling_delay(&mut self, delay: Duration) {
        // A runtime that stood still once is not a busy one.
        let delay = delay.min(self.deadline / 6);
        self.scheduling_delay = (self.scheduling_delay * 3 + delay) / 4;
    }

    /// Notes the connection of a call. If `is_idle`, no other connection was of use before it.
    pub fn note_connection(&mut self, connection_id: u64, now: Timestamp, is_idle: bool) {
        if connection_id <= self.connection_id {
            return;
        }
        self.connection_id = connection_id;
        if is_idle {
            // It may be to another host.
            self.min_round_trip = None;
            self.usable_since = now;
        }
    }

    /// Notes a call with a reply, which came now.
    pub fn note_reply(&mut self, now: Timestamp, sample: WindowSample) {
        let min_round_trip = self.note_round_trip(sample);
        let max_time = self.time();
        let measurement = &mut self.measurement;
        // Calls waited for each other, so the replies show what the server can do.
        let is_slow = sample.in_flight >= MIN_LOAD && sample.round_trip > max_time;
        measurement.was_limited |= is_slow;
        measurement.charges += sample.charges as u64;
        let elapsed = now.since(measurement.since);
        let charges = measurement.charges;
        let is_enough = if self.is_measured {
            charges >= (2 * self.capacity() as u64).min(ENOUGH_CHARGES)
        } else {
            charges >= FIRST_CAPACITY as u64 || is_slow
        };
        if elapsed < min_round_trip.max(MIN_INTERVAL) || !is_enough && elapsed < self.deadline {
            return;
        }
        let measurement = std::mem::take(&mut self.measurement);
        self.measurement.since = now;
        // After a pause, the first reply only begins a measurement.
        if elapsed < MIN_PAUSE.max(self.deadline * 2) {
            let has_risen = self.finish_measurement(&measurement, elapsed);
            // A small capacity comes from a slow server or a longer network; a long time from a network or from a
            // queue.
            let is_doubtful =
                self.capacity() <= DOUBTFUL_CAPACITY || min_round_trip * 2 > self.deadline / 6;
            // A rising throughput widens the window, and a burst must not wait for a probe.
            if measurement.was_limited && is_doubtful && !has_risen {
                self.probe.request(now);
            }
        }
    }

    /// Updates and returns the shortest round trip. A probe replaces it.
    fn note_round_trip(&mut self, sample: WindowSample) -> Duration {
        let round_trip = sample.round_trip;
        let is_probe = self.probe.end(sample.call, round_trip, self.min_round_trip);
        let known = self.min_round_trip.filter(|_| !is_probe);
        let min = known.map_or(round_trip, |known| known.min(round_trip));
        self.min_round_trip = Some(min);
        min
    }

    /// Updates the throughput. Returns whether it has risen.
    fn finish_measurement(&mut self, measurement: &Measurement, elapsed: Duration) -> bool {
        self.is_measured |= measurement.was_limited;
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let measured = measurement.charges.saturating_mul(1_000_000) / micros.max(1);
        let has_risen = measured > self.throughput;
        if has_risen {
            self.throughput = measured;
        } else if measurement.was_limited {
            self.throughput = measured.midpoint(self.throughput);
        }
        has_risen
    }

    #[cfg(test)]
    pub fn want_probe(&mut self, now: Timestamp) {
        self.probe.request(now);
    }
}

// === Probe ===

/// A measurement of the network by a call with nothing else in flight.
#[derive(Debug, Default)]
struct Probe {
    /// Since when a probe is to be sent; `None` if none is.
    wanted_since: Option<Timestamp>,
    /// The number of the call that is a probe.
    call: Option<u64>,
    requested_at: Timestamp,
    /// The number of probes in a row that confirmed the round trip, 5 at most.
    confirmed: u32,
}

impl Probe {
    /// Requests a probe, unless the last request was recent. Each confirmation doubles the time between requests.
    fn request(&mut self, now: Timestamp) {
        if now.since(self.requested_at) > MIN_PROBE_INTERVAL * (1 << self.confirmed) {
            self.requested_at = now;
            self.wanted_since = Some(now);
        }
    }

    /// Returns whether this call was the probe. If so, the probe is over. A round trip within a quarter of the known
    /// one confirms it.
    fn end(&mut self, call: u64, round_trip: Duration, known: Option<Duration>) -> bool {
        if self.call != Some(call) {
            return false;
        }
        self.call = None;
        let is_close = known.is_some_and(|known| round_trip.abs_diff(known) < known / 4);
        self.confirmed = if is_close {
            (self.confirmed + 1).min(5)
        } else {
            0
        };
        true
    }
}

/// The capacity until the throughput is measured: two full calls.
const FIRST_CAPACITY: usize = 128;
/// The least capacity. A server that makes 200 charges a second takes 20 ms for it.
const MIN_CAPACITY: usize = 4;
/// A number of charges that always suffices for a measurement.
const ENOUGH_CHARGES: u64 = 256;
/// Tasks that run later than this part of the deadline, on average, make a slow process.
const SLOW_PART: u32 = 32;
/// The least duration of a measurement.
const MIN_INTERVAL: Duration = Duration::from_millis(5);
/// A pause of this length, or of two deadlines if they are longer, ends a measurement without a result.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// A capacity that may be small only because the network has become longer.
const DOUBTFUL_CAPACITY: usize = 64;
/// Charges in flight from which on the load is not light.
const MIN_LOAD: usize = 16;
/// The least time between two probes.
const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(50);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000)
    }

    fn reply(window: &mut SendWindow, millis: u64, charges: usize, round_trip: Duration) {
        let sample = WindowSample {
            call: 0,
            charges,
            in_flight: charges,
            round_trip,
        };
        window.note_reply(at(millis), sample);
    }

    /// Notes `calls` replies of 64 charges in each 5 ms of this range.
    fn serve(window: &mut SendWindow, millis: std::ops::Range<u64>, calls: u64, is_limited: bool) {
        for step in millis.step_by(5) {
            for _ in 0..calls {
                if is_limited {
                    window.note_limited();
                }
                reply(window, step, 64, Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn holds_the_charges_of_a_sixth_of_the_deadline() {
        let mut window = SendWindow::new(DEADLINE);
        assert_eq!(window.capacity(), FIRST_CAPACITY);
        // 20 calls of 64 charges in 5 ms are 256,000 a second: 2,560 in 10 ms, which are two round trips.
        serve(&mut window, 0..100, 20, true);
        assert_eq!(window.capacity(), 2_560);
        window.min_round_trip = None;
        assert_eq!(window.capacity(), 2_133);
    }

    // Regression: to a busy client the server looked slow, and slower with each measurement.
    #[test]
    fn holds_the_charges_of_three_delays_of_a_busy_runtime_besides() {
        let mut window = SendWindow::new(DEADLINE);
        serve(&mut window, 0..100, 20, true);
        for _ in 0..40 {
            window.note_scheduling_delay(Duration::from_millis(6));
        }
        // 10 ms and three times 6 ms.
        assert!(
            (7_100..=7_168).contains(&window.capacity()),
            "{}",
            window.capacity()
        );
        window.note_scheduling_delay(Duration::from_secs(1));
        assert!(
            window.scheduling_delay() < Duration::from_millis(7),
            "it stood still once"
        );
    }

    // Regression: replies that arrived together made a slow server look two or three times as fast.
    #[test]
    fn replies_that_arrive_together_do_not_make_a_server_look_faster() {
        let mut window = SendWindow::new(DEADLINE);
        // Four replies of 64 charges each 16 ms, which are 16,000 a second: three at once, and one 5 ms later.
        for step in 0..100 {
            for millis in [0, 0, 0, 5] {
                window.note_limited();
                reply(
                    &mut window,
                    step * 16 + millis,
                    64,
                    Duration::from_millis(4),
                );
            }
            let rate = window.charges_in(Duration::from_secs(1));
            // The first measurement is short, and the next ones correct it.
            assert!(step < 5 || rate <= 24_000, "{rate} a second");
        }
    }

    // Regression: 128 charges were in flight to any server, which took slow ones longer than the deadline.
    #[test]
    fn slow_server_has_little_in_flight() {
        let mut window = SendWindow::new(DEADLINE);
        for step in 0..20 {
            window.note_limited();
            reply(&mut window, step * 10, 20, Duration::from_millis(1));
        }
        // 2,000 a second, for 8.3 ms.
        assert_eq!(window.capacity(), 16);
    }

    #[test]
    fn first_slow_reply_to_a_burst_makes_the_window_small() {
        let mut window = SendWindow::new(DEADLINE);
        reply(&mut window, 1, 1, Duration::from_millis(1));
        window.note_idle(at(1_000));
        window.note_limited();
        // 64 charges in 32 ms, which are 2,000 a second, for 8.3 ms.
        reply(&mut window, 1_032, 64, Duration::from_millis(32));
        assert_eq!(window.capacity(), 16);
    }

    /// Returns whether the window grows to two round trips of 5 ms within this time. In each round trip the server
    /// makes all charges in flight, up to 1,280.
    fn grows_within(window: &mut SendWindow, millis: u64) -> bool {
        for now in (0..millis).step_by(5) {
            let in_flight = window.capacity().min(1_280);
            window.note_limited();
            reply(window, now, in_flight, Duration::from_millis(5));
        }
        window.capacity() >= 2_560
    }

    #[test]
    fn grows_to_a_fast_server_within_a_few_round_trips() {
        assert!(grows_within(&mut SendWindow::new(DEADLINE), 50));
    }

    #[test]
    fn grows_again_after_a_stall_within_a_few_round_trips() {
        let mut window = SendWindow::new(DEADLINE);
        (window.throughput, window.is_measured) = (1, true);
        assert_eq!(window.capacity(), MIN_CAPACITY);
        assert!(grows_within(&mut window, 150));
    }

    // Regression: a network that became longer than a sixth of the deadline left a healthy server with 16 in flight.
    #[test]
    fn network_that_becomes_longer_does_not_strangle_a_server() {
        let mut window = SendWindow::new(DEADLINE);
        let mut now = 0;
        for millis in [2, 12] {
            let round_trip = Duration::from_millis(millis);
            for call in 1..200 {
                now += millis;
                if window.wants_probe(at(now)) {
                    window.note_probe(call);
                    let sample = WindowSample {
                        call,
                        charges: 1,
                        in_flight: 1,
                        round_trip,
                    };
                    window.note_reply(at(now), sample);
                    continue;
                }
                let in_flight = window.capacity().min(2_000);
                window.note_limited();
                reply(&mut window, now, in_flight, round_trip);
            }
            assert!(window.capacity() > 1_000, "{}", window.capacity());
        }
    }

    // Regression: the demand of few clients counted as the throughput of the server, and their first burst was shed.
    #[test]
    fn light_load_does_not_make_the_window_small() {
        let mut window = SendWindow::new(DEADLINE);
        for step in 0..10 {
            reply(&mut window, step * 100, 1, Duration::from_millis(5));
        }
        assert_eq!(window.capacity(), FIRST_CAPACITY);
    }

    // Regression: with a long deadline, a slow server was never measured.
    #[test]
    fn long_deadline_does_not_keep_the_window_wide() {
        let mut window = SendWindow::new(Duration::from_secs(2));
        serve(&mut window, 0..1_000, 20, true);
        let wide = window.capacity();
        for step in 0..300 {
            window.note_limited();
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
        let mut window = SendWindow::new(DEADLINE);
        serve(&mut window, 0..100, 20, true);
        serve(&mut window, 100..160, 2, true);
        assert!(window.capacity() < 400, "{}", window.capacity());
    }

    #[test]
    fn few_calls_do_not_make_a_server_look_slow() {
        let mut window = SendWindow::new(DEADLINE);
        serve(&mut window, 0..100, 20, true);
        serve(&mut window, 100..10_000, 1, false);
        assert_eq!(window.capacity(), 2_560);
    }

    #[test]
    fn long_round_trips_hold_twice_the_charges_of_one() {
        let mut window = SendWindow::new(DEADLINE);
        for step in 0..10 {
            reply(&mut window, step * 20, 1_000, Duration::from_millis(20));
        }
        assert_eq!(window.capacity(), 2_000);
    }
}
