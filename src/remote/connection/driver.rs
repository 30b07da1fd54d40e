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
    task::{Context, Poll, Waker},
};

use crate::task::Mutex;

/// The future of a connection, which its task and senders share.
pub(super) struct Driver(Mutex<State>);

struct State {
    /// `None` once it has ended.
    future: Option<DriverFuture>,
    /// Wakes the task. `None` before its first poll.
    waker: Option<Waker>,
}

type DriverFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Driver {
    pub fn new(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Mutex::new(State {
            future: Some(Box::pin(future)),
            waker: None,
        }))
    }

    /// Polls the connection for its task.
    pub fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        state.waker = Some(context.waker().clone());
        state.poll()
    }

    /// Polls the connection for a sender, unless its task or another sender does.
    pub fn drive(&self) {
        if let Some(mut state) = self.0.try_lock()
            && state.poll().is_ready()
            && let Some(waker) = &state.waker
        {
            waker.wake_by_ref();
        }
    }
}

impl State {
    /// Polls the future with the waker of the task, whoever polls: all events must reach the task.
    fn poll(&mut self) -> Poll<()> {
        let Some(future) = &mut self.future else {
            return Poll::Ready(());
        };
        let Some(waker) = &self.waker else {
            return Poll::Pending;
        };
        let polled = future.as_mut().poll(&mut Context::from_waker(waker));
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
    };

    use futures_util::task::{ArcWake, waker};

    use super::*;

    /// Counts how often the task is woken.
    #[derive(Default)]
    struct Task(AtomicU32);

    impl ArcWake for Task {
        fn wake_by_ref(task: &Arc<Self>) {
            task.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a driver that notes its polls, wakes its poller each time, and ends with the third poll.
    fn driver() -> (Driver, Arc<AtomicU32>) {
        let polls = Arc::new(AtomicU32::new(0));
        let noted = Arc::clone(&polls);
        let future = poll_fn(move |context| {
            context.waker().wake_by_ref();
            match noted.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        });
        (Driver::new(future), polls)
    }

    #[test]
    fn sender_polls_with_the_waker_of_the_task_and_not_before_it() {
        let (driver, polls) = driver();
        let (task, count) = (Arc::<Task>::default(), Ordering::Relaxed);
        driver.drive();
        assert_eq!(polls.load(count), 0, "nobody would be woken");
        let waker = waker(Arc::clone(&task));
        assert!(driver.poll(&Context::from_waker(&waker)).is_pending());
        driver.drive();
        assert_eq!((polls.load(count), task.0.load(count)), (2, 2));
    }

    #[test]
    fn end_that_a_sender_sees_ends_the_task_and_is_not_polled_again() {
        let (driver, polls) = driver();
        let (task, count) = (Arc::<Task>::default(), Ordering::Relaxed);
        let waker = waker(Arc::clone(&task));
        assert!(driver.poll(&Context::from_waker(&waker)).is_pending());
        driver.drive();
        driver.drive();
        // Three by the polls, and one for the end.
        assert_eq!((polls.load(count), task.0.load(count)), (3, 4));
        assert!(driver.poll(&Context::from_waker(&waker)).is_ready());
        assert_eq!(polls.load(count), 3);
    }

    #[test]
    fn sender_does_not_wait_for_who_polls() {
        let (driver, polls) = driver();
        let polling = driver.0.lock();
        driver.drive();
        drop(polling);
        assert_eq!(polls.load(Ordering::Relaxed), 0);
    }
}
