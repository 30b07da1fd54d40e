//! Work that is tried again in the background until it is done or no longer matters.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    mem,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::task::AbortHandle;

use crate::{
    clock::{Clock, Timestamp},
    sync::Mutex,
    task,
    timer::sleep,
};

/// Owner of a [`RetryQueue`], which tries what waits in it.
pub(crate) trait Retry: Send + Sync + 'static {
    type Item: Send + Sync + 'static;

    fn retries(&self) -> &RetryQueue<Self::Item>;

    /// Whether an item may be tried again when it is not known what became of a try.
    fn is_repeatable(item: &Self::Item) -> bool;

    /// Tries some items once. Returns, per item, whether it needs no other try.
    fn try_again(self: Arc<Self>, items: Vec<Arc<Self::Item>>) -> Tried;
}

pub(crate) type Tried = Pin<Box<dyn Future<Output = Vec<bool>> + Send>>;

/// Items that wait for another try, each until a time of its own.
///
/// One task tries them all. Between its rounds it waits 20 ms, and twice as long after each round that fails, up to a
/// second; each wait is shortened at random by up to a half. The task keeps the owner alive until nothing waits. When its
/// runtime ends, the next [`add`](Self::add) or [`resume`](Self::resume) on another runtime starts a new one.
pub(crate) struct RetryQueue<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    waiting: Vec<Waiting<T>>,
    /// Items that a round has taken out and may put back.
    in_round: usize,
    task: Option<AbortHandle>,
    /// Number of the latest task. An earlier one ends when it wakes.
    tasks: u64,
    /// When the task wakes, if anybody drives its runtime.
    wakes_at: Timestamp,
}

struct Waiting<T> {
    item: Arc<T>,
    until: Timestamp,
}

impl<T: Send + Sync + 'static> RetryQueue<T> {
    /// Adds an item to the owner's queue, to be tried until that time. Returns whether there was room.
    pub(crate) fn add<O: Retry<Item = T>>(owner: &Arc<O>, item: T, until: Timestamp) -> bool {
        let mut state = owner.retries().state.lock();
        // What must not be repeated is less urgent than what may, such as releases, and leaves it half of the room.
        let capacity = if O::is_repeatable(&item) {
            CAPACITY
        } else {
            CAPACITY / 2
        };
        if state.waiting.len() + state.in_round >= capacity {
            return false;
        }
        let item = Arc::new(item);
        state.waiting.push(Waiting { item, until });
        state.start(owner);
        true
    }

    /// Starts the task on the caller's runtime if items wait and no runtime drives one.
    pub(crate) fn resume<O: Retry<Item = T>>(owner: &Arc<O>) {
        let mut state = owner.retries().state.lock();
        if !state.waiting.is_empty() {
            state.start(owner);
        }
    }

    async fn run<O: Retry<Item = T>>(owner: Arc<O>, task: u64) {
        let mut wait = FIRST_WAIT;
        loop {
            sleep(shortened(wait)).await;
            let Some(round) = Round::begin(&owner, task) else {
                return;
            };
            wait = match round.finish().await {
                true => FIRST_WAIT,
                false => (wait * 2).min(LONGEST_WAIT),
            };
            owner.retries().state.lock().wakes_at = Clock::system().now() + wait;
        }
    }
}

impl<T: Send + Sync + 'static> State<T> {
    fn start<O: Retry<Item = T>>(&mut self, owner: &Arc<O>) {
        let now = Clock::system().now();
        let is_running = self.task.as_ref().is_some_and(|task| !task.is_finished());
        if is_running && now <= self.wakes_at + PATIENCE {
            return;
        }
        let number = self.tasks + 1;
        let running = RetryQueue::run(Arc::clone(owner), number);
        if let Some(task) = task::spawn(running) {
            self.task = Some(task);
            self.tasks = number;
            self.wakes_at = now;
        }
    }
}

impl<T> Default for RetryQueue<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                waiting: Vec::new(),
                in_round: 0,
                task: None,
                tasks: 0,
                wakes_at: Timestamp::default(),
            }),
        }
    }
}

impl<T> fmt::Debug for RetryQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryQueue").finish_non_exhaustive()
    }
}

// === Round ===

/// All that waited when it began. Dropped, also in the middle, it puts back what is not done.
struct Round<O: Retry> {
    owner: Arc<O>,
    left: Vec<Waiting<O::Item>>,
    /// Items that are being tried.
    trying: Vec<Waiting<O::Item>>,
    failed: Vec<Waiting<O::Item>>,
    size: usize,
}

impl<O: Retry> Round<O> {
    /// `None` ends the task: nothing waits, or another task has taken over.
    fn begin(owner: &Arc<O>, task: u64) -> Option<Self> {
        let now = Clock::system().now();
        let mut state = owner.retries().state.lock();
        if state.tasks != task {
            return None;
        }
        let mut left = mem::take(&mut state.waiting);
        left.retain(|waiting| now < waiting.until);
        if left.is_empty() {
            state.task = None;
            return None;
        }
        let size = left.len();
        state.in_round += size;
        state.wakes_at = now;
        drop(state);
        Some(Self {
            owner: Arc::clone(owner),
            left,
            trying: Vec::new(),
            failed: Vec::new(),
            size,
        })
    }

    /// Tries all items, in batches. Returns whether all are done; a batch of which none is done ends the round.
    async fn finish(mut self) -> bool {
        while !self.left.is_empty() {
            let start = self.left.len().saturating_sub(BATCH);
            self.trying = self.left.split_off(start);
            let items = self.trying.iter();
            let items: Vec<_> = items.map(|waiting| Arc::clone(&waiting.item)).collect();
            let done = Arc::clone(&self.owner).try_again(items).await;
            let tried = mem::take(&mut self.trying).into_iter();
            let tried = tried.zip(done.iter().chain([&false].into_iter().cycle()));
            let failed = tried
                .filter(|(_, is_done)| !**is_done)
                .map(|(waiting, _)| waiting);
            self.failed.extend(failed);
            if !done.contains(&true) {
                return false;
            }
        }
        self.failed.is_empty()
    }
}

impl<O: Retry> Drop for Round<O> {
    fn drop(&mut self) {
        let mut state = self.owner.retries().state.lock();
        state.in_round -= self.size;
        // What failed comes last the next time.
        let mut waiting = mem::take(&mut self.failed);
        waiting.append(&mut self.left);
        // Its runtime has ended, or it panicked, in the middle of a try.
        let repeatable = mem::take(&mut self.trying).into_iter();
        waiting.extend(repeatable.filter(|waiting| O::is_repeatable(&waiting.item)));
        waiting.append(&mut state.waiting);
        state.waiting = waiting;
    }
}

/// Returns between half of `wait` and all of it.
pub(crate) fn shortened(wait: Duration) -> Duration {
    let thousandths = 500 + (random() % 501) as u32;
    wait * thousandths / 1_000
}

/// Returns a number from the standard library's entropy, advanced by each call: good enough to spread load.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// The most items that wait. Further ones are refused.
const CAPACITY: usize = 65_536;
/// Items that are tried at once.
const BATCH: usize = 256;
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// A task that is later than this is on a runtime that nobody drives.
const PATIENCE: Duration = Duration::from_secs(10);
