//! What requests really cost: who says it, when it is settled, and what is put right then.

use std::{
    any::Any,
    collections::{HashMap, VecDeque},
    future::{self, Future},
    io,
    panic::{self, AssertUnwindSafe},
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time,
};
use tollgate::{
    Charge, Decision, ErrorKind, Key, Policy, Quota, RateLimitLayer, RequestHead,
    algorithm::{
        Algorithm, BucketState, Counter, Counting, LogState, QueueLimits, RefundToken, Refunded,
        SlidingState, WindowStart, WindowState,
    },
    builder::RateLimitLayerBuilder,
    charge::Correction,
    clock::{Clock, Timestamp},
    decision::{CountedBy, Outcome, PolicyState},
    diagnosis::Code,
    extract::{Global, Header},
    memory::MemoryStore,
    middleware::{ActualCost, ResponseBody},
    remote::RedisStore,
    resilience::ResilientStore,
    rules::{BodyOutcome, CompletedRequest, OnMissingKey, RequestOutcome, Rule},
    store::{Store, StoreFuture},
    testing::ScriptedStore,
    tiers::Tier,
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{
    middleware::witness::{PATIENCE, World, everywhere},
    support::{Random, Server, logged},
};

everywhere! {
    failure_is_free_and_a_response_costs_its_charge
    part_of_a_charge_comes_back
    what_was_used_beyond_the_limit_is_denied_until_it_is_paid_back
    largest_price_there_is_leaves_nothing_and_breaks_nothing
    closure_gets_status_headers_units_and_time
    word_of_the_handler_goes_before_the_closure
    word_counts_until_the_body_has_ended
    word_of_a_guard_counts_however_its_body_ends
    word_of_a_guard_in_the_handler_counts_however_that_ends
    last_word_counts_and_once
    body_that_ended_and_is_dropped_is_settled_once
    body_dropped_half_way_is_settled_by_its_status
    body_that_fails_is_settled
    body_taken_out_is_settled_at_once
    client_that_hangs_up_in_the_body_is_settled
    response_without_a_body_is_settled
    panic_in_the_handler_is_distinguished_from_a_client_that_left
    panic_that_is_caught_inside_has_the_status_of_what_was_made_of_it
    panic_that_is_caught_outside_is_reported_too
    panic_in_the_body_has_the_status_of_its_head
    panic_in_the_closure_leaves_the_charge_as_it_is
    error_of_the_handler_is_distinguished_from_a_client_that_left
    client_that_leaves_while_the_handler_runs_is_charged
    denied_request_is_not_settled
    denial_by_another_policy_is_not_settled
    peek_is_not_settled
    only_some_policies_of_a_layer_settle
    policy_that_does_not_settle_does_not_heed_the_handlers_word
    handler_can_speak_to_the_layers_outside_too
    refund_after_the_window_has_passed_gives_nothing
    refund_later_gives_what_the_charge_still_weighs
    refund_after_a_reset_gives_nothing
    ten_thousand_requests_leave_as_much_as_in_the_model
}

// === What is put right ===

async fn failure_is_free_and_a_response_costs_its_charge(mut world: World) {
    let layer = world.layer([plan().key(Global).settle(failures_are_free)]);
    for (status, correction, left) in [
        (500, Correction::Refund(1), 10),
        (503, Correction::Refund(1), 10),
        (404, Correction::Keep, 9),
        (200, Correction::Keep, 8),
    ] {
        let response = ask(&layer.layer(answering(status)), request()).await;
        assert_eq!(response.status().as_u16(), status);
        let asked = world.asked();
        read(response).await;
        assert_eq!(
            world.asked(),
            asked + 1,
            "and not before the body has ended"
        );
        assert_eq!(world.settled().await, plan_settled(correction), "{status}");
        assert_eq!(world.remaining(&plan()).await, left, "{status}");
    }
}

async fn part_of_a_charge_comes_back(mut world: World) {
    let layer = world.layer([plan()
        .cost(5)
        .key(Global)
        .settle(|_: &CompletedRequest<'_>| 2)]);
    read(ask(&layer.layer(answering(200)), request()).await).await;
    assert_eq!(world.settled().await, plan_settled(Correction::Refund(3)));
    assert_eq!(world.remaining(&plan()).await, 8);
}

async fn what_was_used_beyond_the_limit_is_denied_until_it_is_paid_back(mut world: World) {
    let layer = world.layer([plan().key(Global).settle(|_: &CompletedRequest<'_>| 25)]);
    let app = layer.layer(answering(200));
    read(ask(&app, request()).await).await;
    assert_eq!(world.settled().await, plan_settled(Correction::Charge(24)));
    // 25 s are owed, and one more unit fits when it takes 10 s from then on
    for (advance, status) in [
        (Duration::ZERO, 429),
        (Duration::from_micros(15_999_999), 429),
        (Duration::from_micros(1), 200),
    ] {
        world.clock.advance(advance);
        let response = ask(&app, request()).await;
        assert_eq!(response.status().as_u16(), status, "{advance:?}");
        if status == 429 && advance.is_zero() {
            assert_eq!(response.headers()["retry-after"], "16");
            assert_eq!(response.headers()["x-ratelimit-remaining"], "0");
        }
    }
}

async fn largest_price_there_is_leaves_nothing_and_breaks_nothing(mut world: World) {
    for algorithm in ALGORITHMS {
        let name = algorithm.name();
        let policy = Policy::new(name, Quota::per_hour(10)).algorithm(algorithm);
        let layer = world.layer([policy
            .clone()
            .key(Global)
            .settle(|_: &CompletedRequest<'_>| u64::MAX)]);
        let app = layer.layer(answering(200));
        let responses = [ask(&app, request()).await, ask(&app, request()).await];
        for response in responses {
            read(response).await;
            world.settled().await;
            assert_eq!(world.remaining(&policy).await, 0, "{name}");
        }
        let denied = ask(&app, request()).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS, "{name}");
        // Two of them bear one name.
        let reset = layer.limiter().reset(&policy, &Key::GLOBAL).await;
        reset.expect("it is reset");
    }
}

// === What the closure is told ===

async fn closure_gets_status_headers_units_and_time(mut world: World) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let rule = plan().cost(3).key(Global).settle({
        let heard = Arc::clone(&heard);
        move |request: &CompletedRequest<'_>| {
            let RequestOutcome::Responded {
                status,
                headers,
                body,
                ..
            } = request.outcome
            else {
                panic!("it responded: {:?}", request.outcome);
            };
            let tokens = headers["x-tokens"].to_str().expect("it is text").to_owned();
            let mut heard = heard.lock().expect("nobody panics with it");
            heard.push((status, tokens, body, request.charged, request.elapsed));
            7
        }
    });
    let app = world
        .layer([rule])
        .layer(service_fn(|_: Request<()>| async move {
            time::sleep(WORK).await;
            let response = Response::builder().status(201).header("x-tokens", "7");
            Ok::<_, Broken>(response.body(Frames::text("done")).expect("well formed"))
        }));
    let asked = Instant::now();
    read(ask(&app, request()).await).await;
    let most = asked.elapsed();
    assert_eq!(world.settled().await, plan_settled(Correction::Charge(4)));
    let heard = heard.lock().expect("nobody panics with it");
    let [(status, tokens, body, charged, elapsed)] = heard.as_slice() else {
        panic!("it is asked once: {heard:?}");
    };
    assert_eq!(*status, StatusCode::CREATED);
    assert_eq!(tokens, "7");
    assert_eq!(*body, BodyOutcome::Complete);
    assert_eq!(*charged, 3);
    assert!((WORK..=most).contains(elapsed), "{elapsed:?} of {most:?}");
}

// === The handler's word ===

async fn word_of_the_handler_goes_before_the_closure(mut world: World) {
    let layer = world.layer([plan().cost(3).key(Global).settle(failures_are_free)]);
    for (says, status, correction) in [
        (2, 200, Correction::Refund(1)),
        (0, 200, Correction::Refund(3)),
        (3, 500, Correction::Keep),
        (4, 500, Correction::Charge(1)),
    ] {
        let app = layer.layer(service_fn(move |request: Request<()>| async move {
            word(&request).set("plan", says);
            Ok::<_, Broken>(head(status, Frames::text("done")))
        }));
        let response = ask(&app, request()).await;
        read(response).await;
        assert_eq!(world.settled().await, plan_settled(correction));
    }
    assert_eq!(world.remaining(&plan()).await, 1, "2 + 0 + 3 + 4, of ten");
}

async fn word_counts_until_the_body_has_ended(mut world: World) {
    let layer = world.layer([plan().cost(5).key(Global).settle(failures_are_free)]);
    let app = layer.layer(service_fn(|request: Request<()>| async move {
        let word = word(&request);
        word.set("plan", 9);
        let body = [
            Piece::Text("some"),
            Piece::Say(word, 3),
            Piece::Text("more"),
        ];
        Ok::<_, Broken>(head(200, Frames::of(body)))
    }));
    read(ask(&app, request()).await).await;
    assert_eq!(world.settled().await, plan_settled(Correction::Refund(2)));
}

// Regression: it was settled before the body was dropped, so what a guard reports at the end of a stream was lost.
async fn word_of_a_guard_counts_however_its_body_ends(mut world: World) {
    let layer = world.layer([plan().cost(5).key(Global).settle(failures_are_free)]);
    let mut kept = Vec::new();
    for (way, drops) in [
        (Way::End, Ok(())),
        (Way::End, Err(())),
        (Way::Fail, Ok(())),
        (Way::Fail, Err(())),
        (Way::Panic, Ok(())),
        (Way::DropMidway, Ok(())),
        (Way::DropMidway, Err(())),
        (Way::DropUnpolled, Ok(())),
        (Way::DropUnpolled, Err(())),
    ] {
        let app = layer.layer(service_fn(move |request: Request<()>| {
            let guard = Guard {
                word: word(&request),
                units: 4,
                panics: drops.is_err(),
            };
            let last = match way {
                Way::Fail => Piece::Fail,
                Way::Panic => Piece::Panic,
                _ => Piece::Text("last"),
            };
            let frames = Frames::of([Piece::Text("some"), last]);
            let body = Guarded {
                frames,
                _guard: guard,
            };
            future::ready(Ok::<_, Broken>(Response::new(body)))
        }));
        let mut body = Box::pin(ask(&app, request()).await.into_body());
        let read = caught(async {
            while let (true, Some(Ok(_))) = (way != Way::DropUnpolled, body.frame().await) {
                if way == Way::DropMidway {
                    break;
                }
            }
        });
        let is_caught = read.await.is_err();
        match way {
            // settled though the body is kept
            Way::End | Way::Fail => {
                assert_eq!(is_caught, drops.is_err());
                kept.push(body);
            }
            _ => {
                let dropped = panic::catch_unwind(AssertUnwindSafe(|| drop(body)));
                assert_eq!(dropped.is_err(), drops.is_err());
            }
        }
        let settled = world.settled().await;
        assert_eq!(
            settled,
            plan_settled(Correction::Refund(1)),
            "{way:?} {drops:?}"
        );
        world.clock.advance(Duration::from_secs(4));
    }
    let asked = world.asked();
    for mut body in kept {
        assert!(body.frame().await.is_none(), "it has ended");
        assert!(body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
    }
    assert_eq!(world.asked(), asked);
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    DropMidway,
    DropUnpolled,
    End,
    Fail,
    Panic,
}

async fn word_of_a_guard_in_the_handler_counts_however_that_ends(mut world: World) {
    let layer = world.layer([plan().cost(5).key(Global).settle(failures_are_free)]);
    for way in [Way::Fail, Way::Panic, Way::DropMidway] {
        let app = layer.layer(service_fn(move |request: Request<()>| {
            let guard = Guard {
                word: word(&request),
                units: 4,
                panics: false,
            };
            // Not an `async fn`, which drops what it holds as it returns.
            let mut polled = 0;
            future::poll_fn(move |context| -> Poll<Answered> {
                let _held = &guard;
                polled += 1;
                match way {
                    _ if polled == 1 => {
                        context.waker().wake_by_ref();
                        Poll::Pending
                    }
                    Way::Fail => Poll::Ready(Err(Broken)),
                    Way::Panic => panic::resume_unwind(Box::new(())),
                    _ => Poll::Pending,
                }
            })
        }));
        let mut app = app;
        let mut future = Box::pin(app.ready().await.expect("it is ready").call(request()));
        let kept = match way {
            Way::DropMidway => {
                assert!(poll(future.as_mut()).is_pending());
                while world.remaining(&plan()).await == 10 {
                    assert!(poll(future.as_mut()).is_pending());
                    tokio::task::yield_now().await;
                }
                assert!(poll(future.as_mut()).is_pending());
                drop(future);
                None
            }
            Way::Fail => {
                assert!(future.as_mut().await.is_err());
                Some(future)
            }
            _ => {
                assert!(caught(future).await.is_err());
                None
            }
        };
        assert_eq!(
            world.settled().await,
            plan_settled(Correction::Refund(1)),
            "{way:?}"
        );
        drop(kept);
        world.clock.advance(Duration::from_secs(4));
    }
}

async fn last_word_counts_and_once(mut world: World) {
    let kept = Arc::new(Mutex::new(None));
    let layer = world.layer([plan().cost(5).key(Global).settle(failures_are_free)]);
    let app = layer.layer(service_fn({
        let kept = Arc::clone(&kept);
        move |request: Request<()>| {
            let word = word(&request);
            for units in [1, 8, 4] {
                word.set("plan", units);
            }
            word.set("nobody", 0);
            word.set("not a name", 0);
            *kept.lock().expect("nobody panics with it") = Some(word);
            future::ready(Ok::<_, Broken>(head(200, Frames::text("done"))))
        }
    }));
    read(ask(&app, request()).await).await;
    assert_eq!(world.settled().await, plan_settled(Correction::Refund(1)));
    let word = kept.lock().expect("nobody panics with it").take();
    word.expect("it was kept").set("plan", 0);
    assert_eq!(world.asked(), 1);
    assert_eq!(world.remaining(&plan()).await, 6);
}

// === When it is settled ===

async fn body_that_ended_and_is_dropped_is_settled_once(mut world: World) {
    let layer = world.layer([plan().key(Global).settle(failures_are_free)]);
    let response = ask(&layer.layer(answering(500)), request()).await;
    let mut body = response.into_body();
    while body.frame().await.is_some() {}
    assert_eq!(world.settled().await, plan_settled(Correction::Refund(1)));
    assert!(body.frame().await.is_none());
    drop(body);
    assert_eq!(world.asked(), 1);
    assert_eq!(world.remaining(&plan()).await, 10);
}

async fn body_dropped_half_way_is_settled_by_its_status(mut world: World) {
    let (heard, rule) = hearing();
    let layer = world.layer([rule]);
    for status in [200, 500] {
        let app = layer.layer(service_fn(move |_: Request<()>| {
            let body = Frames::of([Piece::Text("some"), Piece::Hang]);
            future::ready(Ok::<_, Broken>(head(status, body)))
        }));
        let mut body = ask(&app, request()).await.into_body();
        let first = body.frame().await.expect("there is some");
        assert!(first.is_ok());
        assert_eq!(world.asked(), usize::from(status == 500));
        drop(body);
        world.settled().await;
        let ended = Ended::Responded(status, BodyOutcome::ClientGone);
        assert_eq!(take(&heard), [ended]);
    }
    assert_eq!(world.remaining(&plan()).await, 9, "one was an answer");
}

async fn body_that_fails_is_settled(mut world: World) {
    let layer = world.layer([plan().key(Global).settle(|_: &CompletedRequest<'_>| 0)]);
    let app = layer.layer(service_fn(|_: Request<()>| async move {
        Ok::<_, Broken>(head(200, Frames::of([Piece::Text("some"), Piece::Fail])))
    }));
    let mut body = ask(&app, request()).await.into_body();
    assert!(body.frame().await.expect("a frame").is_ok());
    assert!(body.frame().await.expect("a failure").is_err());
    assert_eq!(world.settled().await, plan_settled(Correction::Refund(1)));
    drop(body);
    assert_eq!(world.asked(), 1);
}

async fn body_taken_out_is_settled_at_once(mut world: World) {
    let layer = world.layer([plan().key(Global).settle(|_: &CompletedRequest<'_>| 0)]);
    let response = ask(&layer.layer(answering(200)), request()).await;
    let inner = response.into_body().into_inner();
    assert_eq!(world.settled().await, plan_settled(Correction::Refund(1)));
    assert!(inner.is_some());
}

async fn client_that_hangs_up_in_the_body_is_settled(mut world: World) {
    let (heard, rule) = hearing();
    let address = serve(world.layer([rule])).await;
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let sent = stream.write_all(b"GET /stream HTTP/1.1\r\nhost: test\r\n\r\n");
    sent.await.expect("the server reads");
    let mut seen = Vec::new();
    while !seen.ends_with(b"some\r\n") {
        let read = stream.read_buf(&mut seen).await.expect("the server writes");
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
    }
    assert_eq!(world.asked(), 0);
    drop(stream);
    assert_eq!(world.settled().await, plan_settled(Correction::Keep));
    let ended = Ended::Responded(200, BodyOutcome::ClientGone);
    assert_eq!(take(&heard), [ended]);
}

async fn response_without_a_body_is_settled(mut world: World) {
    let (heard, rule) = hearing();
    let address = serve(world.layer([rule])).await;
    for request in ["GET /empty", "HEAD /stream", "GET /failing"] {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let text = format!("{request} HTTP/1.1\r\nhost: test\r\n\r\n");
        let sent = stream.write_all(text.as_bytes()).await;
        sent.expect("the server reads");
        world.settled().await;
    }
    let complete = |status| Ended::Responded(status, BodyOutcome::Complete);
    assert_eq!(take(&heard), [204, 200, 500].map(complete));
    assert_eq!(world.asked(), 3);
    assert_eq!(world.remaining(&plan()).await, 8);
}

async fn panic_in_the_handler_is_distinguished_from_a_client_that_left(mut world: World) {
    let (heard, rule) = hearing();
    let layer = world.layer([rule]);
    let late = layer.layer(service_fn(panicking));
    let early = layer.layer(service_fn(|_: Request<()>| -> future::Ready<Answered> {
        panic::resume_unwind(Box::new(()));
    }));
    let late = tokio::spawn(late.oneshot(request())).await;
    assert!(late.is_err_and(|error| error.is_panic()));
    world.settled().await;
    let early = tokio::spawn(early.oneshot(request())).await;
    assert!(early.is_err_and(|error| error.is_panic()));
    world.settled().await;
    assert_eq!(take(&heard), [Ended::Panicked, Ended::Panicked]);
    assert_eq!(world.remaining(&plan()).await, 10);
}

async fn panic_that_is_caught_inside_has_the_status_of_what_was_made_of_it(mut world: World) {
    let (heard, rule) = hearing();
    let layer = world.layer([rule]);
    let app = layer.layer(service_fn(|_: Request<()>| async move {
        let answered = caught(async { panic::resume_unwind(Box::new(())) }).await;
        assert!(answered.is_err());
        Ok::<_, Broken>(head(500, Frames::text("sorry")))
    }));
    read(ask(&app, request()).await).await;
    world.settled().await;
    let ended = Ended::Responded(500, BodyOutcome::Complete);
    assert_eq!(take(&heard), [ended]);
    assert_eq!(world.remaining(&plan()).await, 10);
}

async fn panic_that_is_caught_outside_is_reported_too(mut world: World) {
    let (heard, rule) = hearing();
    let layer = world.layer([rule]);
    let app = layer.layer(service_fn(panicking));
    assert!(caught(app.oneshot(request())).await.is_err());
    world.settled().await;
    assert_eq!(take(&heard), [Ended::Panicked]);
    assert_eq!(world.remaining(&plan()).await, 10);
}

async fn panic_in_the_body_has_the_status_of_its_head(mut world: World) {
    let (heard, rule) = hearing();
    let layer = world.layer([rule]);
    let app = layer.layer(service_fn(|_: Request<()>| async move {
        Ok::<_, Broken>(head(200, Frames::of([Piece::Text("some"), Piece::Panic])))
    }));
    let reading = async move { read(ask(&app, request()).await).await };
    let reading = tokio::spawn(reading).await;
    assert!(reading.is_err_and(|error| error.is_panic()));
    assert_eq!(world.settled().await, plan_settled(Correction::Keep));
    let ended = Ended::Responded(200, BodyOutcome::Panicked);
    assert_eq!(take(&heard), [ended]);
}

// Regression: it was asked again while its own panic, or the handler's, unwound, and that ended the process.
async fn panic_in_the_closure_leaves_the_charge_as_it_is(mut world: World) {
    let layer = world.layer([plan()
        .key(Global)
        .settle(|_: &CompletedRequest<'_>| -> u64 { panic::resume_unwind(Box::new(())) })]);
    let answered = caught(ask(&layer.layer(answering(200)), request())).await;
    read(answered.expect("the answer is nobody's fault")).await;
    assert_eq!(world.settled().await, plan_settled(Correction::Keep));
    let app = layer.layer(service_fn(panicking));
    assert!(caught(app.oneshot(request())).await.is_err());
    assert_eq!(world.settled().await, plan_settled(Correction::Keep));
    assert_eq!(world.remaining(&plan()).await, 8);
}

async fn error_of_the_handler_is_distinguished_from_a_client_that_left(mut world: World) {
    let (heard, rule) = hearing();
    let layer = world.layer([rule]);
    let app = layer.layer(service_fn(|_: Request<()>| {
        future::ready(Answered::Err(Broken))
    }));
    assert!(app.oneshot(request()).await.is_err());
    world.settled().await;
    assert_eq!(take(&heard), [Ended::Failed]);
    assert_eq!(world.remaining(&plan()).await, 10);
}

async fn client_that_leaves_while_the_handler_runs_is_charged(mut world: World) {
    let (heard, rule) = hearing();
    let (started, mut starts) = mpsc::unbounded_channel();
    let app = world.layer([rule]).layer(service_fn(move |_: Request<()>| {
        let started = started.clone();
        async move {
            started.send(()).expect("the test listens");
            future::pending::<Answered>().await
        }
    }));
    let mut future = Box::pin(app.oneshot(request()));
    tokio::select! {
        _ = &mut future => panic!("nobody answers"),
        _ = starts.recv() => {}
    }
    assert_eq!(world.remaining(&plan()).await, 9);
    assert_eq!(world.asked(), 0);
    drop(future);
    assert_eq!(world.settled().await, plan_settled(Correction::Keep));
    assert_eq!(take(&heard), [Ended::ClientGone]);
    assert_eq!(world.remaining(&plan()).await, 9);
}

// In process the decision is made by the call, so the handler has its request already.
#[tokio::test]
async fn client_that_leaves_before_the_first_poll_is_charged() {
    let mut world = World::in_process();
    let (heard, rule) = hearing();
    let mut app = world.layer([rule]).layer(answering(200));
    drop(app.ready().await.expect("it is ready").call(request()));
    assert_eq!(world.settled().await, plan_settled(Correction::Keep));
    assert_eq!(take(&heard), [Ended::ClientGone]);
    assert_eq!(world.remaining(&plan()).await, 9);
}

// Whether the charge was made nobody knows then, so nothing is put right: it may stand, and nothing is invented.
#[tokio::test]
async fn future_dropped_while_it_decides_is_not_settled() {
    let world = World::on_redis();
    let (heard, rule) = hearing();
    let app = world.layer([rule]).layer(answering(200));
    let server = world.server.as_ref().expect("it is on redis");
    // the connection stands, and the server knows the script
    assert_eq!(world.remaining(&plan()).await, 10);
    server.pause();
    let mut future = Box::pin(app.oneshot(request()));
    assert!(poll(future.as_mut()).is_pending());
    drop(future);
    server.resume();
    assert!((9..=10).contains(&world.remaining(&plan()).await));
    assert_eq!(take(&heard), []);
    assert_eq!(world.asked(), 0);
}

#[test]
fn in_process_it_needs_no_runtime() {
    let world = World::in_process();
    let layer = world.layer([plan().key(Global).settle(|_: &CompletedRequest<'_>| 0)]);
    let mut future = pin!(layer.layer(answering(200)).oneshot(request()));
    let Poll::Ready(Ok(response)) = poll(future.as_mut()) else {
        panic!("it answers at once");
    };
    drop(response);
    assert_eq!(world.asked(), 1);
    let Poll::Ready(remaining) = poll(pin!(world.remaining(&plan()))) else {
        panic!("it answers at once");
    };
    assert_eq!(remaining, 10);
}

// Reproducer of a hang that must not be: the settlement waits for a server that stands still, the answer does not.
#[tokio::test]
async fn response_does_not_wait_for_its_settlement() {
    let mut world = World::on_redis();
    let layer = world.layer([plan().key(Global).settle(|_: &CompletedRequest<'_>| 0)]);
    let server = Arc::new(world.server.take().expect("it is on redis"));
    let app = layer.layer(service_fn({
        let server = Arc::clone(&server);
        move |_: Request<()>| {
            server.pause();
            future::ready(Ok::<_, Broken>(head(200, Frames::text("done"))))
        }
    }));
    let answered = async { read(ask(&app, request()).await).await };
    // the store's own deadline is much longer
    let answered = time::timeout(PATIENCE / 4, answered).await;
    assert_eq!(answered.expect("the answer is not held back"), "done");
    assert_eq!(world.asked(), 1);
    server.resume();
    assert_eq!(world.settled().await, plan_settled(Correction::Refund(1)));
    assert_eq!(world.remaining(&plan()).await, 10);
}

// === What is not settled ===

async fn denied_request_is_not_settled(mut world: World) {
    let (heard, rule) = hearing();
    let layer = world.layer([rule]);
    let app = layer.layer(answering(200));
    for _ in 0..10 {
        read(ask(&app, request()).await).await;
        world.settled().await;
    }
    take(&heard);
    let response = ask(&app, request()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    read(response).await;
    assert_eq!(world.asked(), 10);
    assert_eq!(take(&heard), []);
}

async fn denial_by_another_policy_is_not_settled(world: World) {
    let (heard, rule) = hearing();
    let narrow = Policy::new("narrow", Quota::per_hour(1));
    let layer = world.layer([rule, narrow.key(Global).cost_by(|_| 2)]);
    let response = ask(&layer.layer(answering(500)), request()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    read(response).await;
    assert_eq!(world.asked(), 0);
    assert_eq!(take(&heard), []);
    assert_eq!(world.remaining(&plan()).await, 10);
}

async fn peek_is_not_settled(world: World) {
    let (heard, rule) = hearing();
    let layer = world.layer([rule.cost_by(|_| 0)]);
    read(ask(&layer.layer(answering(500)), request()).await).await;
    assert_eq!(world.asked(), 0);
    assert_eq!(take(&heard), []);
}

// Reproducer: a rule that was to charge failures only was built, and never charged anybody.
#[test]
fn settling_what_always_costs_nothing_is_refused_when_the_layer_is_built() {
    let failures = |request: &CompletedRequest<'_>| {
        u64::from(matches!(request.outcome, RequestOutcome::Failed))
    };
    let rule = || plan().cost(0).key(Global).settle(failures);
    let build = |rule| RateLimitLayer::builder().policy(rule).build();
    let error = build(rule()).expect_err("it can never charge");
    assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
    assert!(error.to_string().contains("\"plan\""), "{error}");
    for rule in [
        rule().cost_by(|_| 1),
        rule().cost_when(|_: &RequestHead| true, 1),
        plan().cost(0).key(Global),
    ] {
        assert!(build(rule).is_ok());
    }
}

async fn only_some_policies_of_a_layer_settle(mut world: World) {
    let firm = Policy::new("firm", Quota::per_hour(10)).cost(2);
    let half = Policy::new("half", Quota::per_hour(10)).cost(4);
    let layer = world.layer([
        firm.clone().key(Global),
        plan().cost(3).key(Global).settle(failures_are_free),
        half.clone()
            .key(Global)
            .settle(|request: &CompletedRequest<'_>| request.charged / 2),
    ]);
    read(ask(&layer.layer(answering(500)), request()).await).await;
    assert_eq!(
        world.settled_of(&["firm", "plan", "half"]).await,
        [
            ("firm".to_owned(), Correction::Keep),
            ("plan".to_owned(), Correction::Refund(3)),
            ("half".to_owned(), Correction::Refund(2)),
        ]
    );
    assert_eq!(world.remaining(&firm).await, 8);
    assert_eq!(world.remaining(&plan()).await, 10);
    assert_eq!(world.remaining(&half).await, 8);
}

// Reproducer: the handler's word was heeded by every policy of a layer of which one settles.
async fn policy_that_does_not_settle_does_not_heed_the_handlers_word(mut world: World) {
    let firm = Policy::new("firm", Quota::per_hour(10)).cost(2);
    let layer = world.layer([
        firm.clone().key(Global),
        plan().key(Global).settle(failures_are_free),
    ]);
    let app = layer.layer(service_fn(|request: Request<()>| async move {
        let word = word(&request);
        word.set("firm", 0);
        word.set("plan", 3);
        Ok::<_, Broken>(head(200, Frames::text("done")))
    }));
    read(ask(&app, request()).await).await;
    world.settled_of(&["firm", "plan"]).await;
    assert_eq!(world.remaining(&plan()).await, 7);
    assert_eq!(world.remaining(&firm).await, 8);
}

// Reproducer: the inner layer's handle took the place of the outer one's, which then heard nothing.
async fn handler_can_speak_to_the_layers_outside_too(mut world: World) {
    let inner = Policy::new("inner", Quota::per_hour(10)).cost(4);
    let outside = world.layer([plan().cost(5).key(Global).settle(failures_are_free)]);
    let inside = world.layer([inner.clone().key(Global).settle(failures_are_free)]);
    let handler = service_fn(|request: Request<()>| async move {
        let word = word(&request);
        word.set("plan", 1);
        word.set("inner", 2);
        Ok::<_, Broken>(head(200, Frames::text("done")))
    });
    let app = outside.layer(inside.layer(handler));
    let mut body = ask(&app, request()).await.into_body();
    while let Some(Ok(_)) = body.frame().await {}
    drop(body);
    world.settled().await;
    world.settled().await;
    assert_eq!(world.remaining(&inner).await, 8);
    assert_eq!(world.remaining(&plan()).await, 9);
}

// Regression: the cost of a misspelled policy was silently that which was charged.
#[tokio::test]
async fn cost_of_a_policy_that_no_layer_settles_is_reported_once() {
    let world = World::in_process();
    let firm = Policy::new("firm", Quota::per_hour(10));
    let outside = world.layer([plan().key(Global).settle(failures_are_free)]);
    let inside = world.layer([
        firm.key(Global),
        Policy::new("inner", Quota::per_hour(10))
            .key(Global)
            .settle(failures_are_free),
    ]);
    for (names, is_reported) in [
        (&["plan", "inner"][..], false),
        (&["plna", "firm", "not a name", "inner"], true),
        (&["plna"], true),
    ] {
        let handler = service_fn(|request: Request<()>| {
            for name in names {
                word(&request).set(name, 1);
            }
            future::ready(Ok::<_, Broken>(head(200, Frames::text("done"))))
        });
        read(ask(&outside.layer(inside.layer(handler)), request()).await).await;
        let warnings = outside.warnings();
        assert_eq!(warnings.len(), usize::from(is_reported), "{warnings:?}");
        assert_eq!(inside.warnings(), []);
    }
    let warning = &outside.warnings()[0];
    assert_eq!(warning.code(), Code::UnsettledPolicy);
    assert_eq!(
        warning.detail(),
        r#"a handler set the cost of policy "plna", and the layers around it settle "plan", "inner""#
    );
    // without a layer, as in the test of a handler
    ActualCost::default().set("plna", 1);
}

async fn refund_after_the_window_has_passed_gives_nothing(mut world: World) {
    for algorithm in ALGORITHMS {
        let name = algorithm.name();
        let policy = Policy::new(name, Quota::per_minute(10)).algorithm(algorithm);
        let layer = world.layer([policy
            .clone()
            .key(Global)
            .cost_by(header)
            .settle(|_: &CompletedRequest<'_>| 0)]);
        let app = layer.layer(answering(200));
        let early = ask(&app, costing(6)).await;
        world.clock.advance(Duration::from_secs(240));
        let late = ask(&app, costing(7)).await;
        let left = world.usage(&policy, Key::GLOBAL).await;
        read(early).await;
        world.settled().await;
        assert_eq!(world.usage(&policy, Key::GLOBAL).await, left, "{name}");
        read(late).await;
        world.settled().await;
        assert_eq!(world.remaining(&policy).await, 10, "{name}");
    }
}

async fn refund_later_gives_what_the_charge_still_weighs(mut world: World) {
    let layer = world.layer([plan()
        .cost(6)
        .key(Global)
        .settle(|_: &CompletedRequest<'_>| 0)]);
    let app = layer.layer(answering(200));
    let early = ask(&app, request()).await;
    world.clock.advance(Duration::from_secs(4));
    let late = ask(&app, request()).await;
    assert_eq!(world.remaining(&plan()).await, 2, "10 - 6 + 4 - 6");
    read(early).await;
    world.settled().await;
    assert_eq!(
        world.remaining(&plan()).await,
        4,
        "two of six were left of it"
    );
    read(late).await;
    world.settled().await;
    assert_eq!(world.remaining(&plan()).await, 10);
}

async fn refund_after_a_reset_gives_nothing(mut world: World) {
    for algorithm in ALGORITHMS {
        let name = algorithm.name();
        let policy = Policy::new(name, Quota::per_hour(10)).algorithm(algorithm);
        let layer = world.layer([policy
            .clone()
            .key(Global)
            .settle(|_: &CompletedRequest<'_>| 0)]);
        let response = ask(&layer.layer(answering(200)), request()).await;
        let reset = layer.limiter().reset(&policy, &Key::GLOBAL).await;
        reset.expect("it is reset");
        read(response).await;
        world.settled().await;
        let usage = world.usage(&policy, Key::GLOBAL).await;
        assert_eq!(usage.remaining, 10, "{name}");
    }
}

#[tokio::test]
async fn layer_without_settling_gives_the_handler_a_decision_and_no_more() {
    let queue = Algorithm::LeakyQueue(QueueLimits::new(5, Duration::MAX));
    for (policy, left) in [(plan(), 9), (plan().algorithm(queue), 14)] {
        let world = World::in_process();
        let app = world.layer([policy.clone().key(Global)]).layer(service_fn(
            |request: Request<()>| async move {
                assert!(request.extensions().get::<Decision>().is_some());
                assert!(ActualCost::from_extensions(request.extensions()).is_none());
                assert_eq!(request.extensions().len(), 1);
                Ok::<_, Broken>(head(500, Frames::text("done")))
            },
        ));
        read(ask(&app, request()).await).await;
        assert_eq!(world.remaining(&policy).await, left);
    }
}

// Reproducer: a handler that takes the handle got 500 for it wherever its request was charged nothing.
#[tokio::test]
async fn handler_may_speak_of_the_cost_of_a_request_that_is_charged_nothing() {
    type Setup = fn(RateLimitLayerBuilder, Rule) -> RateLimitLayerBuilder;
    let setups: [(&str, Setup); 8] = [
        ("skipped", |builder, rule| {
            builder.skip(|_: &RequestHead| true).policy(rule)
        }),
        ("not counted", |builder, rule| {
            builder.policy(rule.unless(|_: &RequestHead| true))
        }),
        ("of an unlimited tier", |builder, rule| {
            let tier = |_: &RequestHead, _: &Key| Some(Tier::unlimited());
            builder.policy(rule.tier_by(tier))
        }),
        ("without a key", |builder, _| {
            let rule = plan().key(Header::new("x-nobody"));
            let rule = rule.settle(failures_are_free);
            builder.policy(rule.on_missing_key(OnMissingKey::Skip))
        }),
        ("not counted beside one in flight", |builder, rule| {
            let slot = Policy::concurrency("slot", 1).key(Global);
            builder
                .policy(slot)
                .policy(rule.unless(|_: &RequestHead| true))
        }),
        ("a peek", |builder, rule| {
            builder.policy(rule.cost_by(|_| 0))
        }),
        ("counted by nobody", |builder, rule| {
            builder.store(uncounted()).policy(rule)
        }),
        ("counted by nobody, later", |builder, rule| {
            builder.store(uncounted().later()).policy(rule)
        }),
    ];
    for (why, setup) in setups {
        let rule = plan().key(Global).settle(failures_are_free);
        let layer = setup(RateLimitLayer::builder(), rule).build();
        let handler = get(async |cost: ActualCost| {
            cost.set("plan", 3);
            "done"
        });
        let app = Router::new().route("/", handler);
        let app = app.layer(layer.expect("it is well set up"));
        let response = app.oneshot(Request::new(Body::empty())).await;
        let response = response.expect("a router does not fail");
        assert_eq!(response.status(), StatusCode::OK, "{why}");
    }
}

/// Lets everything pass uncounted.
fn uncounted() -> ScriptedStore {
    ScriptedStore::new(|charges| {
        let state =
            |charge: &Charge<'_>| PolicyState::uncounted(*charge.policy().name(), Outcome::Allowed);
        let states = charges.iter().map(state);
        let now = Timestamp::from_micros(0);
        StoreFuture::ready(Ok(Decision::new(CountedBy::Uncounted, now, states)))
    })
}

// Reproducer: a failed request kept its slot for as long as its future was kept.
#[tokio::test]
async fn failure_of_the_handler_is_settled_before_the_future_is_dropped() {
    let mut world = World::in_process();
    let slot = Policy::concurrency("slot", 1);
    let layer = world.layer([slot.clone().key(Global)]);
    let app = layer.layer(service_fn(|_: Request<()>| async { Answered::Err(Broken) }));
    let mut failing = pin!(app.clone().oneshot(request()));
    assert!(failing.as_mut().await.is_err());
    assert_eq!(
        world.settled().await,
        [("slot".to_owned(), Correction::Release)]
    );
    assert_eq!(world.remaining(&slot).await, 1);
}

// === Stores that cannot ===

#[tokio::test]
async fn store_that_cannot_settle_is_reported_once_and_no_clients_business() {
    logged();
    let memory = MemoryStore::new();
    let store = ScriptedStore::new(move |charges| memory.decide(charges));
    let mut world = World::over(store, Clock::system(), None);
    let layer = world.layer([plan().key(Global).settle(|_: &CompletedRequest<'_>| 0)]);
    for _ in 0..5 {
        let response = ask(&layer.layer(answering(200)), request()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(read(response).await, "done");
        let settled = world.settled_or_not().await;
        assert_eq!(settled, Err(ErrorKind::InvalidConfig));
    }
    let lines = logged();
    let [line] = lines.as_slice() else {
        panic!("it is said once: {lines:?}");
    };
    assert!(
        line.contains("WARN") && line.contains("could not be settled"),
        "{line}"
    );
    assert_eq!(world.remaining(&plan()).await, 5);
}

// === Outages ===

/// Redis with a breaker before it and a store in process behind.
struct Outage {
    server: Server,
    shared: RedisStore,
    local: MemoryStore,
    world: World,
}

impl Outage {
    fn new() -> Self {
        let server = Server::start();
        let deadline = Duration::from_millis(250);
        let shared = RedisStore::builder(server.url()).deadline(deadline).build();
        let shared = shared.expect("a usable store");
        let local = MemoryStore::new();
        let store = ResilientStore::builder(shared.clone(), local.clone())
            .deadline(deadline)
            .build();
        let world = World::over(store.expect("a usable store"), Clock::system(), None);
        Self {
            server,
            shared,
            local,
            world,
        }
    }

    async fn begin(&self) {
        self.server.pause();
        let other = Policy::new("other", Quota::per_second(1_000));
        let began = Instant::now();
        while !self.world.store.health().is_degraded() {
            let decided = self.world.store.decide(&[other.charge(Key::GLOBAL)]).await;
            assert!(decided.is_ok());
            assert!(began.elapsed() < PATIENCE, "it is never given up");
        }
    }

    async fn end(&self) {
        self.server.resume();
        let ended = Instant::now();
        while self.world.store.health().is_degraded() {
            time::sleep(Duration::from_millis(1)).await;
            assert!(ended.elapsed() < PATIENCE, "it never comes back");
        }
    }
}

/// As [`plan`], and so slow that nothing comes back while a test runs.
fn slow_plan() -> Policy {
    Policy::new("plan", Quota::per_day(10))
}

async fn left_in(store: impl Store) -> u64 {
    let decided = store
        .decide(&[slow_plan().charge(Key::GLOBAL).cost(0)])
        .await;
    let usage = decided.expect("it answers").states()[0].usage();
    usage.expect("it is counted").remaining
}

// Regression: the charge stood, and a price above it was lost.
#[tokio::test]
async fn charge_of_a_store_that_is_away_is_settled_after_the_outage() {
    let mut outage = Outage::new();
    let layer = outage
        .world
        .layer([slow_plan().key(Global).settle(|_: &CompletedRequest<'_>| 0)]);
    let app = layer.layer(service_fn(|request: Request<()>| async move {
        let decision = request.extensions().get::<Decision>();
        let counted_by = decision.expect("it was decided").counted_by();
        assert_eq!(counted_by, CountedBy::Shared);
        Ok::<_, Broken>(head(200, Frames::text("done")))
    }));
    let responses = [ask(&app, request()).await, ask(&app, request()).await];
    outage.begin().await;
    logged();
    for response in responses {
        assert_eq!(read(response).await, "done");
        let settled = outage.world.settled_or_not().await;
        assert_eq!(settled, Err(ErrorKind::Unavailable));
    }
    let lines = logged();
    let said = |line: &&String| line.contains("could not be settled");
    assert_eq!(lines.iter().filter(said).count(), 0, "{lines:?}");
    outage.end().await;
    while left_in(outage.shared.clone()).await != 10 {}
    assert_eq!(left_in(outage.local).await, 10);
}

#[tokio::test]
async fn charge_counted_in_process_is_settled_there_even_after_the_outage() {
    let mut outage = Outage::new();
    let layer = outage
        .world
        .layer([slow_plan().key(Global).settle(|_: &CompletedRequest<'_>| 0)]);
    let app = layer.layer(service_fn(|request: Request<()>| async move {
        let decision = request.extensions().get::<Decision>();
        let counted_by = decision.expect("it was decided").counted_by();
        assert_eq!(counted_by, CountedBy::Fallback);
        Ok::<_, Broken>(head(200, Frames::text("done")))
    }));
    outage.begin().await;
    let during = ask(&app, request()).await;
    let after = ask(&app, request()).await;
    assert_eq!(left_in(outage.local.clone()).await, 8);
    read(during).await;
    outage.world.settled().await;
    assert_eq!(left_in(outage.local.clone()).await, 9);
    outage.end().await;
    read(after).await;
    outage.world.settled().await;
    assert_eq!(left_in(outage.local).await, 10);
    assert_eq!(left_in(outage.shared).await, 10);
}

// === Ten thousand requests ===

/// What becomes of a request that is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answer(u16),
    Break,
    LeaveBody(u16),
    LeaveHandler,
    Panic,
    PanicInBody,
    Say(u64),
}

impl Fate {
    fn any(random: &mut Random) -> Self {
        match random.below(100) {
            0..35 => Self::Answer(200),
            35..50 => Self::Answer(500),
            50..56 => Self::Break,
            56..63 => Self::LeaveBody(200),
            63..68 => Self::LeaveBody(503),
            68..76 => Self::LeaveHandler,
            76..82 => Self::Panic,
            82..88 => Self::PanicInBody,
            _ => Self::Say(random.below(8)),
        }
    }

    fn status(self) -> Option<u16> {
        match self {
            Self::Answer(status) | Self::LeaveBody(status) => Some(status),
            Self::PanicInBody | Self::Say(_) => Some(200),
            Self::Break | Self::LeaveHandler | Self::Panic => None,
        }
    }

    /// What is to be settled by the policy of this name.
    fn price(self, policy: &str, charged: u64) -> u64 {
        let failed = match self {
            // The client's doing.
            Self::LeaveHandler => false,
            _ => self.status().is_none_or(|status| status >= 500),
        };
        match (policy, self) {
            ("tokens", Self::Say(units)) => units,
            ("tokens" | "log", _) if failed => 0,
            ("window" | "slide", _) if failed => charged / 2,
            _ => charged,
        }
    }
}

/// A request that was admitted and has not ended.
enum Open {
    Body(ResponseBody<Frames>),
    Handler(Pin<Box<dyn Future<Output = Limited>>>),
    /// It ended by itself.
    Nothing,
}

#[derive(Debug, Default)]
struct Totals {
    requests: u64,
    denied: u64,
    failed: u64,
    disconnected: u64,
    panicked: u64,
    refunds: u64,
    refunded: u64,
    extras: u64,
    extra: u64,
}

async fn ten_thousand_requests_leave_as_much_as_in_the_model(mut world: World) {
    let policies = [
        Policy::new("tokens", Quota::per_minute(70).burst(30)),
        Policy::new("window", Quota::new(300, Duration::from_secs(240)))
            .algorithm(Algorithm::FixedWindow(WindowStart::FirstHit)),
        Policy::new("slide", Quota::new(300, Duration::from_secs(240)))
            .algorithm(Algorithm::SlidingWindow),
        Policy::new("log", Quota::new(300, Duration::from_secs(240)))
            .algorithm(Algorithm::SlidingLog),
        Policy::new("firm", Quota::per_second(2).burst(60)),
    ];
    let rule = |policy: &Policy| {
        let rule = policy.clone().key(Header::new("x-key")).cost_by(header);
        match policy.name().as_str() {
            "tokens" | "log" => rule.settle(failures_are_free),
            "firm" => rule,
            _ => rule.settle(|request: &CompletedRequest<'_>| {
                let is_failure = failures_are_free(request) == 0;
                request.charged / if is_failure { 2 } else { 1 }
            }),
        }
    };
    let layer = world.layer(policies.iter().map(rule));
    let (started, mut starts) = mpsc::unbounded_channel();
    let app = layer.layer(service_fn(move |request: Request<()>| {
        meet(request, started.clone())
    }));
    let keys: Vec<String> = (0..6).map(|key| format!("key-{key}")).collect();
    let mut model = Model::new(&policies);
    let mut random = Random(SEED);
    let mut totals = Totals::default();
    let mut open: Vec<(Open, Fate, Vec<Made>)> = Vec::new();
    for _ in 0..10_000 {
        world
            .clock
            .advance(Duration::from_micros(random.below(300_000)));
        let key = &keys[random.below(6) as usize];
        let (cost, fate) = (1 + random.below(5), Fate::any(&mut random));
        let mut request = Request::get("/")
            .header("x-key", key)
            .header("x-cost", cost)
            .body(())
            .expect("it is well formed");
        request.extensions_mut().insert(fate);
        let expected = model.decide(world.clock.now(), key, cost);
        let mut future = Box::pin(app.clone().oneshot(request));
        let answered = tokio::select! {
            biased;
            answered = caught(&mut future) => Some(answered),
            _ = starts.recv() => None,
        };
        let state = match answered {
            Some(Ok(Ok(response))) => {
                let is_denied = response.status() == StatusCode::TOO_MANY_REQUESTS;
                assert_eq!(is_denied, expected.is_none(), "request {}", totals.requests);
                Open::Body(response.into_body())
            }
            Some(_) => {
                drop(future);
                Open::Nothing
            }
            None => Open::Handler(future),
        };
        totals.requests += 1;
        let Some(made) = expected else {
            totals.denied += 1;
            continue;
        };
        totals.failed += u64::from(fate.status().is_some_and(|status| status >= 500));
        totals.panicked += u64::from(matches!(fate, Fate::Panic | Fate::PanicInBody));
        totals.disconnected += u64::from(matches!(fate, Fate::LeaveHandler | Fate::LeaveBody(_)));
        if matches!(state, Open::Nothing) {
            settle(&mut world, &mut model, fate, &made, &mut totals).await;
        } else {
            open.push((state, fate, made));
        }
        if open.len() > 20 || random.below(3) > 0 && !open.is_empty() {
            let chosen = random.below(open.len() as u64) as usize;
            let (state, fate, made) = open.swap_remove(chosen);
            end(state, fate).await;
            settle(&mut world, &mut model, fate, &made, &mut totals).await;
        }
    }
    for (state, fate, made) in open {
        end(state, fate).await;
        settle(&mut world, &mut model, fate, &made, &mut totals).await;
    }
    println!("seed {SEED}: {totals:?}");
    let admitted = totals.requests - totals.denied;
    assert_eq!(world.asked() as u64, admitted * policies.len() as u64);
    for policy in &policies {
        for key in &keys {
            let usage = world.usage(policy, Key::new(key)).await;
            let expected = model.usage(world.clock.now(), policy, key);
            assert_eq!(usage, expected, "{} of {key}", policy.name());
        }
    }
}

/// What the handler does with a request, by its fate.
async fn meet(request: Request<()>, started: mpsc::UnboundedSender<()>) -> Answered {
    let fate = *request.extensions().get::<Fate>().expect("it has one");
    let status = fate.status().unwrap_or_default();
    let text = Piece::Text("some");
    Ok(match fate {
        Fate::Answer(_) => head(status, Frames::of([text])),
        Fate::Break => return Err(Broken),
        Fate::LeaveBody(_) => head(status, Frames::of([text, Piece::Hang])),
        Fate::LeaveHandler => {
            started.send(()).expect("the test listens");
            future::pending().await
        }
        Fate::Panic => panic::resume_unwind(Box::new(())),
        Fate::PanicInBody => head(status, Frames::of([text, Piece::Panic])),
        Fate::Say(units) => {
            let says = Piece::Say(word(&request), units);
            head(status, Frames::of([text, says]))
        }
    })
}

/// Ends a request by its fate.
async fn end(state: Open, fate: Fate) {
    match state {
        Open::Body(mut body) if matches!(fate, Fate::LeaveBody(_)) => {
            assert!(body.frame().await.is_some());
        }
        Open::Body(body) => {
            let read = caught(body.collect()).await;
            assert_eq!(read.is_err(), fate == Fate::PanicInBody);
        }
        Open::Handler(future) => drop(future),
        Open::Nothing => {}
    }
}

/// Waits for what is settled in the world, and settles the same in the model.
async fn settle(
    world: &mut World,
    model: &mut Model,
    fate: Fate,
    made: &[Made],
    totals: &mut Totals,
) {
    let policies: Vec<_> = made.iter().map(|made| made.policy.as_str()).collect();
    let settled = world.settled_of(&policies).await;
    let now = world.clock.now();
    assert_eq!(settled.len(), made.len());
    for ((policy, correction), made) in settled.iter().zip(made) {
        assert_eq!(*policy, made.policy);
        let expected = model.settle(now, made, fate.price(policy, made.units));
        assert_eq!(*correction, expected, "{policy} {fate:?}");
        match *correction {
            Correction::Charge(units) => {
                totals.extras += 1;
                totals.extra += units;
            }
            Correction::Refund(units) => {
                totals.refunds += 1;
                totals.refunded += units;
            }
            _ => {}
        }
    }
}

// === Model ===

/// A charge that was made: to be settled by what it was and by what it is known.
struct Made {
    policy: String,
    key: String,
    units: u64,
    mark: RefundToken,
}

/// The state of one key.
#[derive(Debug)]
enum State {
    Bucket(BucketState),
    FixedWindow(WindowState),
    SlidingLog(LogState),
    SlidingWindow(SlidingState),
}

macro_rules! counted {
    ($counter:expr, $state:expr, ($name:ident, $held:ident) => $body:expr) => {
        match ($counter, $state) {
            (Counter::Bucket($name), State::Bucket($held)) => $body,
            (Counter::FixedWindow($name), State::FixedWindow($held)) => $body,
            (Counter::SlidingLog($name), State::SlidingLog($held)) => $body,
            (Counter::SlidingWindow($name), State::SlidingWindow($held)) => $body,
            (counter, state) => panic!("{counter:?} cannot count {state:?}"),
        }
    };
}

impl State {
    fn fresh(counter: &Counter) -> Self {
        match counter {
            Counter::Bucket(_) => Self::Bucket(BucketState::default()),
            Counter::FixedWindow(_) => Self::FixedWindow(WindowState::default()),
            Counter::SlidingLog(_) => Self::SlidingLog(LogState::default()),
            Counter::SlidingWindow(_) => Self::SlidingWindow(SlidingState::default()),
            other => panic!("a counter that this test does not know: {other:?}"),
        }
    }
}

/// The pure arithmetic, on a state per policy and key.
struct Model {
    counters: Vec<(String, Counter)>,
    states: HashMap<(String, String), State>,
    /// What was taken back at each key.
    returned: HashMap<(String, String), Refunded>,
}

impl Model {
    fn new(policies: &[Policy]) -> Self {
        let named = |policy: &Policy| (policy.name().to_string(), *policy.counter());
        Self {
            counters: policies.iter().map(named).collect(),
            states: HashMap::new(),
            returned: HashMap::new(),
        }
    }

    fn at(&mut self, policy: &str, key: &str) -> (Counter, &mut State) {
        let mut counters = self.counters.iter();
        let counter = counters
            .find(|(name, _)| name == policy)
            .expect("it is known")
            .1;
        let place = (policy.to_owned(), key.to_owned());
        let state = self.states.entry(place);
        (counter, state.or_insert_with(|| State::fresh(&counter)))
    }

    /// The charges that are made; `None` when one does not fit.
    fn decide(&mut self, now: Timestamp, key: &str, cost: u64) -> Option<Vec<Made>> {
        let policies: Vec<String> = self.counters.iter().map(|(name, _)| name.clone()).collect();
        let fits = policies.iter().all(|policy| {
            let (counter, state) = self.at(policy, key);
            counted!(&counter, state, (counter, state) => counter.admits(state, now, cost))
        });
        let make = |policy: String| {
            let (counter, state) = self.at(&policy, key);
            let usage = counted!(&counter, state, (counter, state) => {
                counter.charge(state, now, cost);
                counter.usage(state, now)
            });
            let place = (policy.clone(), key.to_owned());
            let returned = self
                .returned
                .get(&place)
                .map_or(0, |returned| returned.total);
            Made {
                policy,
                key: key.to_owned(),
                units: cost,
                mark: RefundToken {
                    reset_at: usage.reset_at,
                    refunded_before: returned,
                },
            }
        };
        fits.then(|| policies.into_iter().map(make).collect())
    }

    fn settle(&mut self, now: Timestamp, made: &Made, price: u64) -> Correction {
        let place = (made.policy.clone(), made.key.clone());
        let mut returned = self.returned.remove(&place).unwrap_or_default();
        let (counter, state) = self.at(&made.policy, &made.key);
        let correction = counted!(&counter, state, (counter, state) => {
            if price > made.units {
                counter.force_charge(state, now, price - made.units);
                Correction::Charge(price - made.units)
            } else if price < made.units {
                counter.refund(state, &mut returned, now, made.mark, made.units - price);
                Correction::Refund(made.units - price)
            } else {
                Correction::Keep
            }
        });
        self.returned.insert(place, returned);
        correction
    }

    fn usage(&mut self, now: Timestamp, policy: &Policy, key: &str) -> tollgate::decision::Usage {
        let (counter, state) = self.at(policy.name().as_str(), key);
        counted!(&counter, state, (counter, state) => counter.usage(state, now))
    }
}

// === Frames ===

/// What a body does when it is asked for its next frame.
enum Piece {
    Fail,
    Hang,
    Panic,
    Say(ActualCost, u64),
    Text(&'static str),
}

/// A body of such pieces.
struct Frames(VecDeque<Piece>);

impl Frames {
    fn of<const N: usize>(pieces: [Piece; N]) -> Self {
        Self(pieces.into())
    }

    fn text(text: &'static str) -> Self {
        Self::of([Piece::Text(text)])
    }
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        while let Some(piece) = self.0.pop_front() {
            return match piece {
                Piece::Fail => Poll::Ready(Some(Err(io::Error::other("it was told to fail")))),
                Piece::Hang => {
                    self.0.push_front(Piece::Hang);
                    Poll::Pending
                }
                Piece::Panic => panic::resume_unwind(Box::new(())),
                Piece::Say(word, units) => {
                    word.set("plan", units);
                    word.set("tokens", units);
                    continue;
                }
                Piece::Text(text) => Poll::Ready(Some(Ok(Frame::data(Bytes::from(text))))),
            };
        }
        Poll::Ready(None)
    }
}

/// Tells the cost when it is dropped, and panics then if it is to.
struct Guard {
    word: ActualCost,
    units: u64,
    panics: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.word.set("plan", self.units);
        if self.panics {
            panic::resume_unwind(Box::new(()));
        }
    }
}

/// Frames with a guard that is dropped with them.
struct Guarded {
    frames: Frames,
    _guard: Guard,
}

impl http_body::Body for Guarded {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.frames).poll_frame(context)
    }
}

// === Services and requests ===

type Answered = Result<Response<Frames>, Broken>;
/// What the layer makes of it.
type Limited = Result<Response<ResponseBody<Frames>>, Broken>;

/// An error of the inner service.
#[derive(Debug)]
struct Broken;

fn head(status: u16, body: Frames) -> Response<Frames> {
    let response = Response::builder().status(status).body(body);
    response.expect("it is well formed")
}

fn answering(
    status: u16,
) -> impl Service<Request<()>, Response = Response<Frames>, Error = Broken, Future: Send> + Clone + Send
{
    service_fn(move |_: Request<()>| {
        future::ready(Ok::<_, Broken>(head(status, Frames::text("done"))))
    })
}

async fn panicking(_: Request<()>) -> Answered {
    tokio::task::yield_now().await;
    panic::resume_unwind(Box::new(()));
}

fn request() -> Request<()> {
    Request::new(())
}

fn costing(units: u64) -> Request<()> {
    let request = Request::get("/").header("x-cost", units).body(());
    request.expect("it is well formed")
}

/// What the head says that a request costs.
fn header(head: &RequestHead) -> u64 {
    let text = head.headers["x-cost"].to_str().expect("it is text");
    text.parse().expect("it is a number")
}

/// The handler's handle.
#[track_caller]
fn word(request: &Request<()>) -> ActualCost {
    ActualCost::from_extensions(request.extensions()).expect("it is settled")
}

async fn ask<S, B>(service: &S, request: Request<()>) -> Response<B>
where
    S: Service<Request<()>, Response = Response<B>, Error = Broken> + Clone,
{
    service.clone().oneshot(request).await.expect("it answers")
}

async fn read<B>(response: Response<B>) -> String
where
    B: http_body::Body<Error: std::fmt::Debug>,
{
    let collected = response.into_body().collect().await;
    let bytes = collected.expect("the body is whole").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("the body is text")
}

/// A server with a stream that never ends, an empty answer and a failure.
async fn serve(layer: RateLimitLayer) -> std::net::SocketAddr {
    let app = Router::new()
        .route(
            "/stream",
            get(async || Body::new(Frames::of([Piece::Text("some"), Piece::Hang]))),
        )
        .route("/empty", get(async || StatusCode::NO_CONTENT))
        .route(
            "/failing",
            get(async |_: ActualCost| StatusCode::INTERNAL_SERVER_ERROR),
        )
        .layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Polls a future, and tells whether it panicked.
async fn caught<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    future::poll_fn(|context| {
        let poll = AssertUnwindSafe(|| future.as_mut().poll(context));
        match panic::catch_unwind(poll) {
            Ok(poll) => poll.map(Ok),
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    })
    .await
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

// === Policies ===

/// One unit a second, ten at once.
fn plan() -> Policy {
    Policy::new("plan", Quota::per_hour(3_600).burst(10))
}

fn plan_settled(correction: Correction) -> Vec<(String, Correction)> {
    vec![("plan".to_owned(), correction)]
}

fn failures_are_free(request: &CompletedRequest<'_>) -> u64 {
    match request.outcome {
        RequestOutcome::Failed | RequestOutcome::Panicked => 0,
        RequestOutcome::Responded { status, .. } if status.is_server_error() => 0,
        _ => request.charged,
    }
}

/// How a request ended, as a closure heard it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ended {
    ClientGone,
    Failed,
    Panicked,
    Responded(u16, BodyOutcome),
}

impl Ended {
    fn of(outcome: RequestOutcome<'_>) -> Self {
        match outcome {
            RequestOutcome::ClientGone => Self::ClientGone,
            RequestOutcome::Failed => Self::Failed,
            RequestOutcome::Panicked => Self::Panicked,
            RequestOutcome::Responded { status, body, .. } => Self::Responded(status.into(), body),
            other => panic!("an outcome that this test does not know: {other:?}"),
        }
    }
}

type Heard = Arc<Mutex<Vec<Ended>>>;

/// A plan under which failures are free, and how its closure heard that requests ended.
fn hearing() -> (Heard, Rule) {
    let heard = Heard::default();
    let rule = plan().key(Global).settle({
        let heard = Arc::clone(&heard);
        move |request: &CompletedRequest<'_>| {
            let ended = Ended::of(request.outcome);
            heard.lock().expect("nobody panics with it").push(ended);
            failures_are_free(request)
        }
    });
    (heard, rule)
}

fn take(heard: &Heard) -> Vec<Ended> {
    std::mem::take(&mut heard.lock().expect("nobody panics with it"))
}

const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::FixedWindow(WindowStart::Clock),
    Algorithm::FixedWindow(WindowStart::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::TokenBucket,
];
const SEED: u64 = 20_261_120;
const WORK: Duration = Duration::from_millis(20);
