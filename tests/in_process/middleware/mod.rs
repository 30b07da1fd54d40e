//! The layer for HTTP services: its contract with Tower, and the stacks around it.

mod bodies;
mod boxed_body;
mod contract;
mod handles;
mod other_layers;
mod request_hold;
mod sockets;
mod stacks;
