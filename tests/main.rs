//! one
