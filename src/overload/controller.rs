//! The adaptive limit of requests in flight: latency proposes, throughput disposes.
//!
//! A service is *crowded* while four of five responses take clearly longer than the fastest fifth took when it had room. Latency
//! alone would throttle a service whose requests differ (1 ms and 2 s) to nearly nothing. So in overload the limit swings around its
//! value, and falls only if more requests in flight do not serve more of them.
//!
//! ```text
//!   with room ── as many in flight as the limit allows, and crowded ──▶ overload
//!      ▲                                                                  │ each window: swing + - - +
//!      │                                                                  │   not crowded, and sheds   ──▶ limit rises
//!      │                                                                  │   crowded, serves more     ──▶ limit rises
//!      └──────────── less than 5 % is shed in two windows ────────────────┤   crowded, serves no more  ──▶ limit falls
//!                                                                         ├   more give up than are served ──▶ falls
//!                                                                         └   serves a fifth of the usual ──▶ rises once
//! ```
//!
//! It rises only if at least half of it is in flight: otherwise something else sheds, and it would rise for ever.
//!
//! # Why does the time without load never rise in overload?
//!
//! It would follow the queue: each window is a little slower than the one before, so the limit would rise for ever. It may rise by
//! 1 % a window while less than half of the limit is in flight, and falls at once. Each 64th window has half of the limit, to see
//! it again.
//!
//! The rules and constants come from a simulation of six kinds of services under twelve controllers.

use std::time::Duration;

use super::times::Times;

/// Requests and responses in a window of time. Times are in seconds.
pub(super) struct Window {
    /// The time in which requests were counted: the window without its first quarter, in which requests of the window before end.
    pub span: f64,
    /// Mean of the requests in flight whenever one came, without slow ones among quick ones.
    pub in_flight: f64,
    /// The slow ones in flight among quick ones.
    pub slow: f64,
    /// The fewest in flight; `None` if no request came.
    pub fewest: Option<f64>,
    /// Requests that came, in the whole window.
    pub asked: f64,
    /// Those that were shed.
    pub shed: f64,
    /// Responses.
    pub served: f64,
    /// Requests that timed out, or whose clients gave up after they had waited longer than most responses take.
    pub lost: f64,
    /// Times of the responses of the whole window.
    pub times: Times,
    /// Whether the service states at its end that it is crowded.
    pub is_crowded: bool,
}

/// Decides how many requests may be in flight, window by window.
pub(super) struct Controller {
    limit: f64,
    is_overloaded: bool,
    /// Place in the pattern of the swing, 0 to 3.
    phase: u8,
    /// Whether this window has half of the limit.
    is_probe: bool,
    /// Windows since the overload began.
    windows: u32,
    /// Windows in a row in which nearly nothing was shed.
    calm: u32,
    /// The time of the fastest fifth when there was room; `None` before the first responses.
    base: Option<f64>,
    /// The same in the last window.
    quick: f64,
    /// Responses since `base` was looked for.
    recent: Times,
    swing: Swing,
    /// Windows in a row that were not crowded though requests were shed.
    roomy: usize,
    /// Rises in a row by which throughput rose nearly as much.
    climbs: usize,
    /// The means of the windows of overload.
    usual: Option<Usual>,
    /// The limit before it was raised for a service that was stalled, until that serves again.
    raised_from: Option<f64>,
}

/// The comparison of high and low windows by their responses.
#[derive(Default)]
struct Swing {
    /// The window before, to be compared with the next one.
    before: Option<Half>,
    /// By how much the logarithm of the throughput has risen more than expected.
    gain: f64,
    /// The variance of `gain`.
    noise: f64,
    /// By how much the logarithm of the requests in flight has differed.
    moved: f64,
}

#[derive(Clone, Copy)]
struct Half {
    in_flight: f64,
    rate: f64,
    served: f64,
}

#[derive(Clone, Copy)]
struct Usual {
    in_flight: f64,
    rate: f64,
}

impl Controller {
    pub fn new() -> Self {
        Self {
            limit: START,
            is_overloaded: false,
            phase: 0,
            is_probe: false,
            windows: 0,
            calm: 0,
            base: None,
            quick: 0.0,
            recent: Times::none(),
            swing: Swing::default(),
            roomy: 0,
            climbs: 0,
            usual: None,
            raised_from: None,
        }
    }

    /// Returns how many requests may be in flight now.
    pub fn cap(&self) -> u32 {
        let cap = match (self.is_overloaded, self.is_probe) {
            (false, _) => self.limit * BURST,
            (true, true) => self.limit / 2.0,
            (true, false) => {
                let swing = (self.limit * SWING).max(1.0);
                let is_high = matches!(self.phase, 0 | 3);
                self.limit + if is_high { swing } else { -swing }
            }
        };
        whole(cap)
    }

    /// Returns how many more may be in flight of each class above the lowest: a quarter, or the room in which a number of requests
    /// swings by chance, if that is more. It does not swing with the cap: a high class would find no place after a high window that
    /// the lower ones have filled.
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

    /// Returns the limit, without the swing.
    pub fn limit(&self) -> f64 {
        self.limit
    }

    /// Returns how long the next window is, and how much of its beginning is not counted.
    pub fn next_window(&self) -> (f64, f64) {
        let usual = self.quick.min(4.0 * self.base.unwrap_or_default());
        let length = (2.0 * usual).clamp(SHORTEST, LONGEST);
        (
            length,
            if self.is_overloaded {
                length / 4.0
            } else {
                0.0
            },
        )
    }

    /// Takes what was seen in a window, and chooses the limit of the next one.
    pub fn end_window(&mut self, window: &Window) {
        self.note_times(window);
        let is_crowded = self.is_crowded() || window.lost > window.served;
        if self.is_probe {
            self.end_probe(window);
        } else if self.is_overloaded {
            self.adapt(window, is_crowded);
            self.note_usual(window);
        } else {
            self.watch(window, is_crowded);
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
        let is_slow = |base: f64| self.quick > (base * CROWDED).max(base + GRACE);
        self.base.is_some_and(is_slow)
    }

    fn note_usual(&mut self, window: &Window) {
        if window.span <= 0.0 {
            return;
        }
        let (in_flight, rate) = (window.in_flight, window.served / window.span);
        let toward = |mean: f64, value: f64| mean + 0.2 * (value - mean);
        self.usual = Some(match self.usual {
            None => Usual { in_flight, rate },
            Some(usual) => Usual {
                in_flight: toward(usual.in_flight, in_flight),
                rate: toward(usual.rate, rate),
            },
        });
    }

    /// With room: the limit follows the demand, until there is a queue.
    fn watch(&mut self, window: &Window, is_crowded: bool) {
        let is_full = window
            .fewest
            .is_some_and(|fewest| fewest >= self.limit * 0.9);
        let answered = window.lost + window.served;
        let is_lost = window.lost > window.served && answered >= f64::from(FEW);
        if is_lost || window.is_crowded {
            // The limit is so high that clients leave, or the service is full, before it is reached.
            self.limit = self.limit.min(window.in_flight) / FAST;
            self.begin_overload();
        } else if is_full && is_crowded {
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
        (self.phase, self.calm, self.windows) = (0, 0, 0);
        self.swing = Swing::default();
    }

    fn adapt(&mut self, window: &Window, is_crowded: bool) {
        self.calm = if window.shed < 0.05 * window.asked {
            self.calm + 1
        } else {
            0
        };
        let is_stalled = self.is_stalled(window);
        if !is_stalled {
            self.raised_from = None;
        }
        if window.lost > window.served {
            // More clients give up than are served, whatever the rest shows.
            self.limit /= FAST;
            (self.climbs, self.roomy) = (0, 0);
            self.swing = Swing::default();
        } else if window.is_crowded {
            self.limit /= STEP;
            (self.climbs, self.roomy) = (0, 0);
            self.swing = Swing::default();
        } else if is_stalled {
            self.raise_once(window);
        } else if window.served < f64::from(FEW) {
            // Too few to be compared.
            self.swing.before = None;
        } else if window.shed > 0.0 && !is_crowded && window.times.count() >= FEW {
            if self.is_used(window) {
                self.rise();
            }
        } else if window.shed > 0.0 && window.span > 0.0 {
            self.roomy = 0;
            self.compare(window);
        }
        self.phase = (self.phase + 1) % 4;
        if self.calm >= 2 {
            self.is_overloaded = false;
            self.swing = Swing::default();
        }
        self.windows += 1;
        self.is_probe = self.is_overloaded && self.windows.is_multiple_of(PROBE);
    }

    /// Returns whether the limit decides how many are in flight. If not, keys that try too often were filtered.
    fn is_used(&self, window: &Window) -> bool {
        window.in_flight >= self.limit / 2.0
    }

    /// With requests shed, and responses as quick as ever.
    fn rise(&mut self) {
        // One window may be the end of a low one. From the second on, faster each time.
        self.limit *= ROOMY[self.roomy];
        if self.roomy > 0 {
            self.swing = Swing::default();
        }
        self.roomy = (self.roomy + 1).min(ROOMY.len() - 1);
    }

    /// Returns whether far fewer than usual are served, though nobody gives up: slow requests may have all places.
    fn is_stalled(&self, window: &Window) -> bool {
        let served = window.served / window.span.max(f64::MIN_POSITIVE);
        let is_few = self
            .usual
            .is_some_and(|usual| served < STALLED * usual.rate);
        is_few && window.shed > 0.0 && window.lost == 0.0
    }

    /// Lets more in beside the slow ones, and takes that back if no more are served.
    fn raise_once(&mut self, window: &Window) {
        match self.raised_from {
            Some(before) => self.limit = self.limit.min(before),
            None if self.is_used(window) => {
                self.raised_from = Some(self.limit);
                self.limit *= RAISED;
            }
            None => {}
        }
        self.swing = Swing::default();
    }

    /// Compares a high with a low window, and moves the limit once the difference is clear.
    fn compare(&mut self, window: &Window) {
        let here = Half::of(window);
        let Some(before) = self.swing.before.take() else {
            self.swing.before = Some(here);
            return;
        };
        let (high, low) = if self.phase == 1 {
            (before, here)
        } else {
            (here, before)
        };
        let moved = (high.in_flight / low.in_flight).ln();
        if moved <= 0.02 {
            // So many are in flight that their number does not follow the swing. Once it is twice the limit, it has to fall first.
            let base = self.base.unwrap_or_default();
            let is_deep = self.quick > 4.0 * CROWDED * base;
            if moved > -0.02 && is_deep && window.in_flight <= 2.0 * self.limit {
                self.limit /= STEP;
            }
            return;
        }
        let swing = &mut self.swing;
        swing.gain += (high.rate / low.rate).ln() - WORTH * moved;
        swing.noise += 1.0 / high.served + 1.0 / low.served;
        swing.moved += moved;
        let noise = swing.noise.sqrt();
        if swing.gain > noise {
            // Nearly in proportion: far from what the service can do.
            let is_far = swing.gain / swing.moved > 0.5;
            self.climbs = if is_far {
                (self.climbs + 1).min(CLIMBS.len() - 1)
            } else {
                0
            };
            self.limit *= CLIMBS[self.climbs];
            self.swing = Swing::default();
        } else if swing.gain <= 0.0 {
            let base = self.base.unwrap_or_default();
            let is_deep = self.quick > 4.0 * CROWDED * base && swing.gain < -0.5 * noise;
            self.climbs = 0;
            self.limit /= if is_deep { FAST } else { STEP };
            self.swing = Swing::default();
        }
    }

    /// If half of the limit serves as many, the limit is far too high.
    fn end_probe(&mut self, window: &Window) {
        self.is_probe = false;
        self.swing.before = None;
        let Some(usual) = self.usual else { return };
        if window.served < 10.0 || window.span <= 0.0 || usual.in_flight <= window.in_flight * 1.2 {
            return;
        }
        let served = (usual.rate * window.span / window.served).ln();
        let in_flight = (usual.in_flight / window.in_flight.max(0.5)).ln();
        if served / in_flight < WORTH && self.is_crowded() {
            self.limit /= 1.3;
        }
    }
}

impl Half {
    fn of(window: &Window) -> Self {
        Self {
            in_flight: window.in_flight.max(0.5),
            rate: window.served.max(0.5) / window.span,
            served: window.served.max(0.5),
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
const SWING: f64 = 0.2;
/// The part of responses that are quick.
const QUICK: f64 = 0.2;
/// How many times as long as with room quick responses take in a crowd, and in seconds how much longer at least.
const CROWDED: f64 = 1.5;
const GRACE: f64 = 0.002;
/// The part of a window that quick responses take at most, where others are slow.
const MIXED: f64 = 0.25;
/// The fewest responses for a quantile, and for one that stands for the usual times.
const FEW: u32 = 5;
const MANY: u32 = 200;
/// By which part of the additional requests in flight throughput must rise, to be worth their wait.
const WORTH: f64 = 0.2;
const STEP: f64 = 1.2;
const FAST: f64 = 1.6;
/// The part of the usual throughput below which a service is stalled, and by how much the limit rises then.
const STALLED: f64 = 0.2;
const RAISED: f64 = 1.4;
const ROOMY: [f64; 5] = [1.0, 1.1, 1.2, 1.4, 1.4];
const CLIMBS: [f64; 4] = [1.2, 1.5, 2.0, 2.0];
/// Windows of overload from one probe to the next.
const PROBE: u32 = 64;
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
