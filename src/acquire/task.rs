//! The task of a line: asks for turns, and hands them out.
//!
//! ```text
//!          .-----------------------------------------------.
//!          v                                               |
//! ask for up to 64 callers --> turns: each handed out at its start
//!          ^                                               |
//!          '-- at due - 0.6 ahead, at once if all had turns, or if slots may be free
//! ```
//!
//! It runs while somebody waits. A unit is handed out at its start, to the caller that is first then. So a caller that leaves
//! shortly before costs nothing.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::FutureExt;

use super::{
    error::AcquireError,
    gates::MayAsk,
    line::Line,
    lines::{FirstQuestion, Lines},
    permit::Grant,
    server_clock::ServerClock,
};
use crate::{
    charge::Turns,
    clock::Timestamp,
    error::{Error, ErrorKind},
    store::StoreFuture,
    task::{home, timer::sleep},
};

/// A question whose reply is awaited.
pub(super) struct Asked {
    /// None if it ends the place in the line of the store.
    pub callers: usize,
    /// If it is the first one of the line.
    pub first: Option<FirstQuestion>,
    pub sent_at: Timestamp,
    pub reply: StoreFuture<Turns>,
}

/// Starts the task of a line, with a question that was asked before, or with its reply.
pub(super) fn start(lines: &Arc<Lines>, line: &Arc<Line>, first: First) {
    let (lines, line) = (Arc::clone(lines), Arc::clone(line));
    home::spawn_lasting(Box::pin(async move {
        let task = LineTask {
            lines: Arc::clone(&lines),
            line: Arc::clone(&line),
            granted: VecDeque::new(),
            asked: None,
            ask_at: None,
            poll: FIRST_POLL,
            told: 0,
            last_turn: None,
            in_vain: 0,
            is_listed: false,
            has_failed: false,
            is_woken: false,
            was_woken: false,
            first: None,
        };
        // A store that panics must not leave callers behind that wait for nobody.
        if AssertUnwindSafe(task.run(first))
            .catch_unwind()
            .await
            .is_err()
        {
            let error = Error::new(ErrorKind::Unavailable, "the store panicked");
            while !lines.remove_if_empty(&line) {
                line.fail_all(&AcquireError::failed(error.clone()), ServerClock::now());
            }
        }
    }));
}

/// The first question of a line.
pub(super) enum First {
    Asked(Asked),
    /// With whether the caller has a place in the line of the store.
    Replied(Turns, bool),
    /// Others ask before.
    Waits,
}

struct LineTask {
    lines: Arc<Lines>,
    line: Arc<Line>,
    /// Turns that have not started yet, by local time.
    granted: VecDeque<(Timestamp, Grant)>,
    asked: Option<Asked>,
    /// When to ask next, by local time.
    ask_at: Option<Timestamp>,
    /// After what time to ask again for slots.
    poll: Duration,
    /// Number of turns in a row that came after a message, and not after that time.
    told: u32,
    last_turn: Option<Timestamp>,
    /// Number of questions since the last turn.
    in_vain: u32,
    /// Whether the queue may have a place in the line of the store.
    is_listed: bool,
    /// Whether the last question had no reply.
    has_failed: bool,
    /// Whether slots may have been freed since the last question was sent.
    is_woken: bool,
    /// Whether that was so before the last question.
    was_woken: bool,
    /// Room for the first question, if it is not asked yet.
    first: Option<FirstQuestion>,
}

enum Event {
    Replied(Result<Turns, Error>),
    TimeHasCome,
    Woken,
}

impl LineTask {
    async fn run(mut self, first: First) {
        match first {
            First::Asked(asked) => self.asked = Some(asked),
            First::Replied(turns, is_listed) => {
                let now = ServerClock::now();
                self.take(turns, (1, is_listed), now);
            }
            First::Waits => {
                self.first = self.lines.wait_for_question().await;
                if let Some(index) = self.lines.full(&self.line) {
                    self.lines.enter(&self.line, index);
                }
                self.ask_at = Some(ServerClock::now());
            }
        }
        loop {
            match self.event().await {
                Event::Replied(reply) => {
                    if let Some(asked) = self.asked.take()
                        && asked.callers > 0
                    {
                        self.replied(asked, reply);
                        // Replies of a store in process are always ready.
                        tokio::task::yield_now().await;
                    }
                }
                Event::TimeHasCome => {}
                Event::Woken => {
                    self.is_woken |= self.line.take_wake();
                    if self.is_woken || self.ask_at.is_none() {
                        self.ask_at = Some(ServerClock::now());
                    }
                }
            }
            self.hand_out();
            if self.line.is_empty() {
                if self.asked.is_some() {
                    // Its turns must be given back.
                    continue;
                }
                self.granted.clear();
                self.line.forget_granted();
                self.end_place();
                if self.asked.is_some() {
                    continue;
                }
                if self.lines.remove_if_empty(&self.line) {
                    return;
                }
                self.ask_at = Some(ServerClock::now());
            }
            self.ask().await;
        }
    }

    /// Waits for the next thing to do.
    async fn event(&mut self) -> Event {
        let next_start = self.granted.front().map(|(start, _)| *start);
        let next_ask = self.ask_at.filter(|_| self.asked.is_none());
        let now = ServerClock::now();
        let next = next_start.into_iter().chain(next_ask).min();
        let mut time = pin!(next.map(|next| sleep(next.since(now))));
        let mut woken = pin!(self.line.woken.notified());
        let asked = &mut self.asked;
        poll_fn(|context: &mut Context<'_>| {
            if let Some(asked) = asked
                && let Poll::Ready(reply) = Pin::new(&mut asked.reply).poll(context)
            {
                return Poll::Ready(Event::Replied(reply));
            }
            if let Some(time) = time.as_mut().as_pin_mut()
                && time.poll(context).is_ready()
            {
                return Poll::Ready(Event::TimeHasCome);
            }
            woken.as_mut().poll(context).map(|()| Event::Woken)
        })
        .await
    }

    /// Takes the reply to a question.
    fn replied(&mut self, asked: Asked, reply: Result<Turns, Error>) {
        let turns = match reply {
            Ok(turns) => turns,
            Err(error) => {
                // It counts among the first questions until there is a reply.
                self.first = asked.first;
                return self.fail(error);
            }
        };
        self.has_failed = false;
        let now = ServerClock::now();
        if turns.now > Timestamp::default() {
            self.line.clock.note(turns.now, asked.sent_at, now);
        }
        let is_listed = asked.first.as_ref().is_none_or(|first| first.is_listed);
        self.take(turns, (asked.callers, is_listed), now);
    }

    /// Takes the turns for so many callers, and whether those that are left have a place in the line of the store.
    fn take(&mut self, turns: Turns, (callers, is_listed): (usize, bool), now: Timestamp) {
        let line = Arc::clone(&self.line);
        let clock = &line.clock;
        let count = turns.turns.len();
        for turn in turns.turns {
            let start = clock.local(turn.start);
            let grant = self.lines.grant(&self.line.charges(), turn);
            self.granted.push_back((start, grant));
        }
        let due = turns.due.map(|due| clock.local(due));
        if count > 0 {
            self.note_pace(count, now);
            self.told = if self.was_woken {
                self.told.saturating_add(1)
            } else {
                0
            };
        }
        // A time to wait until is no refusal: whoever came after it anyway would find its turn taken.
        let is_soon = due.is_none_or(|due| due <= now + clock.ahead());
        let is_in_vain = count == 0 && (is_soon || turns.is_unavailable);
        self.in_vain = if is_in_vain { self.in_vain + 1 } else { 0 };
        let backoff = FIRST_BACKOFF * 2_u32.saturating_pow(self.in_vain.min(MOST_DOUBLINGS));
        self.is_listed = due.is_some() && is_listed;
        line.note_due(self.granted.len(), (due, turns.waits_for), now);
        let may_ask = due.is_none() || self.lines.enter(&line, turns.waits_for);
        let early = if line.is_of_buckets {
            clock.ahead() * 6 / 10
        } else {
            Duration::ZERO
        };
        let slowly = (backoff * 50).min(LONGEST_BACKOFF);
        self.ask_at = Some(match due {
            _ if self.is_woken => now,
            _ if turns.is_unavailable => now + slowly,
            None if count == 0 => now + slowly,
            None => now,
            // It gets a place in the line, or gives it up.
            Some(_) if count == callers || !may_ask || !is_listed => now,
            Some(due) => {
                // In vain again and again, it asks less often.
                let least = if self.in_vain > 2 {
                    backoff
                } else {
                    Duration::ZERO
                };
                // A limit may be raised, or units be refunded.
                (due - early).max(now + least).min(now + LONGEST_SLEEP)
            }
        });
    }

    /// Plans when to ask again for slots: after the mean time between two turns.
    fn note_pace(&mut self, turns: usize, now: Timestamp) {
        if let Some(last) = self.last_turn {
            let turns = u32::try_from(turns).unwrap_or(u32::MAX);
            let gap = now.since(last) / turns.max(1);
            self.poll = (self.poll * 7 / 8 + gap / 8).clamp(LEAST_POLL, MOST_POLL);
        }
        self.last_turn = Some(now);
    }

    /// Goes on after a question without a reply, or gives up if no further one can have one.
    fn fail(&mut self, error: Error) {
        let now = ServerClock::now();
        self.in_vain += 1;
        let is_permanent = matches!(
            error.kind(),
            ErrorKind::InvalidConfig | ErrorKind::InvalidPolicy | ErrorKind::InvalidQuota
        );
        if is_permanent {
            self.line.fail_all(&AcquireError::failed(error), now);
            self.ask_at = Some(now);
            return;
        }
        self.line.note_failure(error);
        self.has_failed = true;
        self.is_listed = true;
        let backoff = FIRST_BACKOFF * 5 * 2_u32.saturating_pow(self.in_vain.min(6));
        self.ask_at = Some(now + backoff.min(LONGEST_BACKOFF));
    }

    /// Hands out the turns that start now.
    fn hand_out(&mut self) {
        let now = ServerClock::now();
        while let Some((start, _)) = self.granted.front()
            && *start <= now
        {
            if let Some((_, grant)) = self.granted.pop_front() {
                self.line.hand_out(grant);
            }
        }
    }

    /// Asks for turns, if it is time.
    async fn ask(&mut self) {
        let now = ServerClock::now();
        if self.asked.is_some() || self.ask_at.is_none_or(|at| at > now) {
            return;
        }
        self.ask_at = None;
        if let Some(error) = self.lines.blocked(&self.line.charges()).await {
            self.line.fail_all(&error, now);
            // The loop ends the line.
            self.ask_at = Some(now);
            return;
        }
        let until = match self.lines.may_ask(&self.line) {
            MayAsk::No => {
                self.first = None;
                if std::mem::take(&mut self.is_woken) {
                    self.lines.wake_instead(&self.line);
                }
                return self.end_place();
            }
            MayAsk::Until(until) => Some(until),
            MayAsk::Yes => None,
        };
        self.was_woken = std::mem::take(&mut self.is_woken);
        // With messages, it asks in case one is lost; seldom, if all of the last turns came by them.
        let poll = match self.lines.has_messages() {
            true if self.told >= TRUSTED => (self.poll * 16).min(MOST_POLL * 4),
            true => (self.poll * 4).min(MOST_POLL),
            false => self.poll,
        };
        let pace = (self.line.clock.ahead(), poll);
        let callers = (self.granted.len(), until);
        let mut question = self.line.question(callers, now, pace);
        if self.has_failed {
            // Units of a question without a reply are lost.
            question.callers.truncate(1);
        }
        question.pause = self.lines.pauses.of(&question.charges);
        let callers = question.callers();
        if callers == 0 {
            // The caller that was older than those of other lines has just left.
            self.ask_at = until.is_some().then_some(now);
            return;
        }
        let first = self.first.take();
        question.is_listed = first.as_ref().is_none_or(|first| first.is_listed);
        self.asked = Some(Asked {
            callers,
            first,
            sent_at: now,
            reply: self.lines.store.take_turns(question),
        });
    }

    /// Ends the place of the queue in the line of the store.
    fn end_place(&mut self) {
        if std::mem::take(&mut self.is_listed) {
            self.asked = Some(Asked {
                callers: 0,
                first: None,
                sent_at: ServerClock::now(),
                reply: self.lines.store.take_turns(self.line.last_question()),
            });
        }
    }
}

const FIRST_BACKOFF: Duration = Duration::from_millis(1);
/// To 8 ms: the line waits for a queue that is due for at most 20 ms.
const MOST_DOUBLINGS: u32 = 3;
const LONGEST_BACKOFF: Duration = Duration::from_millis(250);
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
const FIRST_POLL: Duration = Duration::from_millis(20);
const LEAST_POLL: Duration = Duration::from_millis(5);
const MOST_POLL: Duration = Duration::from_millis(250);
const TRUSTED: u32 = 8;
