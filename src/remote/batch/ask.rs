//! Decisions and commands, from a caller's question to its answer.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use redis::{Cmd, Value};
use tokio::runtime::Handle;

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, Phase},
};

use super::{
    super::{
        connection::classify,
        node::Node,
        protocol::{Reply, Request},
    },
    alarm::Alarm,
    calls::Call,
    exchange::{Exchanged, watched},
    queue::{JobResult, answer},
    step::Entered,
    worker::{Worker, overloaded, runtime_ended},
};

/// Decides a request, together with whatever else waits.
///
/// # Cancel safety
///
/// Dropped before the request is sent, nothing is charged; afterwards the charge may have been made.
pub(in crate::remote) async fn ask(
    node: &Arc<Node>,
    mut request: Box<Request>,
) -> Result<Reply, Error> {
    let runtime = Handle::try_current().map_err(classify::no_runtime)?;
    node.watch.ensure(node)?;
    let asked_at = now();
    let mut entered_at = asked_at;
    // A request that was not sent is sent by another: each lane may find its connection gone.
    for _ in 0..node.traffic.lanes().len() + 2 {
        let entered = node.traffic.enter(request, asked_at, entered_at);
        // Again: the thread may have found nothing under way meanwhile, and sleep.
        node.watch.ensure(node)?;
        match entered {
            Entered::Lead(call, alarm, led) => {
                let calling = call_for(Arc::clone(node), call, Arc::clone(&alarm), led);
                let lead = Lead {
                    // Boxed: most decisions wait, and a call would make their futures ten times as large.
                    calling: Some(Box::pin(calling)),
                    alarm,
                    runtime: &runtime,
                };
                match lead.await {
                    Some(JobResult::Replied(result)) => return result,
                    Some(JobResult::NotSent(left)) => request = left,
                    None => return Err(node.late(Phase::Reply)),
                }
            }
            Entered::Wait {
                answered,
                gatherer,
                shed,
            } => {
                if let Some(shed) = shed {
                    answer(shed, Err(overloaded()));
                }
                if let Some(gatherer) = gatherer {
                    Worker::gather_on(&runtime, node, gatherer);
                }
                match answered.await {
                    Ok(JobResult::Replied(result)) => return result,
                    Ok(JobResult::NotSent(left)) => request = left,
                    Err(_) => break,
                }
            }
        }
        entered_at = now();
    }
    Err(runtime_ended())
}

/// Sends a command that is not a decision, and waits for its reply.
pub(in crate::remote) async fn command(node: &Arc<Node>, command: &Cmd) -> Result<Value, Error> {
    Handle::try_current().map_err(classify::no_runtime)?;
    node.watch.ensure(node)?;
    let lanes = node.traffic.lanes();
    let up = lanes.iter().position(|lane| lane.generation().is_some());
    let lane = &lanes[up.unwrap_or(0)];
    let (call, alarm) = node.traffic.begin(now());
    let _ends = Worker::calling(Arc::clone(node), call);
    node.watch.ensure(node)?;
    let mut sending = pin!(async {
        let mut held = lane.hold(false).await?;
        let mut reply = held.send(command).await;
        if held.is_closed {
            lane.disconnect(held.generation, None);
            held = lane.hold(false).await?;
            reply = held.send(command).await;
        }
        reply.map_err(|error| {
            let (error, is_broken) = classify::judge(error);
            if is_broken {
                lane.disconnect(held.generation, Some(&error));
            }
            error
        })
    });
    let mut watched = pin!(watched(node, call, &alarm, sending.as_mut()));
    let replied = poll_fn(|context| until_expired(watched.as_mut(), &alarm, context)).await;
    match replied.flatten() {
        Some(result) => result,
        None if node.traffic.is_up() => Err(node.late(Phase::Reply)),
        None => Err(node.late(Phase::Connect)),
    }
}

/// Makes a call for one decision.
async fn call_for(
    node: Arc<Node>,
    call: Call,
    alarm: Arc<Alarm>,
    request: Box<Request>,
) -> JobResult {
    let mut worker = Worker::calling(node, call);
    let requests = std::slice::from_ref(&request);
    match worker.exchange(call, &alarm, requests).await {
        Exchanged::Failed(error) => JobResult::Replied(Err(error)),
        Exchanged::NotSent => JobResult::NotSent(request),
        Exchanged::Replied(replies) => {
            let reply = replies.into_iter().next();
            JobResult::Replied(reply.expect("one reply per request"))
        }
    }
}

fn now() -> Timestamp {
    Clock::system().now()
}

// === Lead ===

/// A call for one decision in its caller's own future: `None` if the reply does not come in time.
///
/// When the caller has left, it goes on in the background: a reply shows that the connection lives, and none that it is
/// mute.
struct Lead<'a, F: Future<Output: Send> + Send + 'static> {
    calling: Option<Pin<Box<F>>>,
    alarm: Arc<Alarm>,
    runtime: &'a Handle,
}

impl<F: Future<Output: Send> + Send + 'static> Future for Lead<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { calling, alarm, .. } = &mut *self;
        let under_way = calling.as_mut();
        let under_way = under_way.expect("a future is not polled after it ended");
        let result = ready!(until_expired(under_way.as_mut(), alarm, context));
        if result.is_some() {
            *calling = None;
        }
        Poll::Ready(result)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Lead<'_, F> {
    fn drop(&mut self) {
        if let Some(calling) = self.calling.take() {
            self.runtime.spawn(calling);
        }
    }
}

/// Polls a call. `None` if its time is up.
fn until_expired<F: Future>(
    calling: Pin<&mut F>,
    alarm: &Alarm,
    context: &mut Context<'_>,
) -> Poll<Option<F::Output>> {
    match calling.poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if alarm.is_expired() => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    }
}
