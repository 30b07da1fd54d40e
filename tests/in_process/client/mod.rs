//! Calls that go out: turns, pauses and retries, against an API in process and over real sockets, and the reader of headers.

mod adaptive;
mod api;
mod bodies;
mod grpc;
mod log;
mod observed;
mod pauses;
mod retries;
mod stacks;
