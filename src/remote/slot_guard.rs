//! Slots of decisions whose caller never held them, and renewals of leases.
//!
//! A decision on concurrency takes slots, which its caller releases later. If the caller leaves before the reply, or
//! the reply does not come, nobody would release them before their lease ends. So they are released here:
//!
//! ```text
//! the caller   the request         the reply                    the slots
//! waits        is sent             admitted                     are the caller's
//! waits        is sent             timeout, connection lost     released, and their ticket barred
//! leaves       was not sent        -                            were never taken
//! leaves       was sent            admitted, in the background  released
//! leaves       was sent            timeout, connection lost     released, and their ticket barred
//! ```
//!
//! The script bars a ticket for one lease: the command that takes its slots may still be on its way, and would
//! otherwise take them after the release.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::future::join_all;

use crate::{
    charge::{Charge, OwnedCharge, Settlement},
    clock::{Clock, Timestamp},
    diagnosis::log,
    error::{Error, ErrorKind},
    task::{RetryFuture, RetryOwner, RetryQueue, home},
};

use super::{
    client::Client,
    protocol::{CancelHandle, Request, RequestResult, takes_slots},
    route,
};

/// Sends a decision on charges of which some take slots.
///
/// # Errors
///
/// Those of [`route::submit`]. Slots that may have been taken are then released in the background.
///
/// # Cancel safety
///
/// If the future is dropped before the request is sent, nothing is charged. Afterwards the charges may have been made,
/// and only their slots are released in the background.
pub(super) async fn submit(
    client: &Arc<Client>,
    mut request: Box<Request>,
    charges: &[OwnedCharge],
    submitted_at: Timestamp,
) -> RequestResult {
    RetryQueue::resume(client);
    let slots = charges
        .iter()
        .filter(|charge| takes_slots(&charge.borrow()))
        .cloned()
        .collect();
    let cancel_handle = request.cancel_handle();
    let deciding = {
        let client = Arc::clone(client);
        Box::pin(async move { route::submit_since(&client, request, submitted_at).await })
    };
    let decision = SlotDecision {
        deciding: Some(deciding),
        cancel_handle,
        client: Arc::clone(client),
        slots,
        is_abandoned: false,
    };
    decision.await
}

/// Renews the leases of slots. Missing ones are taken again, since their requests are in flight.
///
/// # Errors
///
/// The first one. The slots of other keys are renewed all the same.
pub(super) async fn renew(client: &Arc<Client>, charges: &[OwnedCharge]) -> Result<(), Error> {
    let (missing, renewed) = renew_once(client, charges, false).await;
    if missing.is_empty() {
        return renewed;
    }
    // Not in the first call: slots that were just released would be taken again.
    let (_, taken_again) = renew_once(client, &missing, true).await;
    renewed.and(taken_again)
}

/// Renews the leases of slots, with one request per key. Returns the charges whose slots are missing, and the first
/// error.
async fn renew_once(
    client: &Arc<Client>,
    charges: &[OwnedCharge],
    take_again: bool,
) -> (Vec<OwnedCharge>, Result<(), Error>) {
    let borrowed: Vec<Charge<'_>> = charges.iter().map(OwnedCharge::borrow).collect();
    let requests = Request::renew_all(&client.keyspace, &borrowed, take_again);
    let renewing = requests.into_iter().map(|(request, indexes)| async move {
        let reply = route::submit(client, request).await?;
        reply.check()?;
        let is_missing = |bit: usize| reply.missing() >> bit & 1 == 1;
        let missing = indexes.into_iter().enumerate();
        let missing = missing.filter(|(bit, _)| is_missing(*bit));
        Ok(missing.map(|(_, index)| index).collect::<Vec<_>>())
    });
    let (mut missing, mut renewed) = (Vec::new(), Ok(()));
    for result in join_all(renewing).await {
        match result {
            Ok(indexes) => missing.extend(indexes.into_iter().map(|index| charges[index].clone())),
            Err(error) => renewed = renewed.and(Err(error)),
        }
    }
    (missing, renewed)
}

// === SlotDecision ===

/// A decision on slots. If it is dropped after it was sent, it goes on in the background.
///
/// ```text
/// dropped by its caller --> not sent: it ends
///                       '-> sent: a task has it, as abandoned --> admitted: releases the slots
///                                       |                     '-> error: releases them, and bars their tickets
///                                       '-> dropped, where no thread can be started: the same
/// ```
struct SlotDecision {
    /// `None` once it has ended.
    deciding: Option<Pin<Box<dyn Future<Output = RequestResult> + Send>>>,
    /// Shows whether the request was sent.
    cancel_handle: CancelHandle,
    client: Arc<Client>,
    /// The charges that take slots. Empty once they are released.
    slots: Vec<OwnedCharge>,
    /// Whether its caller has left, so that nobody holds the slots.
    is_abandoned: bool,
}

impl SlotDecision {
    /// Releases the slots in the background, once. `pending` means that the command that takes them may be on its way.
    fn release(&mut self, pending: bool) {
        release(&self.client, mem::take(&mut self.slots), pending);
    }

    /// Cancels the request. Returns whether it was not sent.
    ///
    /// If a call takes it at the same time, the slots are released after that call.
    fn cancel(&mut self) -> bool {
        // Weak: a request that waits on this client must not keep it alive.
        let client = Arc::downgrade(&self.client);
        let slots = self.slots.clone();
        self.cancel_handle.cancel(move || {
            if let Some(client) = client.upgrade() {
                release(&client, slots, true);
            }
        })
    }
}

impl Future for SlotDecision {
    type Output = RequestResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let deciding = self.deciding.as_mut();
        let deciding = deciding.expect("a future is not polled after it ended");
        let result = ready!(deciding.as_mut().poll(context));
        self.deciding = None;
        match &result {
            Ok(reply) if reply.is_admitted() && self.is_abandoned => self.release(false),
            Err(error) if may_be_charged(error) => self.release(true),
            Ok(_) | Err(_) => {}
        }
        Poll::Ready(result)
    }
}

impl Drop for SlotDecision {
    fn drop(&mut self) {
        let Some(deciding) = self.deciding.take() else {
            return;
        };
        if self.is_abandoned {
            // No thread can be started to go on with it.
            return self.release(true);
        }
        if self.cancel() {
            return;
        }
        let in_background = Self {
            deciding: Some(deciding),
            cancel_handle: self.cancel_handle.clone(),
            client: Arc::clone(&self.client),
            slots: mem::take(&mut self.slots),
            is_abandoned: true,
        };
        home::spawn_lasting(Box::pin(in_background));
    }
}

/// Returns whether the charges may have been made in spite of this error.
fn may_be_charged(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Connect | ErrorKind::Protocol | ErrorKind::Timeout(_)
    )
}

// === Releases ===

/// Releases slots in the background, until it is confirmed or their lease ends. `pending` means that the command that
/// takes them may still be on its way.
pub(super) fn release(client: &Arc<Client>, slots: Vec<OwnedCharge>, pending: bool) {
    let now = Clock::system().now();
    for charge in slots {
        let slots = Settlement::release(charge, pending);
        let Some(lease) = slots.lease() else {
            continue;
        };
        if !RetryQueue::add(client, slots, now + lease) {
            log::event!(
                WARN,
                "too many slot releases wait for redis: further slots stay taken until their lease ends"
            );
            return;
        }
    }
}

/// Retries releases. A release is done if the server confirms it, or refuses it in a way that a retry would not change.
impl RetryOwner for Client {
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
            let client = &self;
            let releasing = requests.into_iter().map(|(request, indexes)| async move {
                // A replica may have taken over since.
                let owner = request.slot().and_then(|slot| client.client_of(slot));
                let client = owner.as_ref().unwrap_or(client);
                (route::submit(client, request).await, indexes)
            });
            for (result, indexes) in join_all(releasing).await {
                if let Err(error) = result
                    && (error.is_transient()
                        || matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Script))
                {
                    indexes.into_iter().for_each(|index| is_done[index] = false);
                }
            }
            is_done
        })
    }
}
