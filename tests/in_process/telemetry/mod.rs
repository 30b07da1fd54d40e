//! Who sees a decision.

mod hooks;
