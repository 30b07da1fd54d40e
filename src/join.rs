//! Awaits several futures at the same time. By hand: without the feature `redis`, no crate brings it.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
};

/// Awaits two futures at the same time.
pub(crate) async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut one, mut other) = (None, None);
    poll_fn(|context| {
        if one.is_none()
            && let Poll::Ready(output) = first.as_mut().poll(context)
        {
            one = Some(output);
        }
        if other.is_none()
            && let Poll::Ready(output) = second.as_mut().poll(context)
        {
            other = Some(output);
        }
        match (one.take(), other.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            unfinished => {
                (one, other) = unfinished;
                Poll::Pending
            }
        }
    })
    .await
}

/// Awaits all futures at the same time. Returns their outputs in the same order.
pub(crate) async fn all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.into_iter().map(|future| (future, None)).collect();
    poll_fn(|context| {
        let mut is_pending = false;
        for (future, output) in &mut waiting {
            if output.is_none() {
                match Pin::new(future).poll(context) {
                    Poll::Ready(ready) => *output = Some(ready),
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
    let outputs = waiting.into_iter().map(|(_, output)| output);
    outputs
        .map(|output| output.expect("all are ready"))
        .collect()
}
