//! Conditions on requests, and equivalent spellings of a path, a method and a host.

mod spellings;
