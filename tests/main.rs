//! Every integration test, in one binary: it links once.

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "tests report what they measured, and their numbers are small"
)]

mod architecture;
mod bad_input;
mod blocks;
mod breaker;
mod breaker_on_redis;
mod calls;
mod client_ip;
mod clock_steps;
mod cluster;
mod cluster_split;
mod cluster_stuck;
mod concurrency;
mod conformance;
mod counting;
mod credentials;
mod dashboard;
mod denials;
mod differential;
mod examples;
mod explain;
mod extractors;
mod extractors_combined;
mod extractors_routes;
mod extractors_values;
mod fixed_window;
mod fleet;
mod fleet_random;
mod gateway;
mod grpc;
mod hammer;
mod hammer_mixed;
mod headers;
mod holding;
mod keys;
mod lanes;
mod leases;
mod limit_changes;
mod lists;
mod lookups;
mod lua;
mod memory;
mod memory_algorithms;
mod memory_bounds;
mod memory_hot_key;
mod memory_in_flight;
mod memory_logs;
mod middleware;
mod modes;
mod network;
mod other_layers;
mod outage;
mod penalties;
mod probing;
mod queueing;
mod reason_header;
mod refused;
mod registration;
mod reloading;
mod repeated_keys;
mod request_deadline;
mod rule_bounds;
mod rule_files;
mod rule_watch;
mod rules;
mod scripts;
mod sentinel;
mod served;
mod servers;
mod settling;
mod shared_rules;
mod short_runtimes;
mod sliding_log;
mod sliding_window;
mod sockets;
mod spellings;
mod stacks;
mod support;
mod support_tests;
mod telemetry;
mod tiers;
mod tls;
mod token_bucket;
mod top_keys;
mod top_keys_fleet;
mod top_keys_recorded;
mod top_keys_shared;
mod waits;
#[cfg(target_os = "linux")]
mod wall_clock;
mod warnings;
mod witness;
mod wording;
