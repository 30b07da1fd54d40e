//! Callers who ask for more than a server can do, in simulated time.

use super::simulation::{Load, Scene};

// Regression: under ten times the load half of the answers came late, since the door stood open for 10 ms again and again.
// From a server that answers 1,000 a second nearly all did: what waited in its queue was taken for a long network.
#[test]
fn overloaded_server_answers_in_time_nearly_all_it_can() {
    for round_trip in [1_000, 5_000] {
        for (service, least) in [(90, 80), (400, 80), (1_000, 80), (3_000, 50)] {
            let most = 1_000_000 / service;
            let crowd = Load::Callers(100_000 / service, 25_000);
            for load in [
                Load::Arrivals(most * 3 / 2),
                Load::Arrivals(most * 10),
                crowd,
            ] {
                let scene = Scene {
                    service,
                    round_trip,
                    load,
                    ..Scene::SLOW
                };
                let goodput = scene.goodput();
                assert!(goodput >= least, "{goodput} %: {scene:?}");
            }
        }
    }
}

#[test]
fn overload_is_survived_by_a_server_that_stalls() {
    for round_trip in [1_000, 5_000] {
        let load = Load::Arrivals(25_000);
        let scene = Scene {
            round_trip,
            load,
            stall: 8_000,
            ..Scene::SLOW
        };
        let goodput = scene.goodput();
        // It stands still for 8 % of the time.
        assert!(goodput >= 70, "{goodput} %: {scene:?}");
    }
}

#[test]
fn below_saturation_every_decision_is_made_in_time() {
    for round_trip in [1_000, 5_000, 15_000] {
        for service in [50, 400, 1_000] {
            let load = Load::Arrivals(800_000 / service);
            let scene = Scene {
                service,
                round_trip,
                load,
                ..Scene::SLOW
            };
            let outcome = scene.play();
            assert_eq!(
                (outcome.shed, outcome.timed_out, outcome.late),
                (0, 0, 0),
                "{scene:?}: {outcome:?}"
            );
        }
    }
}
