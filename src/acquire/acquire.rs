//! The future of a caller that waits for its turn.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    begin::{Begun, MaxWait, Waiting, Wish, begin},
    error::AcquireError,
    lines::Lines,
    permit::Permit,
    recorded::{Recorded, RecordedWait},
};
use crate::{
    charge::{OwnedCharge, Priority},
    error::Error,
};

/// Waits for a turn. [`RateLimiter::acquire`](crate::RateLimiter::acquire) creates it.
///
/// # Cancel safety
///
/// Dropping it gives the place back, and refunds a turn that was granted meanwhile.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Acquire {
    lines: Arc<Lines>,
    state: State,
}

enum State {
    Begins(Wish),
    Done,
    Waits(Waiting, RecordedWait),
}

impl Acquire {
    pub(crate) fn new(
        lines: &Arc<Lines>,
        charges: Result<Arc<[OwnedCharge]>, Error>,
        max_wait: MaxWait,
    ) -> Self {
        Self {
            lines: Arc::clone(lines),
            state: State::Begins(Wish {
                charges,
                priority: Priority::default(),
                max_wait,
            }),
        }
    }

    /// Sets how long to wait at most. A caller whose turn is later gets an error at once. One that waits for a slot gets it after
    /// this time, because slots come back at an unknown time.
    ///
    /// Default: 30 s. With zero it does not wait, as [`try_acquire`](crate::RateLimiter::try_acquire).
    pub fn max_wait(mut self, wait: Duration) -> Self {
        if let State::Begins(wish) = &mut self.state {
            wish.max_wait = MaxWait::For(wait);
        }
        self
    }

    /// Sets who goes first.
    ///
    /// Default: [`Priority::Normal`].
    pub fn priority(mut self, priority: Priority) -> Self {
        if let State::Begins(wish) = &mut self.state {
            wish.priority = priority;
        }
        self
    }
}

impl Future for Acquire {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match std::mem::replace(&mut this.state, State::Done) {
                State::Begins(wish) => {
                    let recorded = Recorded::of(&wish);
                    match begin(&this.lines, wish) {
                        Begun::Done(result) => {
                            recorded.ended(&this.lines, &result);
                            return Poll::Ready(result);
                        }
                        Begun::Waits(waiting) => {
                            this.state = State::Waits(waiting, recorded.begin(&this.lines));
                        }
                    }
                }
                State::Done => panic!("a future is not polled after it has returned"),
                State::Waits(mut waiting, mut recorded) => {
                    let polled = waiting.as_mut().poll(context);
                    match &polled {
                        Poll::Pending => this.state = State::Waits(waiting, recorded),
                        Poll::Ready(result) => recorded.note(result),
                    }
                    return polled;
                }
            }
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Begins(_) => "not begun",
            State::Done => "done",
            State::Waits(..) => "waits",
        };
        f.debug_tuple("Acquire").field(&state).finish()
    }
}
