//! Decisions in handlers on Redis, and callers that wait for their turn, over several instances and in real time.

mod enforce;
mod order;
