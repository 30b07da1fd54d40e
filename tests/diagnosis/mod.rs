//! Warnings about the Redis server.

#[path = "../in_process/diagnosis/app.rs"]
mod app;
mod server_warnings;
