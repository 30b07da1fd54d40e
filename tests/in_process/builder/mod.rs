//! Wrong settings: where they fail, and what the error contains.

#[cfg(feature = "redis")]
mod bad_input;
mod compile_errors;
mod prelude;
mod wording;
