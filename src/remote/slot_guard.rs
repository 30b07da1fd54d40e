//! Slots that a decision took and nobody heard of.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::future::join_all;

use crate::{
    error::{Error, ErrorKind},
    policy::OwnedCharge,
    task,
};

use super::{
    batch,
    node::Node,
    protocol::{Reply, Request},
};

/// Decides a group of charges, together with whatever else waits.
///
/// # Cancel safety
///
/// Dropped before the group is sent, nothing is charged; afterwards the charge may have been made. Slots are given back
/// then: they would stay taken until their lease ends, and nothing is in flight. So they are when the answer is late.
pub(super) async fn ask(
    shared: &Arc<Node>,
    group: Box<Request>,
    charges: &[OwnedCharge],
) -> Result<Reply, Error> {
    let charges = charges.iter().map(OwnedCharge::borrow);
    let slots = charges.filter_map(|charge| Request::release(&shared.keyspace, &charge));
    let slots: Vec<Request> = slots.collect();
    if slots.is_empty() {
        return batch::ask(shared, group).await;
    }
    let asking = {
        let shared = Arc::clone(shared);
        Box::pin(async move { batch::ask(&shared, group).await })
    };
    let claim = Claim {
        asking: Some(asking),
        shared: Arc::clone(shared),
        slots,
    };
    claim.await
}

/// A decision on slots that is under way. Dropped, it is heard out in the background.
struct Claim {
    asking: Option<Asking>,
    shared: Arc<Node>,
    /// What gives the slots back.
    slots: Vec<Request>,
}

type Asking = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

impl Claim {
    /// Gives the slots back. Once: while the server is away it would be in vain, and then leases end.
    fn give_back(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let (shared, slots) = (Arc::clone(&self.shared), std::mem::take(&mut self.slots));
        async move {
            let given = slots
                .into_iter()
                .map(|group| batch::ask(&shared, Box::new(group)));
            join_all(given).await;
        }
    }
}

impl Future for Claim {
    type Output = Result<Reply, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let asking = self.asking.as_mut();
        let asking = asking.expect("a future is not polled after it ended");
        let verdict = ready!(asking.as_mut().poll(context));
        self.asking = None;
        if verdict.as_ref().is_err_and(leaves_in_doubt) {
            task::spawn(self.give_back());
        }
        Poll::Ready(verdict)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(asking) = self.asking.take() else {
            return;
        };
        let give_back = self.give_back();
        task::spawn(async move {
            let is_taken = match asking.await {
                Ok(verdict) => verdict.is_admitted(),
                Err(error) => leaves_in_doubt(&error),
            };
            if is_taken {
                give_back.await;
            }
        });
    }
}

/// Whether the charge may have been made all the same.
fn leaves_in_doubt(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Connect | ErrorKind::Protocol | ErrorKind::Timeout(_)
    )
}
