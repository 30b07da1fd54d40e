//! The layer for HTTP services: its contract with Tower, the stacks around it, and what a request waits and pays for.

mod contract;
mod other_layers;
mod queueing;
mod request_deadline;
mod settling;
mod sockets;
mod stacks;
mod waits;
pub(crate) mod witness;
