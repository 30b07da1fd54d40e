//! Requests that wait for their turn: who starts when, who is turned away, what a waiter who leaves gives back; and
//! what a request costs by its head.

use std::{
    collections::VecDeque,
    fmt::Debug,
    future::{self, Future},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{Method, Request, Response, StatusCode, header};
use tokio::{
    task::{JoinSet, yield_now},
    time::{self, Instant},
};
use tollgate::{
    Decision, ErrorKind, Key, Policy, Quota, RateLimitLayer, RequestHead,
    algorithm::{Algorithm, QueueLimits},
    charge::{Correction, Receipt},
    extract::Global,
    middleware::{RateLimit, ResponseFuture},
    remote::RedisStore,
    rules::CompletedRequest,
};
use tower::{BoxError, Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_test::mock;

use crate::{
    middleware::witness::{PATIENCE, World, everywhere},
    support::{Random, Server},
};

everywhere! {
    full_queue_denies_at_once
    request_that_would_wait_too_long_is_denied_at_once
    cost_that_would_always_wait_too_long_is_denied_for_good
    last_waiter_who_leaves_gives_the_slot_back
    waiters_who_leave_from_the_end_leave_nothing_behind
    waiter_that_leaves_the_middle_frees_the_last_turn
    turn_that_is_given_up_goes_to_the_next_caller
    turns_that_were_given_up_end_with_the_policy
    turns_are_given_up_and_taken_in_any_order
    wait_below_the_patience_of_clients_serves_all_who_are_admitted
    waiter_who_leaves_gives_back_what_other_policies_charged
    delayed_response_has_the_limits_of_its_decision
    nginx_delays_the_excess
    nginx_delays_the_excess_beyond_some
    nginx_delays_no_request
    cost_by_method
    cost_by_header
    cost_of_nothing_is_a_peek
    cost_above_the_limit_is_denied_for_good
}

// === Who starts when ===

#[tokio::test(start_paused = true)]
async fn hundred_callers_start_in_order_and_evenly_spaced() {
    let world = World::in_process();
    let (starts, app) = noted(&world.layer([ten_a_second(100).key(Global)]));
    let began = Instant::now();
    let statuses = all_at_once(&app, 0..100).join_all().await;
    assert!(statuses.iter().all(StatusCode::is_success));
    let slots = |callers: std::ops::Range<u32>| callers.map(|caller| (caller, TURN * caller));
    let taken = since(&starts, began);
    println!(
        "paused, 100 at 10/s: {}",
        Gaps::of(taken.iter().map(|(_, at)| *at))
    );
    assert_eq!(taken, slots(0..100).collect::<Vec<_>>());

    // and who comes before the last one has started stands behind it
    world.clock.advance(began.elapsed());
    all_at_once(&app, 100..103).join_all().await;
    assert_eq!(
        since(&starts, began)[100..],
        slots(100..103).collect::<Vec<_>>()
    );
}

#[tokio::test(start_paused = true)]
async fn callers_who_come_over_time_keep_their_distance() {
    let world = World::in_process();
    let (starts, app) = noted(&world.layer([ten_a_second(100).key(Global)]));
    let began = Instant::now();
    let mut callers = JoinSet::new();
    // three in each 200 ms, for which there are two slots
    for caller in 0..60_u32 {
        callers.spawn(app.clone().oneshot(numbered(caller)));
        yield_now().await;
        if caller % 3 == 2 {
            // paused time goes from timer to timer meanwhile
            time::sleep(TURN * 2).await;
            world.clock.advance(TURN * 2);
        }
    }
    let answers = callers.join_all().await;
    assert!(
        answers
            .into_iter()
            .all(|answer| status(answer).is_success())
    );
    let expected: Vec<_> = (0..60).map(|caller| (caller, TURN * caller)).collect();
    assert_eq!(since(&starts, began), expected);
}

#[tokio::test(start_paused = true)]
async fn requests_behind_a_waiter_that_leaves_move_up() {
    let world = World::in_process();
    let (starts, app) = noted(&world.layer([ten_a_second(10).key(Global)]));
    let began = Instant::now();
    let mut callers: Vec<_> = (0..6)
        .map(|caller| tokio::spawn(app.clone().oneshot(numbered(caller))))
        .collect();
    yield_now().await;
    for leaving in [5, 2] {
        let caller = callers.remove(leaving);
        caller.abort();
        assert!(caller.await.is_err());
    }
    // those behind the one in the middle move up, and the last two slots are free again
    callers.push(tokio::spawn(app.clone().oneshot(numbered(6))));
    for caller in callers {
        assert!(status(caller.await.expect("it is not dropped")).is_success());
    }
    let slots = [(0, 0), (1, 1), (3, 2), (4, 3), (6, 4)];
    let slots: Vec<_> = slots.map(|(caller, slot)| (caller, TURN * slot)).into();
    assert_eq!(since(&starts, began), slots);
}

// Reproducer: 8 of 81 were served, since nobody used the turns of those who had left.
#[tokio::test(start_paused = true)]
async fn turns_of_impatient_clients_are_used_by_those_behind_them() {
    let queue = QueueLimits::new(20, Duration::MAX);
    let policy = Policy::new("queue", Quota::per_second(5)).algorithm(Algorithm::LeakyQueue(queue));
    for instances in [1, 3] {
        let world = World::in_process();
        let layers: Vec<_> = (0..instances)
            .map(|_| world.layer([policy.clone().key(Global)]))
            .collect();
        let apps: Vec<_> = layers.iter().map(noted).collect();
        let began = Instant::now();
        let mut callers = JoinSet::new();
        let mut random = Random(7);
        for caller in 0..168_u32 {
            let (_, app) = &apps[random.below(instances) as usize];
            let answer = app.clone().oneshot(numbered(caller));
            callers.spawn(time::timeout(Duration::from_millis(700), answer));
            time::sleep(TURN).await;
            world.clock.advance(TURN);
        }
        callers.join_all().await;
        let mut starts: Vec<_> = apps
            .iter()
            .flat_map(|(starts, _)| since(starts, began))
            .map(|(_, at)| at)
            .collect();
        starts.sort_unstable();
        println!("{instances} instances: {} served", starts.len());
        let is_even = starts.windows(2).all(|pair| pair[1] - pair[0] >= TURN * 2);
        assert!(is_even, "one turn in 200 ms: {starts:?}");
        assert!(starts.len() >= 84, "{} served", starts.len());
    }
}

#[tokio::test(start_paused = true)]
async fn turn_that_a_request_of_another_instance_gives_back_moves_all_up() {
    let world = World::in_process();
    let layers = [(); 2].map(|()| world.layer([ten_a_second(10).key(Global)]));
    let [(starts, app), (others, other)] = layers.each_ref().map(noted);
    let began = Instant::now();
    let mut callers = JoinSet::new();
    let mut leaving = Vec::new();
    for caller in 0..6 {
        if caller % 2 == 0 {
            callers.spawn(app.clone().oneshot(numbered(caller)));
        } else {
            leaving.push(tokio::spawn(other.clone().oneshot(numbered(caller))));
        }
        yield_now().await;
    }
    // Of turns 0 to 5, the other instance has 1, 3 and 5, and gives 5 and 3 back.
    for caller in leaving.drain(..2) {
        caller.abort();
        assert!(caller.await.is_err());
    }
    callers.spawn(app.clone().oneshot(numbered(6)));
    yield_now().await;
    callers.join_all().await;
    let last = leaving.pop().expect("the third");
    assert!(status(last.await.expect("it is not dropped")).is_success());
    let slots = |slots: &[(u32, u32)]| -> Vec<_> {
        let slots = slots.iter();
        slots
            .map(|(caller, slot)| (*caller, TURN * *slot))
            .collect()
    };
    assert_eq!(
        since(&starts, began),
        slots(&[(0, 0), (2, 2), (4, 3), (6, 4)])
    );
    assert_eq!(since(&others, began), slots(&[(5, 1)]));
}

// Reproducer: a request that nobody had polled got the turns that others gave back, and those behind it waited longer.
#[tokio::test(start_paused = true)]
async fn request_that_was_never_polled_takes_no_turn_of_others() {
    let world = World::in_process();
    let layers = [(); 2].map(|()| world.layer([ten_a_second(10).key(Global)]));
    let [(starts, app), (_, other)] = layers.each_ref().map(noted);
    let began = Instant::now();
    assert!(status(app.clone().oneshot(numbered(0)).await).is_success());
    let leaving = tokio::spawn(other.oneshot(numbered(1)));
    yield_now().await;
    let mut service = layers[0].layer(answering());
    assert!(poll_ready(&mut service).is_ready());
    let unpolled = service.call(numbered(2));
    leaving.abort();
    assert!(leaving.await.is_err());
    assert!(status(app.oneshot(numbered(3)).await).is_success());
    assert_eq!(since(&starts, began), [(0, Duration::ZERO), (3, TURN)]);
    drop(unpolled);
}

#[tokio::test(start_paused = true)]
async fn request_that_nobody_polls_makes_no_other_later() {
    let world = World::in_process();
    let layer = world.layer([ten_a_second(10).key(Global)]);
    let (starts, app) = noted(&layer);
    let began = Instant::now();
    assert!(status(app.clone().oneshot(numbered(0)).await).is_success());
    let unpolled = waiting(&layer).await;
    let callers: Vec<_> = (2..6)
        .map(|caller| tokio::spawn(app.clone().oneshot(numbered(caller))))
        .collect();
    yield_now().await;
    for (number, caller) in callers.into_iter().enumerate() {
        if number == 1 {
            caller.abort();
            assert!(caller.await.is_err());
        } else {
            assert!(status(caller.await.expect("it is not dropped")).is_success());
        }
    }
    let slots: Vec<_> = since(&starts, began);
    assert!(
        slots.iter().all(|(caller, at)| *at <= TURN * *caller),
        "{slots:?}"
    );
    assert_eq!(slots.len(), 4);
    // It has had its turn meanwhile.
    let late = Instant::now();
    assert!(status(unpolled.await).is_success());
    assert_eq!(late.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn in_real_time_no_request_starts_before_its_slot() {
    let server = Server::start();
    let store = RedisStore::builder(server.url())
        .connections(1)
        .deadline(PATIENCE)
        .build()
        .expect("a usable store");
    let policy = Policy::new("queue", Quota::per_second(200))
        .algorithm(Algorithm::LeakyQueue(QueueLimits::new(100, Duration::MAX)));
    let layer = RateLimitLayer::builder()
        .policy(policy.clone().key(Global))
        .store(store)
        .build()
        .expect("it is well set up");
    // the connection stands, and the server knows the script
    let peek = layer.limiter().peek(&[policy.charge(Key::GLOBAL)]).await;
    assert!(peek.is_ok());
    let starts = Arc::new(Mutex::new(Vec::new()));
    let app = layer.layer(service_fn({
        let starts = Arc::clone(&starts);
        move |request: Request<()>| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.expect("it is after 1970").as_micros() as u64;
            let slot = decision(&request).states()[0].starts_at().as_micros();
            let mut starts = starts.lock().expect("nobody panics with it");
            starts.push((slot, now));
            future::ready(Ok::<_, BoxError>(Response::new(())))
        }
    }));
    let statuses = all_at_once(&app, 0..100).join_all().await;
    assert!(statuses.iter().all(StatusCode::is_success));
    let starts = starts.lock().expect("nobody panics with it");
    let micros = |times: Vec<u64>| times.into_iter().map(Duration::from_micros);
    let late: Vec<_> = starts
        .iter()
        .map(|(slot, at)| at.saturating_sub(*slot))
        .collect();
    println!(
        "redis, 100 at 200/s: gaps {}; behind the slot: {}",
        Gaps::of(micros(starts.iter().map(|(_, at)| *at).collect())),
        Gaps::among(micros(late).collect()),
    );
    assert_eq!(starts.len(), 100);
    assert!(starts.iter().all(|(slot, at)| at >= slot), "{starts:?}");
    // By slot: an answer that a busy machine reads late starts its caller late, and then perhaps behind the next one.
    let mut slots: Vec<u64> = starts.iter().map(|(slot, _)| *slot).collect();
    slots.sort_unstable();
    for pair in slots.windows(2) {
        assert!(pair[1] >= pair[0] + 5_000, "one slot each: {pair:?}");
    }
}

// === Who is turned away ===

async fn full_queue_denies_at_once(world: World) {
    let layer = world.layer([ten_a_second(3).key(Global)]);
    assert_eq!(
        delays(&layer, &ten_a_second(3), 6).await,
        [Some(0), Some(100), Some(200), Some(300), None, None]
    );
    let asked = std::time::Instant::now();
    let response = layer.layer(answering()).oneshot(numbered(0)).await;
    let response = response.expect("it answers");
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    assert_eq!(response.headers()["x-ratelimit-limit"], "4");
    assert!(asked.elapsed() < PATIENCE / 2);
    world.clock.advance(TURN);
    let policy = ten_a_second(3);
    assert_eq!(delays(&layer, &policy, 2).await, [Some(300), None]);
}

async fn request_that_would_wait_too_long_is_denied_at_once(world: World) {
    let queue = QueueLimits::new(20, TURN * 3);
    let policy = ten_a_second(20).algorithm(Algorithm::LeakyQueue(queue));
    let layer = world.layer([policy.clone().key(Global)]);
    let told = delays(&layer, &policy, 5).await;
    assert_eq!(told, [Some(0), Some(100), Some(200), Some(300), None]);
    world.clock.advance(TURN - Duration::from_micros(1));
    assert_eq!(delays(&layer, &policy, 1).await, [None]);
    world.clock.advance(Duration::from_micros(1));
    assert_eq!(delays(&layer, &policy, 2).await, [Some(300), None]);
}

// Reproducer: by its units it fits into the queue, by its time never; it was told to come back, again and again.
async fn cost_that_would_always_wait_too_long_is_denied_for_good(world: World) {
    let queue = QueueLimits::new(20, TURN * 3);
    let policy = ten_a_second(20).algorithm(Algorithm::LeakyQueue(queue));
    let layer = world.layer([policy.clone().key(Global).cost_by(by_header)]);
    let app = layer.layer(answering());
    let dear = app.clone().oneshot(costing(5)).await.expect("it answers");
    assert_eq!(dear.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(dear.headers().get(header::RETRY_AFTER), None);
    assert_eq!(dear.headers()["x-ratelimit-limit"], "4");
    assert_eq!(dear.headers()["x-ratelimit-remaining"], "4");
    assert_eq!(delays_of(&layer, &policy, 4).await, Some(300));
    let refused = policy.cost(5).validate().expect_err("none could ever pass");
    assert_eq!(refused.kind(), ErrorKind::InvalidPolicy);
}

// === Who leaves ===

async fn last_waiter_who_leaves_gives_the_slot_back(mut world: World) {
    let policy = ten_a_second(5);
    let layer = world.layer([policy.clone().key(Global)]);
    assert_eq!(delays(&layer, &policy, 2).await, [Some(0), Some(100)]);
    let before = world.usage(&policy, Key::GLOBAL).await;
    let waiter = waiting(&layer).await;
    assert_ne!(world.usage(&policy, Key::GLOBAL).await, before);
    drop(waiter);
    let settled = world.settled().await;
    assert_eq!(settled, [("queue".to_owned(), Correction::Refund(1))]);
    assert_eq!(world.usage(&policy, Key::GLOBAL).await, before);
    assert_eq!(delays(&layer, &policy, 1).await, [Some(200)]);
}

// Reproducer: at rates whose interval is no whole number of microseconds the slot came back a microsecond late, and the
// waiter before, now the last, was not known as the last any more.
async fn waiters_who_leave_from_the_end_leave_nothing_behind(mut world: World) {
    for quota in [
        Quota::per_second(10),
        Quota::per_second(3),
        Quota::per_minute(7),
        Quota::per_day(999_983),
    ] {
        let policy = Policy::new("queue", quota)
            .algorithm(Algorithm::LeakyQueue(QueueLimits::new(5, Duration::MAX)));
        let world = &mut world;
        let layer = world.layer([policy.clone().key(Global)]);
        let reset = layer.limiter().reset(&policy, &Key::GLOBAL).await;
        reset.expect("it is reset");
        delays(&layer, &policy, 1).await;
        let before = world.usage(&policy, Key::GLOBAL).await;
        let mut waiters = Vec::new();
        for _ in 0..5 {
            waiters.push(waiting(&layer).await);
        }
        while let Some(last) = waiters.pop() {
            drop(last);
            world.settled().await;
        }
        assert_eq!(world.usage(&policy, Key::GLOBAL).await, before, "{quota:?}");
    }
}

async fn waiter_that_leaves_the_middle_frees_the_last_turn(mut world: World) {
    let policy = ten_a_second(5);
    let layer = world.layer([policy.clone().key(Global)]);
    delays(&layer, &policy, 1).await;
    let mut waiters = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..3 {
        waiters.push(waiting(&layer).await);
        ends.push(world.usage(&policy, Key::GLOBAL).await);
    }
    drop(waiters.remove(1));
    world.settled().await;
    assert_eq!(world.usage(&policy, Key::GLOBAL).await, ends[1]);
    assert_eq!(delays(&layer, &policy, 1).await, [Some(300)]);
}

// Reproducer: a turn that was given up before those behind it stayed empty, and if these were not given up, was lost for good.
async fn turn_that_is_given_up_goes_to_the_next_caller(world: World) {
    let policy = ten_a_second(5);
    let layer = world.layer([policy.clone().key(Global)]);
    let before = world.usage(&policy, Key::GLOBAL).await;
    // As those of other instances, which do not move up.
    let mut taken = Vec::new();
    for _ in 0..5 {
        taken.push(turn_of(&layer, &policy, 1).await.expect("a turn"));
    }
    for (leaving, units, next) in [
        // The first of two that leave, and then the second.
        (vec![1, 2], 1, Some(100)),
        (vec![], 1, Some(300)),
        (vec![], 1, Some(500)),
        (vec![], 1, None),
        // Two beside each other are long enough for two units, and others are not.
        (vec![0, 2], 2, None),
        (vec![1], 2, Some(300)),
    ] {
        for place in leaving {
            give_up(&layer, taken.remove(place).1).await;
        }
        let turn = turn_of(&layer, &policy, units).await;
        let delay = turn.as_ref().map(|(delay, _)| *delay);
        assert_eq!(delay, next);
        taken.extend(turn);
        taken.sort_by_key(|(delay, _)| *delay);
    }
    for (_, receipt) in taken {
        give_up(&layer, receipt).await;
    }
    let now = world.clock.now();
    assert_eq!(
        world.usage(&policy, Key::GLOBAL).await.reset_at,
        now.max(before.reset_at)
    );
}

// Reproducer: in process, turns stayed free while the policy was another one, and were taken when it was a queue again.
async fn turns_that_were_given_up_end_with_the_policy(world: World) {
    let queue = ten_a_second(20);
    let bucket = Policy::new("queue", Quota::per_second(10)).algorithm(Algorithm::LeakyBucket);
    let (queued, plain) = (
        world.layer([queue.clone().key(Global)]),
        world.layer([bucket.clone().key(Global)]),
    );
    let mut taken = Vec::new();
    for _ in 0..12 {
        taken.push(turn_of(&queued, &queue, 1).await.expect("a turn"));
    }
    for _ in 0..3 {
        give_up(&queued, taken.remove(6).1).await;
    }
    assert!(turn_of(&plain, &bucket, 1).await.is_none());
    // The debt has kept its share of the limit: as much of the queue is used as before.
    let next = turn_of(&queued, &queue, 1).await.expect("a turn").0;
    assert!(
        (1_195..=1_205).contains(&next),
        "no turn is free: {next} ms"
    );
}

async fn turns_are_given_up_and_taken_in_any_order(world: World) {
    let mut random = Random(0x9E37);
    println!("seed 0x9E37");
    let mut reused = 0;
    for quota in [
        Quota::per_second(10),
        Quota::per_second(3),
        Quota::per_day(999_983),
    ] {
        let interval = quota.period().as_micros() as u64 / quota.count();
        let queue = QueueLimits::new(12, Duration::MAX);
        let policy = Policy::new("queue", quota).algorithm(Algorithm::LeakyQueue(queue));
        let layer = world.layer([policy.clone().key(Global)]);
        let reset = layer.limiter().reset(&policy, &Key::GLOBAL).await;
        reset.expect("it is reset");
        // Each turn from the start of its first unit to the end of its last one, by the start of the last one.
        let mut turns: Vec<(u64, u64, Receipt)> = Vec::new();
        for _ in 0..400 {
            if !turns.is_empty() && random.below(2) == 0 {
                let nth = random.below(turns.len() as u64) as usize;
                give_up(&layer, turns.remove(nth).2).await;
                continue;
            }
            let units = 1 + random.below(2);
            let tail = world.usage(&policy, Key::GLOBAL).await.reset_at;
            let charges = [policy.charge(Key::GLOBAL).cost(units)];
            let decision = layer.limiter().check(&charges).await.expect("it answers");
            let Some(receipt) = Receipt::of(&charges, &decision) else {
                continue;
            };
            let end = decision.states()[0].starts_at().as_micros() + interval;
            let start = end - units * interval;
            let is_reused = world.usage(&policy, Key::GLOBAL).await.reset_at == tail;
            reused += u32::from(is_reused);
            turns.push((start, end, receipt));
            turns.sort_by_key(|(start, ..)| *start);
            let place = turns.iter().position(|(other, ..)| *other == start);
            let place = place.expect("it is there");
            // Rounding to whole microseconds.
            const SLACK: u64 = 3;
            let mut before = world.clock.now().as_micros();
            for (nth, (start, end, _)) in turns.iter().enumerate() {
                assert!(start + SLACK >= before, "{quota:?}: two at the same time");
                let gap = start.saturating_sub(before);
                assert!(
                    nth > place || gap + SLACK < units * interval,
                    "{quota:?}: an earlier turn was free"
                );
                before = *end;
            }
        }
        for (_, _, receipt) in turns {
            give_up(&layer, receipt).await;
        }
        let end = world.usage(&policy, Key::GLOBAL).await.reset_at;
        let left = end.since(world.clock.now()).as_micros();
        assert!(left <= 3, "{quota:?}: {left} us are lost");
    }
    println!("{reused} turns were taken a second time");
    assert!(reused > 100);
}

/// The delay in milliseconds and the receipt of a charge; `None` when it is denied.
async fn turn_of(layer: &RateLimitLayer, policy: &Policy, units: u64) -> Option<(u64, Receipt)> {
    let charges = [policy.charge(Key::GLOBAL).cost(units)];
    let decision = layer.limiter().check(&charges).await.expect("it answers");
    let delay = decision.delay().unwrap_or_default().as_millis() as u64;
    Some((delay, Receipt::of(&charges, &decision)?))
}

async fn give_up(layer: &RateLimitLayer, receipt: Receipt) {
    let settled = layer.limiter().settle(receipt.actual_cost(|_, _| 0)).await;
    settled.expect("it is settled");
}

// Reproducer: with the time in which the queue drains as the longest wait, which was the default, the queue serves nobody
// after the first second.
async fn wait_below_the_patience_of_clients_serves_all_who_are_admitted(world: World) {
    let patience = Duration::from_millis(700);
    let queue = QueueLimits::new(20, Duration::from_millis(600));
    let policy = Policy::new("queue", Quota::per_second(5)).algorithm(Algorithm::LeakyQueue(queue));
    let limiter = world.layer([policy.clone().key(Global)]);
    let limiter = limiter.limiter();
    let (mut leaving, mut admitted, mut served) = (VecDeque::new(), 0, 0);
    for _ in 0..160 {
        while let Some((at, _)) = leaving.front()
            && *at <= world.clock.now()
        {
            let (_, receipt): (_, Receipt) = leaving.pop_front().expect("it is there");
            let given_up = receipt.actual_cost(|_, _| 0);
            limiter.settle(given_up).await.expect("it is settled");
        }
        let charges = [policy.charge(Key::GLOBAL)];
        let decision = limiter.check(&charges).await.expect("it answers");
        if let Some(receipt) = Receipt::of(&charges, &decision) {
            admitted += 1;
            if decision.delay().unwrap_or_default() <= patience {
                served += 1;
            } else {
                leaving.push_back((world.clock.now() + patience, receipt));
            }
        }
        world.clock.advance(TURN);
    }
    println!("{served} of {admitted} served in 16 s");
    assert_eq!(served, admitted);
    assert!(served >= 80, "five a second for 16 s: {served}");
}

async fn waiter_who_leaves_gives_back_what_other_policies_charged(mut world: World) {
    let policy = ten_a_second(5);
    let firm = Policy::new("firm", Quota::per_hour(10)).cost(2);
    let plan = Policy::new("plan", Quota::per_hour(10)).cost(3);
    let layer = world.layer([
        firm.clone().key(Global),
        policy.clone().key(Global),
        // whatever it says: the request never started
        plan.clone()
            .key(Global)
            .settle(|_: &CompletedRequest<'_>| 9),
    ]);
    delays(&layer, &policy, 1).await;
    let waiter = waiting(&layer).await;
    assert_eq!(world.remaining(&firm).await, 8);
    assert_eq!(world.remaining(&plan).await, 7);
    drop(waiter);
    world
        .settled_of(&["firm", policy.name().as_str(), "plan"])
        .await;
    assert_eq!(world.remaining(&firm).await, 10);
    assert_eq!(world.remaining(&plan).await, 10);
    assert_eq!(world.asked(), 3);
    assert_eq!(delays(&layer, &policy, 1).await, [Some(100)]);
}

// === What a waiter holds ===

#[tokio::test(start_paused = true)]
async fn service_is_polled_ready_and_called_when_the_waiters_turn_comes() {
    let world = World::in_process();
    let policy = ten_a_second(5);
    let layer = world.layer([policy.clone().key(Global)]);
    delays(&layer, &policy, 1).await;
    // the mock panics when it is called without having been polled ready
    let (inner, mut handle) = mock::pair::<Request<()>, Response<()>>();
    let mut service = layer.layer(inner);
    assert!(poll_ready(&mut service).is_ready());
    let mut future = Box::pin(service.call(numbered(7)));
    for _ in 0..3 {
        assert!(poll(future.as_mut()).is_pending());
        assert!(handle.poll_request().is_pending());
    }
    time::advance(TURN - Duration::from_millis(2)).await;
    assert!(poll(future.as_mut()).is_pending());
    assert!(handle.poll_request().is_pending());
    time::advance(Duration::from_millis(3)).await;
    assert!(poll(future.as_mut()).is_pending());
    let Poll::Ready(Some((request, answer))) = handle.poll_request() else {
        panic!("it is called");
    };
    assert_eq!(request.extensions().get::<u32>(), Some(&7));
    answer.send_response(Response::new(()));
    let Poll::Ready(Ok(response)) = poll(future.as_mut()) else {
        panic!("it answers");
    };
    assert_eq!(response.status(), StatusCode::OK);
}

// Reproducer: who waited under one key had the permits of all others.
#[tokio::test(start_paused = true)]
async fn waiter_keeps_no_permit_and_takes_one_at_its_turn() {
    let world = World::in_process();
    let policy = ten_a_second(5);
    let layer = world.layer([policy.clone().key(Global)]);
    delays(&layer, &policy, 1).await;
    let (inner, mut handle) = mock::pair::<Request<()>, Response<()>>();
    let mut service = layer.layer(ConcurrencyLimit::new(inner, 1));
    let mut other = service.clone();
    assert!(poll_ready(&mut service).is_ready());
    let mut waiter = Box::pin(service.call(numbered(7)));
    assert!(poll(waiter.as_mut()).is_pending());
    assert!(poll_ready(&mut other).is_ready(), "nobody has the permit");
    time::advance(TURN + Duration::from_millis(1)).await;
    assert!(poll(waiter.as_mut()).is_pending());
    assert!(handle.poll_request().is_pending(), "now another has it");
    drop(other);
    assert!(poll(waiter.as_mut()).is_pending());
    let Poll::Ready(Some((request, answer))) = handle.poll_request() else {
        panic!("it is called");
    };
    assert_eq!(request.extensions().get::<u32>(), Some(&7));
    assert!(poll_ready(&mut service).is_pending(), "the waiter has it");
    answer.send_response(Response::new(()));
    assert!(poll(waiter.as_mut()).is_ready());
}

#[tokio::test(start_paused = true)]
async fn service_that_fails_at_the_waiters_turn_costs_it_nothing() {
    let world = World::in_process();
    let policy = ten_a_second(5);
    let other = Policy::new("other", Quota::per_hour(10));
    let layer = world.layer([policy.clone().key(Global), other.clone().key(Global)]);
    delays(&layer, &policy, 1).await;
    let (inner, mut handle) = mock::pair::<Request<()>, Response<()>>();
    let mut service = layer.layer(inner);
    assert!(poll_ready(&mut service).is_ready());
    let mut waiter = Box::pin(service.call(numbered(7)));
    assert!(poll(waiter.as_mut()).is_pending());
    handle.send_error("out of order");
    time::advance(TURN + Duration::from_millis(1)).await;
    let Poll::Ready(Err(error)) = poll(waiter.as_mut()) else {
        panic!("it fails");
    };
    assert_eq!(error.to_string(), "out of order");
    // though the future is still there
    let left = layer.limiter().peek(&[other.charge(Key::GLOBAL)]).await;
    let left = left.expect("a decision").states()[0].usage();
    assert_eq!(left.expect("it is counted").remaining, 10);
    drop(waiter);
}

async fn delayed_response_has_the_limits_of_its_decision(mut world: World) {
    let policy = ten_a_second(5);
    let elapsed = Arc::new(Mutex::new(None));
    let rule = policy.clone().key(Global).settle({
        let elapsed = Arc::clone(&elapsed);
        move |request: &CompletedRequest<'_>| {
            *elapsed.lock().expect("nobody panics with it") = Some(request.elapsed);
            request.charged
        }
    });
    let layer = world.layer([rule]);
    delays(&layer, &policy, 1).await;
    let app = layer.layer(service_fn(|request: Request<()>| async move {
        assert_eq!(decision(&request).delay(), Some(TURN));
        Ok::<_, BoxError>(Response::new(()))
    }));
    let asked = std::time::Instant::now();
    let response = app.oneshot(numbered(0)).await.expect("it answers");
    assert!(asked.elapsed() >= TURN);
    let text = |name| {
        let value = response.headers().get(name)?;
        Some(value.to_str().expect("it is text"))
    };
    assert_eq!(text("x-ratelimit-limit"), Some("6"));
    assert_eq!(text("x-ratelimit-remaining"), Some("4"));
    // a quarter and two tenths of a second past it, rounded up
    assert_eq!(text("x-ratelimit-reset"), Some("1700000001"));
    assert_eq!(text("retry-after"), None);
    drop(response);
    world.settled().await;
    let elapsed = elapsed.lock().expect("nobody panics with it");
    let elapsed = elapsed.expect("the closure was asked");
    assert!(elapsed < TURN, "the wait is no work: {elapsed:?}");
}

// === nginx ===

/// Asserts when each of 23 requests that come at once may start, in slots; `None` is denied.
async fn starts(world: World, policy: Policy, slots: impl Fn(u64) -> Option<u64>) {
    let layer = world.layer([policy.clone().key(Global)]);
    let told = delays(&layer, &policy, 23).await;
    let expected: Vec<_> = (0..23).map(|n| slots(n).map(|slot| slot * 100)).collect();
    assert_eq!(told, expected);
}

// rate=10r/s burst=20
async fn nginx_delays_the_excess(world: World) {
    starts(world, ten_a_second(20), |n| (n <= 20).then_some(n)).await;
}

// rate=10r/s burst=20 delay=8
async fn nginx_delays_the_excess_beyond_some(world: World) {
    let policy = Policy::new("queue", Quota::per_second(10).burst(9))
        .algorithm(Algorithm::LeakyQueue(QueueLimits::new(12, Duration::MAX)));
    starts(world, policy, |n| (n <= 20).then_some(n.saturating_sub(8))).await;
}

// rate=10r/s burst=20 nodelay
async fn nginx_delays_no_request(world: World) {
    let policy =
        Policy::new("queue", Quota::per_second(10).burst(21)).algorithm(Algorithm::LeakyBucket);
    starts(world, policy, |n| (n <= 20).then_some(0)).await;
}

#[tokio::test(start_paused = true)]
async fn layer_starts_requests_as_nginx_does() {
    let queue = |burst, length| {
        Policy::new("queue", Quota::per_second(10).burst(burst)).algorithm(Algorithm::LeakyQueue(
            QueueLimits::new(length, Duration::MAX),
        ))
    };
    let nodelay =
        Policy::new("queue", Quota::per_second(10).burst(21)).algorithm(Algorithm::LeakyBucket);
    for (policy, at_once) in [(queue(1, 20), 1), (queue(9, 12), 9), (nodelay, 21)] {
        let world = World::in_process();
        let (starts, app) = noted(&world.layer([policy.key(Global)]));
        let began = Instant::now();
        let statuses = all_at_once(&app, 0..23).join_all().await;
        let denied = statuses.iter().filter(|status| !status.is_success());
        assert_eq!(denied.count(), 2);
        let expected: Vec<_> = (0..21_u32)
            .map(|caller| (caller, TURN * (caller + 1).saturating_sub(at_once)))
            .collect();
        assert_eq!(since(&starts, began), expected);
    }
}

// === Costs by the head ===

async fn cost_by_method(world: World) {
    let rule = plan()
        .key(Global)
        .cost_by(|head: &RequestHead| match *head.method {
            Method::GET => 1,
            _ => 4,
        });
    let app = world.layer([rule]).layer(answering());
    for (method, code, left) in [
        (Method::POST, 200, 6),
        (Method::GET, 200, 5),
        (Method::DELETE, 200, 1),
        (Method::PUT, 429, 1),
        (Method::GET, 200, 0),
        (Method::GET, 429, 0),
    ] {
        let request = Request::builder().method(&method).body(());
        let response = app.clone().oneshot(request.expect("well formed")).await;
        let response = response.expect("it answers");
        assert_eq!(response.status().as_u16(), code, "{method}");
        assert_eq!(world.remaining(&plan()).await, left, "{method}");
    }
}

async fn cost_by_header(world: World) {
    // the policy's own cost is no longer asked
    let rule = plan().cost(9).key(Global).cost_by(by_header);
    let app = world.layer([rule]).layer(answering());
    for (units, code, left) in [(3, 200, 7), (8, 429, 7), (7, 200, 0), (1, 429, 0)] {
        let response = app.clone().oneshot(costing(units)).await;
        assert_eq!(response.expect("it answers").status().as_u16(), code);
        assert_eq!(world.remaining(&plan()).await, left, "{units}");
    }
}

async fn cost_of_nothing_is_a_peek(world: World) {
    let app = world
        .layer([plan().key(Global).cost_by(by_header)])
        .layer(answering());
    for (units, left) in [(0, "10"), (10, "0"), (0, "0")] {
        let response = app.clone().oneshot(costing(units)).await;
        let response = response.expect("it answers");
        assert_eq!(response.status(), StatusCode::OK, "{units}");
        assert_eq!(response.headers()["x-ratelimit-remaining"], left);
    }
    if let Some(server) = &world.server {
        assert_eq!(server.keys().len(), 1);
    }
}

async fn cost_above_the_limit_is_denied_for_good(world: World) {
    let app = world
        .layer([plan().key(Global).cost_by(by_header)])
        .layer(answering());
    for units in [11, 1 << 52, 1 << 53, u64::MAX] {
        let response = app.clone().oneshot(costing(units)).await;
        let response = response.expect("it answers");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{units}");
        assert_eq!(response.headers().get(header::RETRY_AFTER), None);
        assert_eq!(response.headers()["x-ratelimit-remaining"], "10");
    }
}

// === Starts ===

/// Who started when.
type Starts = Arc<Mutex<Vec<(u32, Instant)>>>;

/// A service that notes who starts when.
fn noted(layer: &RateLimitLayer) -> (Starts, impl App) {
    let starts = Starts::default();
    let app = layer.layer(service_fn({
        let starts = Arc::clone(&starts);
        move |request: Request<()>| {
            let caller = *request.extensions().get::<u32>().expect("it has a number");
            let mut starts = starts.lock().expect("nobody panics with it");
            starts.push((caller, Instant::now()));
            future::ready(Ok::<_, BoxError>(Response::new(())))
        }
    }));
    (starts, app)
}

/// Who started when, in the order of the starts.
fn since(starts: &Starts, began: Instant) -> Vec<(u32, Duration)> {
    let starts = starts.lock().expect("nobody panics with it");
    let since = |(caller, at): &(u32, Instant)| (*caller, at.duration_since(began));
    starts.iter().map(since).collect()
}

/// How long it took from one to the next: least, median, 99th in a hundred, most.
struct Gaps([Duration; 4]);

impl Gaps {
    /// Between the points in time that follow each other.
    fn of(times: impl IntoIterator<Item = Duration>) -> Self {
        let times: Vec<_> = times.into_iter().collect();
        let pairs = times.windows(2);
        Self::among(pairs.map(|pair| pair[1].saturating_sub(pair[0])).collect())
    }

    fn among(mut spans: Vec<Duration>) -> Self {
        spans.sort_unstable();
        let last = spans.len() - 1;
        Self([0, last / 2, last * 99 / 100, last].map(|index| spans[index]))
    }
}

impl std::fmt::Display for Gaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [least, median, high, most] = self.0;
        write!(
            f,
            "min {least:?}, p50 {median:?}, p99 {high:?}, max {most:?}"
        )
    }
}

// === Services and requests ===

trait App:
    Service<Request<()>, Response: Answer, Error = BoxError, Future: Send> + Clone + Send + 'static
{
}

impl<S> App for S where
    S: Service<Request<()>, Response: Answer, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// An answer with any body.
trait Answer: Send + 'static {
    fn code(&self) -> StatusCode;
}

impl<B: Send + 'static> Answer for Response<B> {
    fn code(&self) -> StatusCode {
        self.status()
    }
}

fn status(answer: Result<impl Answer, BoxError>) -> StatusCode {
    answer.expect("it answers").code()
}

/// Asks for all these callers, who are decided on in this order.
fn all_at_once(app: &impl App, callers: std::ops::Range<u32>) -> JoinSet<StatusCode> {
    let mut asked = JoinSet::new();
    for caller in callers {
        let answer = app.clone().oneshot(numbered(caller));
        asked.spawn(async move { status(answer.await) });
    }
    asked
}

type Answered = future::Ready<Result<Response<()>, BoxError>>;
type Handler = tower::util::ServiceFn<fn(Request<()>) -> Answered>;

fn answering() -> Handler {
    service_fn(|_| future::ready(Ok(Response::new(()))))
}

/// A request that waits for its turn.
async fn waiting(layer: &RateLimitLayer) -> Pin<Box<ResponseFuture<Handler, ()>>> {
    let mut service: RateLimit<Handler> = layer.layer(answering());
    assert!(poll_ready(&mut service).is_ready());
    let mut future = Box::pin(service.call(numbered(0)));
    loop {
        let polled = future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        assert!(polled.is_pending(), "it is to wait");
        if shows(&future, "queue") {
            return future;
        }
        yield_now().await;
    }
}

fn shows(future: &impl Debug, state: &str) -> bool {
    format!("{future:?}").contains(state)
}

/// By how many milliseconds each of so many charges of one unit is delayed; `None` when it is denied.
async fn delays(layer: &RateLimitLayer, policy: &Policy, count: usize) -> Vec<Option<u64>> {
    let mut delays = Vec::new();
    for _ in 0..count {
        delays.push(delays_of(layer, policy, 1).await);
    }
    delays
}

async fn delays_of(layer: &RateLimitLayer, policy: &Policy, units: u64) -> Option<u64> {
    let charges = [policy.charge(Key::GLOBAL).cost(units)];
    let decision = layer.limiter().check(&charges).await.expect("it answers");
    let delay = decision.delay().unwrap_or_default();
    decision.is_allowed().then_some(delay.as_millis() as u64)
}

fn decision(request: &Request<()>) -> &Decision {
    let decision = request.extensions().get::<Decision>();
    decision.expect("it was decided")
}

fn numbered(caller: u32) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(caller);
    request
}

fn costing(units: u64) -> Request<()> {
    let request = Request::get("/").header("x-cost", units).body(());
    request.expect("it is well formed")
}

fn by_header(head: &RequestHead) -> u64 {
    let text = head.headers["x-cost"].to_str().expect("it is text");
    text.parse().expect("it is a number")
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn poll_ready<S: Service<Request<()>>>(service: &mut S) -> Poll<Result<(), S::Error>> {
    service.poll_ready(&mut Context::from_waker(Waker::noop()))
}

// === Policies ===

/// One at once, then one in each tenth of a second, and so many may wait.
fn ten_a_second(length: u64) -> Policy {
    Policy::new("queue", Quota::per_second(10)).algorithm(Algorithm::LeakyQueue(QueueLimits::new(
        length,
        Duration::MAX,
    )))
}

/// Ten an hour.
fn plan() -> Policy {
    Policy::new("plan", Quota::per_hour(10))
}

const TURN: Duration = Duration::from_millis(100);
