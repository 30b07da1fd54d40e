//! The future that reads and writes a connection, polled by its task and by senders.
//!
//! # Why does a sender poll the connection too?
//!
//! A command is handed to the connection's task, which is behind all tasks that are ready to run. With 256 connections of clients
//! these are 256 requests: the server of the counts stood still while they were read, and the clients' while it decided them all.
//! A sender that polls the connection writes its command at once: the docs of `batch` have the figures.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::runtime::{Handle, Id};

use crate::task::{Mutex, spawn::contain_panic};

/// The future of a connection, which its task and senders share.
pub(super) struct Driver(Mutex<State>);

struct State {
    /// `None` once it has ended, and while it is polled: one that panics is dropped, which closes the connection.
    future: Option<DriverFuture>,
    /// The task, since its first poll.
    task: Option<Task>,
}

/// The task of a connection, as it was polled last.
struct Task {
    waker: Waker,
    /// `None` without a runtime.
    runtime: Option<Id>,
}

type DriverFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Driver {
    pub fn new(future: impl Future<Output = ()> + Send + 'static) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            future: Some(Box::pin(future)),
            task: None,
        })))
    }

    /// Polls the connection for a sender, unless its task or another sender does.
    ///
    /// Only on the runtime of the task. A socket can be polled on another one, but if its own ends meanwhile, the connection
    /// would seem broken. The task takes the socket along when it goes home.
    pub fn drive(&self) {
        let Some(mut state) = self.0.try_lock() else {
            return;
        };
        let (runtime, task) = (current_runtime(), state.task.as_ref());
        if runtime.is_none() || task.is_none_or(|task| task.runtime != runtime) {
            return;
        }
        contain_panic(|| {
            let _ = state.poll();
        });
        if state.future.is_none()
            && let Some(task) = &state.task
        {
            task.waker.wake_by_ref();
        }
    }
}

impl State {
    /// Polls the future with the waker of the task, whoever polls: all events must reach the task.
    fn poll(&mut self) -> Poll<()> {
        let Some(task) = &self.task else {
            return Poll::Pending;
        };
        let Some(mut future) = self.future.take() else {
            return Poll::Ready(());
        };
        let polled = future.as_mut().poll(&mut Context::from_waker(&task.waker));
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

/// Returns the number of the current runtime; `None` outside of one.
pub(super) fn current_runtime() -> Option<Id> {
    Some(Handle::try_current().ok()?.id())
}

// === DriverTask ===

/// The task of a connection. The connection is closed when it is dropped.
pub(super) struct DriverTask(pub Arc<Driver>);

impl Future for DriverTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.0.lock();
        state.task = Some(Task {
            waker: context.waker().clone(),
            runtime: current_runtime(),
        });
        state.poll()
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        let future = self.0.0.lock().future.take();
        drop(future);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::atomic::{AtomicU32, Ordering},
    };

    use futures_util::task::{ArcWake, waker};
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// Counts how often the task is woken.
    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl ArcWake for Wakes {
        fn wake_by_ref(wakes: &Arc<Self>) {
            wakes.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A connection that ends with the given poll, its task, and what was counted.
    struct World {
        runtime: Runtime,
        driver: Arc<Driver>,
        task: DriverTask,
        polls: Arc<AtomicU32>,
        wakes: Arc<Wakes>,
    }

    impl World {
        /// Returns a connection whose future wakes its poller each time. `end` is its last poll.
        fn new(last: u32, end: fn() -> Poll<()>) -> Self {
            let polls = Arc::new(AtomicU32::new(0));
            let noted = Arc::clone(&polls);
            let driver = Driver::new(poll_fn(move |context| {
                context.waker().wake_by_ref();
                let poll = noted.fetch_add(1, Ordering::Relaxed) + 1;
                if poll < last { Poll::Pending } else { end() }
            }));
            Self {
                runtime: Builder::new_current_thread().build().expect("a runtime"),
                task: DriverTask(Arc::clone(&driver)),
                driver,
                polls,
                wakes: Arc::default(),
            }
        }

        /// Polls the task on its runtime.
        fn poll(&mut self) -> Poll<()> {
            let _entered = self.runtime.enter();
            let waker = waker(Arc::clone(&self.wakes));
            Pin::new(&mut self.task).poll(&mut Context::from_waker(&waker))
        }

        /// Polls for a sender on the runtime of the task.
        fn drive(&self) {
            let _entered = self.runtime.enter();
            self.driver.drive();
        }

        fn counts(&self) -> (u32, u32) {
            let count = Ordering::Relaxed;
            (self.polls.load(count), self.wakes.0.load(count))
        }
    }

    #[test]
    fn sender_polls_with_the_waker_of_the_task_and_not_before_it() {
        let mut world = World::new(9, || Poll::Ready(()));
        world.drive();
        assert_eq!(world.counts(), (0, 0), "no task would be woken");
        assert!(world.poll().is_pending());
        world.drive();
        assert_eq!(world.counts(), (2, 2));
    }

    // Regression: a sender on another runtime polled a socket whose own runtime was ending, and broke the connection.
    #[test]
    fn sender_on_another_runtime_does_not_poll() {
        let mut world = World::new(9, || Poll::Ready(()));
        assert!(world.poll().is_pending());
        world.driver.drive();
        let other = Builder::new_current_thread().build().expect("a runtime");
        let entered = other.enter();
        world.driver.drive();
        drop(entered);
        assert_eq!(world.counts(), (1, 1));
    }

    #[test]
    fn end_that_a_sender_sees_ends_the_task_and_is_not_polled_again() {
        let mut world = World::new(2, || Poll::Ready(()));
        assert!(world.poll().is_pending());
        world.drive();
        world.drive();
        let (polls, wakes) = world.counts();
        assert!(polls == 2 && wakes > 2, "{polls} {wakes}");
        assert!(world.poll().is_ready());
        assert_eq!(world.counts().0, 2);
    }

    // Regression: the future of a connection that panicked was kept, so its channel stayed open.
    #[test]
    fn connection_that_panics_for_a_sender_is_closed_and_the_sender_goes_on() {
        let mut world = World::new(2, || panic!("a bug below"));
        assert!(world.poll().is_pending());
        world.drive();
        assert!(world.driver.0.lock().future.is_none());
        assert!(world.poll().is_ready());
    }

    #[test]
    fn connection_is_closed_with_its_task() {
        let World { driver, task, .. } = World::new(9, || Poll::Ready(()));
        drop(task);
        assert!(driver.0.lock().future.is_none());
    }

    #[test]
    fn sender_does_not_wait_while_another_one_polls() {
        let mut world = World::new(9, || Poll::Ready(()));
        assert!(world.poll().is_pending());
        let polling = world.driver.0.lock();
        world.drive();
        drop(polling);
        assert_eq!(world.counts().0, 1);
    }
}
