//! Everything that waits for one server or is in flight to it.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{clock::Timestamp, sync::Mutex};

use super::{
    super::{connection::Lane, protocol::Request},
    alarm::Alarm,
    calls::{Call, NO_CONNECTION},
    queue::{Answer, Job},
    state::State,
    step::{Ended, Entered, Gatherer, Overdue, Taken},
    window::Sample,
};

/// The waiting decisions and the calls in flight, under one lock. See the [module docs](super) for the rules.
#[derive(Debug)]
pub(in crate::remote) struct Traffic {
    deadline: Duration,
    lanes: Box<[Arc<Lane>]>,
    /// Whether more waits than the server answers in time, so that no other decision is let in.
    is_full: AtomicBool,
    state: Mutex<State>,
}

impl Traffic {
    pub(in crate::remote) fn new(deadline: Duration, lanes: Box<[Arc<Lane>]>) -> Self {
        Self {
            deadline,
            is_full: AtomicBool::new(false),
            state: Mutex::new(State::new(deadline, lanes.len())),
            lanes,
        }
    }

    pub(in crate::remote) fn lanes(&self) -> &[Arc<Lane>] {
        &self.lanes
    }

    /// Whether a decision would come too late, and is to be shed before anything is done for it.
    #[inline]
    pub(in crate::remote) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Lets a decision in: it is called for at once, or waits.
    pub(super) fn enter(
        &self,
        request: Box<Request>,
        asked_at: Timestamp,
        now: Timestamp,
    ) -> Entered {
        let mut state = self.state.lock();
        if state.may_lead()
            && let Some(lane) = self.lane_for(&state)
        {
            let charges = request.charges();
            let due = asked_at + self.deadline;
            let (call, alarm) = state.begin(lane, now, due, charges, Vec::new());
            return Entered::Lead(call, alarm, request);
        }
        let (answer, answered) = oneshot::channel();
        let job = Job {
            request,
            asked_at,
            answer,
        };
        let shed = state.queue.push(job, MOST_WAITING);
        self.update_door(&mut state, now);
        Entered::Wait {
            answered,
            gatherer: state.start_gathering(now),
            shed: shed.map(|job| job.answer),
        }
    }

    /// Notes a command that is not a decision, so that its deadline is kept. It belongs to no connection.
    pub(super) fn begin(&self, now: Timestamp) -> (Call, Arc<Alarm>) {
        let due = now + self.deadline;
        let mut state = self.state.lock();
        state.begin((0, NO_CONNECTION), now, due, 0, Vec::new())
    }

    /// Takes the next batch of what waits. Jobs that came too late for it are returned as shed.
    pub(super) fn take(&self, gatherer: Gatherer, now: Timestamp) -> (Taken, Vec<Answer>) {
        let mut state = self.state.lock();
        if !state.is_gatherer(gatherer) {
            return (Taken::Nothing, Vec::new());
        }
        if state.queue.is_empty() {
            state.gatherer = None;
            return (Taken::Nothing, Vec::new());
        }
        // A gatherer looks for the first time one turn after it was started.
        if state
            .gatherer
            .is_some_and(|current| current.since == gatherer.since)
        {
            state.window.note_turn(now.since(gatherer.since));
        }
        state.gatherer = Some(Gatherer {
            since: now,
            ..gatherer
        });
        let Some((lane, generation)) = self.lane_for(&state) else {
            return (Taken::Down, Vec::new());
        };
        let is_idle = state.calls.len() == 0;
        state.window.note_connection(generation, now, is_idle);
        let shed = state.shed(now);
        if state.queue.is_empty() || !state.may_send(now) {
            self.update_door(&mut state, now);
            state.gatherer = None;
            return (Taken::Nothing, shed);
        }
        let is_probe = state.window.wants_probe(now);
        let jobs = state.take(now);
        let Some(asked_at) = jobs.iter().map(|job| job.asked_at).min() else {
            self.update_door(&mut state, now);
            state.gatherer = None;
            return (Taken::Nothing, shed);
        };
        let is_second = state.calls.on_lane(lane) > 0;
        let charges = jobs.iter().map(|job| job.request.charges()).sum();
        let (requests, answers) = jobs
            .into_iter()
            .map(|job| (job.request, job.answer))
            .unzip();
        let due = asked_at + self.deadline;
        let (call, alarm) = state.begin((lane, generation), now, due, charges, answers);
        if is_probe {
            state.window.note_probe(call.number);
        }
        let is_last = state.queue.is_empty() || !state.may_send(now);
        self.update_door(&mut state, now);
        state.gatherer = state.gatherer.filter(|_| !is_last);
        let down = || {
            self.lanes
                .iter()
                .position(|lane| lane.generation().is_none())
        };
        let taken = Taken::Batch {
            call,
            alarm,
            requests,
            is_last,
            dial: if is_second { down() } else { None },
        };
        (taken, shed)
    }

    /// Stops gathering, and removes what waits: nobody will send it.
    pub(super) fn give_up(&self, gatherer: Gatherer) -> VecDeque<Job> {
        let mut state = self.state.lock();
        if !state.is_gatherer(gatherer) {
            return VecDeque::new();
        }
        state.gatherer = None;
        self.is_full.store(false, Ordering::Relaxed);
        state.queue.drain()
    }

    /// Notes the end of a call; `replied` if the server sent a reply, whatever it says.
    pub(super) fn end(&self, call: Call, now: Timestamp, replied: bool) -> Ended {
        let mut state = self.state.lock();
        if replied {
            state.calls.note_reply(call, now);
        }
        let (mut in_time, mut answers) = (false, Vec::new());
        if let Some(ended) = state.calls.remove(call) {
            state.is_alone = ended.answers.len() <= 1;
            if replied {
                let sample = Sample {
                    call: call.number,
                    charges: ended.charges,
                    in_flight: ended.charges + state.calls.charges(),
                    round_trip: now.since(ended.sent_at),
                };
                state.window.note_reply(now, sample);
            }
            in_time = !ended.alarm.is_expired();
            answers = ended.answers;
        }
        Ended {
            in_time,
            answers,
            gatherer: state.start_gathering(now),
        }
    }

    /// See [`Calls::expire`].
    pub(super) fn expire(&self, call: Call, now: Timestamp) -> Option<Vec<Answer>> {
        self.state.lock().calls.expire(call, now)
    }

    /// Looks at the time: finds what is overdue, and when to look again.
    pub(super) fn overdue(&self, now: Timestamp) -> Overdue {
        let mut overdue = Overdue::default();
        let mut state = self.state.lock();
        while let Some(job) = state.queue.pop_older_than(now - self.deadline) {
            overdue.unsent.push(job.answer);
        }
        self.update_door(&mut state, now);
        let patience = self.deadline / 3 * 2;
        // A gatherer that does not come back is on a runtime that nobody drives, unless it waits for a dial.
        if let Some(gatherer) = state.gatherer
            && now.since(gatherer.since) > patience
            && (self.is_up() || !self.lanes.iter().any(|lane| lane.is_dialling()))
        {
            state.gatherer = None;
            // Where no tasks run, only a leader makes calls.
            state.is_alone = true;
            self.is_full.store(false, Ordering::Relaxed);
            overdue.stranded.extend(state.queue.drain());
        }
        let oldest = state.queue.oldest().map(|oldest| oldest + patience);
        overdue.calls = state.calls.overdue(now);
        overdue.next = oldest.into_iter().chain(overdue.calls.next).min();
        overdue
    }

    /// Has all calls on a connection end, and wakes their tasks.
    pub(super) fn end_connection(&self, lane: usize, generation: u64) {
        let ended = self.state.lock().calls.end_connection(lane, generation);
        ended.iter().for_each(|alarm| alarm.ring());
    }

    /// Whether any lane has a connection.
    pub(super) fn is_up(&self) -> bool {
        self.lanes.iter().any(|lane| lane.generation().is_some())
    }

    /// Opens or closes the door.
    fn update_door(&self, state: &mut State, now: Timestamp) {
        self.is_full.store(state.is_full(now), Ordering::Relaxed);
    }

    /// The lane with the fewest calls in flight of those that have a connection; the first one if several have.
    fn lane_for(&self, state: &State) -> Option<(usize, u64)> {
        let up = self.lanes.iter().enumerate();
        let up = up.filter_map(|(lane, held)| Some((lane, held.generation()?)));
        up.min_by_key(|(lane, _)| state.calls.on_lane(*lane))
    }
}

/// Decisions that may wait whatever happens. Each takes a few hundred bytes.
const MOST_WAITING: usize = 16_384;

#[cfg(test)]
pub(super) mod tests {
    use deadpool_redis::{Config, Runtime};

    use crate::{Key, Policy, Quota, remote::protocol::Keyspace};

    use super::{super::queue::JobResult, *};

    pub(in super::super) const DEADLINE_MILLIS: u64 = 60;
    const DEADLINE: Duration = Duration::from_millis(DEADLINE_MILLIS);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000)
    }

    /// Traffic over lanes that look as if they were up.
    pub(in super::super) fn traffic(lanes: usize) -> Traffic {
        let pool = Config::from_url("redis://127.0.0.1:1/").create_pool(Some(Runtime::Tokio1));
        let pool = pool.expect("a pool that nobody uses");
        let lanes = (1..=lanes).map(|generation| {
            let lane = Lane::new(pool.clone(), DEADLINE);
            lane.pretend(generation as u64);
            lane
        });
        Traffic::new(DEADLINE, lanes.collect())
    }

    pub(in super::super) fn request() -> Box<Request> {
        let keyspace = Keyspace::new("t").expect("a usable prefix");
        let policy = Policy::new("p", Quota::per_minute(1));
        Box::new(Request::decide(&keyspace, &[policy.charge(Key::GLOBAL)]))
    }

    /// A decision that waits.
    struct Waiting {
        answered: oneshot::Receiver<JobResult>,
        gatherer: Option<Gatherer>,
        shed: Option<Answer>,
    }

    fn wait(traffic: &Traffic, millis: u64) -> Waiting {
        match traffic.enter(request(), at(millis), at(millis)) {
            Entered::Lead(..) => panic!("it is not to wait"),
            Entered::Wait {
                answered,
                gatherer,
                shed,
            } => Waiting {
                answered,
                gatherer,
                shed,
            },
        }
    }

    fn lead(traffic: &Traffic, millis: u64) -> (Call, Arc<Alarm>) {
        match traffic.enter(request(), at(millis), at(millis)) {
            Entered::Lead(call, alarm, _) => (call, alarm),
            Entered::Wait { .. } => panic!("nothing is under way"),
        }
    }

    fn take(traffic: &Traffic, gatherer: Gatherer, millis: u64) -> (Call, usize, bool) {
        match traffic.take(gatherer, at(millis)).0 {
            Taken::Batch {
                call,
                requests,
                is_last,
                ..
            } => (call, requests.len(), is_last),
            Taken::Down | Taken::Nothing => panic!("something waits"),
        }
    }

    /// Traffic whose latest call carried two decisions, and nothing under way.
    fn traffic_after_a_batch() -> Traffic {
        let traffic = traffic(1);
        let (call, _) = lead(&traffic, 0);
        let others = [wait(&traffic, 0), wait(&traffic, 0)];
        let (batch, ..) = take(&traffic, others[0].gatherer.expect("it is to gather"), 0);
        traffic.end(call, at(1), true);
        traffic.end(batch, at(1), true);
        traffic
    }

    /// Traffic to a server that has shown how much it answers: little.
    fn slow_traffic() -> Traffic {
        let traffic = traffic(1);
        for millis in [0, 6] {
            let (call, _) = lead(&traffic, millis);
            traffic.state.lock().window.note_full();
            traffic.end(call, at(millis), true);
        }
        // The network is measured.
        traffic.state.lock().window.note_probe(0);
        traffic
    }

    #[test]
    fn first_decision_leads_and_the_next_one_gathers() {
        let traffic = traffic(2);
        let (call, _) = lead(&traffic, 0);
        let second = wait(&traffic, 0);
        let third = wait(&traffic, 0);
        let gatherer = second.gatherer.expect("it is to gather");
        assert!(third.gatherer.is_none(), "somebody gathers already");
        let (other, taken, is_last) = take(&traffic, gatherer, 1);
        assert_eq!((taken, is_last), (2, true));
        assert_ne!(call.lane, other.lane, "the lane with fewer calls");
        assert_eq!(traffic.end(other, at(2), true).answers.len(), 2);
    }

    // Regression: of callers who are answered together the first one led, and the others waited for its reply: two calls for
    // each round of them, and twice the wait for two callers.
    #[test]
    fn decisions_that_follow_a_batch_travel_together() {
        let traffic = traffic_after_a_batch();
        let again = [wait(&traffic, 1), wait(&traffic, 1)];
        let (batch, taken, _) = take(&traffic, again[0].gatherer.expect("it is to gather"), 1);
        assert_eq!(taken, 2);
        traffic.end(batch, at(2), true);
        let single = wait(&traffic, 2);
        let (batch, ..) = take(&traffic, single.gatherer.expect("it is to gather"), 2);
        traffic.end(batch, at(3), true);
        lead(&traffic, 3);
    }

    // Regression: no decision led any more on a runtime that runs no tasks.
    #[test]
    fn decision_that_was_stranded_leads_when_it_is_asked_again() {
        let traffic = traffic_after_a_batch();
        let lone = wait(&traffic, 1);
        assert_eq!(traffic.overdue(at(45)).stranded.len(), 1);
        lead(&traffic, 45);
        drop(lone);
    }

    #[test]
    fn beyond_sixteen_calls_each_has_four_charges_or_a_sixteenth_of_what_is_in_flight() {
        let traffic = traffic(2);
        lead(&traffic, 0);
        let mut kept = Vec::new();
        for _ in 1..16 {
            let waiting: Vec<_> = (0..4).map(|_| wait(&traffic, 0)).collect();
            take(&traffic, waiting[0].gatherer.expect("it is to gather"), 0);
            kept.extend(waiting);
        }
        // 61 charges are in flight.
        for _ in 0..3 {
            let waiting = wait(&traffic, 0);
            assert!(waiting.gatherer.is_none(), "sixteen calls are in flight");
            kept.push(waiting);
        }
        let fourth = wait(&traffic, 0);
        let (_, taken, _) = take(&traffic, fourth.gatherer.expect("a large call"), 0);
        assert_eq!(taken, 4);
    }

    #[test]
    fn charges_in_flight_are_limited_and_a_reply_makes_room() {
        let traffic = traffic(1);
        lead(&traffic, 0);
        let kept: Vec<_> = (0..1_000).map(|_| wait(&traffic, 0)).collect();
        let gatherer = kept[0].gatherer.expect("it is to gather");
        let mut calls = Vec::new();
        loop {
            let (call, taken, is_last) = take(&traffic, gatherer, 0);
            assert_eq!(taken, 64);
            calls.push(call);
            if is_last {
                break;
            }
        }
        // One leads, and 128 fill the window: the batch that reaches the limit is the last.
        assert_eq!(calls.len(), 2);
        let next = traffic.end(calls[0], at(1), true).gatherer;
        take(&traffic, next.expect("there is room again"), 1);
    }

    #[test]
    fn newest_go_first_once_the_oldest_has_waited_for_a_sixth_of_the_deadline() {
        // 10 ms, and the turn of the runtime: a quarter of the first one that is seen.
        for (millis, newest_first) in [(12, false), (13, true)] {
            let traffic = traffic(1);
            let (call, _) = lead(&traffic, 0);
            // The connection is not new.
            traffic.end(call, at(0), true);
            let (call, _) = lead(&traffic, 1_000);
            let mut kept: Vec<_> = (0..200).map(|_| wait(&traffic, 1_000)).collect();
            let gatherer = kept[0].gatherer.expect("it is to gather");
            let (batch, ..) = take(&traffic, gatherer, 1_000 + millis);
            for answer in traffic.end(batch, at(1_000 + millis), true).answers {
                let _ = answer.send(JobResult::NotSent(request()));
            }
            let is_answered = |waiting: &mut Waiting| waiting.answered.try_recv().is_ok();
            assert_eq!(is_answered(&mut kept[199]), newest_first);
            assert_eq!(is_answered(&mut kept[0]), !newest_first);
            traffic.end(call, at(1_100), true);
        }
    }

    #[test]
    fn decisions_that_waited_for_half_of_the_deadline_are_shed() {
        let traffic = traffic(1);
        let (call, _) = lead(&traffic, 0);
        traffic.end(call, at(0), true);
        lead(&traffic, 1_000);
        let old = wait(&traffic, 1_000);
        let young = wait(&traffic, 1_030);
        let gatherer = old.gatherer.expect("it is to gather");
        let (taken, shed) = traffic.take(gatherer, at(1_031));
        assert_eq!(shed.len(), 1);
        assert!(matches!(taken, Taken::Batch { requests, .. } if requests.len() == 1));
        drop((old, young));
    }

    #[test]
    fn waiting_for_the_first_connection_is_no_overload() {
        let traffic = traffic(1);
        traffic.lanes[0].pretend(0);
        let waiting = wait(&traffic, 0);
        let gatherer = waiting.gatherer.expect("it is to gather");
        assert!(matches!(traffic.take(gatherer, at(1)).0, Taken::Down));
        traffic.lanes[0].pretend(7);
        let (taken, shed) = traffic.take(gatherer, at(50));
        assert!(shed.is_empty());
        assert!(matches!(taken, Taken::Batch { .. }));
    }

    #[test]
    fn nobody_is_let_in_while_more_waits_than_is_answered_in_time() {
        let traffic = slow_traffic();
        lead(&traffic, 1_000);
        let mut kept: Vec<_> = (0..400).map(|_| wait(&traffic, 1_000)).collect();
        let gatherer = kept[0].gatherer.expect("it is to gather");
        // A call is half of what may be in flight to a slow server, 2.
        let (mut first, ..) = take(&traffic, gatherer, 1_001);
        let (mut second, _, is_last) = take(&traffic, gatherer, 1_001);
        assert!(is_last, "the window is full");
        assert!(!traffic.is_full(), "a burst");
        kept.push(wait(&traffic, 1_012));
        assert!(traffic.is_full(), "the oldest has waited for 12 ms");
        // Of 397 that wait, 196 calls leave 5.
        for call in 1..=197 {
            let gatherer = traffic.end(first, at(1_014), true).gatherer;
            let (next, ..) = take(&traffic, gatherer.expect("there is room again"), 1_014);
            (first, second) = (second, next);
            assert_eq!(traffic.is_full(), call <= 196);
        }
        traffic.end(second, at(1_014), true);
    }

    // Regression: the door closed before so many waited as make a full call, and nothing was sent though there was room.
    #[test]
    fn everybody_is_let_in_while_the_window_has_room() {
        for wants_probe in [false, true] {
            let traffic = slow_traffic();
            lead(&traffic, 1_000);
            if wants_probe {
                traffic.state.lock().window.want_probe(at(1_000));
            }
            let mut kept: Vec<_> = (0..40).map(|_| wait(&traffic, 1_000)).collect();
            kept.push(wait(&traffic, 1_012));
            assert!(!traffic.is_full());
        }
    }

    // Regression: others were sent in the same turn as the charge that was to measure the network alone.
    #[test]
    fn probe_goes_alone() {
        let traffic = traffic(2);
        let (call, _) = lead(&traffic, 0);
        traffic.state.lock().window.want_probe(at(0));
        let kept: Vec<_> = (0..20).map(|_| wait(&traffic, 1)).collect();
        assert!(kept.iter().all(|waiting| waiting.gatherer.is_none()));
        let gatherer = traffic.end(call, at(2), true).gatherer;
        let (probe, taken, is_last) = take(&traffic, gatherer.expect("nothing is in flight"), 2);
        assert_eq!((taken, is_last), (1, true));
        assert!(wait(&traffic, 3).gatherer.is_none(), "it is under way");
        let gatherer = traffic.end(probe, at(4), true).gatherer;
        let (_, taken, _) = take(&traffic, gatherer.expect("it has ended"), 4);
        assert!(taken > 1);
    }

    // Regression: while a call did not end, nothing was sent until it was given up.
    #[test]
    fn probe_is_not_waited_for_long() {
        let traffic = traffic(2);
        lead(&traffic, 0);
        traffic.state.lock().window.want_probe(at(0));
        assert!(wait(&traffic, 29).gatherer.is_none());
        assert!(wait(&traffic, 30).gatherer.is_some());
    }

    #[test]
    fn nobody_is_turned_away_before_the_server_has_shown_what_it_answers() {
        let traffic = traffic(1);
        lead(&traffic, 1_000);
        let mut kept: Vec<_> = (0..400).map(|_| wait(&traffic, 1_000)).collect();
        kept.push(wait(&traffic, 1_011));
        assert!(!traffic.is_full());
    }

    #[test]
    fn oldest_is_shed_when_too_many_wait() {
        let traffic = traffic(1);
        lead(&traffic, 0);
        let kept: Vec<_> = (0..MOST_WAITING).map(|_| wait(&traffic, 0)).collect();
        assert!(kept.iter().all(|waiting| waiting.shed.is_none()));
        assert!(wait(&traffic, 0).shed.is_some());
    }

    #[test]
    fn call_without_a_reply_is_due_at_the_deadline_of_its_oldest_decision() {
        let traffic = traffic(1);
        let (leading, _) = lead(&traffic, 0);
        let waiting = wait(&traffic, 0);
        let (call, ..) = take(&traffic, waiting.gatherer.expect("it is to gather"), 20);
        assert!(traffic.overdue(at(59)).calls.woken.is_empty());
        assert_eq!(traffic.overdue(at(60)).calls.woken.len(), 2);
        assert_eq!(traffic.expire(call, at(61)).map(|late| late.len()), Some(1));
        // Its connection is given up when the call itself has been out for a deadline.
        traffic.end(leading, at(19), true);
        assert!(traffic.overdue(at(79)).calls.mute.is_empty());
        assert_eq!(traffic.overdue(at(80)).calls.mute, [(0, 1)]);
    }

    #[test]
    fn call_whose_task_runs_late_is_given_as_long_again() {
        let traffic = traffic(1);
        let (call, alarm) = lead(&traffic, 0);
        traffic.overdue(at(60));
        assert!(alarm.is_due());
        assert!(traffic.expire(call, at(75)).is_none(), "15 ms late");
        assert!(traffic.overdue(at(89)).calls.woken.is_empty());
        assert_eq!(traffic.overdue(at(90)).calls.woken.len(), 1);
        assert!(traffic.expire(call, at(91)).is_some(), "on time");
    }

    #[test]
    fn decisions_of_a_call_that_nobody_polls_fail_at_twice_the_deadline() {
        let traffic = traffic(1);
        lead(&traffic, 0);
        let waiting = wait(&traffic, 0);
        take(&traffic, waiting.gatherer.expect("it is to gather"), 0);
        assert!(traffic.overdue(at(119)).calls.unpolled.is_empty());
        assert_eq!(traffic.overdue(at(120)).calls.unpolled.len(), 1);
        // And their calls leave room for others.
        lead(&traffic, 121);
    }

    #[test]
    fn decisions_are_handed_back_when_the_gatherer_does_not_come() {
        let traffic = traffic(1);
        lead(&traffic, 0);
        let waiting = wait(&traffic, 0);
        let gatherer = waiting.gatherer.expect("it is to gather");
        assert!(traffic.overdue(at(40)).stranded.is_empty());
        assert_eq!(traffic.overdue(at(41)).stranded.len(), 1);
        assert!(matches!(traffic.take(gatherer, at(42)).0, Taken::Nothing));
        assert!(wait(&traffic, 42).gatherer.is_some(), "another gathers");
    }

    // Regression: a busy runtime had healthy connections given up.
    #[test]
    fn connection_of_a_call_that_nobody_polls_is_kept() {
        let traffic = traffic(1);
        let (_, alarm) = lead(&traffic, 0);
        let overdue = traffic.overdue(at(120)).calls;
        assert!(overdue.mute.is_empty());
        assert_eq!(overdue.woken.len(), 2, "at its deadline, and when given up");
        assert!(alarm.is_given_up());
    }

    #[test]
    fn connection_is_given_up_unless_it_replied_since_the_call_was_sent() {
        for replies in [false, true] {
            let traffic = traffic(1);
            let (earlier, _) = lead(&traffic, 0);
            let waiting = wait(&traffic, 5);
            let (call, ..) = take(&traffic, waiting.gatherer.expect("it is to gather"), 5);
            traffic.end(earlier, at(if replies { 30 } else { 5 }), true);
            traffic.overdue(at(65));
            assert!(traffic.expire(call, at(65)).is_some(), "on time");
            assert_eq!(traffic.overdue(at(66)).calls.mute.is_empty(), replies);
        }
    }

    // Regression: each put-off led to another, and a mute server behind a busy runtime was never reported.
    #[test]
    fn call_that_is_polled_late_is_put_off_once_and_blames_a_mute_connection() {
        for polled_again in [false, true] {
            let traffic = traffic(1);
            let (call, _) = lead(&traffic, 0);
            traffic.overdue(at(60));
            assert!(traffic.expire(call, at(63)).is_none(), "put off to 66");
            assert_eq!(traffic.overdue(at(66)).calls.woken.len(), 1);
            if polled_again {
                assert!(traffic.expire(call, at(75)).is_some(), "once is enough");
            }
            let overdue = traffic.overdue(at(120)).calls;
            assert_eq!(overdue.mute, [(0, 1)]);
            assert_eq!(overdue.is_unreported, !polled_again);
        }
    }

    // Regression: it was removed without waking its task, which then kept the connection for ever.
    #[test]
    fn call_whose_connection_fell_mute_after_a_reply_is_woken_at_its_end() {
        let traffic = traffic(1);
        let (earlier, _) = lead(&traffic, 0);
        let waiting = wait(&traffic, 5);
        let (call, ..) = take(&traffic, waiting.gatherer.expect("it is to gather"), 5);
        traffic.end(earlier, at(6), true);
        traffic.overdue(at(65));
        assert!(traffic.expire(call, at(65)).is_some(), "on time");
        assert_eq!(traffic.overdue(at(65)).calls.mute, []);
        let overdue = traffic.overdue(at(66)).calls;
        assert_eq!(overdue.mute, [(0, 1)], "nothing since 6");
        assert_eq!(overdue.woken.len(), 1);
    }

    // Regression: each ended all others, and counted as a failure of the server.
    #[test]
    fn command_that_nobody_polls_ends_no_other() {
        let traffic = traffic(1);
        let (first, alarm) = traffic.begin(at(0));
        traffic.overdue(at(60));
        assert!(traffic.expire(first, at(60)).is_some(), "on time");
        let (_, other) = traffic.begin(at(119));
        assert!(traffic.overdue(at(120)).calls.mute.is_empty());
        assert!(alarm.is_given_up());
        assert!(other.is_quiet());
    }
}
