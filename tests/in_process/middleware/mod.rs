//! The layer for HTTP services: its contract with Tower, and the stacks around it.

mod bodies;
mod contract;
mod other_layers;
mod sockets;
mod stacks;
