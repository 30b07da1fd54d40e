//! Counters that threads share: each thread has a lane, so that they rarely write the same memory.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Returns the number of this thread, in the order in which threads first ask.
#[inline]
pub(crate) fn thread_number() -> usize {
    THREAD.with(|number| *number)
}

/// Returns how many lanes are worth it here: a power of two, `most` at most. More threads than this share lanes.
pub(crate) fn lanes(most: usize) -> usize {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    threads.next_power_of_two().min(most)
}

/// A value on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Line<T>(pub T);

thread_local! {
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

static THREADS: AtomicUsize = AtomicUsize::new(0);
