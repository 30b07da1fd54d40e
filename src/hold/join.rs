//! Waiting for several answers of a store.

use std::{future::poll_fn, pin::Pin, task::Poll};

use crate::{error::Error, store::StoreFuture};

/// Waits for all answers at the same time. Returns them in their order.
pub(super) async fn all(answers: Vec<StoreFuture<()>>) -> Vec<Result<(), Error>> {
    let mut waiting: Vec<_> = answers.into_iter().map(|answer| (answer, None)).collect();
    poll_fn(|context| {
        let mut is_pending = false;
        for (answer, result) in &mut waiting {
            if result.is_none() {
                match Pin::new(answer).poll(context) {
                    Poll::Ready(ready) => *result = Some(ready),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        if is_pending {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    let results = waiting.into_iter().map(|(_, result)| result);
    results
        .map(|result| result.expect("all are ready"))
        .collect()
}
