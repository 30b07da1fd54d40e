//! Work that is retried in the background until it is done or expires.

use std::{fmt, iter, mem, pin::Pin, sync::Arc, time::Duration};

use super::{
    backoff::Backoff,
    home::{Running, SingleTask},
    mutex::Mutex,
    timer::{sleep, timeout},
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
/// One task [at home](crate::task::home) tries them all, round by round. It waits 20 ms before the first round, and twice as long
/// after each round that fails, up to 1 s; each wait is [jittered](crate::task::backoff::jittered). The task keeps the owner alive
/// until the queue is empty. A try that takes longer than [`LONGEST_TRY`] counts as failed.
pub(crate) struct RetryQueue<T> {
    state: Mutex<RetryItems<T>>,
    task: SingleTask,
    longest_try: Duration,
}

struct RetryItems<T> {
    /// Items for the next round.
    waiting: Vec<RetryItem<T>>,
    /// Number of items of the current round that are not done.
    in_round: usize,
}

struct RetryItem<T> {
    item: Arc<T>,
    until: Timestamp,
}

impl<T: Send + Sync + 'static> RetryQueue<T> {
    /// Adds an item to the owner's queue, to be tried until this deadline. Returns `false` if the queue is full.
    pub fn add<O: RetryOwner<Item = T>>(owner: &Arc<O>, item: T, until: Timestamp) -> bool {
        // Releases, which can be repeated, are more urgent than corrections, which cannot: half of the room is theirs.
        let capacity = if O::is_repeatable(&item) {
            CAPACITY
        } else {
            CAPACITY / 2
        };
        let mut state = owner.retry_queue().state.lock();
        if state.waiting.len() + state.in_round >= capacity {
            return false;
        }
        let item = Arc::new(item);
        state.waiting.push(RetryItem { item, until });
        drop(state);
        Self::resume(owner);
        true
    }

    /// Starts the task if items wait, since the system may have had no thread for it before.
    pub fn resume<O: RetryOwner<Item = T>>(owner: &Arc<O>) {
        let queue = owner.retry_queue();
        // Locked until the task has started, so that one that ends does not miss an item.
        let state = queue.state.lock();
        if !state.waiting.is_empty() {
            queue
                .task
                .start(|running| Self::run(Arc::clone(owner), running));
        }
    }

    /// Runs rounds until nothing waits.
    async fn run<O: RetryOwner<Item = T>>(owner: Arc<O>, running: Running) {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            sleep(backoff.wait()).await;
            let round = {
                let now = Clock::system().now();
                let mut state = owner.retry_queue().state.lock();
                state.waiting.retain(|item| now < item.until);
                if state.waiting.is_empty() {
                    drop(running);
                    return;
                }
                Round::begin(&owner, &mut state)
            };
            if round.finish().await {
                backoff.reset();
            }
        }
    }
}

impl<T> Default for RetryQueue<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(RetryItems {
                waiting: Vec::new(),
                in_round: 0,
            }),
            task: SingleTask::default(),
            longest_try: LONGEST_TRY,
        }
    }
}

impl<T> fmt::Debug for RetryQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryQueue").finish_non_exhaustive()
    }
}

// === Round ===

/// One try of all items that waited when the round began. At its end it puts back the items that are not done.
struct Round<O: RetryOwner> {
    owner: Arc<O>,
    /// Items that were not tried yet.
    remaining: Vec<RetryItem<O::Item>>,
    /// Items that are being tried.
    in_progress: Vec<RetryItem<O::Item>>,
    failed: Vec<RetryItem<O::Item>>,
}

impl<O: RetryOwner> Round<O> {
    /// Begins a round with all items that wait.
    fn begin(owner: &Arc<O>, state: &mut RetryItems<O::Item>) -> Self {
        let remaining = mem::take(&mut state.waiting);
        state.in_round = remaining.len();
        Self {
            owner: Arc::clone(owner),
            remaining,
            in_progress: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Tries all items, in batches. Returns whether all are done. A batch of which no item is done ends the round.
    async fn finish(mut self) -> bool {
        while !self.remaining.is_empty() {
            let start = self.remaining.len().saturating_sub(BATCH);
            self.in_progress = self.remaining.split_off(start);
            let items = self.in_progress.iter();
            let items = items.map(|retried| Arc::clone(&retried.item)).collect();
            let limit = self.owner.retry_queue().longest_try;
            let tried = timeout(limit, Arc::clone(&self.owner).retry(items));
            let Some(done) = tried.await else {
                return false;
            };
            let results = done.iter().copied().chain(iter::repeat(false));
            let tried = mem::take(&mut self.in_progress).into_iter().zip(results);
            let failed = tried.filter(|(_, is_done)| !is_done);
            self.failed.extend(failed.map(|(retried, _)| retried));
            if !done.contains(&true) {
                return false;
            }
        }
        self.failed.is_empty()
    }
}

impl<O: RetryOwner> Drop for Round<O> {
    fn drop(&mut self) {
        // Batches are taken from the end, so items that failed are tried last in the next round.
        let mut waiting = mem::take(&mut self.failed);
        waiting.append(&mut self.remaining);
        // The fate of a try that was cut off is unknown.
        let cut_off = mem::take(&mut self.in_progress).into_iter();
        waiting.extend(cut_off.filter(|retried| O::is_repeatable(&retried.item)));
        let mut state = self.owner.retry_queue().state.lock();
        waiting.append(&mut state.waiting);
        state.waiting = waiting;
        state.in_round = 0;
    }
}

/// Maximum number of items in a queue, which refuses more.
const CAPACITY: usize = 65_536;
/// Maximum number of items in one batch.
const BATCH: usize = 256;
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Time after which a try counts as failed. A store that never replies must not hold up the others' items.
const LONGEST_TRY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    /// All tries but the first succeed.
    #[derive(Default)]
    struct Owner {
        queue: RetryQueue<&'static str>,
        first: FirstTry,
        tried: Mutex<Vec<&'static str>>,
    }

    #[derive(Clone, Copy, Default, PartialEq)]
    enum FirstTry {
        #[default]
        Succeeds,
        Panics,
        NeverEnds,
    }

    impl Owner {
        fn tried(&self) -> Vec<&'static str> {
            self.tried.lock().clone()
        }
    }

    impl RetryOwner for Owner {
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
            drop(tried);
            Box::pin(async move {
                match self.first {
                    FirstTry::Panics if is_first => panic!("as a broken store may"),
                    FirstTry::NeverEnds if is_first => std::future::pending().await,
                    _ => {}
                }
                vec![true; items.len()]
            })
        }
    }

    fn add(owner: &Arc<Owner>, item: &'static str) {
        let until = Clock::system().now() + Duration::from_secs(3_600);
        assert!(RetryQueue::add(owner, item, until));
    }

    fn until(is_so: impl Fn() -> bool) {
        let started = Clock::system().now();
        while !is_so() {
            let waited = Clock::system().now().since(started);
            assert!(waited < Duration::from_secs(10), "in vain");
            std::thread::yield_now();
        }
    }

    // Regression: the items of a round waited until its runtime was driven again, or ended.
    #[test]
    fn round_needs_no_runtime_of_a_caller() {
        let owner = Arc::new(Owner::default());
        let still = Builder::new_current_thread().build().expect("a runtime");
        still.block_on(async { add(&owner, "release") });
        until(|| owner.tried() == ["release"]);
    }

    #[test]
    fn round_that_panics_leaves_what_can_be_repeated_for_the_next_task() {
        let owner = Arc::new(Owner {
            first: FirstTry::Panics,
            ..Owner::default()
        });
        add(&owner, "release");
        add(&owner, "correction");
        until(|| owner.tried().len() == 2 && !owner.queue.task.is_running());
        RetryQueue::resume(&owner);
        until(|| owner.tried().len() > 2);
        // The fate of the correction is unknown, so it is not retried.
        assert_eq!(owner.tried()[2..], ["release"]);
    }

    #[test]
    fn try_that_never_ends_is_given_up_and_what_can_be_repeated_is_tried_again() {
        let owner = Arc::new(Owner {
            first: FirstTry::NeverEnds,
            queue: RetryQueue {
                longest_try: Duration::from_millis(1),
                ..RetryQueue::default()
            },
            ..Owner::default()
        });
        add(&owner, "release");
        add(&owner, "correction");
        until(|| owner.tried().len() == 3);
        assert_eq!(owner.tried()[2..], ["release"]);
    }
}
