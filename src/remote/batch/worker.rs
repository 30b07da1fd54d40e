//! The tasks that send requests to the server and complete their callers.
//!
//! ```text
//!                    the last batch
//!    dispatching ----------------------> calling ----------> end
//!      |     ^                              |
//!      |     '------------------------------'
//!      |       the call has ended, more may be sent, and no other worker dispatches
//!      '---> end
//!
//!    state        event                           action                                    next state
//!    dispatching  a batch, and more may be sent   another worker calls with it              dispatching
//!    dispatching  the last batch                  -                                         calling
//!    dispatching  no lane has a connection        connect                                   dispatching
//!    dispatching  that fails                      all waiting callers get the error         end
//!    dispatching  nothing may be sent             -                                         end
//!    calling      due                             its callers time out                      calling
//!    calling      reply                           its callers get their results             dispatching or end
//!    calling      error                           its callers get the error                 dispatching or end
//!    calling      closed before it was sent       its callers submit their requests again   dispatching or end
//!    calling      abandoned by the watchdog       its callers get a timeout                 dispatching or end
//!    any          dropped                         see below                                 end
//! ```
//!
//! At most one worker dispatches at a time. It first gives way once, so that everybody who is ready to run can submit a
//! request for the same batch. A caller that is alone is a worker too, in its own future and without a task: it begins
//! with calling.
//!
//! # A worker that is dropped
//!
//! When the runtime of a task ends, the task goes [home](crate::task::home), since its callers may be on other runtimes that go
//! on. Where no thread can be started, it is dropped. Then its call fails, since the charges may have been made, and the jobs
//! that it was to dispatch go back to their callers.
//!
//! A caller's own future is dropped when its caller leaves. Then the call goes on as a task, see `OwnCall` in
//! `submit.rs`.
//!
//! # Reports
//!
//! The scheduler gets the round trip of each call with a reply. The breaker gets one report per call: how long the
//! server took, or the error. The lane gives up its connection after an error that ends it. A call that was not sent is
//! reported to nobody, since it shows nothing about the server.
//!
//! # Why do unsent decisions go back to their callers?
//!
//! The dispatcher and the dial run on the runtime of the first caller that needed them, and nobody may drive that runtime any
//! more. The decisions that such a task leaves behind were not sent. So each caller asks again, on its own runtime.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::runtime::Handle;

use crate::{
    clock::{Clock, Timestamp},
    error::Error,
    task::home,
};

use super::{
    super::{client::Client, connection::classify, protocol::Request},
    calls::{CallHandle, CallId},
    exchange::{BatchResult, exchange},
    queue::Waiter,
    steps::{Batch, Dispatch, Dispatcher, EndedCall},
};

/// A task that dispatches batches and makes calls, or a future that makes one call.
///
/// Its fields name everything that must be ended if it is dropped in between.
pub(super) struct Worker {
    client: Arc<Client>,
    /// The call under way.
    call: Option<CallId>,
    /// Set while it dispatches, or is about to.
    dispatcher: Option<Dispatcher>,
    /// The callers of the call that has ended.
    waiters: Vec<Waiter>,
    /// Whether another worker may dispatch in its place when it is dropped.
    has_successor: bool,
}

impl Worker {
    /// Returns a worker that makes a call in the current future.
    pub fn calling(client: Arc<Client>, call: CallId) -> Self {
        Self {
            client,
            call: Some(call),
            dispatcher: None,
            waiters: Vec::new(),
            has_successor: true,
        }
    }

    /// Starts a worker that dispatches, as a task of this runtime.
    pub fn dispatch_on(runtime: &Handle, client: &Arc<Client>, dispatcher: Dispatcher) {
        let worker = Self {
            client: Arc::clone(client),
            call: None,
            dispatcher: Some(dispatcher),
            waiters: Vec::new(),
            has_successor: false,
        };
        home::spawn_lasting_on(runtime, Box::pin(worker.run(None)));
    }

    /// Starts a worker that sends a batch, as a task of the current runtime.
    ///
    /// Not inlined into [`dispatch`](Self::dispatch), which is part of `run`: a future cannot contain itself.
    fn send_in_task(client: &Arc<Client>, batch: Batch) {
        let mut worker = Self::calling(Arc::clone(client), batch.call.id);
        worker.has_successor = false;
        home::spawn_lasting(Box::pin(worker.run(Some(batch))));
    }

    /// Sends a batch now, and waits for the reply in a task of the current runtime.
    pub fn send_now(client: &Arc<Client>, batch: Batch) {
        dial(client, &batch);
        let mut worker = Self::calling(Arc::clone(client), batch.call.id);
        worker.has_successor = false;
        let mut calling = Box::pin(worker.run(Some(batch)));
        // The task polls it again, with its own waker.
        let mut context = Context::from_waker(Waker::noop());
        if calling.as_mut().poll(&mut context).is_pending() {
            home::spawn_lasting(calling);
        }
    }

    /// Sends the batch, then dispatches and sends in turn until nothing is left for this worker.
    async fn run(mut self, mut batch: Option<Batch>) {
        loop {
            if let Some(batch) = batch {
                self.send_batch(batch).await;
            }
            let Some(dispatcher) = self.dispatcher else {
                return;
            };
            batch = self.dispatch(dispatcher).await;
        }
    }

    /// ## Dispatching => (Calling | end)
    ///
    /// Returns the last batch, which this worker sends. Other workers send those before.
    async fn dispatch(&mut self, dispatcher: Dispatcher) -> Option<Batch> {
        give_way().await;
        loop {
            let (next, shed) = self.client.scheduler.next_batch(dispatcher, now());
            for waiter in shed {
                waiter.complete(Err(self.client.scheduler.shedding.error()));
            }
            match next {
                Dispatch::Send(batch) => {
                    dial(&self.client, &batch);
                    if batch.is_last {
                        self.dispatcher = None;
                        return Some(batch);
                    }
                    Self::send_in_task(&self.client, batch);
                }
                Dispatch::NotConnected => {
                    let lane = Arc::clone(&self.client.scheduler.lanes()[0]);
                    let skip_backoff = self.client.take_backoff_skip();
                    if let Err(error) = lane.connect(skip_backoff).await {
                        self.dispatcher = None;
                        self.fail_all_waiting(dispatcher, error);
                        return None;
                    }
                }
                Dispatch::Nothing => {
                    self.dispatcher = None;
                    return None;
                }
            }
        }
    }

    /// Completes all waiting callers with the error of a connection that could not be made.
    fn fail_all_waiting(&self, dispatcher: Dispatcher, error: Error) {
        self.client.report_failure(&error);
        let error = error.into_not_executed();
        for job in self.client.scheduler.give_up(dispatcher) {
            job.waiter.complete(Err(error.clone()));
        }
    }

    /// ## Calling => (Dispatching | end)
    ///
    /// Sends a batch and completes its callers.
    async fn send_batch(&mut self, batch: Batch) {
        self.call = Some(batch.call.id);
        let requests = batch.requests;
        let result = self.call(&batch.call, &requests).await;
        let mut waiters = std::mem::take(&mut self.waiters).into_iter();
        // A call whose jobs have timed out has no waiters.
        result.distribute(requests.into_iter(), |result| {
            if let Some(waiter) = waiters.next() {
                waiter.end(result);
            }
        });
    }

    /// Makes the call under way.
    pub async fn call(&mut self, call: &CallHandle, requests: &[Box<Request>]) -> BatchResult {
        let (result, ended) = exchange(&self.client, call, requests).await;
        self.note_end(ended);
        result
    }

    /// Takes over the callers to complete, and the role of the dispatcher if the scheduler assigns it.
    fn note_end(&mut self, ended: EndedCall) {
        self.call = None;
        self.waiters = ended.waiters;
        self.dispatcher = ended.dispatcher;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            let ended = self.client.scheduler.end_call(call, now(), false);
            self.note_end(ended);
            for waiter in std::mem::take(&mut self.waiters) {
                waiter.complete(Err(classify::runtime_ended()));
            }
        }
        let Some(dispatcher) = self.dispatcher.take() else {
            return;
        };
        // A task is only dropped where no other worker would run either.
        if self.has_successor
            && let Ok(runtime) = Handle::try_current()
        {
            Self::dispatch_on(&runtime, &self.client, dispatcher);
            return;
        }
        for job in self.client.scheduler.give_up(dispatcher) {
            job.waiter.hand_back(job.request);
        }
    }
}

/// Dials the lane that a batch should have found up.
fn dial(client: &Client, batch: &Batch) {
    if let Some(lane) = batch.lane_to_dial {
        client.scheduler.lanes()[lane].start_dial();
    }
}

/// Goes to the end of the run queue: what is ready to run goes first.
///
/// `tokio::task::yield_now` would let the runtime poll its sockets too, see the [module docs of `batch`](super).
async fn give_way() {
    let mut has_waited = false;
    poll_fn(|context| {
        if has_waited {
            return Poll::Ready(());
        }
        has_waited = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Returns the present time of this process' clock, by which deadlines are kept.
fn now() -> Timestamp {
    Clock::system().now()
}

#[cfg(test)]
mod tests {
    use tokio::{
        net::UnixStream,
        sync::mpsc,
        task::{JoinSet, yield_now},
    };

    use super::*;

    // Regression: all clients of a server joined one batch, and nobody had a request left while it was in flight.
    #[tokio::test]
    async fn dispatcher_gives_way_to_tasks_that_are_ready_and_not_to_readable_sockets() {
        let (near, far) = UnixStream::pair().expect("a pair of sockets can be made");
        let (sender, mut order) = mpsc::unbounded_channel();
        let note = move |name: &'static str| sender.send(name).expect("the test receives");
        let (of_socket, of_dispatcher, of_task) = (note.clone(), note.clone(), note);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            far.readable().await.expect("the socket is open");
            of_socket("socket");
        });
        // The task waits for its socket from here on.
        yield_now().await;
        near.try_write(b"a request").expect("the socket has room");
        tasks.spawn(async move {
            give_way().await;
            of_dispatcher("dispatcher");
        });
        tasks.spawn(async move { of_task("task") });
        tasks.join_all().await;
        let mut ran = Vec::new();
        order.recv_many(&mut ran, 3).await;
        assert_eq!(ran, ["task", "dispatcher", "socket"]);
    }
}
