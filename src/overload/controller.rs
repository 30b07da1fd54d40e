//! The adaptive limit of requests in flight: it falls while responses take longer than they do when the service has room.
//!
//! The *base* is the time of the quickest fifth of responses while there is room. A service is *crowded* while the quickest fifth takes
//! clearly longer. The mean would take slow requests among quick ones for a queue.
//!
//! ```text
//!   with room ── as many in flight as the limit allows, and crowded ──▶ overload
//!      ▲                                                                  │ each window, toward
//!      │                                                                  │   crowded      limit x base / time, and a few more
//!      │                                                                  │   not crowded  half as much again, and a few more
//!      └──────────── less than 5 % is shed in two windows ────────────────┘ more give up than are served ──▶ falls by a third
//! ```
//!
//! It rises only if at least half of it is in flight: otherwise something else sheds, and it would rise for ever.
//!
//! # What if the service itself becomes slower?
//!
//! Its responses take longer, although they wait for nothing. If the base rose with them, it would rise with each queue too, and the
//! limit would drift. So the limit is halved for two windows in 64, and whenever it has fallen by half: that is a *probe*. In a queue,
//! responses then take about half as long. If they take nearly as long as before, they did not wait, and their time is the base from
//! then on. Apart from that, the base falls at once, and rises by 1 % a window while less than half of the limit is in flight and
//! nothing is shed.
//!
//! # Where does this come from?
//!
//! It is the gradient of Netflix' `concurrency-limits`, with the quickest fifth in place of the mean, and probes in place of a long-term
//! mean. In a simulation of seven kinds of services, that mean drifted within minutes. Among slow requests it served 0.05 of what was
//! possible; with a base for each route 0.29, once a fifth of the slow requests had the route of quick ones. Comparing the throughput
//! of windows with more and with fewer requests took 1.7 times the code, and served 0.93 among slow requests, where this serves 0.99;
//! requests waited up to twice as long.

use std::time::Duration;

use super::times::Times;

/// Requests and responses in a window of time. Times are in seconds.
pub(super) struct Window {
    /// Its length.
    pub span: f64,
    /// Mean of the requests in flight whenever one came, without slow ones among quick ones.
    pub in_flight: f64,
    /// The slow ones in flight among quick ones.
    pub slow: f64,
    /// The fewest in flight; `None` if no request came.
    pub fewest: Option<f64>,
    /// Requests that came.
    pub asked: f64,
    /// Those that were shed.
    pub shed: f64,
    /// Requests that timed out, or whose clients gave up after they had waited longer than most responses take.
    pub lost: f64,
    /// Times of the responses.
    pub times: Times,
    /// Whether the service states at its end that it is crowded.
    pub is_crowded: bool,
}

impl Window {
    fn served(&self) -> f64 {
        f64::from(self.times.count())
    }

    /// Returns whether more clients gave up than were served.
    fn has_lost_most(&self) -> bool {
        self.lost > self.served()
    }
}

/// Decides how many requests may be in flight, window by window.
pub(super) struct Controller {
    limit: f64,
    is_overloaded: bool,
    /// Windows until the next probe, and the highest limit since the last one began.
    next_probe: u32,
    highest: f64,
    /// Windows that are left of a probe.
    probe: u32,
    /// Windows in a row in which nearly nothing was shed.
    calm: u32,
    /// The time of the quickest fifth when there was room; `None` before the first responses.
    base: Option<f64>,
    /// The same in the last window.
    quick: f64,
    /// The same, and how many were in flight, in overload without its probes.
    usual: Option<f64>,
    usual_in_flight: f64,
    /// Responses since `usual` was looked for.
    recent: Times,
}

impl Controller {
    pub fn new() -> Self {
        Self {
            limit: START,
            is_overloaded: false,
            next_probe: 0,
            highest: 0.0,
            probe: 0,
            calm: 0,
            base: None,
            quick: 0.0,
            usual: None,
            usual_in_flight: 0.0,
            recent: Times::none(),
        }
    }

    /// Returns how many requests may be in flight now.
    pub fn cap(&self) -> u32 {
        let cap = match (self.is_overloaded, self.probe) {
            (false, _) => self.limit * BURST,
            (true, 0) => self.limit,
            (true, _) => self.limit / 2.0,
        };
        whole(cap)
    }

    /// Returns how many more may be in flight of each class above the lowest: a quarter, or the room in which a number of requests
    /// swings by chance, if that is more. A probe does not halve it: higher classes would lose places in which they hardly wait.
    pub fn margin(&self) -> u32 {
        let limit = match self.is_overloaded {
            true => self.limit,
            false => self.limit * BURST,
        };
        whole((limit * MARGIN).max(DEVIATIONS * limit.sqrt()))
    }

    pub fn is_overloaded(&self) -> bool {
        self.is_overloaded
    }

    /// Returns the time after which a client that hangs up has waited too long.
    pub fn quick(&self) -> f64 {
        self.quick
    }

    /// Returns whether a request that was in flight in all of this window, of this length, is slow among quick ones.
    pub fn is_mixed(&self, window: &Window, length: Duration) -> bool {
        window.times.count() >= FEW && self.quick < MIXED * length.as_secs_f64()
    }

    /// Returns the limit, also in a probe.
    pub fn limit(&self) -> f64 {
        self.limit
    }

    /// Returns how long the next window is.
    pub fn next_window(&self) -> f64 {
        let usual = self.quick.min(4.0 * self.base.unwrap_or_default());
        (2.0 * usual).clamp(SHORTEST, LONGEST)
    }

    /// Takes what was seen in a window, and chooses the limit of the next one.
    pub fn end_window(&mut self, window: &Window) {
        self.note_times(window);
        if self.probe > 0 {
            self.end_probe_window(window);
        } else if self.is_overloaded {
            self.adapt(window);
        } else {
            self.watch(window);
        }
        self.limit = self.limit.clamp(LEAST, MOST);
    }

    fn note_times(&mut self, window: &Window) {
        let times = &window.times;
        if times.count() < FEW {
            return;
        }
        let Some(quick) = times.quantile(QUICK) else {
            return;
        };
        self.quick = quick;
        self.recent.add(times);
        // The least of many small windows would be too low.
        let least = (self.recent.count() >= MANY).then(|| {
            let recent = std::mem::replace(&mut self.recent, Times::none());
            recent.quantile(QUICK).unwrap_or(quick)
        });
        if self.probe == 0 {
            self.usual = least.or(self.usual);
        }
        self.base = Some(match (self.base, least) {
            (None, _) => quick,
            (Some(base), Some(least)) if least < base => least,
            (Some(base), _) if !self.is_overloaded && window.in_flight < self.limit / 2.0 => {
                (base * 1.01).min(quick)
            }
            (Some(base), _) => base,
        });
    }

    fn is_crowded(&self) -> bool {
        self.gradient() < 1.0
    }

    /// Returns which part of the time of the quickest fifth they do not wait for others; 1 if they hardly wait.
    fn gradient(&self) -> f64 {
        let part = |base: f64| (base * CROWDED).max(base + GRACE) / self.quick;
        self.base.map_or(1.0, part).clamp(STEEPEST, 1.0)
    }

    /// With room: the limit follows the demand, until there is a queue.
    fn watch(&mut self, window: &Window) {
        let is_full = window
            .fewest
            .is_some_and(|fewest| fewest >= self.limit * 0.9);
        let is_known = window.lost + window.served() >= f64::from(FEW);
        if window.has_lost_most() && is_known || window.is_crowded {
            // The limit is so high that clients leave, or the service is full, before it is reached.
            self.limit = self.limit.min(window.in_flight) / FAST;
            self.begin_overload();
        } else if is_full && (window.has_lost_most() || self.is_crowded()) {
            self.begin_overload();
        } else if (is_full || self.has_shed_in_room(window)) && self.is_known_to_be_quick(window) {
            self.limit *= STEP;
        } else if window.in_flight + window.slow < self.limit / 4.0 {
            // Else the next overload begins with far more in flight than can be served.
            self.limit = (self.limit * (-window.span * FADES).exp()).max(START);
        }
    }

    /// Returns whether a burst has taken all places, and its responses came as quickly as ever.
    fn has_shed_in_room(&self, window: &Window) -> bool {
        window.shed > 0.0 && window.in_flight >= self.limit && !self.is_crowded()
    }

    /// Before the first responses, nothing is known: of a slow service they come late.
    fn is_known_to_be_quick(&self, window: &Window) -> bool {
        window.times.count() >= FEW || self.base.is_none()
    }

    fn begin_overload(&mut self) {
        self.is_overloaded = true;
        (self.calm, self.next_probe) = (0, PROBE);
        (self.highest, self.usual_in_flight) = (self.limit, self.limit);
    }

    fn adapt(&mut self, window: &Window) {
        if window.has_lost_most() {
            // Whatever the times show.
            self.limit /= FAST;
        } else if window.is_crowded {
            self.limit /= STEP;
        } else if window.times.count() >= FEW {
            let limit = toward(self.limit, self.aim());
            // Else keys that try too often were filtered, and the limit would rise for ever.
            if limit < self.limit || window.in_flight >= self.limit / 2.0 {
                self.limit = limit;
            }
        }
        self.usual_in_flight = toward(self.usual_in_flight, window.in_flight);
        self.calm = if window.shed < 0.05 * window.asked {
            self.calm + 1
        } else {
            0
        };
        self.is_overloaded = self.calm < 2;
        self.next_probe = self.next_probe.saturating_sub(1);
        // The service may have become slower. What was usual before it is no measure.
        self.highest = self.highest.max(self.limit);
        let has_fallen = self.limit < self.highest / 2.0;
        if has_fallen {
            (self.usual, self.usual_in_flight) = (Some(self.quick), window.in_flight);
        }
        if self.is_overloaded && (has_fallen || self.next_probe == 0) {
            self.probe = self.windows_of_probe();
            self.highest = self.limit;
        }
    }

    /// Returns the limit with which requests would hardly wait.
    fn aim(&self) -> f64 {
        let gradient = self.gradient();
        let factor = if gradient < 1.0 { gradient } else { 1.0 + RISE };
        self.limit * factor + QUEUE
    }

    /// Responses in all windows but the last are those of requests that came before. A window takes a second at most.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "few seconds"
    )]
    fn windows_of_probe(&self) -> u32 {
        2 + (2.0 * self.quick) as u32
    }

    /// In the last window of a probe, looks whether responses take as long with fewer requests in flight.
    fn end_probe_window(&mut self, window: &Window) {
        self.probe -= 1;
        if self.probe > 0 {
            return;
        }
        self.next_probe = PROBE;
        let Some((base, usual)) = self.base.zip(self.usual) else {
            return;
        };
        self.recent = Times::none();
        let fewer = 1.0 - window.in_flight / self.usual_in_flight;
        let quicker = 1.0 - self.quick / usual;
        let hardly_wait = fewer > TELLING && quicker < SAME * fewer;
        if window.times.count() >= FEW && (hardly_wait || self.quick < base) {
            let found = self.quick.min(usual);
            // What one probe finds may still be a part of the change.
            if !(base / STEP..base * STEP).contains(&found) {
                self.next_probe = PROBE_AGAIN;
            }
            self.base = Some(found);
        }
    }
}

/// The limit before the first window. Seconds later it does not matter.
const START: f64 = 32.0;
const LEAST: f64 = 4.0;
const MOST: f64 = 1e6;
/// The margin of a class as a part of the limit, and at least of its square root: the deviation of a number that swings by chance.
const MARGIN: f64 = 0.25;
const DEVIATIONS: f64 = 2.5;
/// How many times the limit may be in flight as long as there is no overload.
const BURST: f64 = 4.0;
/// The part of responses that are the quickest.
const QUICK: f64 = 0.2;
/// How many times as long as with room quick responses take in a crowd, and in seconds how much longer at least.
const CROWDED: f64 = 1.5;
const GRACE: f64 = 0.002;
/// The part of a window that quick responses take at most, where others are slow.
const MIXED: f64 = 0.25;
/// The fewest responses for a quantile, and for one that stands for the usual times.
const FEW: u32 = 5;
const MANY: u32 = 200;
const STEP: f64 = 1.2;
const FAST: f64 = 1.6;
/// The least gradient.
const STEEPEST: f64 = 0.5;
/// Requests that may wait, however low the limit is: with a queue of none, nobody is served whenever one comes late.
const QUEUE: f64 = 3.0;
/// By which part the limit may rise while responses are as quick as ever.
const RISE: f64 = 0.5;
/// The part of the way that a window goes.
const SMOOTHING: f64 = 0.2;
/// The part by which fewer must be in flight in a probe to show something, and the part of it by which responses of a queue are quicker.
const TELLING: f64 = 0.15;
const SAME: f64 = 0.3;
/// Windows of overload from one probe to the next.
const PROBE: u32 = 64;
/// The same after a probe that has changed the base by a fifth.
const PROBE_AGAIN: u32 = 16;
/// A limit that nobody needs loses this part of it each second.
const FADES: f64 = 0.1;
/// Bounds of a window, in seconds.
const SHORTEST: f64 = 0.1;
const LONGEST: f64 = 1.0;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the limit is 4 to MOST"
)]
fn whole(places: f64) -> u32 {
    places.max(1.0) as u32
}

/// Returns a value that follows another one.
fn toward(value: f64, aim: f64) -> f64 {
    value + SMOOTHING * (aim - value)
}

#[cfg(test)]
mod tests {
    use super::{super::times::SharedTimes, *};

    /// A window in which most requests were shed, and so many took 5 ms.
    fn window(in_flight: f64, responses: u32) -> Window {
        let times = SharedTimes::none();
        (0..responses).for_each(|_| times.count(Duration::from_millis(5)));
        Window {
            span: SHORTEST,
            in_flight,
            slow: 0.0,
            fewest: Some(in_flight),
            asked: 200.0,
            shed: 100.0,
            lost: 0.0,
            times: times.take(),
            is_crowded: false,
        }
    }

    // Keys that try too often are filtered though there is room.
    #[test]
    fn limit_rises_only_if_it_decides_how_many_are_in_flight() {
        let mut controller = Controller::new();
        controller.begin_overload();
        for _ in 0..50 {
            controller.end_window(&window(START / 3.0, 100));
        }
        assert!(controller.limit() <= START, "{}", controller.limit());
        for _ in 0..10 {
            controller.end_window(&window(controller.limit(), 100));
        }
        assert!(controller.limit() > 2.0 * START, "{}", controller.limit());
    }

    // Regression: while too few responses had come to know the usual time, one probe followed the other.
    #[test]
    fn service_with_few_responses_is_rarely_probed() {
        let mut controller = Controller::new();
        controller.begin_overload();
        let mut probes = 0;
        for _ in 0..640 {
            controller.end_window(&window(controller.limit(), 1));
            probes += u32::from(f64::from(controller.cap()) < 0.6 * controller.limit());
        }
        // Two of 66 windows each.
        assert_eq!(probes, 18);
    }
}
