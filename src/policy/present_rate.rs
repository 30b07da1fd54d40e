//! The present rate of a key, which charges follow while they wait.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::algorithm::MicroRate;

/// A rate that changes. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct PresentRate(Arc<AtomicU64>);

impl PresentRate {
    pub fn new(rate: MicroRate) -> Self {
        Self(Arc::new(AtomicU64::new(rate.as_micros())))
    }

    pub fn set(&self, rate: MicroRate) {
        self.0.store(rate.as_micros(), Ordering::Relaxed);
    }

    pub fn get(&self) -> MicroRate {
        MicroRate::from_micros(self.0.load(Ordering::Relaxed))
    }
}
