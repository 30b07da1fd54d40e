//! Closures on types of the application, which are found by the type.
//!
//! # Why are closures found by type?
//!
//! Only the application can copy its bodies and read its client's errors. With these types, the layer would have type parameters,
//! which each struct that holds the layer would repeat. So the layer keeps the closures untyped, and each service finds the
//! closure for the types of its client.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    sync::Arc,
};

/// Values, at most one of each type.
#[derive(Clone, Default)]
pub(super) struct ByType {
    values: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl ByType {
    /// Adds a value. Replaces one of the same type.
    pub fn insert<T: Any + Send + Sync>(&mut self, value: T) {
        self.values.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// Returns the value of a type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.values.get(&TypeId::of::<T>())?.downcast_ref()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl fmt::Debug for ByType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByType")
            .field("types", &self.values.len())
            .finish()
    }
}
