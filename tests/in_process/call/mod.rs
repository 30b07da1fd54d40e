//! The layer for Tower services without HTTP.

mod calls;
