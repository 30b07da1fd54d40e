//! Overload in simulated time: callers, a network and a server with one queue around the real [`Traffic`].

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::oneshot;

use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind, Phase},
};

use super::{
    alarm::Alarm,
    calls::Call,
    queue::{Answer, JobResult, answer},
    step::{Entered, Gatherer, Taken},
    traffic::{Traffic, tests},
    worker::overloaded,
};

/// A server, the way to it, and what is asked of it. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    /// The server's time for each charge.
    pub(super) service: u64,
    /// Its time for each call besides.
    pub(super) overhead: u64,
    pub(super) round_trip: u64,
    /// How long a task of the client waits until it runs.
    pub(super) turn: u64,
    /// The server does nothing for this long in every 100 ms.
    pub(super) stall: u64,
    pub(super) load: Load,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// This many ask, and again when they were answered, or after a pause if they were not.
    Callers(u64, u64),
    /// Single arrivals, this many a second.
    Arrivals(u64),
}

/// Counts of the decisions that were asked for in the second half, by their end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) in_time: u64,
    pub(super) within_deadline: u64,
    pub(super) late: u64,
    pub(super) shed: u64,
    pub(super) timed_out: u64,
    pub(super) max_wait: u64,
}

enum Event {
    Ask,
    Gather(Gatherer),
    Reply(Call, Option<u64>),
    Look,
}

struct World {
    scene: Scene,
    traffic: Traffic,
    now: u64,
    /// By time, and those of one time in their order.
    events: BTreeMap<(u64, u64), Event>,
    /// The number of the next event.
    next: u64,
    free_at: u64,
    waiting: Vec<(u64, oneshot::Receiver<JobResult>)>,
    /// Leaders: their calls, and when they asked.
    alarms: Vec<(Call, Arc<Alarm>, Option<u64>)>,
    outcome: Outcome,
    noise: u64,
}

impl World {
    fn run(scene: Scene) -> Outcome {
        let traffic = tests::traffic(2);
        let mut world = Self {
            scene,
            traffic,
            now: 0,
            events: BTreeMap::new(),
            next: 0,
            free_at: 0,
            waiting: Vec::new(),
            alarms: Vec::new(),
            outcome: Outcome::default(),
            noise: 1,
        };
        match scene.load {
            Load::Callers(callers, _) => {
                (0..callers).for_each(|caller| world.at(caller % 1_000, Event::Ask));
            }
            Load::Arrivals(_) => world.at(0, Event::Ask),
        }
        world.at(0, Event::Look);
        while let Some(((at, _), event)) = world.events.pop_first()
            && at <= SPAN
        {
            world.now = at;
            world.happen(event);
        }
        world.outcome
    }

    fn at(&mut self, at: u64, event: Event) {
        self.events.insert((at, self.next), event);
        self.next += 1;
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + self.now)
    }

    fn random(&mut self, below: u64) -> u64 {
        self.noise = self
            .noise
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.noise >> 33) % below.max(1)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask => {
                if let Load::Arrivals(rate) = self.scene.load {
                    let gap = 1_000_000 / rate;
                    let next = self.now + self.random(2 * gap + 1);
                    self.at(next, Event::Ask);
                }
                self.ask();
            }
            Event::Gather(gatherer) => self.gather(gatherer),
            Event::Reply(call, leader) => {
                let ended = self.traffic.end(call, self.time(), true);
                self.alarms.retain(|(other, ..)| *other != call);
                if let Some(asked_at) = leader
                    && ended.in_time
                {
                    self.note(asked_at, Some(true));
                }
                for one in ended.answers {
                    let _ = one.send(JobResult::NotSent(tests::request()));
                }
                self.settle();
                self.start(ended.gatherer);
            }
            Event::Look => {
                let next = self.now + LOOK;
                self.at(next, Event::Look);
                self.look();
            }
        }
    }

    fn ask(&mut self) {
        if self.traffic.is_full() {
            return self.note(self.now, Some(false));
        }
        match self
            .traffic
            .enter(tests::request(), self.time(), self.time())
        {
            Entered::Lead(call, alarm, _) => self.send(call, alarm, 1, Some(self.now)),
            Entered::Wait {
                answered,
                gatherer,
                shed,
            } => {
                self.waiting.push((self.now, answered));
                self.shed(shed);
                self.settle();
                self.start(gatherer);
            }
        }
    }

    fn start(&mut self, gatherer: Option<Gatherer>) {
        if let Some(gatherer) = gatherer {
            self.at(self.now + self.scene.turn, Event::Gather(gatherer));
        }
    }

    fn gather(&mut self, gatherer: Gatherer) {
        loop {
            let (taken, shed) = self.traffic.take(gatherer, self.time());
            self.shed(shed);
            match taken {
                Taken::Batch {
                    call,
                    alarm,
                    requests,
                    is_last,
                    ..
                } => {
                    self.send(call, alarm, requests.len() as u64, None);
                    if is_last {
                        break;
                    }
                }
                Taken::Down => panic!("the lanes are up"),
                Taken::Nothing => break,
            }
        }
        self.settle();
    }

    fn shed(&self, jobs: impl IntoIterator<Item = Answer>) {
        jobs.into_iter()
            .for_each(|job| answer(job, Err(overloaded())));
    }

    fn send(&mut self, call: Call, alarm: Arc<Alarm>, charges: u64, leader: Option<u64>) {
        let arrives = self.now + self.scene.round_trip / 2;
        let mut starts = arrives.max(self.free_at);
        if starts % 100_000 < self.scene.stall {
            starts += self.scene.stall - starts % 100_000;
        }
        let service = self.scene.overhead + charges * self.scene.service;
        self.free_at = starts + service / 2 + self.random(service);
        self.alarms.push((call, alarm, leader));
        let back = self.free_at + self.scene.round_trip / 2 + self.scene.turn;
        self.at(back, Event::Reply(call, leader));
    }

    fn look(&mut self) {
        let overdue = self.traffic.overdue(self.time());
        for job in overdue.unsent {
            answer(job, Err(late(Phase::Queue)));
        }
        assert!(overdue.stranded.is_empty(), "every gatherer comes back");
        for job in overdue.calls.unpolled {
            answer(job, Err(late(Phase::Reply)));
        }
        let due: Vec<_> = self
            .alarms
            .iter()
            .filter(|(_, alarm, _)| alarm.is_due())
            .map(|(call, _, leader)| (*call, *leader))
            .collect();
        for (call, leader) in due {
            if let Some(answers) = self.traffic.expire(call, self.time()) {
                answers
                    .into_iter()
                    .for_each(|job| answer(job, Err(late(Phase::Reply))));
                if let Some(asked_at) = leader {
                    self.note(asked_at, None);
                }
            }
        }
        self.settle();
    }

    /// Finds whose answers have come.
    fn settle(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut answered = Vec::new();
        waiting.retain_mut(|(asked_at, answer)| match answer.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => true,
            Ok(JobResult::NotSent(_)) => {
                answered.push((*asked_at, Some(true)));
                false
            }
            Ok(JobResult::Replied(Err(error))) if error.kind() == ErrorKind::Overloaded => {
                answered.push((*asked_at, Some(false)));
                false
            }
            _ => {
                answered.push((*asked_at, None));
                false
            }
        });
        self.waiting = waiting;
        for (asked_at, result) in answered {
            self.note(asked_at, result);
        }
    }

    fn note(&mut self, asked_at: u64, replied: Option<bool>) {
        if let Load::Callers(_, pause) = self.scene.load {
            let again = self.now + if replied == Some(true) { 0 } else { pause };
            self.at(again, Event::Ask);
        }
        if asked_at < SPAN / 2 {
            return;
        }
        let wait = self.now - asked_at;
        let outcome = &mut self.outcome;
        outcome.max_wait = outcome.max_wait.max(wait);
        match replied {
            Some(true) if wait <= DEADLINE_MICROS / 2 => outcome.in_time += 1,
            Some(true) if wait <= DEADLINE_MICROS => outcome.within_deadline += 1,
            Some(true) => outcome.late += 1,
            Some(false) => outcome.shed += 1,
            None => outcome.timed_out += 1,
        }
    }
}

fn late(phase: Phase) -> Error {
    Error::new(ErrorKind::Timeout(phase), "late")
}

const SPAN: u64 = 1_000_000;
const DEADLINE_MICROS: u64 = tests::DEADLINE_MILLIS * 1_000;
/// How often the time is looked at.
const LOOK: u64 = 1_000;

impl Scene {
    /// A server that takes 0.4 ms for a charge, one millisecond away.
    pub(super) const SLOW: Self = Self {
        service: 400,
        overhead: 20,
        round_trip: 1_000,
        turn: 50,
        stall: 0,
        load: Load::Callers(1, 0),
    };

    pub(super) fn play(self) -> Outcome {
        World::run(self)
    }

    /// Returns what came within half of the deadline, in percent of what the server can do.
    pub(super) fn goodput(self) -> u64 {
        let outcome = self.play();
        assert!(
            outcome.max_wait <= DEADLINE_MICROS + LOOK,
            "{self:?}: {outcome:?}"
        );
        let most = SPAN / 2 / self.service;
        outcome.in_time * 100 / most
    }
}
