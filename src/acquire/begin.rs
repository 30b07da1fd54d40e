//! How a caller begins to wait, or need not.
//!
//! ```text
//! others wait for the same charges          joins their line
//! enough lines ask, or wait for its keys    begins a line, which asks after them
//! the store decides at once                 has its turn, or begins a line
//! the store must be asked                   begins a line, whose task awaits the reply
//! ```

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    error::AcquireError,
    line::{CallerResult, Line, LineKey},
    lines::Lines,
    permit::Permit,
    server_clock::ServerClock,
    task::{self, Asked, First},
};
use crate::{
    charge::{OwnedCharge, Priority, Turn},
    clock::{self, Timestamp},
    error::{Error, ErrorKind},
    task::timer::{sleep, timeout},
};

/// A caller that wants a turn.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// The charges, or why they cannot be made.
    pub charges: Result<Arc<[OwnedCharge]>, Error>,
    pub priority: Priority,
    pub max_wait: MaxWait,
}

/// How long a caller waits at most.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MaxWait {
    For(Duration),
    Until(Instant),
}

/// The future of a caller that waits.
pub(super) type Waiting = Pin<Box<dyn Future<Output = Result<Permit, AcquireError>> + Send>>;

/// The result for a caller that has asked: its turn, an error, or a future.
pub(super) enum Begun {
    Done(Result<Permit, AcquireError>),
    Waits(Waiting),
}

/// Begins to wait, or returns the turn.
pub(super) fn begin(lines: &Arc<Lines>, wish: Wish) -> Begun {
    let came = ServerClock::now();
    let wait = match wish.max_wait {
        MaxWait::For(wait) => wait,
        MaxWait::Until(deadline) => clock::time_until(deadline),
    };
    let charges = match &wish.charges {
        Ok(charges) => Arc::clone(charges),
        Err(error) => return Begun::Done(Err(AcquireError::failed(error.clone()))),
    };
    if let Some(error) = impossible(&charges) {
        return Begun::Done(Err(error));
    }
    if charges.is_empty() {
        return decide_nothing(lines);
    }
    if !lines.blocks.is_needed() {
        return begin_unblocked(lines, wish.priority, charges, (came, wait));
    }
    let lines = Arc::clone(lines);
    Begun::Waits(Box::pin(async move {
        if let Some(error) = lines.blocked(&charges).await {
            return Err(error);
        }
        match begin_unblocked(&lines, wish.priority, charges, (came, wait)) {
            Begun::Done(result) => result,
            Begun::Waits(waiting) => waiting.await,
        }
    }))
}

/// Returns the error of charges that never fit.
fn impossible(charges: &[OwnedCharge]) -> Option<AcquireError> {
    charges.iter().map(OwnedCharge::borrow).find_map(|charge| {
        let policy = charge.policy();
        let is_above = charge.units() > charge.counter().most() && !charge.is_shadow();
        is_above.then(|| AcquireError::never(*policy.name()))
    })
}

fn begin_unblocked(
    lines: &Arc<Lines>,
    priority: Priority,
    charges: Arc<[OwnedCharge]>,
    (came, max_wait): (Timestamp, Duration),
) -> Begun {
    let key = LineKey::new(&charges, priority);
    let until = came + max_wait;
    let join = |line: &Arc<Line>| line.join(came, until, came);
    let is_try = max_wait.is_zero();
    if is_try {
        // It overtakes nobody. A line without callers is about to end.
        let waiting = |line: &Arc<Line>| (!line.is_empty()).then(|| line.first_turn(came));
        if let Some(away) = lines.with(&key, waiting).flatten() {
            let policy = charges
                .first()
                .map(|charge| *charge.borrow().policy().name());
            return Begun::Done(Err(AcquireError::too_long(away, policy)));
        }
    } else if let Some((joined, line)) = lines.with(&key, |line| (join(line), Arc::clone(line))) {
        return wait(lines, line, joined, (came, until));
    }
    let line = Arc::new(Line::new((lines.queue(), key), charges, priority));
    let is_full = lines.full(&line).is_some();
    if is_full && is_try {
        return Begun::Done(Err(AcquireError::too_long(None, line.policy())));
    }
    let first = lines.begin_question().filter(|_| !is_full);
    if first.is_none() && !is_try {
        let ((joined, line), is_new) = lines.add(&line, |line| (join(line), Arc::clone(line)));
        if is_new {
            task::start(lines, &line, First::Waits);
        }
        return wait(lines, line, joined, (came, until));
    }
    let is_listed = first.as_ref().is_some_and(|first| first.is_listed) && !is_try;
    let pace = match is_try {
        true => (Duration::ZERO, FIRST_POLL),
        false => (line.clock.ahead(), FIRST_POLL),
    };
    let mut question = line.first_question((is_listed, !is_try), pace);
    question.pause = lines.pauses.of(&question.charges);
    let mut reply = lines.store.take_turns(question);
    let Some(turns) = reply.take_ready() else {
        let asked = Asked {
            callers: 1,
            first,
            sent_at: came,
            reply,
        };
        if is_try {
            return Begun::Waits(try_once(lines, line, asked));
        }
        // If another caller was faster, the question is not sent.
        let ((joined, line), is_new) = lines.add(&line, |line| (join(line), Arc::clone(line)));
        if is_new {
            task::start(lines, &line, First::Asked(asked));
        }
        return wait(lines, line, joined, (came, until));
    };
    let mut turns = match turns {
        Ok(turns) => turns,
        Err(error) => return Begun::Done(Err(AcquireError::failed(error))),
    };
    if turns.now > Timestamp::default() {
        line.clock.note(turns.now, came, ServerClock::now());
    }
    if let Some(turn) = turns.turns.pop() {
        return granted(lines, &line, turn, came);
    }
    if is_try {
        let away = turns.due.map(|due| due.since(turns.now));
        return Begun::Done(Err(AcquireError::too_long(away, line.policy())));
    }
    let own = Arc::clone(&line);
    let ((joined, line), is_new) = lines.add(&line, |line| (join(line), Arc::clone(line)));
    if is_new {
        task::start(lines, &line, First::Replied(turns, is_listed));
    } else {
        // Another caller was faster: this one has no place of its own. The store replies at once, as before.
        let _ = lines.store.take_turns(own.last_question()).take_ready();
    }
    wait(lines, line, joined, (came, until))
}

/// Returns the turn of a caller without charges, which need not wait.
fn decide_nothing(lines: &Arc<Lines>) -> Begun {
    let (lines, deciding) = (Arc::clone(lines), lines.store.decide(&[]));
    Begun::Waits(Box::pin(async move {
        let decision = deciding.await.map_err(AcquireError::failed)?;
        let start = decision.decided_at();
        let grant = lines.grant(&[], Turn { start, decision });
        Ok(grant.into_permit(Duration::ZERO))
    }))
}

/// Returns a turn that was granted at once. It may start a little later.
fn granted(lines: &Arc<Lines>, line: &Arc<Line>, turn: Turn, came: Timestamp) -> Begun {
    let start = line.clock.local(turn.start);
    let grant = lines.grant(&line.charges(), turn);
    let now = ServerClock::now();
    if start <= now {
        return Begun::Done(Ok(grant.into_permit(Duration::ZERO)));
    }
    Begun::Waits(Box::pin(async move {
        sleep(start.since(now)).await;
        Ok(grant.into_permit(ServerClock::now().since(came)))
    }))
}

/// Asks once. If the caller leaves, the turn is given back.
fn try_once(lines: &Arc<Lines>, line: Arc<Line>, asked: Asked) -> Waiting {
    let (sender, result) = oneshot::channel::<CallerResult>();
    let lines = Arc::clone(lines);
    let ended = AcquireError::failed(Error::new(ErrorKind::Unavailable, "its task has ended"));
    Box::pin(async move {
        crate::task::home::spawn_lasting(Box::pin(async move {
            let result = match asked.reply.await {
                Ok(mut turns) => match turns.turns.pop() {
                    Some(turn) => Ok(lines.grant(&line.charges(), turn)),
                    None => {
                        let now = turns.now;
                        let away = turns.due.map(|due| due.since(now));
                        Err(AcquireError::too_long(away, line.policy()))
                    }
                },
                Err(error) => Err(AcquireError::failed(error)),
            };
            let _ = sender.send(result);
        }));
        let grant = result.await.unwrap_or(Err(ended))?;
        Ok(grant.into_permit(ServerClock::now().since(asked.sent_at)))
    })
}

/// Waits for the turn of a caller that has joined a line.
fn wait(
    lines: &Arc<Lines>,
    line: Arc<Line>,
    joined: Result<(u64, oneshot::Receiver<CallerResult>), Duration>,
    (came, until): (Timestamp, Timestamp),
) -> Begun {
    let (number, turn) = match joined {
        Ok(joined) => joined,
        Err(away) => {
            return Begun::Done(Err(AcquireError::too_long(Some(away), line.policy())));
        }
    };
    let mut place = Place {
        line,
        number: Some(number),
    };
    let lines = Arc::clone(lines);
    Begun::Waits(Box::pin(async move {
        // Kept while it waits: the task needs it.
        let _lines = lines;
        let limit = until.since(ServerClock::now());
        let turn = timeout(limit, turn).await;
        let waited = ServerClock::now().since(came);
        match turn {
            Some(Ok(result)) => {
                place.end();
                Ok(result?.into_permit(waited))
            }
            Some(Err(_)) => {
                let ended = Error::new(ErrorKind::Unavailable, "the task of the line has ended");
                Err(AcquireError::failed(ended).after(waited))
            }
            None => Err(place.line.expired(number, ServerClock::now()).after(waited)),
        }
    }))
}

/// A place in a line, which is given back when the caller leaves.
struct Place {
    line: Arc<Line>,
    number: Option<u64>,
}

impl Place {
    /// Notes that the caller has had its turn.
    fn end(&mut self) {
        self.number = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            self.line.leave(number);
        }
    }
}

const FIRST_POLL: Duration = Duration::from_millis(20);
