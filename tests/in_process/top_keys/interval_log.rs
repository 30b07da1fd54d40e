//! The log of the keys that were denied most often in each interval.

use std::time::Duration;

use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimiter,
    clock::{Clock, Timestamp},
    top_keys::{ShownKeys, TopKeys, TopKeysBuilder},
};

use crate::support::logged;

const DAY: Duration = Duration::from_secs(86_400);
/// Midnight UTC.
const MIDNIGHT: Timestamp = Timestamp::from_micros(1_700_006_400_000_000);

fn daily(clock: &Clock) -> TopKeysBuilder {
    let builder = TopKeys::builder().shown_keys(ShownKeys::plain());
    builder.clock(clock.clone()).log_every(DAY)
}

fn lines() -> Vec<String> {
    let mut lines = logged();
    lines.retain(|line| line.contains("top denied keys"));
    lines
}

fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_minute(1))
}

#[test]
fn each_policy_has_a_line_with_ten_keys_after_each_day() {
    let clock = Clock::manual(MIDNIGHT + Duration::from_secs(3_600));
    let top_keys = daily(&clock).build().expect("usable settings");
    logged();
    let [user, ip] = ["user", "ip"].map(policy);
    for number in 1..=12_u32 {
        top_keys.record(&user, &Key::new(format!("u{number}")), number);
    }
    top_keys.record(&ip, &Key::new("192.0.2.1"), 3);
    clock.set(MIDNIGHT + DAY - Duration::from_micros(1));
    top_keys.record(&ip, &Key::new("192.0.2.1"), 1);
    assert_eq!(lines(), [""; 0], "the day is not over");

    clock.set(MIDNIGHT + DAY);
    top_keys.record(&ip, &Key::new("192.0.2.2"), 7);
    let first = lines();
    let [of_ip, of_user] = first.as_slice() else {
        panic!("{first:?}");
    };
    let interval = "since=1700010000 until=1700092800";
    let ip_line = format!("policy=ip {interval} denied=4 keys=192.0.2.1 4");
    assert!(of_ip.ends_with(&ip_line), "{of_ip}");
    let keys: Vec<String> = (3..=12)
        .rev()
        .map(|number| format!("u{number} {number}"))
        .collect();
    let user_line = format!("policy=user {interval} denied=78 keys={}", keys.join(", "));
    assert!(of_user.ends_with(&user_line), "{of_user}");

    // Two days without a denial: the last one with some is logged once.
    clock.set(MIDNIGHT + 4 * DAY);
    for _ in 0..3 {
        top_keys.record(&user, &Key::new("u1"), 1);
    }
    let second = lines();
    let [line] = second.as_slice() else {
        panic!("{second:?}");
    };
    let until = "since=1700092800 until=1700179200 denied=7 keys=192.0.2.2 7";
    assert!(line.ends_with(until), "{line}");
}

#[test]
fn keys_are_hashed_unless_they_may_be_shown_and_counts_have_their_bounds() {
    let clock = Clock::manual(MIDNIGHT);
    let top_keys = daily(&clock).capacity(1).shown_keys(ShownKeys::default());
    let top_keys = top_keys.build().expect("usable settings");
    logged();
    for key in ["ada", "bob"] {
        top_keys.record(&policy("user"), &Key::new(key), 2);
    }
    clock.set(MIDNIGHT + DAY);
    top_keys.record(&policy("user"), &Key::new("ada"), 1);
    let lines = lines();
    let [line] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    assert!(!line.contains("bob") && line.ends_with(" 2-4"), "{line}");
    let shown = top_keys.shown(&Key::new("bob"));
    assert!(line.contains(&shown), "{line}");
}

#[tokio::test]
async fn denied_requests_of_a_limiter_are_logged() {
    let clock = Clock::manual(MIDNIGHT);
    let api = policy("api");
    let limiter = RateLimiter::builder()
        .policy(api.clone())
        .clock(clock.clone());
    let top_keys = daily(&clock).build().expect("usable settings");
    let limiter = limiter.top_keys(top_keys).build().expect("a limiter");
    logged();
    let charges = [api.charge(Key::new("ada"))];
    for _ in 0..4 {
        limiter.check(&charges).await.expect("a decision");
    }
    clock.set(MIDNIGHT + DAY);
    for _ in 0..2 {
        limiter.check(&charges).await.expect("a decision");
    }
    let lines = lines();
    assert!(lines[0].ends_with("denied=3 keys=ada 3"), "{lines:?}");
}

#[test]
fn interval_outside_of_its_range_is_refused() {
    for interval in [DAY + Duration::from_secs(1), Duration::from_millis(999)] {
        let built = TopKeys::builder().log_every(interval).build();
        let error = built.expect_err("out of range");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("log_every"), "{error}");
    }
}
