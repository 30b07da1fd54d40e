//! The class and the key of a request, and which requests are not counted at all.

use std::{ops::RangeInclusive, sync::Arc};

use http::{HeaderName, HeaderValue};

use crate::{
    error::{Error, ErrorKind},
    extract::KeyExtractor,
    key::Key,
    matching::{Match, Matcher},
    priority::priority::Priority,
    request::RequestHead,
};

use super::classes::Classes;

/// How the layer reads a request.
#[derive(Clone, Default)]
pub(super) struct RequestRules {
    pub key: Option<Arc<dyn KeyExtractor>>,
    pub skip: Vec<Arc<dyn Matcher>>,
    pub header: Option<TrustedHeader>,
    pub when: Vec<(Arc<dyn Matcher>, Priority)>,
    pub by: Option<Arc<FindPriority>>,
    pub weights: Vec<(Arc<dyn Matcher>, u32)>,
    pub weight_by: Option<Arc<FindWeight>>,
}

/// A header in which some clients state the class.
#[derive(Clone)]
pub(super) struct TrustedHeader {
    pub name: HeaderName,
    /// Selects the requests whose header counts.
    pub from: Arc<dyn Matcher>,
}

/// Returns the class of a request.
pub(super) type FindPriority =
    dyn Fn(&RequestHead<'_>, Option<&Key>) -> Priority + Send + Sync + 'static;

/// Returns the weight of a key.
pub(super) type FindWeight = dyn Fn(&RequestHead<'_>, &Key) -> u32 + Send + Sync + 'static;

impl RequestRules {
    /// Checks the settings.
    pub fn validate(&self, classes: &[Priority]) -> Result<(), Error> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidConfig, message));
        if let Some(key) = &self.key {
            key.validate()?;
            if key.body_limits().is_some() {
                return invalid(
                    "the key of an overload limit is in the body, which is not read before a request is shed: use a key from the head"
                        .into(),
                );
            }
        }
        let header = self.header.iter().map(|header| &header.from);
        let when = self.when.iter().map(|(matcher, _)| matcher);
        let weights = self.weights.iter().map(|(matcher, _)| matcher);
        for matcher in self.skip.iter().chain(header).chain(when).chain(weights) {
            matcher.validate()?;
        }
        let has_weights = !self.weights.is_empty() || self.weight_by.is_some();
        if has_weights && self.key.is_none() {
            return invalid(
                "weights without a key: set whose requests have them with `key`".into(),
            );
        }
        for (_, weight) in &self.weights {
            if !WEIGHTS.contains(weight) {
                return invalid(format!(
                    "a weight of {weight}: set 1 to {}, for example 4",
                    WEIGHTS.end()
                ));
            }
        }
        for (_, priority) in &self.when {
            if !classes.contains(priority) {
                return invalid(format!(
                    "requests have the class {priority}, which is not one of the classes: name it in `classes`"
                ));
            }
        }
        Ok(())
    }

    /// Returns whether a request is neither counted nor shed.
    #[inline]
    pub fn skips(&self, head: &RequestHead<'_>) -> bool {
        let skips = |matcher: &Arc<dyn Matcher>| matcher.matches(head) == Match::Exact;
        self.skip.iter().any(skips)
    }

    /// Returns the key with which a request is counted. Those without one share a key: else leaving it out would be a way around the
    /// share.
    #[inline]
    pub fn key(&self, head: &RequestHead<'_>) -> Option<Key> {
        let extractor = self.key.as_ref()?;
        let found = extractor.extract(head).found();
        found
            .or_else(|| extractor.default_key(head))
            .or(Some(Key::UNIDENTIFIED))
    }

    /// Returns the place of the class of a request.
    ///
    /// The first that applies decides, and if none does, the class that a layer around has found. A path that may or may not match takes
    /// the lower of both classes.
    pub fn class(&self, head: &RequestHead<'_>, key: Option<&Key>, classes: &Classes) -> usize {
        if let Some(stated) = self.stated(head, classes) {
            return stated;
        }
        let mut lowest = 0;
        for (matcher, priority) in &self.when {
            match matcher.matches(head) {
                Match::Miss => {}
                Match::Ambiguous => lowest = lowest.max(classes.place(*priority)),
                Match::Exact => return lowest.max(classes.place(*priority)),
            }
        }
        let found = match &self.by {
            Some(by) => by(head, key),
            None => Priority::of(head.extensions),
        };
        lowest.max(classes.place(found))
    }

    /// Returns how many times as much as others a key gets.
    ///
    /// The first that applies decides. A path that may or may not match takes the lower of both weights.
    #[inline]
    pub fn weight(&self, head: &RequestHead<'_>, key: &Key) -> u32 {
        let mut most = *WEIGHTS.end();
        for (matcher, weight) in &self.weights {
            match matcher.matches(head) {
                Match::Miss => {}
                Match::Ambiguous => most = most.min(*weight),
                Match::Exact => return most.min(*weight),
            }
        }
        let found = self.weight_by.as_ref().map_or(1, |by| by(head, key));
        found.max(*WEIGHTS.start()).min(most)
    }

    /// Returns the class in the trusted header: of several lines the lowest, since a gateway may add its own to that of a client.
    fn stated(&self, head: &RequestHead<'_>, classes: &Classes) -> Option<usize> {
        let header = self.header.as_ref()?;
        let place = |line: &HeaderValue| {
            let line = line.as_bytes().trim_ascii();
            let is_stated = |class: Priority| line.eq_ignore_ascii_case(class.name().as_bytes());
            classes.priorities().position(is_stated)
        };
        let lines = head.headers.get_all(&header.name).iter();
        let class = lines.filter_map(place).max()?;
        (header.from.matches(head) == Match::Exact).then_some(class)
    }
}

const WEIGHTS: RangeInclusive<u32> = 1..=1_000;
