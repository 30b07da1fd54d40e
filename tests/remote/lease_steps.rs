//! Leases of buckets and windows, step by step: the real script and the real leases, and a time that is moved.

use redis::Value;
use tollgate::{
    Key, Quota,
    algorithm::{Counter, Counting, WindowStart},
    clock::Timestamp,
    decision::Retry,
    remote::{LeaseTrial, Script, TrialTaken},
};

use super::lease_limits::{KINDS, Kind, Limit, text};
use crate::support::{Server, unpack};

const START: u64 = 1_700_000_000_000_000;
const SECOND: u64 = 1_000_000;

/// A lease of a limit of 100 units, and its key in Redis.
struct Steps {
    limit: Limit,
    lease: LeaseTrial,
    server: Server,
}

impl Steps {
    /// A bucket that gets a unit a second.
    fn new(overshoot: u16) -> Self {
        let quota = Quota::per_second(1).burst(100);
        Self::of(Limit::new(Kind::Bucket, quota, overshoot))
    }

    fn of(limit: Limit) -> Self {
        Self {
            limit,
            lease: LeaseTrial::default(),
            server: Server::start(),
        }
    }

    /// Returns the reply at this second: the time, the outcome, whether it fits, and the state.
    fn call(&self, second: u64, arguments: Vec<Vec<u8>>) -> Vec<i64> {
        self.call_at(START + second * SECOND, arguments)
    }

    fn call_at(&self, micros: u64, arguments: Vec<Vec<u8>>) -> Vec<i64> {
        let mut command = redis::cmd("EVAL");
        command.arg(Script::DECIDE.source()).arg(1).arg("key");
        command.arg("@").arg(micros).arg(arguments);
        let reply: Value = command
            .query(&mut self.server.connection())
            .expect("a reply");
        unpack(&reply)
    }

    fn charge(&self, second: u64, units: u64) -> bool {
        self.call(second, self.limit.charge(units))[1] == 1
    }

    /// Reports, and leases as many units; or gives those back that are left.
    fn report(&mut self, want: Option<u32>) {
        self.report_at(START, START, want);
    }

    /// As [`report`](Self::report), with a delay. Returns the numbers of the reply.
    fn report_at(&mut self, sent_at: u64, executed_at: u64, want: Option<u32>) -> [u64; 8] {
        let sent_at = Timestamp::from_micros(sent_at);
        let mut report = self
            .lease
            .begin_report(want.is_none(), self.limit.overshoot, sent_at);
        report[20..24].copy_from_slice(&want.unwrap_or(0).to_be_bytes());
        let reply = self.call_at(executed_at, self.limit.report(&report));
        let numbers: Vec<u64> = reply[3..].iter().map(|n| n.cast_unsigned()).collect();
        let numbers = numbers.try_into().expect("the reply to a report");
        let executed_at = Timestamp::from_micros(executed_at);
        let counter = self.limit.policy.counter();
        self.lease
            .end_report(counter, executed_at, numbers, executed_at);
        numbers
    }

    fn units_at(&self, micros: u64) -> u64 {
        self.lease.units(Timestamp::from_micros(micros))
    }

    /// The last 22 bytes of the state, and how many there are before.
    fn lease_part(&self) -> (usize, Vec<u8>) {
        let mut state: Vec<u8> = redis::cmd("GET")
            .arg("key")
            .query(&mut self.server.connection())
            .expect("a state");
        let before = state.len() - 22;
        (before, state.split_off(before))
    }

    fn spend(&mut self) -> TrialTaken {
        let charge = self.limit.policy.charge(Key::GLOBAL);
        let now = Timestamp::from_micros(START);
        let taken = self.lease.take(&charge, false, now);
        taken.expect("a leased unit")
    }

    /// Refunds a unit that was reported. Returns the TAT then.
    fn refund(&mut self, second: u64, taken: &TrialTaken) -> i64 {
        self.refund_at(START + second * SECOND, taken)[0]
    }

    /// As [`refund`](Self::refund). Returns the state then.
    fn refund_at(&mut self, micros: u64, taken: &TrialTaken) -> Vec<i64> {
        let total = self.lease.refund(1, taken.token);
        let total = total.expect_err("it was reported");
        let reply = self.call_at(micros, self.limit.refund(1, taken, total));
        reply[3..].to_vec()
    }
}

// Regression: a refund of units that were not reported left the ends of later charges where they were, so that refunds of these in
// Redis gave back units of others.
#[test]
fn refunds_here_move_later_charges_back() {
    let mut steps = Steps::new(0);
    steps.report(Some(25));
    let taken: Vec<_> = (0..24).map(|_| steps.spend()).collect();
    for taken in &taken[..12] {
        assert_eq!(steps.lease.refund(1, taken.token), Ok(()));
    }
    steps.report(Some(0));
    // The twelve others are paid off, and somebody takes all but the 13 that are leased.
    assert!(steps.charge(12, 87));
    for taken in &taken[12..] {
        steps.refund(12, taken);
    }
    assert!(!steps.charge(12, 1), "nothing came back");
}

// Regression: the refund of the last charge in Redis moved leased charges behind it, whose ends did not show that.
#[test]
fn refund_of_the_last_charge_moves_leased_ones_back() {
    let mut steps = Steps::new(0);
    assert!(steps.charge(0, 60));
    steps.report(Some(10));
    let taken = steps.spend();
    let last = TrialTaken {
        reset_at: Timestamp::from_micros(START + 60 * SECOND),
        ..taken
    };
    steps.call(0, steps.limit.refund(10, &last, 0));
    steps.report(None);
    // All is paid off, and somebody takes 20 units.
    assert!(steps.charge(51, 20));
    let after = START + 71 * SECOND;
    assert_eq!(steps.refund(55, &taken), after.cast_signed());
}

// Regression: a change of the limit cut the debt to one span, so that the overshoot could be used again after each.
#[test]
fn change_of_the_limit_keeps_what_is_ahead_of_it() {
    let mut steps = Steps::new(200);
    steps.report(Some(10));
    assert!(steps.charge(0, 100) && steps.charge(0, 10));
    assert!(!steps.charge(0, 1), "120 are charged or leased");
    let other = Limit::new(Kind::Bucket, Quota::per_second(1).burst(50), 200);
    assert_eq!(steps.call(0, other.charge(1))[1], 0);
    assert!(!steps.charge(0, 1), "under the limit of before");
}

// === Windows ===

/// Windows of each kind: a minute that has begun 20 s ago or begins now, or a month.
fn windows(overshoot: u16) -> impl Iterator<Item = Steps> {
    let kinds = KINDS.into_iter().filter(|kind| *kind != Kind::Bucket);
    kinds.map(move |kind| {
        let quota = match kind {
            Kind::Window(WindowStart::Month) => Quota::per_month(100),
            _ => Quota::per_minute(100),
        };
        Steps::of(Limit::new(kind, quota, overshoot))
    })
}

fn is_sliding(steps: &Steps) -> bool {
    matches!(steps.limit.policy.counter(), Counter::SlidingWindow(_))
}

#[test]
fn charges_of_a_window_leave_room_for_leased_units_until_they_come_back() {
    for mut steps in windows(0) {
        steps.report(Some(25));
        assert!(!steps.charge(0, 76));
        assert!(steps.charge(0, 75));
        assert!(!steps.charge(0, 1));
        steps.report(None);
        assert!(!steps.charge(0, 26));
        assert!(steps.charge(0, 25));
    }
}

#[test]
fn delayed_window_is_ahead_of_its_limit_only_while_units_are_leased() {
    for mut steps in windows(200) {
        assert!(!steps.charge(0, 101));
        steps.report(Some(25));
        assert!(!steps.charge(0, 96));
        assert!(steps.charge(0, 95), "120 are charged or leased");
        steps.report(None);
        assert!(steps.charge(0, 5));
        assert!(!steps.charge(0, 1));
    }
}

#[test]
fn denials_of_a_window_count_leased_units_as_spent_so_that_the_retry_holds() {
    for mut steps in windows(0) {
        steps.report(Some(25));
        assert!(steps.charge(0, 75));
        for units in [0, 1] {
            let reply = steps.call(0, steps.limit.charge(units));
            let mut numbers = [0; 3];
            for (number, replied) in numbers.iter_mut().zip(&reply[3..]) {
                *number = replied.cast_unsigned();
            }
            assert_eq!(steps.limit.remaining(numbers, START), 0);
            let now = Timestamp::from_micros(START);
            let retry = match steps.limit.policy.counter() {
                Counter::FixedWindow(window) => {
                    let ends_at = Timestamp::from_micros(numbers[0]);
                    window.retry(&window.state(ends_at, numbers[1]), now, 1)
                }
                Counter::SlidingWindow(window) => {
                    let state = window.state(numbers[0] / 1_000, numbers[1], numbers[2]);
                    window.retry(&state, now, 1)
                }
                other => unreachable!("{other:?}"),
            };
            let Retry::At(at) = retry else {
                panic!("{retry:?}");
            };
            let (before, at) = (at.as_micros() - 1, at.as_micros());
            assert_eq!(steps.call_at(before, steps.limit.charge(1))[1], 0);
            if units == 1 {
                assert_eq!(steps.call_at(at, steps.limit.charge(1))[1], 1);
            }
        }
    }
}

#[test]
fn units_of_a_window_end_with_it_and_reports_of_them_are_too_late_then() {
    for mut steps in windows(0) {
        steps.report(Some(0));
        let ends = steps.report_at(START, START, Some(4))[0];
        steps.report_at(START, START, None);
        let sent_at = ends - SECOND;
        assert_eq!(steps.report_at(sent_at, sent_at, Some(25))[3], 50);
        assert_eq!(steps.units_at(ends - 3_001), 25);
        assert_eq!(steps.units_at(ends - 3_000), 0, "3 ms are left out");
        let late = steps.report_at(ends - 5_000, ends, Some(0));
        assert_eq!(late[3], 1, "nothing is granted, and it was late");
        let room = if is_sliding(&steps) { 75 } else { 100 };
        assert_eq!(steps.call_at(ends, steps.limit.charge(room + 1))[1], 0);
        assert_eq!(steps.call_at(ends, steps.limit.charge(room))[1], 1);
    }
}

#[test]
fn reports_of_a_window_and_its_leases_are_counted_within_its_turns() {
    for mut steps in windows(0) {
        steps.report(Some(25));
        steps.spend();
        steps.report_at(START + SECOND, START + SECOND, Some(0));
        // 24 units are left of the lease, which ends in two seconds.
        assert_eq!(steps.units_at(START + 3 * SECOND - 3_001), 24);
        assert!(!steps.charge(2, 76));
        let (_, part) = steps.lease_part();
        assert!(steps.charge(3, 75));
        assert_ne!(steps.lease_part().1, part, "they have ended");
        assert!(!steps.charge(3, 1), "as if they were spent");
    }
}

#[test]
fn other_operations_keep_the_leases_of_a_window() {
    for mut steps in windows(0) {
        let ends = steps.report_at(START, START, Some(25))[0];
        let length = if is_sliding(&steps) { 60 * SECOND } else { 0 };
        let taken = TrialTaken {
            reset_at: Timestamp::from_micros(ends + length),
            ..steps.spend()
        };
        let (before, part) = steps.lease_part();
        assert!([12, 13, 19].contains(&before), "{before}");
        let charge = steps.limit.charge(10);
        let marked = |mark: &[u64], letter: &[u8]| {
            let mark = mark.iter().map(|number| text(*number));
            let mark = std::iter::once(letter.to_vec()).chain(mark);
            mark.chain(charge.clone()).collect::<Vec<_>>()
        };
        let calls = [
            (charge.clone(), 10),
            (steps.limit.refund(5, &taken, 0), 5),
            (marked(&[], b"+"), 15),
            (marked(&[0, ends], b"="), 25),
        ];
        for (arguments, used) in calls {
            let reply = steps.call(0, arguments);
            assert_eq!(reply.last(), Some(&used));
            assert_eq!(steps.lease_part(), (before, part.clone()));
        }
    }
}

#[test]
fn changed_limit_or_length_of_a_window_keeps_its_leases() {
    for mut steps in windows(0) {
        steps.report(Some(25));
        let fewer = Steps {
            limit: steps.limit.halved(),
            ..steps
        };
        assert!(!fewer.charge(0, 26));
        assert!(fewer.charge(0, 25));
        assert!(!fewer.charge(0, 1));
    }
    for mut steps in windows(0) {
        if steps.limit.span() == 3 * SECOND {
            continue;
        }
        steps.report(Some(25));
        let longer = steps
            .limit
            .with(Quota::new(100, std::time::Duration::from_secs(300)));
        assert_eq!(steps.call(0, longer.charge(76))[1], 0);
        let late = steps.report_at(START, START, Some(10));
        assert_eq!(
            late[3], 1,
            "it was of another length, and nothing is granted"
        );
        assert_eq!(steps.call(0, longer.charge(76))[1], 0);
        assert_eq!(steps.call(0, longer.charge(75))[1], 1);
    }
}

#[test]
fn reset_of_a_window_keeps_leased_units_charged() {
    for mut steps in windows(0) {
        assert!(steps.charge(0, 60));
        steps.report(Some(10));
        let mut reset = [0; 37];
        reset[30] = 2;
        steps.call(0, steps.limit.report(&reset));
        assert!(!steps.charge(0, 91));
        assert!(steps.charge(0, 90));
        // The units can be reported.
        assert_eq!(steps.report_at(START, START, None)[3], 0);
        assert!(steps.charge(1, 10));
        steps.call(1, steps.limit.report(&reset));
        let reply = steps.call(1, steps.limit.charge(100));
        assert_eq!(reply[1], 1);
        if steps.limit.charge(1)[0][0] == b'o' {
            let ends = START + 61 * SECOND;
            assert_eq!(reply[3], ends.cast_signed(), "it is the first hit");
        }
    }
}

#[test]
fn refunds_of_a_window_are_made_in_the_window_of_the_charge() {
    for mut steps in windows(0) {
        let ends = steps.report_at(START, START, Some(25))[0];
        let taken: Vec<_> = (0..5).map(|_| steps.spend()).collect();
        assert_eq!(steps.lease.refund(1, taken[0].token), Ok(()));
        assert_eq!(steps.units_at(START), 21);
        steps.report(Some(0));
        assert_eq!(steps.refund_at(START, &taken[1]).last(), Some(&3));
        let state = steps.refund_at(ends, &taken[2]);
        // 21 of the leased units count as spent.
        let left = if is_sliding(&steps) {
            vec![23, 0]
        } else {
            vec![0]
        };
        assert_eq!(state[1..], left);
    }
}
