//! The decision on a request, if it came now, and its reason.

use std::fmt;

use crate::{key::Key, priority::priority::Priority, request::RequestHead, rules::RuleMode};

use super::{
    overload::{Overload, most_places},
    shares::KeyHash,
};

impl Overload {
    /// Returns the decision on a request, if it came now, and its reason. Counts nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Request;
    /// use tollgate::overload::Overload;
    ///
    /// let overload = Overload::adaptive().build()?;
    /// let request = Request::get("/export").body(()).expect("a request");
    /// println!("{}", overload.explain(&request));
    /// // class normal: served
    /// //   0 in flight, places for this class and those above up to 160
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn explain<'a>(&self, head: impl Into<RequestHead<'a>>) -> OverloadExplanation {
        let (head, core) = (head.into(), self.core());
        let setup = core.setup.load();
        let key = setup.rules.key(&head);
        let class = setup.rules.class(&head, key.as_ref(), &setup.classes);
        let (in_flight, _) = core.limit.counted_up_to(class);
        let now = core.clock.now();
        let ceiling = core
            .limit
            .ceiling((class, setup.classes.below(class)), core.limit.cap());
        let free = ceiling.saturating_sub(in_flight);
        let key = key.map(|key| {
            let (hash, weight) = (KeyHash::of(&key, class), setup.rules.weight(&head, &key));
            KeyShare {
                key,
                weight,
                places: core.shares.held(hash),
                most_places: most_places(free, weight),
                rate: core.shares.rate_now(hash, now),
                fair_rate: core
                    .shares
                    .fair_rate(class)
                    .map(|rate| rate * f64::from(weight)),
            }
        });
        let mode = setup.mode.get().mode();
        let finding = if mode == RuleMode::Off {
            OverloadFinding::Off
        } else if setup.rules.skips(&head) {
            OverloadFinding::Skipped
        } else if free == 0 {
            OverloadFinding::Full
        } else {
            key.as_ref()
                .map_or(OverloadFinding::Served, KeyShare::finding)
        };
        OverloadExplanation {
            priority: setup.classes.priority(class),
            mode,
            finding,
            in_flight,
            ceiling,
            key,
        }
    }
}

/// The decision of an [`Overload`] on a request, and its reason. It displays as a few lines for a terminal.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OverloadExplanation {
    /// The class of the request.
    pub priority: Priority,
    /// The mode. In [`RuleMode::Shadow`], nothing is shed.
    pub mode: RuleMode,
    /// The decision and its reason.
    pub finding: OverloadFinding,
    /// Requests of this class and those above it in flight, without slow ones among quick ones.
    pub in_flight: u32,
    /// Up to how many in flight this class gets places.
    pub ceiling: u32,
    /// The share of its key. `None` if the limit has no key.
    pub key: Option<KeyShare>,
}

/// A decision and its reason.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum OverloadFinding {
    /// No place of its class is free.
    Full,
    /// Its key has as many places as it gets while so few are free.
    KeyIsFull,
    /// Its key tries more often than the fair rate of the class, so this part of its requests passes, from 0 to 1.
    KeyIsFiltered(f64),
    /// The limit is off.
    Off,
    /// It is served.
    Served,
    /// It is left alone.
    Skipped,
}

/// The places and attempts of a key in a class. Keys are counted by their hash, so another one may be counted with it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyShare {
    /// The key.
    pub key: Key,
    /// How many times as much as others it gets.
    pub weight: u32,
    /// Its requests in flight.
    pub places: u32,
    /// It gets another place while it has fewer than this.
    pub most_places: u32,
    /// Its attempts a second.
    pub rate: f64,
    /// Up to how many attempts a second all pass. `None` while nothing is filtered.
    pub fair_rate: Option<f64>,
}

impl KeyShare {
    fn finding(&self) -> OverloadFinding {
        match self.fair_rate {
            _ if self.places >= self.most_places => OverloadFinding::KeyIsFull,
            Some(fair) if self.rate > fair => OverloadFinding::KeyIsFiltered(fair / self.rate),
            _ => OverloadFinding::Served,
        }
    }
}

impl fmt::Display for OverloadExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_shadow = self.mode == RuleMode::Shadow;
        let shed = if is_shadow { "would be shed" } else { "shed" };
        write!(f, "class {}: ", self.priority)?;
        match self.finding {
            OverloadFinding::Full => write!(f, "{shed}, no place of this class is free")?,
            OverloadFinding::KeyIsFull => write!(f, "{shed}, its key has too many places")?,
            OverloadFinding::KeyIsFiltered(passes) => {
                let most = 100.0 * (1.0 - passes);
                write!(f, "{most:.0} % of its key are {shed}, it tries too often")?;
            }
            OverloadFinding::Off => f.write_str("served, the limit is off")?,
            OverloadFinding::Served => f.write_str("served")?,
            OverloadFinding::Skipped => f.write_str("served, left alone by `skip`")?,
        }
        let (in_flight, ceiling) = (self.in_flight, self.ceiling);
        write!(
            f,
            "\n  {in_flight} in flight, places for this class and those above up to {ceiling}"
        )?;
        let Some(key) = &self.key else { return Ok(()) };
        let (places, most, rate) = (key.places, key.most_places, key.rate);
        write!(
            f,
            "\n  its key: {places} places while fewer than {most}, {rate:.0} attempts a second"
        )?;
        match key.fair_rate {
            Some(fair) if fair < rate => write!(f, ", of which {fair:.0} pass the filter"),
            _ => Ok(()),
        }
    }
}
