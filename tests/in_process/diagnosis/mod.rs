//! Warnings about misconfigurations.

mod app;
mod warnings;
