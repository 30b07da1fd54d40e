//! Calls of services that speak no HTTP: who is called, when, with what, and what is held for how long.

use std::{
    cell::RefCell,
    future::{self, Future, Ready},
    pin::pin,
    rc::Rc,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{self, Instant};
use tollgate::{
    Decision, ErrorKind, Hold, Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, QueueLimits},
    call::{
        CallFuture, CallLimit, CallLimitLayer, CallLimitLayerBuilder, CallOutcome, CallRule,
        CompletedCall,
    },
    clock::{Clock, Timestamp},
    diagnosis::{Code, Warning},
    extract::Extracted,
    memory::MemoryStore,
    rejection::{Reason, Rejection},
    rules::{OnMissingKey, RuleMode},
    testing::ScriptedStore,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimit, service_fn};

// === Deciding ===

#[tokio::test]
async fn denied_call_gets_what_the_closure_makes_of_its_request() {
    for limiter in limiters() {
        let layer = CallLimitLayer::builder(&limiter, deny)
            .policy(minute(2).key_of(|call: &Call| Some(Key::new(call.who))))
            .build()
            .expect("it is well set up");
        let mut service = layer.layer(Echo);
        assert_eq!(ask(&mut service, call("ada")).await, Ok("ada".to_owned()));
        assert_eq!(ask(&mut service, call("ada")).await, Ok("ada".to_owned()));
        assert_eq!(
            ask(&mut service, call("ada")).await,
            Err("ada: rate limit p exceeded, retry in 30 seconds".to_owned())
        );
        assert_eq!(ask(&mut service, call("bob")).await, Ok("bob".to_owned()));
    }
}

#[tokio::test]
async fn denial_may_be_a_response_too() {
    let limiter = in_process();
    let layer = CallLimitLayer::builder(&limiter, |call: Call, _: &Rejection| {
        Ok::<_, String>(format!("later, {}", call.who))
    });
    let layer = layer
        .policy(minute(1).key_of(everybody))
        .build()
        .expect("it is well set up");
    let mut service = layer.layer(Echo);
    assert_eq!(ask(&mut service, call("ada")).await, Ok("ada".to_owned()));
    let answer = ask(&mut service, call("bob")).await;
    assert_eq!(answer, Ok("later, bob".to_owned()));
}

#[tokio::test]
async fn policies_of_a_call_are_decided_together() {
    for limiter in limiters() {
        let narrow = Policy::new("narrow", Quota::per_minute(1));
        let wide = Policy::new("wide", Quota::per_minute(10));
        let layer = CallLimitLayer::builder(&limiter, deny)
            .policy(wide.clone().key_of(everybody))
            .policy(narrow.key_of(|call: &Call| Some(Key::new(call.who))))
            .build()
            .expect("it is well set up");
        let mut service = layer.layer(Echo);
        for who in ["ada", "ada", "ada", "bob"] {
            let _ = ask(&mut service, call(who)).await;
        }
        assert_eq!(
            left(&limiter, &wide).await,
            8,
            "two passed, two were denied"
        );
    }
}

#[tokio::test]
async fn cost_of_a_call_is_a_function_of_its_request() {
    let limiter = in_process();
    let layer = CallLimitLayer::builder(&limiter, deny)
        .policy(minute(10).key_of(everybody).cost_by(|call| call.cost))
        .build()
        .expect("it is well set up");
    let mut service = layer.layer(Echo);
    let of = |cost| Call { who: "ada", cost };
    assert!(ask(&mut service, of(7)).await.is_ok());
    assert!(ask(&mut service, of(4)).await.is_err());
    assert!(ask(&mut service, of(3)).await.is_ok());
    assert_eq!(left(&limiter, &minute(10)).await, 0);
    let never = ask(&mut service, of(11)).await;
    let said = "ada: this request costs more than rate limit p ever allows";
    assert_eq!(never, Err(said.to_owned()));
}

#[tokio::test]
async fn admitted_request_carries_the_decision() {
    for limiter in limiters() {
        let layer = CallLimitLayer::builder(&limiter, deny)
            .policy(minute(5).key_of(everybody))
            .on_admitted(|call: &mut Call, decision: &Decision| {
                let state = decision.narrowest().expect("it was counted");
                call.cost = state.usage().expect("it was counted").remaining;
            })
            .build()
            .expect("it is well set up");
        let seen = Mutex::new(Vec::new());
        let mut service = layer.layer(service_fn(|call: Call| {
            seen.lock().expect("no panic").push(call.cost);
            future::ready(Ok::<_, String>(String::new()))
        }));
        for _ in 0..2 {
            ask(&mut service, call("ada")).await.expect("it passes");
        }
        drop(service);
        assert_eq!(seen.into_inner().expect("no panic"), [4, 3]);
    }
}

#[tokio::test]
async fn missing_key_is_denied_shared_or_skipped_and_reported_once() {
    let nobody = |choice| {
        let limiter = in_process();
        let rule = minute(1).key_of(|_: &Call| None);
        let layer = CallLimitLayer::builder(&limiter, deny).policy(rule.on_missing_key(choice));
        layer.build().expect("it is well set up")
    };
    for (choice, second, third) in [
        (OnMissingKey::Reject, false, false),
        (OnMissingKey::Share, true, false),
        (OnMissingKey::Skip, true, true),
    ] {
        let layer = nobody(choice);
        let mut service = layer.layer(Echo);
        assert_eq!(ask(&mut service, call("ada")).await.is_ok(), second);
        assert_eq!(ask(&mut service, call("ada")).await.is_ok(), third);
        // nothing is wrong where skipping is what was chosen
        let told: Vec<_> = layer.warnings().iter().map(Warning::code).collect();
        let expected = [Code::MissingKey].repeat(usize::from(choice != OnMissingKey::Skip));
        assert_eq!(told, expected, "{choice:?}");
    }
}

#[tokio::test]
async fn call_over_the_limit_of_a_rule_in_shadow_passes_and_the_decision_shows_it() {
    for limiter in limiters() {
        let (tried, wide) = (Policy::new("tried", Quota::per_minute(1)), minute(10));
        let layer = CallLimitLayer::builder(&limiter, deny)
            .policy(tried.clone().key_of(everybody).mode(RuleMode::Shadow))
            .policy(wide.clone().key_of(everybody))
            .on_admitted(|call: &mut Call, decision: &Decision| {
                call.who = if decision.would_deny().count() > 0 {
                    "denied"
                } else {
                    "fits"
                };
            })
            .build()
            .expect("it is well set up");
        let mut service = layer.layer(Echo);
        for expected in ["fits", "denied", "denied"] {
            assert_eq!(
                ask(&mut service, call("ada")).await,
                Ok(expected.to_owned())
            );
        }
        assert_eq!(left(&limiter, &tried).await, 0);
        assert_eq!(left(&limiter, &wide).await, 7, "those that passed");
    }
}

#[tokio::test]
async fn rule_of_calls_that_is_off_reads_and_charges_nothing() {
    for limiter in limiters() {
        let layer = layer_of(&limiter, minute(1).key_of(everybody).mode(RuleMode::Off));
        let mut service = layer.layer(Echo);
        for _ in 0..3 {
            assert!(ask(&mut service, call("ada")).await.is_ok());
        }
        assert_eq!(left(&limiter, &minute(1)).await, 1);
        let enforced = minute(1).key_of(everybody).mode(RuleMode::Enforce);
        let mut service = layer_of(&limiter, enforced).layer(Echo);
        assert!(ask(&mut service, call("ada")).await.is_ok());
        assert!(ask(&mut service, call("ada")).await.is_err());
    }
}

#[tokio::test]
async fn call_without_a_usable_key_passes_in_shadow() {
    let limiter = in_process();
    for found in [Extracted::Absent, Extracted::Ambiguous] {
        for (mode, passes) in [
            (RuleMode::Off, true),
            (RuleMode::Shadow, true),
            (RuleMode::Enforce, false),
        ] {
            let rule = minute(1).key_of(move |_: &Call| found).mode(mode);
            let mut service = layer_of(&limiter, rule).layer(Echo);
            assert_eq!(
                ask(&mut service, call("ada")).await.is_ok(),
                passes,
                "{mode:?}"
            );
        }
    }
}

#[tokio::test]
async fn slots_of_calls_in_shadow_are_released_and_none_is_taken_beyond_the_limit() {
    let limiter = in_process();
    let slots = Policy::concurrency("slots", 1);
    let layer = layer_of(
        &limiter,
        slots.clone().key_of(everybody).mode(RuleMode::Shadow),
    );
    let mut calls: Vec<_> = (0..3)
        .map(|_| {
            let waiting = service_fn(|_: Call| future::pending::<Result<String, String>>());
            Box::pin(layer.layer(waiting).oneshot(call("ada")))
        })
        .collect();
    for call in &mut calls {
        assert!(poll(call.as_mut()).is_pending());
    }
    assert_eq!(left(&limiter, &slots).await, 0);
    drop(calls);
    assert_eq!(left(&limiter, &slots).await, 1);
}

#[tokio::test]
async fn ambiguous_key_of_a_call_is_denied_under_every_choice_and_charges_the_others() {
    for choice in [
        OnMissingKey::Reject,
        OnMissingKey::Share,
        OnMissingKey::Skip,
    ] {
        let (limiter, everybody) = (in_process(), Policy::new("everybody", Quota::per_minute(2)));
        let slots = Policy::concurrency("slots", 1);
        let layer = CallLimitLayer::builder(&limiter, deny)
            .policy(
                minute(9)
                    .key_of(|_: &Call| Extracted::Ambiguous)
                    .on_missing_key(choice),
            )
            .policy(everybody.clone().key_of(|_: &Call| Key::GLOBAL))
            .policy(slots.clone().key_of(|_: &Call| Key::GLOBAL))
            .build()
            .expect("it is well set up");
        let mut service = layer.layer(Echo);
        for _ in 0..3 {
            assert!(ask(&mut service, call("ada")).await.is_err(), "{choice:?}");
        }
        let charges = [everybody.charge(Key::GLOBAL), slots.charge(Key::GLOBAL)];
        let peek = limiter.peek(&charges).await.expect("it answers");
        let left = peek
            .states()
            .iter()
            .map(|state| state.usage().expect("it counts").remaining);
        assert_eq!(
            left.collect::<Vec<_>>(),
            [0, 1],
            "two were charged, and their slots are free"
        );
        let told: Vec<_> = layer.warnings().iter().map(Warning::code).collect();
        assert_eq!(told, [Code::AmbiguousKey]);
    }
}

#[tokio::test]
async fn store_that_cannot_decide_denies_with_a_reason() {
    let broken = ScriptedStore::failing(ErrorKind::Unavailable, "not today");
    let limiter = RateLimiter::new(broken, []).expect("it is well set up");
    let layer = CallLimitLayer::builder(&limiter, |_: Call, rejection: &Rejection| {
        assert_eq!(*rejection.reason(), Reason::Unavailable);
        Err::<String, _>(rejection.error().expect("it is told").to_string())
    });
    let layer = layer
        .policy(minute(1).key_of(everybody))
        .build()
        .expect("it is well set up");
    let answer = ask(&mut layer.layer(Echo), call("ada")).await;
    assert_eq!(answer, Err("not today".to_owned()));
}

// Regression: they were denied, although a rule in shadow denies nothing.
#[tokio::test]
async fn calls_that_are_only_counted_pass_while_the_store_cannot_decide() {
    let shadow = || minute(1).key_of(everybody).mode(RuleMode::Shadow);
    let other = |found: Option<Key>, mode| {
        let policy = Policy::new("other", Quota::per_minute(1));
        policy.key_of(move |_: &Call| found).mode(mode)
    };
    for late in [false, true] {
        let broken = ScriptedStore::failing(ErrorKind::Unavailable, "not today");
        let broken = if late { broken.later() } else { broken };
        let limiter = RateLimiter::new(broken, []).expect("it is well set up");
        let answers = |rules: Vec<CallRule<Call>>| {
            let denied =
                |_: Call, rejection: &Rejection| Err::<String, _>(rejection.code().to_owned());
            let mut layer = CallLimitLayer::builder(&limiter, denied);
            for rule in rules {
                layer = layer.policy(rule);
            }
            let layer = layer.build().expect("it is well set up");
            async move { ask(&mut layer.layer(Echo), call("ada")).await }
        };
        assert!(answers(vec![shadow()]).await.is_ok());
        let enforced = other(Some(Key::GLOBAL), RuleMode::Enforce);
        let answer = answers(vec![shadow(), enforced]).await;
        assert_eq!(answer, Err("unavailable".to_owned()));
        let answer = answers(vec![shadow(), other(None, RuleMode::Enforce)]).await;
        assert_eq!(answer, Err("key_missing".to_owned()));
    }
}

#[tokio::test]
async fn calls_and_requests_over_one_limiter_share_the_count() {
    let limiter = in_process();
    let calls = layer_of(&limiter, minute(2).key_of(everybody));
    let requests = tollgate::RateLimitLayer::builder()
        .policy(minute(2).key(tollgate::extract::Global))
        .limiter(&limiter)
        .build()
        .expect("the quota is the same");
    assert!(ask(&mut calls.layer(Echo), call("ada")).await.is_ok());
    let web = service_fn(async |_: http::Request<()>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(()))
    });
    let answer = requests.layer(web).oneshot(http::Request::new(())).await;
    assert_eq!(answer.map(|answer| answer.status().as_u16()), Ok(200));
    assert!(ask(&mut calls.layer(Echo), call("ada")).await.is_err());
}

#[test]
fn wrong_set_up_fails_at_build() {
    let limiter = in_process();
    let build = |rules: Vec<CallRule<Call>>| {
        let start = CallLimitLayer::builder(&limiter, deny);
        let layer = rules.into_iter().fold(start, CallLimitLayerBuilder::policy);
        layer.build().expect_err("it is wrong").kind()
    };
    assert_eq!(build(vec![]), ErrorKind::NoPolicy);
    let twice = vec![minute(1).key_of(everybody), minute(1).key_of(everybody)];
    assert_eq!(build(twice), ErrorKind::DuplicatePolicy);
    let nothing = minute(1).cost(2).key_of(everybody);
    assert_eq!(build(vec![nothing]), ErrorKind::InvalidPolicy);
}

// === Readiness ===

#[tokio::test]
async fn service_that_was_polled_ready_is_the_one_called() {
    for limiter in limiters() {
        let layer = layer_of(&limiter, minute(10).key_of(everybody));
        // one permit, taken by poll_ready: an unready clone would panic or wait for ever
        let mut service = layer.layer(ConcurrencyLimit::new(Echo, 1));
        for _ in 0..3 {
            assert!(ask(&mut service, call("ada")).await.is_ok());
        }
    }
}

#[tokio::test]
async fn denial_gives_back_what_the_ready_service_had_reserved() {
    for limiter in limiters() {
        let inner = ConcurrencyLimit::new(Echo, 1);
        let mut other = inner.clone();
        let layer = layer_of(&limiter, minute(1).key_of(everybody));
        let mut service = layer.layer(inner);
        assert!(ask(&mut service, call("ada")).await.is_ok());
        let denied = service
            .ready()
            .await
            .expect("it is ready")
            .call(call("ada"));
        assert!(denied.await.is_err());
        assert!(poll_ready(&mut other).is_ready(), "the permit is free");
    }
}

#[tokio::test]
async fn inner_error_passes_unchanged_and_need_not_be_an_error_nor_send() {
    #[derive(Debug, PartialEq)]
    struct Odd(Rc<RefCell<u8>>);
    let limiter = in_process();
    let layer = CallLimitLayer::builder(&limiter, |request: Rc<u8>, _: &Rejection| {
        Err::<Rc<u8>, Odd>(Odd(Rc::new(RefCell::new(*request))))
    });
    let layer = layer
        .policy(minute(1).key_of(|_: &Rc<u8>| Some(Key::GLOBAL)))
        .build()
        .expect("it is well set up");
    let inner = |_: Rc<u8>| future::ready(Err::<Rc<u8>, _>(Odd(Rc::new(RefCell::new(7)))));
    let mut service = layer.layer(service_fn(inner));
    let failed = service.ready().await.expect("it is ready").call(Rc::new(1));
    assert_eq!(failed.await, Err(Odd(Rc::new(RefCell::new(7)))));
    let denied = service.ready().await.expect("it is ready").call(Rc::new(2));
    assert_eq!(denied.await, Err(Odd(Rc::new(RefCell::new(2)))));
}

// === Slots ===

#[tokio::test]
async fn slot_is_held_until_the_response_is_there() {
    for limiter in limiters() {
        let slots = Policy::concurrency("slots", 1);
        let layer = layer_of(&limiter, slots.clone().key_of(everybody));
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let ended = Arc::new(Mutex::new(Some(ended)));
        let mut service = layer.layer(service_fn(move |call: Call| {
            let ended = ended.lock().expect("no panic").take();
            async move {
                if let Some(ended) = ended {
                    ended.await.map_err(|error| error.to_string())?;
                }
                Ok::<_, String>(call.who.to_owned())
            }
        }));
        let first = service
            .ready()
            .await
            .expect("it is ready")
            .call(call("ada"));
        let mut first = pin!(first);
        while left(&limiter, &slots).await == 1 {
            assert!(poll(first.as_mut()).is_pending());
        }
        assert!(ask(&mut service, call("bob")).await.is_err());
        end.send(()).expect("it waits");
        assert_eq!(first.await, Ok("ada".to_owned()));
        assert!(ask(&mut service, call("bob")).await.is_ok());
    }
}

#[tokio::test]
async fn slot_of_a_call_that_is_dropped_or_fails_or_panics_is_given_back() {
    let limiter = in_process();
    let slots = Policy::concurrency("slots", 1);
    let layer = layer_of(&limiter, slots.clone().key_of(everybody));
    let inner = |call: Call| async move {
        match call.who {
            "waits" => future::pending().await,
            "panics" => panic!("as told"),
            who => Err::<String, _>(who.to_owned()),
        }
    };
    let mut service = layer.layer(service_fn(inner));
    {
        let waits = service
            .ready()
            .await
            .expect("it is ready")
            .call(call("waits"));
        let mut waits = pin!(waits);
        assert!(poll(waits.as_mut()).is_pending());
        assert_eq!(left(&limiter, &slots).await, 0);
    }
    assert_eq!(left(&limiter, &slots).await, 1);
    let failed = ask(&mut service, call("fails")).await;
    assert_eq!(failed, Err("fails".to_owned()));
    assert_eq!(left(&limiter, &slots).await, 1);
    let panics = service
        .ready()
        .await
        .expect("it is ready")
        .call(call("panics"));
    assert!(tokio::spawn(panics).await.is_err());
    assert_eq!(left(&limiter, &slots).await, 1);
}

// Reproducer: a failed call kept its slot for as long as its future was kept.
#[tokio::test]
async fn slot_of_a_failed_call_is_given_back_before_its_future_is_dropped() {
    let limiter = in_process();
    let slots = Policy::concurrency("slots", 1);
    let layer = layer_of(&limiter, slots.clone().key_of(everybody));
    let inner = |call: Call| future::ready(Err::<String, _>(call.who.to_owned()));
    let mut failing = pin!(layer.layer(service_fn(inner)).call(call("fails")));
    assert_eq!(failing.as_mut().await, Err("fails".to_owned()));
    assert_eq!(left(&limiter, &slots).await, 1);
}

#[tokio::test]
async fn call_that_started_stays_charged_though_its_slot_is_given_back() {
    for limiter in limiters() {
        let slots = Policy::concurrency("slots", 5);
        let layer = CallLimitLayer::builder(&limiter, deny)
            .policy(slots.clone().key_of(everybody))
            .policy(minute(10).key_of(everybody))
            .build()
            .expect("it is well set up");
        let mut service = layer.layer(Echo);
        for passed in 1..=3 {
            assert!(ask(&mut service, call("ada")).await.is_ok());
            assert_eq!(left(&limiter, &slots).await, 5);
            assert_eq!(left(&limiter, &minute(10)).await, 10 - passed);
        }
    }
}

// === Settling ===

#[tokio::test]
async fn call_costs_what_came_out_of_it() {
    for limiter in limiters() {
        // Nothing comes back while the test runs.
        let policy = Policy::new("p", Quota::per_day(100));
        let layer = CallLimitLayer::builder(&limiter, deny)
            .policy(policy.clone().key_of(everybody).cost_by(|call| call.cost))
            .settle(|call: &CompletedCall<'_, String, String>| {
                assert_eq!(call.policy.as_str(), "p");
                match call.outcome {
                    CallOutcome::Responded(units) => units.parse().expect("a number"),
                    CallOutcome::Failed(_) => 0,
                    CallOutcome::Panicked => 5,
                    _ => call.charged + 1,
                }
            })
            .build()
            .expect("it is well set up");
        let mut service = layer.layer(service_fn(|call: Call| async move {
            match call.who {
                "waits" => future::pending().await,
                "panics" => panic!("as told"),
                "fails" => Err("failed".to_owned()),
                units => Ok(units.to_owned()),
            }
        }));
        let ten = |who| Call { who, cost: 10 };
        let mut expected = 100;
        for (who, cost) in [
            ("3", 3),
            ("12", 12),
            ("fails", 0),
            ("waits", 11),
            ("panics", 5),
            ("the closure panics, and the charge stands", 10),
        ] {
            let ready = service.ready().await.expect("it is ready");
            let mut calling = Box::pin(ready.call(ten(who)));
            let ended = tokio::spawn(async move {
                // the one that waits is given up when it has started
                for _ in 0..3 {
                    if poll(calling.as_mut()).is_ready() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            });
            assert_eq!(ended.await.is_err(), who == "panics");
            expected -= cost;
            assert_eq!(left(&limiter, &policy).await, expected, "{who}");
        }
    }
}

#[tokio::test]
async fn holder_of_the_charge_of_a_response_settles_it() {
    for limiter in limiters() {
        // Nothing comes back while the test runs.
        let policy = Policy::new("p", Quota::per_day(100));
        let layer = CallLimitLayer::builder(&limiter, |_: Call, _: &Rejection| Err(()))
            .policy(policy.clone().key_of(everybody).cost_by(|call| call.cost))
            .settle(|_: &CompletedCall<'_, Option<Hold>, ()>| 0)
            .hold_with(|kept: &mut Option<Hold>, hold| *kept = Some(hold))
            .build()
            .expect("it is well set up");
        let inner = |call: Call| {
            future::ready(match call.who {
                "fails" => Err(()),
                _ => Ok(None),
            })
        };
        let mut service = layer.layer(service_fn(inner));
        let ten = |who| Call { who, cost: 10 };
        let hold = ask(&mut service, ten("ada")).await.expect("it passes");
        assert_eq!(left(&limiter, &policy).await, 90);
        hold.expect("it is handed on")
            .settle(|_, charged| charged / 2);
        assert_eq!(left(&limiter, &policy).await, 95);
        assert!(ask(&mut service, ten("fails")).await.is_err());
        assert_eq!(left(&limiter, &policy).await, 95);
    }
}

#[tokio::test]
async fn slot_can_be_held_longer_than_the_call() {
    struct Stream {
        hold: Option<Hold>,
    }
    for limiter in limiters() {
        let slots = Policy::concurrency("slots", 1);
        let refuse = |_: Call, _: &Rejection| Err::<Stream, _>(());
        let layer = CallLimitLayer::builder(&limiter, refuse)
            .policy(slots.clone().key_of(everybody))
            .hold_with(|stream: &mut Stream, hold| stream.hold = Some(hold))
            .build()
            .expect("it is well set up");
        let inner = |_: Call| future::ready(Ok(Stream { hold: None }));
        let mut service = layer.layer(service_fn(inner));
        let stream = ask(&mut service, call("ada")).await.expect("it passes");
        assert!(stream.hold.is_some());
        assert!(ask(&mut service, call("ada")).await.is_err());
        drop(stream);
        assert!(ask(&mut service, call("ada")).await.is_ok());
    }
}

// === Queues ===

#[tokio::test(start_paused = true)]
async fn calls_in_a_queue_start_at_their_turns() {
    for later in [false, true] {
        let limiter = over(later, Clock::manual(START));
        let layer = layer_of(&limiter, queue().key_of(everybody));
        let began = Instant::now();
        let noted = service_fn(move |_: Call| {
            future::ready(Ok::<_, String>(began.elapsed().as_millis().to_string()))
        });
        let mut service = layer.layer(noted);
        let mut waiting = Vec::new();
        for _ in 0..4 {
            let call = service
                .ready()
                .await
                .expect("it is ready")
                .call(call("ada"));
            waiting.push(tokio::spawn(call));
            tokio::task::yield_now().await;
        }
        let mut starts = Vec::new();
        for call in waiting {
            starts.push(call.await.expect("no panic"));
        }
        let said = "ada: rate limit p exceeded, retry in 1 second";
        let started = |at: &str| Ok(at.to_owned());
        assert_eq!(
            starts,
            [
                started("0"),
                started("100"),
                started("200"),
                Err(said.to_owned())
            ]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn call_in_a_queue_keeps_no_permit_and_takes_one_at_its_turn() {
    let limiter = over(false, Clock::manual(START));
    let layer = layer_of(
        &limiter,
        queue().key_of(|call: &Call| Some(Key::new(call.who))),
    );
    let mut service = layer.layer(ConcurrencyLimit::new(Echo, 1));
    let mut other = service.clone();
    assert_eq!(ask(&mut service, call("ada")).await, Ok("ada".to_owned()));
    assert!(poll_ready(&mut service).is_ready());
    let mut waits = Box::pin(service.call(call("ada")));
    assert!(poll(waits.as_mut()).is_pending());
    assert_eq!(ask(&mut other, call("bob")).await, Ok("bob".to_owned()));
    assert!(poll_ready(&mut other).is_ready());
    time::advance(Duration::from_millis(101)).await;
    assert!(poll(waits.as_mut()).is_pending(), "another has the permit");
    drop(other);
    assert_eq!(waits.await, Ok("ada".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn call_dropped_in_the_queue_releases_its_turn_and_does_not_reach_the_service() {
    let limiter = over(false, Clock::manual(START));
    let layer = layer_of(&limiter, queue().key_of(everybody));
    let called = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&called);
    let mut service = layer.layer(service_fn(move |call: Call| {
        noted.lock().expect("no panic").push(call.who);
        future::ready(Ok::<_, String>(String::new()))
    }));
    let mut wait = |who| {
        // a service made of a function is ready always
        let mut future = Box::pin(service.call(call(who)));
        let _ = poll(future.as_mut());
        future
    };
    drop(wait("first"));
    let second = wait("second");
    drop(wait("third"));
    let fourth = wait("fourth");
    assert_eq!(second.await, Ok(String::new()));
    assert_eq!(fourth.await, Ok(String::new()));
    assert_eq!(
        *called.lock().expect("no panic"),
        ["first", "second", "fourth"]
    );
}

// === Types ===

struct Named {
    layer: CallLimitLayer<Call, String, String>,
    service: CallLimit<Echo, Call, String, String>,
}

#[test]
fn layer_service_and_future_can_be_named_and_go_to_another_thread() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Clone + Send + Sync + std::fmt::Debug>() {}
    is_shared::<CallLimitLayer<Call, String, String>>();
    is_shared::<CallLimit<Echo, Call, String, String>>();
    is_send::<CallFuture<Echo, Call, String, String>>();
    // Whatever is only named need not be anything.
    is_shared::<CallLimitLayer<*const u8, *const u8, *const u8>>();

    let layer = layer_of(&in_process(), minute(1).key_of(everybody));
    let service = layer.layer(Echo);
    let named = Named { layer, service };
    assert!(format!("{:?}", named.layer).contains("\"p\""));
    assert!(format!("{:?}", named.service).contains("Echo"));
}

#[tokio::test]
async fn layer_fits_in_a_service_builder() {
    let layer = layer_of(&in_process(), minute(1).key_of(everybody));
    let service = ServiceBuilder::new()
        .buffer(4)
        .concurrency_limit(2)
        .layer(layer)
        .map_err(|error: tower::BoxError| error.to_string())
        .timeout(PATIENCE)
        .service(Echo);
    let mut service = service;
    let first = service
        .ready()
        .await
        .expect("it is ready")
        .call(call("ada"));
    assert_eq!(first.await.expect("it passes"), "ada");
    let second = service
        .ready()
        .await
        .expect("it is ready")
        .call(call("ada"));
    assert!(second.await.is_err());
}

// === Helpers ===

#[derive(Debug)]
struct Call {
    who: &'static str,
    cost: u64,
}

fn call(who: &'static str) -> Call {
    Call { who, cost: 1 }
}

fn everybody(_: &Call) -> Option<Key> {
    Some(Key::GLOBAL)
}

fn deny(call: Call, rejection: &Rejection) -> Result<String, String> {
    Err(format!("{}: {}", call.who, rejection.message()))
}

#[derive(Clone, Debug)]
struct Echo;

impl Service<Call> for Echo {
    type Response = String;
    type Error = String;
    type Future = Ready<Result<String, String>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        future::ready(Ok(call.who.to_owned()))
    }
}

async fn ask<S: Service<Call>>(service: &mut S, call: Call) -> Result<S::Response, S::Error> {
    let ready = service.ready().await?;
    let answer = time::timeout(PATIENCE, ready.call(call)).await;
    answer.expect("it is answered in time")
}

fn minute(count: u64) -> Policy {
    Policy::new("p", Quota::per_minute(count))
}

/// Ten a second; two may wait.
fn queue() -> Policy {
    Policy::new("p", Quota::per_second(10))
        .algorithm(Algorithm::LeakyQueue(QueueLimits::new(2, Duration::MAX)))
}

fn layer_of(limiter: &RateLimiter, rule: CallRule<Call>) -> CallLimitLayer<Call, String, String> {
    let layer = CallLimitLayer::builder(limiter, deny).policy(rule);
    layer.build().expect("it is well set up")
}

async fn left(limiter: &RateLimiter, policy: &Policy) -> u64 {
    let now = limiter.peek(&[policy.charge(Key::GLOBAL)]).await;
    let now = now.expect("it answers");
    now.states()[0].usage().expect("it is counted").remaining
}

/// One that decides at once, and one that is awaited.
fn limiters() -> [RateLimiter; 2] {
    [false, true].map(|later| over(later, Clock::system()))
}

fn in_process() -> RateLimiter {
    over(false, Clock::system())
}

fn over(later: bool, clock: Clock) -> RateLimiter {
    let memory = MemoryStore::builder().clock(clock).build();
    let memory = memory.expect("it is well set up");
    let limiter = match later {
        true => RateLimiter::new(ScriptedStore::over(memory).later(), []),
        false => RateLimiter::new(memory, []),
    };
    limiter.expect("it is well set up")
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn poll_ready<S: Service<Call>>(service: &mut S) -> Poll<Result<(), S::Error>> {
    service.poll_ready(&mut Context::from_waker(Waker::noop()))
}

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const PATIENCE: Duration = Duration::from_secs(10);
