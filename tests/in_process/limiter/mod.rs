//! The limiter without HTTP, as handlers use it.

mod enforce;
