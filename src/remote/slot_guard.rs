//! Slots that may have been taken by a decision whose reply did not come, and renewals.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::future::join_all;

use crate::{
    algorithm::Counter,
    charge::{Charge, OwnedCharge},
    clock::Clock,
    error::{Error, ErrorKind},
    log,
    retry::{RetryFuture, RetryOwner, RetryQueue},
    spawn,
    store::Settlement,
};

use super::{
    batch,
    node::Node,
    protocol::{Departure, Reply, Request},
};

/// Decides a request, together with whatever else waits.
///
/// # Cancel safety
///
/// Dropped before the request is sent, nothing is charged; afterwards the charge may have been made. Nothing is in flight
/// then, so slots that it may have taken are released in the background. The same holds when the reply does not come.
pub(super) async fn ask(
    node: &Arc<Node>,
    mut request: Box<Request>,
    charges: &[OwnedCharge],
) -> Result<Reply, Error> {
    let charges = charges.iter().map(OwnedCharge::borrow);
    let slots: Vec<OwnedCharge> = charges
        .filter(|charge| takes_slots(charge))
        .map(|charge| charge.to_owned())
        .collect();
    if slots.is_empty() {
        return batch::ask(node, request).await;
    }
    RetryQueue::resume(node);
    let departure = request.departure();
    let asking = {
        let node = Arc::clone(node);
        Box::pin(async move { batch::ask(&node, request).await })
    };
    let take = Take {
        asking: Some(asking),
        departure,
        node: Arc::clone(node),
        slots,
        is_dropped: false,
    };
    take.await
}

/// Renews the leases of slots. Those that are missing are taken again, since they are in flight.
///
/// # Errors
///
/// The first one. The slots of other keys are renewed all the same.
pub(super) async fn renew(node: &Arc<Node>, charges: &[OwnedCharge]) -> Result<(), Error> {
    let (missing, renewed) = renew_once(node, charges, false).await;
    if missing.is_empty() {
        return renewed;
    }
    // What is missing now was released meanwhile.
    let (_, taken_again) = renew_once(node, &missing, true).await;
    renewed.and(taken_again)
}

/// Returns the charges whose slots are missing, and the first error.
async fn renew_once(
    node: &Arc<Node>,
    charges: &[OwnedCharge],
    take_again: bool,
) -> (Vec<OwnedCharge>, Result<(), Error>) {
    let borrowed: Vec<Charge<'_>> = charges.iter().map(OwnedCharge::borrow).collect();
    let requests = Request::renew_all(&node.keyspace, &borrowed, take_again);
    let asked = requests.into_iter().map(|(request, places)| async move {
        let reply = batch::ask(node, Box::new(request)).await?;
        reply.check()?;
        let is_missing = |bit: usize| reply.missing() >> bit & 1 == 1;
        let missing = places.into_iter().enumerate();
        let missing = missing.filter(|(bit, _)| is_missing(*bit));
        Ok(missing.map(|(_, place)| place).collect::<Vec<_>>())
    });
    let (mut missing, mut renewed) = (Vec::new(), Ok(()));
    for places in join_all(asked).await {
        match places {
            Ok(places) => missing.extend(places.into_iter().map(|place| charges[place].clone())),
            Err(error) => renewed = renewed.and(Err(error)),
        }
    }
    (missing, renewed)
}

fn takes_slots(charge: &Charge<'_>) -> bool {
    matches!(charge.policy().counter(), Counter::Concurrency(_)) && charge.units() > 0
}

// === Take ===

/// A decision on slots that is under way. Dropped after it was sent, it is awaited in the background.
struct Take {
    asking: Option<Asking>,
    departure: Departure,
    node: Arc<Node>,
    slots: Vec<OwnedCharge>,
    /// Whether its caller has dropped it, so that nobody holds what it takes.
    is_dropped: bool,
}

type Asking = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

impl Take {
    fn release(&mut self, pending: bool) {
        release(&self.node, mem::take(&mut self.slots), pending);
    }

    /// Leaves the decision if it was not sent yet. Returns whether it was not.
    fn leave(&mut self) -> bool {
        // Not kept by a request that waits to be sent over this node.
        let node = Arc::downgrade(&self.node);
        let slots = self.slots.clone();
        self.departure.leave(move || {
            if let Some(node) = node.upgrade() {
                release(&node, slots, true);
            }
        })
    }
}

/// Releases slots in the background. Their take is `pending` if it may still be on its way.
fn release(node: &Arc<Node>, slots: Vec<OwnedCharge>, pending: bool) {
    let now = Clock::system().now();
    for charge in slots {
        let slots = Settlement::release(charge, pending);
        let Counter::Concurrency(counter) = slots.charge().policy().counter() else {
            continue;
        };
        let ends = now + counter.lease();
        if !RetryQueue::add(node, slots, ends) {
            log::event!(
                WARN,
                "too many slot releases wait for redis: further slots stay taken until their lease ends"
            );
            return;
        }
    }
}

impl Future for Take {
    type Output = Result<Reply, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let asking = self.asking.as_mut();
        let asking = asking.expect("a future is not polled after it ended");
        let reply = ready!(asking.as_mut().poll(context));
        self.asking = None;
        match &reply {
            Ok(reply) if reply.is_admitted() && self.is_dropped => self.release(false),
            Err(error) if may_be_taken(error) => self.release(true),
            _ => {}
        }
        Poll::Ready(reply)
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        let Some(asking) = self.asking.take() else {
            return;
        };
        if self.is_dropped {
            // Its runtime has ended too.
            return self.release(true);
        }
        if self.leave() {
            return;
        }
        let take = Self {
            asking: Some(asking),
            departure: self.departure.clone(),
            node: Arc::clone(&self.node),
            slots: mem::take(&mut self.slots),
            is_dropped: true,
        };
        spawn::on_current(async move { drop(take.await) });
    }
}

/// Whether the charge may have been made all the same.
fn may_be_taken(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Connect | ErrorKind::Protocol | ErrorKind::Timeout(_)
    )
}

impl RetryOwner for Node {
    type Item = Settlement;

    fn retry_queue(&self) -> &RetryQueue<Settlement> {
        &self.releases
    }

    fn is_repeatable(_: &Settlement) -> bool {
        true
    }

    fn retry(self: Arc<Self>, slots: Vec<Arc<Settlement>>) -> RetryFuture {
        Box::pin(async move {
            let settlements: Vec<Settlement> =
                slots.iter().map(|slots| Settlement::clone(slots)).collect();
            let mut is_done = vec![true; settlements.len()];
            let requests = Request::settle_all(&self.keyspace, &settlements);
            let node = &self;
            let asked = requests.into_iter().map(|(request, places)| async move {
                (batch::ask(node, Box::new(request)).await, places)
            });
            for (reply, places) in join_all(asked).await {
                if let Err(error) = reply
                    && (error.is_transient()
                        || matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Script))
                {
                    places.into_iter().for_each(|place| is_done[place] = false);
                }
            }
            is_done
        })
    }
}
