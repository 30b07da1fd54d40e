//! The adaptive limit of requests in flight: it falls while responses take longer than they do when the service has room.
//!
//! The *base* is the time of the quickest fifth of responses while there is room. A service is *crowded* while the quickest fifth takes
//! clearly longer: half as long again, and 2 ms. The mean would take slow requests among quick ones for a queue.
//!
//! ```text
//!   with room ── never fewer than 0.9 x limit in a window, and crowded ──▶ overload
//!      ▲                                                                     │ each window, a fifth of the way
//!      │                                                                     │   crowded      to limit x 1.5 x base / time + 3
//!      │                                                                     │   not crowded  to limit x 1.5 + 3
//!      └────────────── less than 5 % is shed in two windows ─────────────────┘ more lost than served ──▶ limit / 1.6
//! ```
//!
//! It rises only if at least half of it is in flight: otherwise something else sheds, and it would rise for ever.
//!
//! # What if the service itself becomes slower?
//!
//! Its responses take longer, although they wait for nothing. If the base rose with them, it would rise with each queue too, and the
//! limit would drift. So the limit is halved for two windows after each 64, and whenever it has fallen by half: that is a *probe*. In a
//! queue, responses then take about half as long. If they take nearly as long as before, they did not wait, and their time is the base
//! from then on. Apart from that, 200 responses lower the base if their quickest fifth took less, and it rises by 1 % a window without
//! overload while less than half of the limit is in flight.
//!
//! # Where does this come from?
//!
//! It is the gradient of Netflix' `concurrency-limits`, with the quickest fifth in place of the mean, and with probes in place of a
//! long-term mean. In a simulation, the long-term mean drifted within minutes, and 0.05 of the possible were served where some requests
//! were slow. A mean for each route served 0.29 there, if routes did not divide the slow requests from the quick ones exactly. This
//! controller serves 0.99. Comparing the throughput of windows with more and with fewer requests in flight served 0.93, and requests
//! waited up to twice as long.

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
    /// Those of the highest class that were shed.
    pub shed_highest: f64,
    /// Requests that timed out, or whose clients gave up after they had waited longer than the quickest fifth of responses.
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

    /// Returns whether more requests were lost than served. One or two show nothing.
    fn has_lost_most(&self) -> bool {
        self.lost > self.served() && self.lost + self.served() >= f64::from(FEW)
    }
}

/// Decides how many requests may be in flight, window by window.
pub(super) struct Controller {
    limit: f64,
    is_overloaded: bool,
    /// Windows until the next probe.
    next_probe: u32,
    /// The highest limit since the last probe began.
    highest: f64,
    /// Windows that are left of a probe.
    probe: u32,
    /// Windows in a row in which nearly nothing was shed.
    calm: u32,
    /// The time of the quickest fifth when there was room; `None` before the first responses.
    base: Option<f64>,
    /// The time of the quickest fifth now.
    quick: f64,
    /// The time of the quickest fifth in this overload, without probes.
    usual: Option<f64>,
    /// How many were in flight meanwhile.
    usual_in_flight: f64,
    /// How many more are in flight in the mean of a window than in its emptiest moment.
    swing: f64,
    /// How many of the highest class are shed for each response.
    overflow: f64,
    /// Responses since `quick` was looked for, and since `usual` was.
    latest: Times,
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
            swing: 0.0,
            overflow: 0.0,
            latest: Times::none(),
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
    /// swings by chance, if that is more.
    pub fn margin(&self) -> u32 {
        let cap = f64::from(self.cap());
        whole((cap * MARGIN).max(by_chance(cap)))
    }

    /// Returns how many more may be in flight of the highest class at least, since requests may come in bunches: twice as many as the
    /// number in flight swings by, and not so many that it then swings by more. Where this class alone is too much, room for bunches
    /// would only be a queue.
    pub fn highest_margin(&self) -> u32 {
        let most = BUNCHES * by_chance(self.cap().into());
        let fits = (1.0 - self.overflow / TOO_MUCH).max(0.0);
        whole(2.0 * fits * self.swing.min(most))
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
        if window.asked == 0.0 && window.in_flight == 0.0 {
            (self.is_overloaded, self.probe) = (false, 0);
        }
        let has_times = self.note_times(window);
        if let Some(fewest) = window.fewest {
            self.swing = toward(self.swing, window.in_flight - fewest);
        }
        if window.served() > 0.0 {
            let overflow = window.shed_highest / window.served();
            self.overflow = toward(self.overflow, overflow.min(1.0));
        }
        // While others are as quick as ever, it is no queue that makes clients hang up.
        let are_quick = (has_times || self.latest.count() > 0) && !self.is_crowded();
        let is_losing = window.has_lost_most() && !are_quick;
        if self.probe > 0 && !is_losing && !window.is_crowded {
            self.end_probe_window(window, has_times);
        } else if self.is_overloaded {
            self.adapt(window, has_times, is_losing);
        } else {
            self.watch(window, has_times, is_losing);
        }
        self.limit = self.limit.clamp(LEAST, MOST);
    }

    /// Returns whether enough responses have come to see how long the quickest fifth takes.
    fn note_times(&mut self, window: &Window) -> bool {
        self.latest.add(&window.times);
        if self.latest.count() < FEW {
            return false;
        }
        let times = std::mem::replace(&mut self.latest, Times::none());
        let Some(quick) = times.quantile(QUICK) else {
            return false;
        };
        self.quick = quick;
        self.recent.add(&times);
        // The least of many small windows would be too low.
        let many = (self.recent.count() >= MANY).then(|| {
            let recent = std::mem::replace(&mut self.recent, Times::none());
            recent.quantile(QUICK).unwrap_or(quick)
        });
        if self.probe == 0 {
            self.usual = many.or(self.usual);
        }
        self.base = Some(match (self.base, many) {
            (None, _) => quick,
            (Some(base), Some(many)) if many < base => many,
            (Some(base), _) if !self.is_overloaded && window.in_flight < self.limit / 2.0 => {
                (base * 1.01).min(quick.max(base))
            }
            (Some(base), _) => base,
        });
        true
    }

    fn is_crowded(&self) -> bool {
        self.gradient() < 1.0
    }

    /// Returns the part of the limit that should be left; 1 if requests hardly wait for each other.
    fn gradient(&self) -> f64 {
        let part = |base: f64| (base * CROWDED).max(base + GRACE) / self.quick;
        self.base.map_or(1.0, part).clamp(STEEPEST, 1.0)
    }

    /// With room: the limit follows the demand, until there is a queue.
    fn watch(&mut self, window: &Window, has_times: bool, is_losing: bool) {
        let is_full = window
            .fewest
            .is_some_and(|fewest| fewest >= self.limit * 0.9);
        if is_losing || window.is_crowded {
            // The limit is so high that clients leave, or the service is full, before it is reached.
            self.limit = self.limit.min(window.in_flight) / FAST;
            self.begin_overload();
        } else if is_full && self.is_crowded() {
            self.begin_overload();
        } else if (is_full || self.has_shed_in_room(window)) && (has_times || self.base.is_none()) {
            // Before the first responses, nothing is known: of a slow service they come late.
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

    fn begin_overload(&mut self) {
        self.is_overloaded = true;
        (self.calm, self.next_probe, self.usual) = (0, PROBE, None);
        (self.highest, self.usual_in_flight) = (self.limit, self.limit);
    }

    fn adapt(&mut self, window: &Window, has_times: bool, is_losing: bool) {
        self.probe = 0;
        if is_losing {
            self.limit /= FAST;
        } else if window.is_crowded {
            self.limit /= STEP;
        } else if has_times {
            let limit = toward(self.limit, self.aim());
            // If fewer are in flight, keys that try too often were filtered, and the limit would rise for ever.
            if limit < self.limit || window.in_flight >= self.limit / 2.0 {
                self.limit = limit;
            }
        }
        self.usual_in_flight = toward(self.usual_in_flight, window.in_flight);
        if window.asked > 0.0 {
            let is_calm = window.shed < 0.05 * window.asked;
            self.calm = if is_calm { self.calm + 1 } else { 0 };
        }
        self.is_overloaded = self.calm < 2;
        self.next_probe = self.next_probe.saturating_sub(1);
        self.highest = self.highest.max(self.limit);
        let has_fallen = self.limit < self.highest / 2.0;
        if has_fallen {
            // The service may have become slower just now, so older times are no measure.
            (self.usual, self.usual_in_flight) = (None, window.in_flight);
        }
        if self.is_overloaded && (has_fallen || self.next_probe == 0) {
            self.begin_probe();
        }
    }

    /// Returns the limit to go toward.
    fn aim(&self) -> f64 {
        let gradient = self.gradient();
        let factor = if gradient < 1.0 { gradient } else { 1.0 + RISE };
        self.limit * factor + QUEUE
    }

    /// Until the last window, responses are those of requests that came before.
    fn begin_probe(&mut self) {
        let others = (1.5 * self.quick / self.next_window()).min(LONGEST_PROBE);
        self.probe = 1 + whole(others.ceil());
        // So a slow service has its limit halved for a small part of the time, too.
        self.next_probe = PROBE.max(16 * self.probe);
        self.highest = self.limit;
        self.usual = self.usual.or(self.base.map(|_| self.quick));
    }

    /// In the last window of a probe, looks whether responses take as long with fewer requests in flight.
    fn end_probe_window(&mut self, window: &Window, has_times: bool) {
        if self.probe > 1 {
            self.probe -= 1;
            self.latest = Times::none();
            return;
        }
        if !has_times {
            // It goes on until enough have come.
            return;
        }
        self.probe = 0;
        let Some((base, usual)) = self.base.zip(self.usual) else {
            return;
        };
        self.recent = Times::none();
        let fewer = 1.0 - window.in_flight / self.usual_in_flight;
        let quicker = 1.0 - self.quick / usual;
        let hardly_wait = fewer > TELLING && quicker < SAME * fewer;
        if hardly_wait || self.quick < base {
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
/// How many times as much a number swings if requests come in bunches, at most.
const BUNCHES: f64 = 3.0;
/// How many of the highest class are shed for each response at least if it alone is too much.
const TOO_MUCH: f64 = 0.2;
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
/// Requests that may wait, however low the limit is: without any, a place stays empty until the next request comes.
const QUEUE: f64 = 3.0;
/// By which part the limit may rise while responses are as quick as ever.
const RISE: f64 = 0.5;
/// The part of the way that a window goes.
const SMOOTHING: f64 = 0.2;
/// The part by which fewer must be in flight in a probe to show something.
const TELLING: f64 = 0.1;
/// The part of that by which responses must be quicker, to have waited.
const SAME: f64 = 0.3;
/// Windows of overload from one probe to the next.
const PROBE: u32 = 64;
/// The windows until the next one, after a probe that has changed the base by a fifth.
const PROBE_AGAIN: u32 = 16;
/// Windows of a probe before its last one, at most.
const LONGEST_PROBE: f64 = 128.0;
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

/// Returns by how many a number swings that is this one in the mean.
fn by_chance(number: f64) -> f64 {
    DEVIATIONS * number.sqrt()
}

/// Returns a value that follows another one.
fn toward(value: f64, aim: f64) -> f64 {
    value + SMOOTHING * (aim - value)
}

#[cfg(test)]
mod tests {
    use super::{super::times::SharedTimes, *};

    const QUICK_TIME: Duration = Duration::from_millis(5);

    /// A window in which most requests were shed, and so many took this time.
    fn window(in_flight: f64, responses: u32, time: Duration) -> Window {
        let times = SharedTimes::none();
        (0..responses).for_each(|_| times.count(time));
        Window {
            span: SHORTEST,
            in_flight,
            slow: 0.0,
            fewest: Some(in_flight),
            asked: 200.0,
            shed: 100.0,
            shed_highest: 0.0,
            lost: 0.0,
            times: times.take(),
            is_crowded: false,
        }
    }

    /// A window in which all requests were lost.
    fn lost_window(in_flight: f64) -> Window {
        Window {
            lost: 50.0,
            ..window(in_flight, 0, QUICK_TIME)
        }
    }

    fn overloaded() -> Controller {
        let mut controller = Controller::new();
        controller.begin_overload();
        controller
    }

    /// Ends so many windows with as many in flight as the limit. Returns how many of these were of a probe.
    fn run(controller: &mut Controller, windows: u32, responses: u32, time: Duration) -> u32 {
        let mut probes = 0;
        for _ in 0..windows {
            let in_flight = controller.cap().into();
            controller.end_window(&window(in_flight, responses, time));
            probes += u32::from(f64::from(controller.cap()) < 0.6 * controller.limit());
        }
        probes
    }

    // Keys that try too often are filtered though there is room.
    #[test]
    fn limit_rises_only_if_it_decides_how_many_are_in_flight() {
        let mut controller = overloaded();
        for _ in 0..50 {
            controller.end_window(&window(START / 3.0, 100, QUICK_TIME));
        }
        assert!(controller.limit() <= START, "{}", controller.limit());
        run(&mut controller, 10, 100, QUICK_TIME);
        assert!(controller.limit() > 2.0 * START, "{}", controller.limit());
    }

    // Regression: with fewer than five in a window, the limit fell and never rose, and one probe followed the other.
    #[test]
    fn service_with_few_responses_is_rarely_probed_and_its_limit_rises() {
        let mut controller = overloaded();
        let probes = run(&mut controller, 660, 1, QUICK_TIME);
        assert!(controller.limit() > 2.0 * START, "{}", controller.limit());
        // Its last window lasts until five responses have come.
        assert!((20..=60).contains(&probes), "{probes}");
    }

    // Regression: a service whose responses take 5 s had half of its limit for a sixth of the time.
    #[test]
    fn slow_service_is_probed_for_a_small_part_of_the_time() {
        let mut controller = overloaded();
        let probes = run(&mut controller, 1_000, 100, Duration::from_secs(5));
        assert!((10..80).contains(&probes), "{probes}");
    }

    // Regression: the base was 0 if no response had come before the first probe, and the limit stayed low.
    #[test]
    fn limit_rises_after_a_start_in_which_all_requests_are_lost() {
        let mut controller = overloaded();
        for _ in 0..100 {
            controller.end_window(&lost_window(10.0));
        }
        assert!(controller.limit() <= LEAST, "{}", controller.limit());
        run(&mut controller, 300, 6, QUICK_TIME);
        assert!(controller.limit() > START, "{}", controller.limit());
    }

    // Regression: the limit stayed until the end of the probe.
    #[test]
    fn requests_that_are_lost_end_a_probe() {
        let mut controller = overloaded();
        while run(&mut controller, 1, 100, QUICK_TIME) == 0 {}
        let before = controller.limit();
        controller.end_window(&lost_window(before));
        assert!(controller.limit() < before / 1.5, "{}", controller.limit());
        assert_eq!(f64::from(controller.cap()), controller.limit().floor());
    }

    // Regression: it went on for ever if each window with a request was followed by one with its response only.
    #[test]
    fn overload_ends_also_if_requests_are_rare() {
        let mut controller = overloaded();
        for asked in [1.0, 0.0, 1.0, 0.0] {
            controller.end_window(&Window {
                asked,
                shed: 0.0,
                ..window(1.0, 1, QUICK_TIME)
            });
        }
        assert!(!controller.is_overloaded());
    }

    // Regression: the last window of the probe had responses of requests from before, and the queue became the base.
    #[test]
    fn probe_lasts_longer_than_a_deep_queue() {
        let mut controller = overloaded();
        run(&mut controller, 10, 100, QUICK_TIME);
        controller.quick = 2.0;
        controller.begin_probe();
        let before_last = f64::from(controller.probe - 1) * controller.next_window();
        assert!(before_last > 2.0, "{before_last}");
    }

    // Regression: margins stayed whole in a probe, so it showed nothing for the highest of many classes.
    #[test]
    fn probe_takes_enough_away_from_the_highest_of_many_classes() {
        for limit in [LEAST, 16.0, 100.0, 1_000.0] {
            let mut controller = overloaded();
            controller.limit = limit;
            controller.swing = MOST;
            let ceilings = |controller: &Controller| {
                let (cap, margin) = (controller.cap(), controller.margin());
                let highest = cap + controller.highest_margin();
                [cap + 15 * margin, highest].map(f64::from)
            };
            let whole = ceilings(&controller);
            controller.begin_probe();
            for (less, whole) in ceilings(&controller).into_iter().zip(whole) {
                let fewer = 1.0 - less / whole;
                assert!(fewer > 2.0 * TELLING, "{limit}: {fewer}");
            }
        }
    }

    #[test]
    fn room_for_bunches_comes_back_soon() {
        let mut controller = overloaded();
        run(&mut controller, 1, 20, QUICK_TIME);
        controller.swing = 10.0;
        let room = controller.highest_margin();
        let with = |responses, shed_highest| Window {
            shed_highest,
            fewest: None,
            ..window(10.0, responses, QUICK_TIME)
        };
        controller.end_window(&with(20, 10_000.0));
        let less = controller.highest_margin();
        assert!(less < room / 2, "{less} of {room}");
        // Without a response, nothing shows how many are too many.
        controller.end_window(&with(0, 100.0));
        assert_eq!(controller.highest_margin(), less);
        (0..12).for_each(|_| controller.end_window(&with(20, 0.0)));
        let room_again = controller.highest_margin();
        assert!(room_again > room * 4 / 5, "{room_again} of {room}");
    }

    // Regression: with room, the quickest of five responses became the base.
    #[test]
    fn few_quick_responses_do_not_lower_the_base() {
        let mut controller = Controller::new();
        for millis in [20, 1] {
            controller.end_window(&Window {
                shed: 0.0,
                ..window(1.0, FEW, Duration::from_millis(millis))
            });
        }
        let base = controller.base.expect("responses have come");
        assert!(base > 0.015, "{base}");
    }
}
