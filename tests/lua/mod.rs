//! The scripts in `lua/`: as files, as Redis commands, and beside their Rust twins.

#[cfg(feature = "client")]
mod adaptive;
mod differential;
mod files;
mod lines;
mod scripts;
