//! One key for all requests.

use http::request::Parts;

use crate::key::Key;

use super::{extracted::Extracted, extractor::KeyExtractor};

/// The same key for all requests: one count for all callers together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Global;

impl KeyExtractor for Global {
    fn extract(&self, _: &Parts) -> Extracted<Key> {
        Extracted::Found(Key::GLOBAL)
    }

    fn label(&self) -> &str {
        "global"
    }

    fn is_per_caller(&self) -> bool {
        false
    }
}
