//! Keys from requests, and attempts to pass for another client.

mod client_ip;
mod combined;
mod extractors;
mod repeated_keys;
mod routes;
mod values;
