//! One key for all requests.

use crate::{key::Key, request::RequestHead};

use super::{caller_id::CallerId, extracted::Extracted, extractor::KeyExtractor};

/// The same key for all requests: one count for all callers together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Global;

impl KeyExtractor for Global {
    fn extract(&self, _: &RequestHead<'_>) -> Extracted<Key> {
        Extracted::Found(Key::GLOBAL)
    }

    /// None: who blocked it would block everybody.
    fn keys_of(&self, _: &CallerId<'_>) -> Vec<Key> {
        Vec::new()
    }

    fn label(&self) -> &str {
        "global"
    }

    fn is_per_caller(&self) -> bool {
        false
    }
}
