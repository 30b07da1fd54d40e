//! Streams of requests against a limit, in simulated time: what one stream does to another.

use std::{cmp::Reverse, collections::BinaryHeap, ops::Range, time::Duration};

use tollgate::{
    Key,
    overload::{InFlight, Priority},
};

use super::places::{built, stopped};

/// Requests of one kind. Times are in seconds.
#[derive(Clone, Copy)]
struct Stream {
    class: Priority,
    /// The number of its keys, which come in turns; 0 for none.
    keys: u64,
    /// When it comes.
    span: (f64, f64),
    /// The number that come at once, and the time from one batch to the next.
    batch: u32,
    every: f64,
    /// How long each takes, in a pool of ten that it may have to wait for, or of its own.
    takes: f64,
    in_pool: bool,
    end: fn(InFlight),
}

const STREAM: Stream = Stream {
    class: Priority::Normal,
    keys: 0,
    span: (0.0, f64::MAX),
    batch: 1,
    every: 0.004,
    takes: 0.02,
    in_pool: false,
    end: InFlight::answered,
};

/// Counts of a stream's requests, each by the second in which it came.
#[derive(Clone, Default)]
struct Fate {
    came: Vec<f64>,
    shed: Vec<f64>,
    /// Sum of the times until the end.
    took: Vec<f64>,
}

impl Fate {
    /// Returns the part of those that came in these seconds which was shed.
    fn shed(&self, seconds: Range<usize>) -> f64 {
        sum(&self.shed, &seconds) / sum(&self.came, &seconds).max(1.0)
    }

    /// Returns the mean time of those that were served.
    fn took(&self, seconds: Range<usize>) -> f64 {
        let served = sum(&self.came, &seconds) - sum(&self.shed, &seconds);
        sum(&self.took, &seconds) / served.max(1.0)
    }
}

fn sum(counts: &[f64], seconds: &Range<usize>) -> f64 {
    counts[seconds.clone()].iter().sum()
}

/// Lets them run for so many seconds.
fn run<const N: usize>(seconds: usize, streams: [Stream; N]) -> [Fate; N] {
    let (builder, clock) = stopped();
    let (overload, start) = (built(builder), clock.now());
    let none = vec![0.0; seconds];
    let mut fates = streams.map(|_| Fate {
        came: none.clone(),
        shed: none.clone(),
        took: none.clone(),
    });
    // By time, then by number, so that a run is always the same.
    let mut events = BinaryHeap::new();
    let micros = |seconds: f64| (seconds * 1e6) as u64;
    for (number, stream) in streams.iter().enumerate() {
        events.push(Reverse((micros(stream.span.0), 0, number, None)));
    }
    let (mut places, mut pool, mut number) = (Vec::new(), [0_u64; 10], 0_u64);
    while let Some(Reverse((now, _, which, place))) = events.pop() {
        let second = (now / 1_000_000) as usize;
        if second >= seconds {
            break;
        }
        clock.set(start + Duration::from_micros(now));
        let (stream, fate) = (&streams[which], &mut fates[which]);
        if let Some(place) = place {
            let place: &mut Option<InFlight> = &mut places[place];
            (stream.end)(place.take().expect("it ends once"));
            continue;
        }
        for _ in 0..stream.batch {
            number += 1;
            let key = (stream.keys > 0).then(|| Key::from(number % stream.keys));
            fate.came[second] += 1.0;
            let Ok(place) = overload.enter(stream.class, key.as_ref()) else {
                fate.shed[second] += 1.0;
                continue;
            };
            let connection = pool.iter_mut().min().expect("ten of them");
            let begins = if stream.in_pool {
                now.max(*connection)
            } else {
                now
            };
            let ends = begins + micros(stream.takes);
            if stream.in_pool {
                *connection = ends;
            }
            fate.took[second] += (ends - now) as f64 / 1e6;
            events.push(Reverse((ends, number, which, Some(places.len()))));
            places.push(Some(place));
        }
        let next = now + micros(stream.every);
        if next < micros(stream.span.1) {
            events.push(Reverse((next, number, which, None)));
        }
    }
    drop(places);
    assert_eq!(overload.in_flight(), 0);
    fates
}

// Regression: the others had all places, also those of the class above them.
#[test]
fn requests_that_never_end_take_no_place_of_a_class_above() {
    let low = Stream {
        class: Priority::Sheddable,
        keys: 10,
        end: drop,
        ..STREAM
    };
    for (held, hangs_up_every) in [(20, 1.0 / 600.0), (60, 1.0 / 400.0), (300, 1.0 / 600.0)] {
        let [critical, normal, ..] = run(
            50,
            [
                Stream {
                    class: Priority::Critical,
                    ..STREAM
                },
                Stream {
                    every: 0.01,
                    ..STREAM
                },
                Stream {
                    batch: held,
                    every: 0.2,
                    takes: 60.0,
                    span: (10.0, 11.0),
                    ..low
                },
                Stream {
                    every: hangs_up_every,
                    takes: 0.05,
                    span: (12.0, 17.0),
                    ..low
                },
                Stream {
                    every: 0.05,
                    takes: 0.05,
                    span: (17.0, f64::MAX),
                    ..low
                },
            ],
        );
        assert_eq!(critical.shed(0..50), 0.0, "{held} held");
        assert_eq!(normal.shed(0..50), 0.0, "{held} held");
    }
}

// Regression: while the limit fell, those that had timed out late still had the places of all.
#[test]
fn downstream_of_a_lower_class_that_hangs_sheds_no_higher_one() {
    for timeout in [3.0, 10.0] {
        let [critical, hanging] = run(
            60,
            [
                Stream {
                    class: Priority::Critical,
                    ..STREAM
                },
                Stream {
                    class: Priority::Sheddable,
                    every: 1.0 / 300.0,
                    takes: timeout,
                    end: InFlight::timed_out,
                    ..STREAM
                },
            ],
        );
        assert_eq!(critical.shed(0..60), 0.0, "after {timeout} s");
        assert_eq!(hanging.shed(20..60), 0.0, "after {timeout} s");
    }
}

// Regression: the limit rose only if there was no room in a whole window, so two in three of each burst were shed for ever.
#[test]
fn bursts_whose_responses_are_quick_are_served() {
    for (batch, every, takes) in [(500, 1.0, 0.02), (2_000, 0.2, 0.05), (500, 3.0, 0.5)] {
        let burst = Stream {
            batch,
            every,
            takes,
            ..STREAM
        };
        let [burst] = run(40, [burst]);
        assert!(burst.shed(0..2) > 0.0, "there is no burst");
        assert!(burst.shed(30..40) < 0.01, "{batch}: {}", burst.shed(30..40));
        let burst = Stream {
            batch,
            every,
            takes,
            ..STREAM
        };
        let [burst, steady] = run(
            40,
            [
                burst,
                Stream {
                    every: 0.002,
                    ..STREAM
                },
            ],
        );
        assert!(burst.shed(30..40) < 0.1, "{batch}: {}", burst.shed(30..40));
        assert!(
            steady.shed(30..40) < 0.02,
            "{batch}: {}",
            steady.shed(30..40)
        );
    }
}

// Regression: without a response the limit did not rise, and the first responses came after a minute.
#[test]
fn service_that_takes_a_minute_is_not_throttled_at_its_start() {
    for every in [0.1, 0.25] {
        let [slow] = run(
            200,
            [Stream {
                every,
                takes: 60.0,
                ..STREAM
            }],
        );
        assert!(slow.shed(0..200) < 0.01, "{}", slow.shed(0..200));
    }
}

// Regression: a limit that had been high once stayed so, and in an overload requests waited for minutes.
#[test]
fn limit_that_was_high_once_does_not_let_requests_wait_for_minutes() {
    let many = Stream {
        batch: 15,
        every: 0.1,
        takes: 30.0,
        span: (0.0, 60.0),
        ..STREAM
    };
    let pool = Stream {
        every: 0.05,
        takes: 0.2,
        in_pool: true,
        span: (0.0, 100.0),
        ..STREAM
    };
    let [_, before, over] = run(
        240,
        [
            many,
            pool,
            Stream {
                every: 0.004,
                span: (100.0, f64::MAX),
                ..pool
            },
        ],
    );
    assert_eq!(before.shed(60..100), 0.0);
    println!("{:.2} s, {:.2} s", over.took(120..140), over.took(200..230));
    assert!(over.took(200..230) < 1.5, "{}", over.took(200..230));
    // Four of five are more than the pool can serve.
    assert!(
        (0.7..0.9).contains(&over.shed(200..230)),
        "{}",
        over.shed(200..230)
    );
}

// Regression: nothing of the class was served ever again.
#[test]
fn requests_that_never_end_do_not_keep_the_places_of_their_class() {
    for (takes, every) in [(0.02, 0.004), (0.1, 0.02), (0.5, 0.1)] {
        for has_others in [false, true] {
            let steady = Stream {
                class: Priority::Sheddable,
                every,
                takes,
                ..STREAM
            };
            let hanging = Stream {
                batch: 2_000,
                every: 0.02,
                takes: 1e6,
                span: (10.0, 12.0),
                ..steady
            };
            let others = Stream {
                class: Priority::Normal,
                span: (if has_others { 0.0 } else { 59.0 }, 60.0),
                ..steady
            };
            let [steady, hanging, _] = run(60, [steady, hanging, others]);
            assert!(hanging.shed(10..12) > 0.0, "places are left");
            assert!(steady.shed(40..60) < 0.05, "{}", steady.shed(40..60));
        }
    }
}
