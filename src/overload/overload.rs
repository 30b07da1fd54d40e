//! The limit that users build, its classes, and the place that a request takes.

use std::{fmt, sync::Arc};

use crate::{
    charge::key_hash,
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind},
    key::Key,
};

use super::{
    adaptive::{AdaptiveLimit, End},
    priority::Priority,
    shares::{KeyHash, Shares},
};

/// Sheds requests of a process that has more of them than it can serve in time. Clones share one limit.
///
/// See the [module docs](super).
#[derive(Clone)]
pub struct Overload {
    shared: Arc<Shared>,
}

struct Shared {
    /// In order, those that are shed last first.
    classes: Box<[Priority]>,
    limit: AdaptiveLimit,
    shares: Shares,
    clock: Clock,
}

impl Overload {
    /// Begins the settings of a limit that adapts to what the service can do.
    pub fn adaptive() -> OverloadBuilder {
        OverloadBuilder {
            classes: vec![Priority::Critical, Priority::Normal, Priority::Sheddable],
            clock: Clock::system(),
        }
    }

    /// Takes a place for a request, or sheds it.
    ///
    /// Requests of one key share the places of their class fairly with those of other keys. Without a key, only the class counts.
    ///
    /// # Errors
    ///
    /// [`Shed`], if the service is full for this class or this key.
    pub fn enter(&self, priority: Priority, key: Option<&Key>) -> Result<InFlight, Shed> {
        let shared = &*self.shared;
        let now = shared.clock.now();
        let class = shared.class_of(priority);
        let key = key.map(|key| KeyHash(key_hash(key)));
        let cap = shared.limit.cap();
        let passes = key.is_none_or(|key| {
            let half_is_free = shared.limit.in_flight() < cap / 2;
            shared.shares.passes(class, key, now, half_is_free)
        });
        let ceiling = shared.ceiling(class, cap);
        let enters = shared.limit.enter(now, |others| {
            let free = ceiling.saturating_sub(others);
            passes && free > 0 && key.is_none_or(|key| shared.shares.held(key) < SHARE * free)
        });
        if enters {
            if let Some(key) = key {
                shared.shares.take(key);
            }
            return Ok(InFlight {
                overload: self.clone(),
                key,
                since: now,
                has_ended: false,
            });
        }
        if passes && key.is_some() {
            shared.shares.note_full(class);
        }
        Err(Shed { priority })
    }

    /// Returns how many requests may be in flight now; those of higher classes may be more.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.shared.limit.cap()
    }

    /// Returns how many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.shared.limit.in_flight()
    }

    /// Returns whether there are more requests than the service can serve in time.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        self.shared.limit.is_overloaded()
    }
}

impl Shared {
    /// Returns the place of a priority in the order of the classes. One that is not among them is `Normal`.
    fn class_of(&self, priority: Priority) -> usize {
        let place = |wanted| self.classes.iter().position(|class| *class == wanted);
        place(priority)
            .or_else(|| place(Priority::Normal))
            .unwrap_or_default()
    }

    /// Returns up to how many in flight a class gets places: the lowest up to the limit, each one above it a quarter more.
    fn ceiling(&self, class: usize, cap: u32) -> u32 {
        let above = u32::try_from(self.classes.len() - 1 - class).unwrap_or_default();
        cap.saturating_add(above.saturating_mul((cap / 4).max(LEAST_MARGIN)))
    }
}

impl fmt::Debug for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overload")
            .field("limit", &self.limit())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

// === OverloadBuilder ===

/// Settings of an [`Overload`].
#[derive(Clone, Debug)]
#[must_use = "call `build` to get the limit"]
pub struct OverloadBuilder {
    classes: Vec<Priority>,
    clock: Clock,
}

impl OverloadBuilder {
    /// Sets the classes in order: those that are shed last first.
    ///
    /// Default: critical, normal, sheddable. `Normal` must be among them, for requests without a class.
    pub fn classes(mut self, classes: impl IntoIterator<Item = Priority>) -> Self {
        self.classes = classes.into_iter().collect();
        self
    }

    /// Sets the clock.
    ///
    /// Default: that of the system.
    #[cfg(feature = "test-util")]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the limit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for classes without `Normal`, with one twice, or for more than 16.
    pub fn build(self) -> Result<Overload, Error> {
        self.check_classes()?;
        let now = self.clock.now();
        let shared = Shared {
            limit: AdaptiveLimit::new(now),
            shares: Shares::new(self.classes.len(), now),
            classes: self.classes.into_boxed_slice(),
            clock: self.clock,
        };
        Ok(Overload {
            shared: Arc::new(shared),
        })
    }

    fn check_classes(&self) -> Result<(), Error> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidConfig, message));
        if !self.classes.contains(&Priority::Normal) {
            return invalid("classes without `Normal`: requests without a class need it".into());
        }
        if self.classes.len() > MOST_CLASSES {
            let count = self.classes.len();
            return invalid(format!("{count} classes: name at most {MOST_CLASSES}"));
        }
        for (place, class) in self.classes.iter().enumerate() {
            if self.classes[..place].contains(class) {
                return invalid(format!("the class {class} twice: name each class once"));
            }
        }
        Ok(())
    }
}

// === InFlight ===

/// The place of a request that is served. Say how the request ended, or drop it if the client has gone away.
#[derive(Debug)]
#[must_use = "the place is given back when it is dropped"]
pub struct InFlight {
    overload: Overload,
    key: Option<KeyHash>,
    since: Timestamp,
    has_ended: bool,
}

impl InFlight {
    /// Gives the place back: the response has begun.
    pub fn answered(self) {
        self.end(End::Answered);
    }

    /// Gives the place back: the request was not run after all, for example since a rate limit denied it.
    pub fn not_run(self) {
        self.end(End::NotRun);
    }

    /// Gives the place back: the service gave the request up, for example by a time-out.
    pub fn timed_out(self) {
        self.end(End::TimedOut);
    }

    fn end(mut self, end: End) {
        self.release(end);
    }

    fn release(&mut self, end: End) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let shared = &*self.overload.shared;
        let now = shared.clock.now();
        if let Some(key) = self.key {
            shared.shares.give_back(key);
        }
        shared.limit.leave(now, now.since(self.since), end);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.release(End::Left);
    }
}

// === Shed ===

/// A request that is not served, since the service is overloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shed {
    /// Its class.
    pub priority: Priority,
}

impl fmt::Display for Shed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "overloaded: a request of class {} is shed",
            self.priority
        )
    }
}

impl std::error::Error for Shed {}

/// A key has fewer than this many times the free places.
const SHARE: u32 = 4;
/// How many more places a class has at least than the one below it.
const LEAST_MARGIN: u32 = 6;
const MOST_CLASSES: usize = 16;
