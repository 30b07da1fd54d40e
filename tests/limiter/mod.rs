//! Callers that wait for their turn, over several instances and in real time.

mod order;
