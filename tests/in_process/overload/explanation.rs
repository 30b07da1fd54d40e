//! The decision on a request and its reason, without counting it.

use std::time::Duration;

use http::Request;
use tollgate::{
    Key,
    extract::Header,
    overload::{Overload, OverloadExplanation, OverloadFinding, Priority},
    rules::RuleMode,
};

use super::places::{built, fill, stopped};

fn explain(overload: &Overload, path: &str, tenant: &str) -> OverloadExplanation {
    let request = Request::get(path).header("x-tenant", tenant);
    overload.explain(&request.body(()).expect("a request"))
}

#[test]
fn explanation_states_the_class_what_is_full_and_that_nothing_is_counted() {
    let overload = stopped().0.priority_when("/pay", Priority::Critical);
    let overload = built(overload.skip("/health"));
    let limit = overload.limit();
    let places = fill(&overload, Priority::Normal);
    let normal = explain(&overload, "/", "ada");
    assert_eq!(normal.priority, Priority::Normal);
    assert_eq!(normal.finding, OverloadFinding::Full);
    assert_eq!(
        normal.to_string(),
        format!(
            "class normal: shed, no place of this class is free\n  {} in flight, places for this class and those above up to {}",
            limit + limit / 4,
            limit + limit / 4,
        )
    );
    let critical = explain(&overload, "/pay", "ada");
    assert_eq!(critical.finding, OverloadFinding::Served);
    assert_eq!(critical.ceiling, limit + 2 * (limit / 4));
    assert_eq!(
        explain(&overload, "/health", "ada").finding,
        OverloadFinding::Skipped
    );
    overload.set_mode(RuleMode::Shadow);
    let shadow = explain(&overload, "/", "ada").to_string();
    assert!(shadow.contains("would be shed"), "{shadow}");
    overload.set_mode(RuleMode::Off);
    assert_eq!(explain(&overload, "/", "ada").finding, OverloadFinding::Off);
    assert_eq!(overload.in_flight() as usize, places.len());
    let shed: Vec<_> = overload.shed().iter().map(|(_, shed)| *shed).collect();
    assert_eq!(shed, [0, 1, 0], "only what filled it");
}

#[test]
fn explanation_states_the_places_of_a_key_and_why_it_is_filtered() {
    let (builder, clock) = stopped();
    let builder = builder
        .classes([Priority::Normal])
        .key(Header::new("x-tenant"));
    let overload = built(builder.weight_when("/partner", 4));
    let key = |name: &str| {
        let request = Request::get("/").header("x-tenant", name).body(());
        overload
            .explain(&request.expect("a request"))
            .key
            .expect("it has a key")
            .key
    };
    let (loud, quiet): (Key, Key) = (key("loud"), key("quiet"));
    let enter = |key: &Key| overload.enter(Priority::Normal, Some(key));
    let mut places = Vec::new();
    places.extend(std::iter::from_fn(|| enter(&loud).ok()));
    let full = explain(&overload, "/", "loud");
    assert_eq!(full.finding, OverloadFinding::KeyIsFull);
    let share = full.key.clone().expect("it has a key");
    assert_eq!(share.places as usize, places.len());
    assert!(share.places >= share.most_places, "{full}");
    assert!(full.to_string().contains("too many places"), "{full}");
    assert_eq!(
        explain(&overload, "/", "quiet").finding,
        OverloadFinding::Served
    );
    let partner = explain(&overload, "/partner", "loud");
    assert_eq!(partner.key.expect("it has a key").weight, 4);

    // Nine of ten attempts find no place for a second, so the key is filtered, and the quiet one is not.
    for _ in 0..1_000 {
        clock.advance(Duration::from_millis(1));
        let _ = enter(&loud);
    }
    drop(places);
    let filtered = explain(&overload, "/", "loud");
    let OverloadFinding::KeyIsFiltered(passes) = filtered.finding else {
        panic!("{filtered}");
    };
    let share = filtered.key.clone().expect("it has a key");
    let fair = share.fair_rate.expect("it is filtered");
    assert!((share.rate - 1_000.0).abs() < 300.0, "{filtered}");
    assert!((passes - fair / share.rate).abs() < 1e-9, "{passes} {fair}");
    assert!(
        filtered.to_string().contains("it tries too often"),
        "{filtered}"
    );
    assert_eq!(
        explain(&overload, "/", "quiet").finding,
        OverloadFinding::Served
    );
    assert!(enter(&quiet).is_ok());

    // An hour later its attempts are forgotten, though no other has come meanwhile.
    clock.advance(Duration::from_secs(3_600));
    let later = explain(&overload, "/", "loud");
    assert_eq!(later.finding, OverloadFinding::Served, "{later}");
}
