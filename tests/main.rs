//! Every integration test, in one binary: it links once.

mod architecture;
mod conformance;
mod differential;
mod hammer;
mod memory;
mod outage;
mod scripts;
mod support;
mod support_tests;
mod token_bucket;
