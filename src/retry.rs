//! Work that is tried again in the background until it is done or no longer matters.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    iter, mem,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::task::AbortHandle;

use crate::{
    clock::{Clock, Timestamp},
    spawn,
    sync::Mutex,
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
/// runtime has ended, or nobody has driven it for [`PATIENCE`], the next [`add`](Self::add) or [`resume`](Self::resume) on
/// another runtime starts a new one, which takes over what the former one was about to try.
pub(crate) struct RetryQueue<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    waiting: Vec<Waiting<T>>,
    /// Items that the round of the latest task has yet to try.
    left: Vec<Waiting<T>>,
    /// Items that it is trying.
    trying: Vec<Waiting<T>>,
    /// Items that it tried in vain.
    failed: Vec<Waiting<T>>,
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

impl<T> Clone for Waiting<T> {
    fn clone(&self) -> Self {
        Self {
            item: Arc::clone(&self.item),
            until: self.until,
        }
    }
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
        if state.len() >= capacity {
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
        if state.len() > 0 {
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
            let mut state = owner.retries().state.lock();
            if state.tasks == task {
                state.wakes_at = Clock::system().now() + wait;
            }
        }
    }
}

impl<T: Send + Sync + 'static> State<T> {
    /// Returns the number of items that are not done.
    fn len(&self) -> usize {
        self.waiting.len() + self.left.len() + self.trying.len() + self.failed.len()
    }

    /// Ends the round: what it has not done waits again.
    fn put_back(&mut self, is_repeatable: fn(&T) -> bool) {
        // What failed comes last the next time.
        let mut waiting = mem::take(&mut self.failed);
        waiting.append(&mut self.left);
        // In the middle of a try, it is not known what became of it.
        let trying = mem::take(&mut self.trying).into_iter();
        waiting.extend(trying.filter(|waiting| is_repeatable(&waiting.item)));
        waiting.append(&mut self.waiting);
        self.waiting = waiting;
    }

    fn start<O: Retry<Item = T>>(&mut self, owner: &Arc<O>) {
        let now = Clock::system().now();
        let is_running = self.task.as_ref().is_some_and(|task| !task.is_finished());
        if is_running && now <= self.wakes_at + PATIENCE {
            return;
        }
        let number = self.tasks + 1;
        let running = RetryQueue::run(Arc::clone(owner), number);
        if let Some(task) = spawn::on_current(running) {
            self.put_back(O::is_repeatable);
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
                left: Vec::new(),
                trying: Vec::new(),
                failed: Vec::new(),
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
///
/// The items are in the queue's state, so that another task can take them over.
struct Round<O: Retry> {
    owner: Arc<O>,
    task: u64,
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
        state.left = left;
        Some(Self {
            owner: Arc::clone(owner),
            task,
        })
    }

    /// Tries all items, in batches. Returns whether all are done; a batch of which none is done ends the round.
    async fn finish(self) -> bool {
        while let Some(tried) = self.next() {
            let items = tried.iter().map(|waiting| Arc::clone(&waiting.item));
            let done = Arc::clone(&self.owner).try_again(items.collect()).await;
            if !self.note(tried, &done) {
                return false;
            }
        }
        let state = self.owner.retries().state.lock();
        state.tasks == self.task && state.failed.is_empty()
    }

    /// Returns the items to try next. `None`: nothing is left, or another task has taken over.
    fn next(&self) -> Option<Vec<Waiting<O::Item>>> {
        let mut state = self.owner.retries().state.lock();
        if state.tasks != self.task || state.left.is_empty() {
            return None;
        }
        state.wakes_at = Clock::system().now();
        let start = state.left.len().saturating_sub(BATCH);
        state.trying = state.left.split_off(start);
        Some(state.trying.clone())
    }

    /// Notes which of the items are done. Returns whether the round goes on.
    fn note(&self, tried: Vec<Waiting<O::Item>>, done: &[bool]) -> bool {
        let results = done.iter().copied().chain(iter::repeat(false));
        let failed = tried.into_iter().zip(results);
        let failed = failed.filter(|(_, is_done)| !is_done);
        let failed = failed.map(|(waiting, _)| waiting);
        let mut state = self.owner.retries().state.lock();
        if state.tasks == self.task {
            state.trying.clear();
            state.failed.extend(failed);
            return done.contains(&true);
        }
        // Another task has taken over all but these.
        state
            .waiting
            .extend(failed.filter(|waiting| !O::is_repeatable(&waiting.item)));
        false
    }
}

impl<O: Retry> Drop for Round<O> {
    fn drop(&mut self) {
        let mut state = self.owner.retries().state.lock();
        if state.tasks == self.task {
            state.put_back(O::is_repeatable);
        }
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

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// Its first try never ends, and all others succeed.
    #[derive(Default)]
    struct Stuck {
        queue: RetryQueue<&'static str>,
        tried: Mutex<Vec<&'static str>>,
    }

    impl Stuck {
        fn tried(&self) -> Vec<&'static str> {
            self.tried.lock().clone()
        }
    }

    impl Retry for Stuck {
        type Item = &'static str;

        fn retries(&self) -> &RetryQueue<&'static str> {
            &self.queue
        }

        fn is_repeatable(item: &&'static str) -> bool {
            item.starts_with("release")
        }

        fn try_again(self: Arc<Self>, items: Vec<Arc<&'static str>>) -> Tried {
            let mut tried = self.tried.lock();
            let is_first = tried.is_empty();
            tried.extend(items.iter().map(|item| **item));
            Box::pin(async move {
                if is_first {
                    std::future::pending::<()>().await;
                }
                vec![true; items.len()]
            })
        }
    }

    /// A runtime that runs only while somebody blocks on it.
    fn runtime() -> Runtime {
        Builder::new_current_thread().build().expect("a runtime")
    }

    fn add(owner: &Arc<Stuck>, item: &'static str) {
        let until = Clock::system().now() + Duration::from_secs(3_600);
        assert!(RetryQueue::add(owner, item, until));
    }

    async fn until(is_so: impl Fn() -> bool) {
        let started = Clock::system().now();
        while !is_so() {
            let waited = Clock::system().now().since(started);
            assert!(waited < Duration::from_secs(10), "in vain");
            tokio::task::yield_now().await;
        }
    }

    // Regression: what a round had taken out waited until its runtime was driven again, or ended.
    #[test]
    fn round_on_a_runtime_that_nobody_drives_is_taken_over() {
        let owner = Arc::new(Stuck::default());
        let (still, driven) = (runtime(), runtime());
        still.block_on(async {
            add(&owner, "release");
            add(&owner, "correction");
            until(|| owner.tried().len() == 2).await;
        });
        driven.block_on(async {
            RetryQueue::resume(&owner);
            tokio::task::yield_now().await;
            assert_eq!(owner.tried().len(), 2, "it may only be slow");
            owner.queue.state.lock().wakes_at = Timestamp::default();
            RetryQueue::resume(&owner);
            until(|| owner.tried().len() > 2).await;
        });
        // What became of the correction is not known.
        assert_eq!(owner.tried()[2..], ["release"]);
        drop(still);
        assert_eq!(owner.tried().len(), 3);
        assert!(owner.queue.state.lock().waiting.is_empty());
    }
}
