//! The scripts in `lua/`: as files, as Redis commands, and beside their Rust twins.

mod differential;
mod files;
mod lines;
mod scripts;
