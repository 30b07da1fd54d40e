//! The classes of a limit, in their order.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::priority::priority::Priority;

/// The classes, those that are shed last first. `Normal` is among them.
pub(super) struct Classes(Box<[Class]>);

/// A class, and its requests that were shed, also under settings before.
struct Class {
    priority: Priority,
    shed: Arc<AtomicU64>,
}

impl Classes {
    pub fn new(priorities: &[Priority]) -> Self {
        let class = |priority: &Priority| Class {
            priority: *priority,
            shed: Arc::default(),
        };
        Self(priorities.iter().map(class).collect())
    }

    /// Returns the place of a priority. One that is not among them is `Normal`.
    #[inline]
    pub fn place(&self, priority: Priority) -> usize {
        let find = |priority| self.find(priority);
        find(priority)
            .or_else(|| find(Priority::Normal))
            .unwrap_or_default()
    }

    /// Returns the place of a priority, if it is among them.
    #[inline]
    pub fn find(&self, priority: Priority) -> Option<usize> {
        self.priorities().position(|class| class == priority)
    }

    #[inline]
    pub fn priority(&self, place: usize) -> Priority {
        self.0[place].priority
    }

    pub fn priorities(&self) -> impl Iterator<Item = Priority> {
        self.0.iter().map(|class| class.priority)
    }

    /// Returns how many are shed before the one at this place.
    #[inline]
    pub fn below(&self, place: usize) -> u32 {
        u32::try_from(self.0.len() - 1 - place).unwrap_or_default()
    }

    pub fn note_shed(&self, place: usize) {
        self.0[place].shed.fetch_add(1, Relaxed);
    }

    /// Returns the classes, each with the number of its requests that were shed.
    pub fn shed(&self) -> Vec<(Priority, u64)> {
        let classes = self.0.iter();
        let counts = classes.map(|class| (class.priority, class.shed.load(Relaxed)));
        counts.collect()
    }

    /// Goes on with the counts of other classes, by their priorities.
    #[cfg(feature = "reload")]
    pub fn take_over(&mut self, old: &Self) {
        for class in &mut self.0 {
            if let Some(place) = old.find(class.priority) {
                class.shed = Arc::clone(&old.0[place].shed);
            }
        }
    }
}

/// The most classes of a limit.
pub(super) const MOST_CLASSES: usize = 16;
