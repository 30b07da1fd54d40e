//! Equivalent spellings of a path, as real servers read them.

pub(crate) mod served;
#[path = "../in_process/matching/spellings/steps.rs"]
mod steps;
