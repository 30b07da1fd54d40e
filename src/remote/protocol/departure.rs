//! Whether a request has left for the server, for a caller who leaves before its reply.

use std::{fmt, mem, sync::Arc};

use crate::sync::Mutex;

/// A caller's view of its request.
///
/// ```text
/// the caller leaves | before the request is sent: nobody sends it
///                   |                           : a call took it at the same time => cleaned up after that call
///                   | afterwards                : the caller's business
/// ```
#[derive(Clone, Debug, Default)]
pub(in crate::remote) struct Departure(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    is_sent: bool,
    /// Runs after the call if the request is sent though its caller has left.
    clean_up: Option<Box<dyn FnOnce() + Send>>,
}

impl Departure {
    /// Notes that the caller leaves. If the request is sent all the same, `clean_up` runs when its call has ended. Returns
    /// whether it was not sent before, else nothing is noted.
    pub(in crate::remote) fn leave(&self, clean_up: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.lock();
        if !state.is_sent {
            state.clean_up = Some(Box::new(clean_up));
        }
        !state.is_sent
    }

    /// Notes that the request is being sent.
    pub(super) fn note_sent(&self) {
        self.0.lock().is_sent = true;
    }

    /// Notes that the request was not sent after all.
    pub(super) fn note_not_sent(&self) {
        self.0.lock().is_sent = false;
    }

    /// Notes that the request is no longer needed.
    pub(super) fn end(&self) {
        let mut state = self.0.lock();
        let clean_up = mem::take(&mut state.clean_up).filter(|_| state.is_sent);
        drop(state);
        if let Some(clean_up) = clean_up {
            clean_up();
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("is_sent", &self.is_sent)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    // Regression: a request that was handed back was taken for sent, and went out although its caller left.
    #[test]
    fn request_that_was_not_sent_after_all_can_be_left() {
        let departure = Departure::default();
        departure.note_sent();
        assert!(!departure.leave(|| {}), "it is under way");
        departure.note_not_sent();
        assert!(departure.leave(|| panic!("nothing is to be cleaned up")));
        departure.end();
    }

    #[test]
    fn request_is_cleaned_up_after_if_it_is_sent_when_its_caller_has_left() {
        for is_sent in [true, false] {
            let departure = Departure::default();
            let runs = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&runs);
            let clean_up = move || {
                counted.fetch_add(1, Ordering::Relaxed);
            };
            assert!(departure.leave(clean_up), "in time");
            if is_sent {
                departure.note_sent();
            }
            assert_eq!(runs.load(Ordering::Relaxed), 0, "not before it has ended");
            departure.end();
            departure.end();
            assert_eq!(runs.load(Ordering::Relaxed), u32::from(is_sent));
        }
    }

    #[test]
    fn caller_who_leaves_after_the_request_cleans_up_itself() {
        let departure = Departure::default();
        departure.note_sent();
        assert!(!departure.leave(|| unreachable!("nothing was noted")));
        departure.end();
    }
}
