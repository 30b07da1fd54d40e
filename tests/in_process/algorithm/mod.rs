//! The arithmetic of each algorithm: exact times and remainders, and limits that change while keys are in debt.

mod counting;
mod fixed_window;
mod limit_changes;
mod sliding_log;
mod sliding_window;
mod token_bucket;
