//! Wrong settings: where they fail, and what the error contains.

mod bad_input;
mod wording;
