//! All lines of a limiter.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[cfg(feature = "explain")]
use super::server_clock::ServerClock;
use super::{
    error::AcquireError,
    gates::{Gates, MayAsk},
    line::{Line, LineKey},
    pauses::Pauses,
    permit::Grant,
};
use crate::{
    block_check::BlockCheck,
    charge::{Charge, Fingerprint, OwnedCharge, Receipt, Turn},
    decision::{Decision, Ticket},
    hold::HoldRegistry,
    store::{OnSlotMessage, SlotMessage, Store, StoreFuture},
    task::Mutex,
    telemetry::{DecisionObserver, WaitMetrics},
};

/// All lines of a limiter, and what they need to ask its store.
pub(crate) struct Lines {
    pub(super) store: Arc<dyn Store>,
    pub(super) blocks: Arc<BlockCheck>,
    holds: Arc<HoldRegistry>,
    observer: DecisionObserver,
    pub waits: Arc<WaitMetrics>,
    book: Mutex<Book>,
    /// Number of keys that lines wait for.
    keys: AtomicUsize,
    /// The upper half of the numbers of its queues.
    queues: u32,
    this: Weak<Self>,
    /// Receives messages about slots, once somebody has waited for one.
    on_message: OnceLock<Arc<OnSlotMessage>>,
    has_messages: AtomicBool,
    pub(super) pauses: Pauses,
    /// One for each first question that may be on its way.
    first_questions: Arc<Semaphore>,
}

#[derive(Default)]
struct Book {
    lines: HashMap<LineKey, Arc<Line>>,
    gates: Gates,
}

impl Lines {
    pub fn new(
        store: Arc<dyn Store>,
        blocks: Arc<BlockCheck>,
        holds: Arc<HoldRegistry>,
        observer: DecisionObserver,
    ) -> Arc<Self> {
        let lines = Arc::new_cyclic(|this| Self {
            queues: u32::try_from(Ticket::random().as_u64() >> 32).expect("32 bits are left"),
            this: Weak::clone(this),
            on_message: OnceLock::new(),
            has_messages: AtomicBool::new(false),
            store,
            blocks,
            observer,
            waits: Arc::default(),
            pauses: Pauses::default(),
            book: Mutex::default(),
            keys: AtomicUsize::new(0),
            first_questions: Arc::new(Semaphore::new(MOST_QUESTIONS)),
            holds,
        });
        let weak = Arc::downgrade(&lines);
        lines.holds.on_release(move |keys| {
            if let Some(lines) = weak.upgrade() {
                let has_messages = lines.has_messages();
                let is_meant = |key: &Fingerprint| {
                    keys.iter()
                        .any(|(released, is_told)| released == key && !(*is_told && has_messages))
                };
                lines.wake(|line| line.slots().iter().any(is_meant));
            }
        });
        lines
    }

    /// Notes a pause of a key, for decisions that no line in the store precedes.
    pub(crate) fn note_pause(&self, charge: &Charge<'_>, length: Duration) {
        self.pauses.note(charge, length);
    }

    /// Runs `join` on the line with this key, if somebody waits there.
    pub(super) fn with<T>(&self, key: &LineKey, join: impl FnOnce(&Arc<Line>) -> T) -> Option<T> {
        let book = self.book.lock();
        book.lines.get(key).map(join)
    }

    /// Adds a line, unless there is one. Runs `join` on it while it cannot end, and returns whether it is new.
    pub(super) fn add<T>(&self, line: &Arc<Line>, join: impl FnOnce(&Arc<Line>) -> T) -> (T, bool) {
        let mut book = self.book.lock();
        match book.lines.entry(line.key.clone()) {
            Entry::Occupied(entry) => (join(entry.get()), false),
            Entry::Vacant(entry) => (join(entry.insert(Arc::clone(line))), true),
        }
    }

    /// Removes a line, unless somebody waits there.
    pub(super) fn remove_if_empty(&self, line: &Arc<Line>) -> bool {
        let mut book = self.book.lock();
        let is_empty = line.is_empty();
        if is_empty {
            book.lines.remove(&line.key);
            book.gates.leave(line);
            self.keys.store(book.gates.len(), Ordering::Relaxed);
        }
        is_empty
    }

    /// Returns the index of a charge of the line for whose key enough lines ask.
    pub(super) fn full(&self, line: &Line) -> Option<usize> {
        if self.keys.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.book.lock().gates.full(line)
    }

    /// Lets a line wait for the key of one of its charges. Returns whether it may ask for it.
    pub(super) fn enter(&self, line: &Arc<Line>, index: usize) -> bool {
        if line.has_slots {
            self.listen();
        }
        let mut book = self.book.lock();
        let may_ask = book.gates.enter(line, index);
        self.keys.store(book.gates.len(), Ordering::Relaxed);
        may_ask
    }

    /// Returns whether a line may ask. If others have older callers, it lets one of them ask instead.
    pub(super) fn may_ask(&self, line: &Arc<Line>) -> MayAsk {
        let mut book = self.book.lock();
        let may_ask = book.gates.may_ask(line);
        self.keys.store(book.gates.len(), Ordering::Relaxed);
        may_ask
    }

    /// Begins the first question of a line. `None` while enough are on their way: a store without time for all of them would
    /// be taken for one that is down.
    pub(super) fn begin_question(&self) -> Option<FirstQuestion> {
        let permit = Arc::clone(&self.first_questions).try_acquire_owned().ok()?;
        Some(self.first_question(permit))
    }

    /// As [`begin_question`](Self::begin_question), once there is room.
    pub(super) async fn wait_for_question(&self) -> Option<FirstQuestion> {
        let permit = Arc::clone(&self.first_questions).acquire_owned().await;
        Some(self.first_question(permit.ok()?))
    }

    fn first_question(&self, permit: OwnedSemaphorePermit) -> FirstQuestion {
        FirstQuestion {
            _permit: permit,
            is_listed: self.first_questions.available_permits() >= MOST_QUESTIONS - MOST_LISTED,
        }
    }

    /// Lets lines that wait for slots ask again.
    fn wake(&self, is_meant: impl Fn(&Line) -> bool) {
        let book = self.book.lock();
        let mut lines = book.lines.values();
        while let Some(line) = lines.find(|line| line.has_slots && is_meant(line)) {
            line.wake();
        }
    }

    /// Lets lines ask that wait for the same slots as one that may not.
    pub(super) fn wake_instead(&self, line: &Line) {
        let (number, slots) = (line.number(), line.slots());
        let book = self.book.lock();
        for other in book.lines.values() {
            let is_other = other.number() != number && other.has_slots && book.gates.asks(other);
            if is_other && other.slots().iter().any(|key| slots.contains(key)) {
                other.wake();
            }
        }
    }

    /// Returns whether the store sends messages about slots.
    pub(super) fn has_messages(&self) -> bool {
        self.has_messages.load(Ordering::Relaxed)
    }

    /// Listens to messages about slots from now on.
    fn listen(&self) {
        self.on_message.get_or_init(|| {
            let lines = Weak::clone(&self.this);
            let on_message: Arc<OnSlotMessage> = Arc::new(move |message| {
                if let Some(lines) = lines.upgrade() {
                    lines.received(message);
                }
            });
            self.store
                .listen_for_slots(self.queues, Arc::downgrade(&on_message));
            on_message
        });
    }

    fn received(&self, message: SlotMessage) {
        match message {
            SlotMessage::Began => {
                self.has_messages.store(true, Ordering::Relaxed);
                self.wake(|_| true);
            }
            SlotMessage::Ended => self.has_messages.store(false, Ordering::Relaxed),
            SlotMessage::Freed(queue) => self.wake(|line| line.number() == queue),
        }
    }

    /// Returns the number of a new queue.
    pub(super) fn queue(&self) -> u64 {
        u64::from(self.queues) << 32 | Ticket::random().as_u64() >> 32
    }

    /// Returns the callers of this process that wait for a key, and when a caller behind them would have its turn.
    #[cfg(feature = "explain")]
    pub fn key_wait(&self, key: Fingerprint) -> KeyWait {
        let book = self.book.lock();
        let mut wait = KeyWait::default();
        let now = ServerClock::now();
        for line in book.lines.values().filter(|line| line.waits_for(key)) {
            wait.callers += line.callers();
            wait.turn = wait.turn.max(line.first_turn(now));
        }
        wait
    }

    /// Returns the turn of a caller, and shows its decision to the observer.
    pub(super) fn grant(&self, charges: &[OwnedCharge], turn: Turn) -> Grant {
        let borrowed: Vec<_> = charges.iter().map(OwnedCharge::borrow).collect();
        let decision = turn.decision;
        if !self.observer.is_idle() {
            let mut decided = StoreFuture::ready(Ok(decision.clone()));
            self.observer.observe(&borrowed, &mut decided);
        }
        let mut receipt = Receipt::of(&borrowed, &decision);
        if let Some(receipt) = &mut receipt {
            receipt.mark_waking();
        }
        Grant::new(decision, receipt, &self.holds)
    }

    /// Returns the error if a key is blocked.
    pub(super) async fn blocked(&self, charges: &[OwnedCharge]) -> Option<AcquireError> {
        if !self.blocks.is_needed() {
            return None;
        }
        self.blocks.refresh().await;
        let is_blocked = |charge: &OwnedCharge| {
            let charge = charge.borrow();
            !charge.is_shadow() && self.blocks.is_blocked(charge.policy(), charge.key())
        };
        if !charges.iter().any(is_blocked) {
            return None;
        }
        let decided = {
            let borrowed: Vec<_> = charges.iter().map(OwnedCharge::borrow).collect();
            self.blocks.decide(&borrowed)
        };
        match decided.await {
            Ok(decision) if decision.is_allowed() => self.unblocked(charges, decision),
            Ok(decision) => Some(AcquireError::denied(&decision)),
            Err(error) => Some(AcquireError::failed(error)),
        }
    }

    /// Gives back what was charged because the block has just ended.
    fn unblocked(&self, charges: &[OwnedCharge], decision: Decision) -> Option<AcquireError> {
        let turn = Turn {
            start: decision.decided_at(),
            decision,
        };
        drop(self.grant(charges, turn));
        None
    }
}

/// The callers of this process that wait for one key.
#[cfg(feature = "explain")]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyWait {
    pub callers: usize,
    /// How long the turn of the next caller is away, as far as it is known.
    pub turn: Option<Duration>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines")
            .field("lines", &self.book.lock().lines.len())
            .finish_non_exhaustive()
    }
}

// === FirstQuestion ===

/// The first question of a line, until its reply.
pub(super) struct FirstQuestion {
    _permit: OwnedSemaphorePermit,
    /// Whether its caller has a place in the line of the store if it must wait. Each of very many would be read by all others.
    pub is_listed: bool,
}

/// The most first questions on their way, and how many of them are listed.
const MOST_QUESTIONS: usize = 256;
const MOST_LISTED: usize = 16;
