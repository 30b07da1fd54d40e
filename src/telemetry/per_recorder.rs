//! Handles of metrics, registered once with each recorder.
//!
//! # Why are handles of metrics looked up by the recorder?
//!
//! A handle of the `metrics` facade belongs to the recorder that was installed when the handle was registered. If there was none,
//! the handle does nothing, forever. A lookup by labels for each decision is always right, but allocates the labels, and takes a
//! lock in most recorders. So handles are kept with the address of their recorder, and each use compares it with the recorder
//! installed now. That is a thread-local read, and works with recorders of single threads, which tests use. The facade does not
//! reveal whether a recorder is installed.

use std::{ptr, sync::OnceLock};

use metrics::{Recorder, with_recorder};

use super::catalog;

/// Handles of type `T` for each recorder that was found so far.
///
/// A recorder may be installed after the limiter was built, or even after its first decisions. Handles that were
/// registered before would record nothing forever. So each use looks which recorder is installed, which costs a
/// thread-local read, and registers new handles for one that is new:
///
/// ```text
/// PerRecorder --> no recorder: handles that do nothing --> the global recorder: handles --> (empty)
/// ```
///
/// Recorders are distinguished by their addresses. A process has one or two of them, and tests have some local ones. If a
/// local recorder is dropped and another one takes its address, the handles of the first are used.
#[derive(Debug)]
pub(super) struct PerRecorder<T> {
    first: OnceLock<Box<Registered<T>>>,
}

#[derive(Debug)]
struct Registered<T> {
    recorder: usize,
    handles: T,
    next: OnceLock<Box<Self>>,
}

impl<T> PerRecorder<T> {
    /// Calls `record` with the handles of the installed recorder. The first call with a recorder gets them from `register`.
    ///
    /// Does nothing for the recorders after the first [`MAX_RECORDERS`].
    #[inline]
    pub fn with(&self, register: impl FnOnce() -> T, record: impl FnOnce(&T)) {
        with_recorder(|recorder| {
            let address = address_of(recorder);
            match self.first.get() {
                Some(first) if first.recorder == address => record(&first.handles),
                _ => self.with_other(address, register, record),
            }
        });
    }

    /// As [`with`](Self::with), for a recorder that is not the first.
    fn with_other(&self, address: usize, register: impl FnOnce() -> T, record: impl FnOnce(&T)) {
        let mut register = Some(register);
        let mut next = &self.first;
        for _ in 0..MAX_RECORDERS {
            let registered = next.get_or_init(|| {
                catalog::describe_all();
                let register = register.take().expect("registered once");
                Box::new(Registered {
                    recorder: address,
                    handles: register(),
                    next: OnceLock::new(),
                })
            });
            if registered.recorder == address {
                return record(&registered.handles);
            }
            next = &registered.next;
        }
    }
}

impl<T> Default for PerRecorder<T> {
    fn default() -> Self {
        Self {
            first: OnceLock::new(),
        }
    }
}

fn address_of(recorder: &dyn Recorder) -> usize {
    ptr::from_ref(recorder).addr()
}

/// More recorders only exist in tests that share a limiter.
const MAX_RECORDERS: usize = 64;

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        sync::{
            Barrier,
            atomic::{AtomicU32, Ordering},
        },
        thread,
    };

    use metrics::with_local_recorder;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn handles_are_registered_once_with_each_recorder_also_by_many_threads() {
        let per_recorder = PerRecorder::default();
        let recorders = [(); 2].map(|()| PrometheusBuilder::new().build_recorder());
        let registrations = AtomicU32::new(0);
        let barrier = Barrier::new(8);
        thread::scope(|scope| {
            for thread in 0..8_usize {
                let (per_recorder, registrations) = (&per_recorder, &registrations);
                let (recorder, barrier) = (&recorders[thread % 2], &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    with_local_recorder(recorder, || {
                        let register = || registrations.fetch_add(1, Ordering::Relaxed);
                        let seen = Cell::new(None);
                        for _ in 0..100 {
                            per_recorder.with(register, |number| {
                                let before = seen.replace(Some(*number));
                                assert!(before.is_none_or(|before| before == *number));
                            });
                        }
                    });
                });
            }
        });
        assert_eq!(registrations.into_inner(), 2);
    }
}
