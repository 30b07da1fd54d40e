//! Work that is retried in the background until it is done or expires.

use std::{fmt, iter, mem, pin::Pin, sync::Arc, time::Duration};

use super::{
    backoff::Backoff,
    home::{self, LastingTask},
    lease::TaskLease,
    mutex::Mutex,
    timer::sleep,
};
use crate::clock::{Clock, Timestamp};

/// Owner of a [`RetryQueue`], which retries its items.
pub(crate) trait RetryOwner: Send + Sync + 'static {
    type Item: Send + Sync + 'static;

    /// Returns the owner's queue.
    fn retry_queue(&self) -> &RetryQueue<Self::Item>;

    /// Returns whether an item may be retried when the fate of the last try is unknown.
    fn is_repeatable(item: &Self::Item) -> bool;

    /// Tries some items once. The future returns, per item, whether no further try is needed.
    fn retry(self: Arc<Self>, items: Vec<Arc<Self::Item>>) -> RetryFuture;
}

/// Returns `true` for each item that is done, in the order of the items.
pub(crate) type RetryFuture = Pin<Box<dyn Future<Output = Vec<bool>> + Send>>;

/// Items that wait for another try, each until its own deadline.
///
/// ```text
///  add ──▶ waiting ──▶ remaining ──▶ in_progress ──▶ done
///             ▲       of this round   up to 256   └▶ failed
///             └───────────── the round ends ────────────┘
/// ```
///
/// One task tries them all, round by round. It waits 20 ms before the first round, and twice as long after each round that
/// fails, up to 1 s; each wait is [jittered](crate::task::backoff::jittered). The task keeps the owner alive until the queue is
/// empty. If its runtime ends, the task goes [home](crate::task::home). If its runtime is not driven for [`TOLERANCE`], the next
/// [`add`](Self::add) or [`resume`](Self::resume) starts a new task at home, which takes over the items of the former one.
pub(crate) struct RetryQueue<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    /// Items for the next round.
    waiting: Vec<RetryItem<T>>,
    /// Items of the current round that were not tried yet.
    remaining: Vec<RetryItem<T>>,
    /// Items that are being tried.
    in_progress: Vec<RetryItem<T>>,
    /// Items of the current round that failed.
    failed: Vec<RetryItem<T>>,
    task: Option<LastingTask>,
    lease: TaskLease,
}

struct RetryItem<T> {
    item: Arc<T>,
    until: Timestamp,
}

impl<T> Clone for RetryItem<T> {
    fn clone(&self) -> Self {
        Self {
            item: Arc::clone(&self.item),
            until: self.until,
        }
    }
}

impl<T: Send + Sync + 'static> RetryQueue<T> {
    /// Adds an item to the owner's queue, to be tried until this deadline. Returns `false` if the queue is full.
    pub(crate) fn add<O: RetryOwner<Item = T>>(owner: &Arc<O>, item: T, until: Timestamp) -> bool {
        let mut state = owner.retry_queue().state.lock();
        // Releases, which can be repeated, are more urgent than corrections, which cannot: half of the room is theirs.
        let capacity = if O::is_repeatable(&item) {
            CAPACITY
        } else {
            CAPACITY / 2
        };
        if state.len() >= capacity {
            return false;
        }
        let item = Arc::new(item);
        state.waiting.push(RetryItem { item, until });
        state.start(owner);
        true
    }

    /// Starts a task, if items wait and no task is on time.
    pub(crate) fn resume<O: RetryOwner<Item = T>>(owner: &Arc<O>) {
        let mut state = owner.retry_queue().state.lock();
        if state.len() > 0 {
            state.start(owner);
        }
    }

    /// Runs rounds until nothing waits or another task takes over.
    async fn run<O: RetryOwner<Item = T>>(owner: Arc<O>, task: u64) {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            let wait = backoff.wait();
            let until = Clock::system().now() + wait + TOLERANCE;
            if !owner.retry_queue().state.lock().lease.renew(task, until) {
                return;
            }
            sleep(wait).await;
            let Some(round) = Round::begin(&owner, task) else {
                return;
            };
            if round.finish().await {
                backoff.reset();
            }
        }
    }
}

impl<T: Send + Sync + 'static> State<T> {
    /// Returns the number of items that are not done.
    fn len(&self) -> usize {
        self.waiting.len() + self.remaining.len() + self.in_progress.len() + self.failed.len()
    }

    /// Ends the round: items that are not done wait again.
    fn put_back(&mut self, is_repeatable: fn(&T) -> bool) {
        // Batches are taken from the end, so items that failed are tried last in the next round.
        let mut waiting = mem::take(&mut self.failed);
        waiting.append(&mut self.remaining);
        // The fate of a try that was cut off is unknown.
        let in_progress = mem::take(&mut self.in_progress).into_iter();
        waiting.extend(in_progress.filter(|retried| is_repeatable(&retried.item)));
        waiting.append(&mut self.waiting);
        self.waiting = waiting;
    }

    /// Starts a task, unless one is on time.
    fn start<O: RetryOwner<Item = T>>(&mut self, owner: &Arc<O>) {
        let now = Clock::system().now();
        let is_running = self.task.as_ref().is_some_and(|task| !task.is_finished());
        if is_running && self.lease.is_held(now) {
            return;
        }
        self.put_back(O::is_repeatable);
        let task = self.lease.take_over(now + TOLERANCE);
        let running = RetryQueue::run(Arc::clone(owner), task);
        let running = Box::pin(running);
        self.task = Some(if is_running {
            home::spawn_lasting_at_home(running)
        } else {
            home::spawn_lasting(running)
        });
    }
}

impl<T> Default for RetryQueue<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                waiting: Vec::new(),
                remaining: Vec::new(),
                in_progress: Vec::new(),
                failed: Vec::new(),
                task: None,
                lease: TaskLease::default(),
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

/// One try of all items that waited when the round began. Dropped early, it puts back the items that are not done.
///
/// The items stay in the queue's state, where another task can take them over.
struct Round<O: RetryOwner> {
    owner: Arc<O>,
    task: u64,
}

impl<O: RetryOwner> Round<O> {
    /// Begins a round. Returns `None`, which ends the task, if nothing waits or another task has taken over.
    fn begin(owner: &Arc<O>, task: u64) -> Option<Self> {
        let now = Clock::system().now();
        let mut state = owner.retry_queue().state.lock();
        if !state.lease.belongs_to(task) {
            return None;
        }
        let mut remaining = mem::take(&mut state.waiting);
        remaining.retain(|item| now < item.until);
        if remaining.is_empty() {
            state.task = None;
            return None;
        }
        state.remaining = remaining;
        Some(Self {
            owner: Arc::clone(owner),
            task,
        })
    }

    /// Tries all items, in batches. Returns whether all are done. A batch of which no item is done ends the round.
    async fn finish(self) -> bool {
        while let Some(batch) = self.next() {
            let items = batch.iter().map(|retried| Arc::clone(&retried.item));
            let done = Arc::clone(&self.owner).retry(items.collect()).await;
            if !self.record(batch, &done) {
                return false;
            }
        }
        let state = self.owner.retry_queue().state.lock();
        state.lease.belongs_to(self.task) && state.failed.is_empty()
    }

    /// Returns the next batch, or `None` if no items remain or another task has taken over.
    fn next(&self) -> Option<Vec<RetryItem<O::Item>>> {
        let mut state = self.owner.retry_queue().state.lock();
        let until = Clock::system().now() + TOLERANCE;
        if !state.lease.renew(self.task, until) || state.remaining.is_empty() {
            return None;
        }
        let start = state.remaining.len().saturating_sub(BATCH);
        state.in_progress = state.remaining.split_off(start);
        Some(state.in_progress.clone())
    }

    /// Records which items of a batch are done. Returns whether the round goes on.
    fn record(&self, batch: Vec<RetryItem<O::Item>>, done: &[bool]) -> bool {
        let results = done.iter().copied().chain(iter::repeat(false));
        let failed = batch.into_iter().zip(results);
        let failed = failed.filter(|(_, is_done)| !is_done);
        let failed = failed.map(|(retried, _)| retried);
        let mut state = self.owner.retry_queue().state.lock();
        if state.lease.belongs_to(self.task) {
            state.in_progress.clear();
            state.failed.extend(failed);
            return done.contains(&true);
        }
        // The task that took over has the repeatable items already.
        state
            .waiting
            .extend(failed.filter(|retried| !O::is_repeatable(&retried.item)));
        false
    }
}

impl<O: RetryOwner> Drop for Round<O> {
    fn drop(&mut self) {
        let mut state = self.owner.retry_queue().state.lock();
        if state.lease.belongs_to(self.task) {
            state.put_back(O::is_repeatable);
        }
    }
}

/// Maximum number of items in a queue, which refuses more.
const CAPACITY: usize = 65_536;
/// Maximum number of items in one batch.
const BATCH: usize = 256;
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// A task that is later than this is on a runtime that nobody drives.
const TOLERANCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// The first try never ends. All others succeed.
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

    impl RetryOwner for Stuck {
        type Item = &'static str;

        fn retry_queue(&self) -> &RetryQueue<&'static str> {
            &self.queue
        }

        fn is_repeatable(item: &&'static str) -> bool {
            item.starts_with("release")
        }

        fn retry(self: Arc<Self>, items: Vec<Arc<&'static str>>) -> RetryFuture {
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

    /// A runtime that runs only while a thread blocks on it.
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

    /// Ends the lease of the first task, as if its runtime had not been driven for long.
    fn end_lease(owner: &Stuck) {
        let mut state = owner.queue.state.lock();
        state.lease.renew(1, Timestamp::default());
    }

    // Regression: the items of a round waited until its runtime was driven again, or ended.
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
            end_lease(&owner);
            RetryQueue::resume(&owner);
            until(|| owner.tried().len() > 2).await;
        });
        // The fate of the correction is unknown, so it is not retried.
        assert_eq!(owner.tried()[2..], ["release"]);
        drop(still);
        assert_eq!(owner.tried().len(), 3);
        assert!(owner.queue.state.lock().waiting.is_empty());
    }

    // Regression: the task that took over began on the same runtime, which nobody drove either.
    #[test]
    fn task_after_one_that_nobody_drives_begins_at_home() {
        let owner = Arc::new(Stuck::default());
        let still = runtime();
        still.block_on(async { add(&owner, "release") });
        end_lease(&owner);
        still.block_on(async { RetryQueue::resume(&owner) });
        runtime().block_on(until(|| !owner.tried().is_empty()));
        assert_eq!(owner.tried(), ["release"]);
    }
}
