//! Warnings about misconfigurations.

mod warnings;
