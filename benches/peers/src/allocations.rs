//! An allocator that counts per thread, so that threads share no counter.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// Counts the allocations of the calling thread. Make it the binary's `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counters neither allocate nor unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(1, size(layout));
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(1, size(layout));
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(1, new_size as i64 - size(layout));
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(0, -size(layout));
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Number of allocations that this thread has made; a reallocation counts as one.
pub fn count() -> u64 {
    COUNT.get()
}

/// Bytes that this thread has requested and not freed, without the allocator's overhead.
pub fn live_bytes() -> i64 {
    LIVE.get()
}

/// Highest value of [`live_bytes`] since [`reset_peak`].
pub fn peak_bytes() -> i64 {
    PEAK.get()
}

/// Sets the peak to the current [`live_bytes`].
pub fn reset_peak() {
    PEAK.set(LIVE.get());
}

fn add(count: u64, bytes: i64) {
    COUNT.set(COUNT.get() + count);
    let live = LIVE.get() + bytes;
    LIVE.set(live);
    if live > PEAK.get() {
        PEAK.set(live);
    }
}

fn size(layout: Layout) -> i64 {
    layout.size() as i64
}

thread_local! {
    // Constant and without a destructor: reading them never allocates.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}
