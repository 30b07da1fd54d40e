//! Places: who gets one, and how each comes back.

use std::{
    panic,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tollgate::{
    ErrorKind, Key,
    clock::{Clock, Timestamp},
    overload::{InFlight, Overload, OverloadBuilder, Priority, Shed},
};

pub(super) fn stopped() -> (OverloadBuilder, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    (Overload::adaptive().clock(clock.clone()), clock)
}

pub(super) fn built(builder: OverloadBuilder) -> Overload {
    builder.build().expect("usable settings")
}

/// Takes all places of a class.
pub(super) fn fill(overload: &Overload, priority: Priority) -> Vec<InFlight> {
    std::iter::from_fn(|| overload.enter(priority, None).ok()).collect()
}

#[test]
fn each_class_has_a_quarter_more_places_than_the_one_below() {
    let overload = built(stopped().0);
    let limit = overload.limit() as usize;
    let mut places = fill(&overload, Priority::Sheddable);
    assert_eq!(places.len(), limit);
    let shed = overload.enter(Priority::Sheddable, None);
    let shed = shed.expect_err("no place is left");
    assert_eq!(shed.priority, Priority::Sheddable);
    assert_eq!(
        shed.to_string(),
        "overloaded: a request of class sheddable is shed"
    );
    // Those below do not count for a class, and those above do.
    for (priority, expected) in [
        (Priority::Normal, limit + limit / 4),
        (Priority::Critical, limit + 2 * (limit / 4)),
        (Priority::Normal, 0),
    ] {
        let more = fill(&overload, priority);
        assert_eq!(more.len(), expected, "{priority}");
        places.extend(more);
    }
    assert_eq!(overload.in_flight() as usize, places.len());
    drop(places.drain(..limit));
    assert!(overload.enter(Priority::Sheddable, None).is_err());
    drop(places);
    assert_eq!(overload.in_flight(), 0);
}

#[test]
fn classes_have_the_order_that_is_set_and_unknown_ones_are_normal() {
    let paid = Priority::Named("paid");
    let classes = [Priority::Critical, paid, Priority::Normal];
    let overload = built(stopped().0.classes(classes));
    let limit = overload.limit() as usize;
    let _normal = fill(&overload, Priority::Named("other"));
    assert_eq!(overload.in_flight() as usize, limit);
    assert!(overload.enter(Priority::Sheddable, None).is_err());
    assert_eq!(fill(&overload, paid).len(), limit + limit / 4);
}

#[test]
fn classes_that_cannot_work_are_refused() {
    let many = (0..20).map(|_| Priority::Normal);
    for (classes, reason) in [
        (vec![Priority::Critical], "`normal` is not one"),
        (vec![Priority::Normal, Priority::Normal], "normal twice"),
        (many.collect(), "20 classes"),
        (vec![], "`normal` is not one"),
        (
            vec![Priority::Normal, Priority::Named("")],
            "\"\" is not the name",
        ),
        (
            vec![Priority::Normal, Priority::Named("a\n")],
            "\"a\\n\" is not the name",
        ),
    ] {
        let error = stopped().0.classes(classes).build().expect_err(reason);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(reason), "{error}");
    }
}

// A key that is alone gets most places, and leaves some for others.
#[test]
fn key_gets_places_while_it_has_less_than_sixteen_times_the_free_ones() {
    let overload = built(stopped().0.classes([Priority::Normal]));
    let (loud, quiet) = (Key::new("loud"), Key::new("quiet"));
    let mut places = Vec::new();
    while let Ok(place) = overload.enter(Priority::Normal, Some(&loud)) {
        places.push(place);
    }
    let limit = overload.limit() as usize;
    assert_eq!(places.len(), (limit * 16).div_ceil(17));
    assert!(overload.enter(Priority::Normal, Some(&quiet)).is_ok());
    places.clear();
    assert_eq!(overload.in_flight(), 0);
}

// A request that is dropped in a panic may end a window: a second panic would abort the process.
#[test]
fn sign_that_panics_is_false_and_may_ask_the_limit() {
    let itself: Arc<OnceLock<Overload>> = Arc::default();
    let (builder, clock) = stopped();
    let asked = Arc::new(AtomicUsize::new(0));
    let (inner, count) = (Arc::clone(&itself), Arc::clone(&asked));
    let overload = built(builder.crowded_when(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let overload = inner.get().expect("it is built");
        let _ = (overload.is_overloaded(), overload.limit());
        drop(overload.enter(Priority::Normal, None));
        panic::resume_unwind(Box::new("the sign"));
    }));
    let _ = itself.set(overload.clone());
    for _ in 0..100 {
        let place = overload
            .enter(Priority::Normal, None)
            .expect("there is room");
        clock.advance(Duration::from_secs(1));
        let unwound = panic::catch_unwind(panic::AssertUnwindSafe(|| {
            let _place = place;
            panic::resume_unwind(Box::new("the handler"));
        }));
        assert!(unwound.is_err());
    }
    assert!(asked.load(Ordering::Relaxed) > 50, "{asked:?}");
    assert!(!overload.is_overloaded());
    assert_eq!(overload.in_flight(), 0);
}

#[test]
fn place_comes_back_however_a_request_ends() {
    let (builder, clock) = stopped();
    let overload = built(builder);
    let key = Key::new("ada");
    let enter = || overload.enter(Priority::Normal, Some(&key));
    let ends: [fn(InFlight); 5] = [
        InFlight::answered,
        InFlight::not_run,
        InFlight::timed_out,
        drop,
        |place| {
            let unwound = panic::catch_unwind(panic::AssertUnwindSafe(|| {
                let _place = place;
                panic::resume_unwind(Box::new("the handler"));
            }));
            assert!(unwound.is_err());
        },
    ];
    for round in 0..1_000 {
        for end in ends {
            let place = enter().unwrap_or_else(|shed: Shed| panic!("{round}: {shed}"));
            assert_eq!(overload.in_flight(), 1);
            clock.advance(Duration::from_micros(round));
            end(place);
            assert_eq!(overload.in_flight(), 0);
        }
    }
}

#[test]
fn places_of_many_threads_all_come_back() {
    let overload = Overload::adaptive().build().expect("usable settings");
    thread::scope(|scope| {
        for number in 0..4_u64 {
            let overload = &overload;
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..20_000_u64 {
                    let key = Key::from(round % 50);
                    let priority = [Priority::Critical, Priority::Sheddable][(round % 2) as usize];
                    held.extend(overload.enter(priority, Some(&key)));
                    if (round + number) % 3 == 0 {
                        held.drain(..).for_each(InFlight::answered);
                    }
                }
            });
        }
    });
    assert_eq!(overload.in_flight(), 0);
}

#[test]
fn clock_that_jumps_changes_no_place() {
    let (builder, clock) = stopped();
    let overload = built(builder);
    let start = clock.now();
    for jump in [86_400, 0, 40 * 365 * 86_400, 1] {
        let place = overload.enter(Priority::Normal, Some(&Key::new("ada")));
        clock.set(start + Duration::from_secs(jump));
        place.expect("there is room").answered();
        assert_eq!(overload.in_flight(), 0);
        assert!(overload.limit() >= 4);
    }
}
