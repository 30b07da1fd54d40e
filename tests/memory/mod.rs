//! The in-process store: its memory, measured at the allocator.

mod bounds;
