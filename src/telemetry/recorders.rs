//! Recorders of denied requests, which an operator can ask later.

#[cfg(any(feature = "explain", feature = "top-keys"))]
use crate::{charge::Charge, decision::Decision, error::Error};

#[cfg(feature = "explain")]
use crate::explain::RecentDenials;

#[cfg(feature = "top-keys")]
use crate::top_keys::TopKeys;

/// The recorders of one limiter. Without features it has no size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorders {
    /// Keeps the last denial of each key.
    #[cfg(feature = "explain")]
    pub(crate) denials: Option<RecentDenials>,
    /// Counts denied requests by key.
    #[cfg(feature = "top-keys")]
    pub(crate) top_keys: Option<TopKeys>,
}

impl Recorders {
    /// Keeps the last denial for this many pairs of policy and key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for an impossible number.
    #[cfg(feature = "explain")]
    pub(crate) fn keeping_denials(mut self, pairs: Option<usize>) -> Result<Self, Error> {
        self.denials = pairs.map(RecentDenials::new).transpose()?;
        Ok(self)
    }

    /// Returns whether nothing is recorded, so that decisions need not be shown.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        #[cfg(feature = "explain")]
        let has_denials = self.denials.is_some();
        #[cfg(not(feature = "explain"))]
        let has_denials = false;
        #[cfg(feature = "top-keys")]
        let has_top_keys = self.top_keys.is_some();
        #[cfg(not(feature = "top-keys"))]
        let has_top_keys = false;
        !has_denials && !has_top_keys
    }

    /// Records a decision that denied the request, or would have.
    #[cfg(any(feature = "explain", feature = "top-keys"))]
    #[inline]
    pub(super) fn record(&self, charges: &[Charge<'_>], result: &Result<Decision, Error>) {
        let Ok(decision) = result else { return };
        #[cfg(feature = "explain")]
        if let Some(denials) = &self.denials {
            denials.record(charges, decision);
        }
        #[cfg(feature = "top-keys")]
        if let Some(top_keys) = &self.top_keys {
            top_keys.record_denied(charges, decision);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_recorders_decisions_need_not_be_shown() {
        assert!(Recorders::default().is_empty());
    }

    #[cfg(feature = "explain")]
    #[test]
    fn decisions_are_shown_to_the_last_denials() {
        let recorders = Recorders {
            denials: Some(RecentDenials::new(1).expect("usable")),
            ..Recorders::default()
        };
        assert!(!recorders.is_empty());
    }

    #[cfg(feature = "top-keys")]
    #[test]
    fn decisions_are_shown_to_top_keys() {
        let recorders = Recorders {
            top_keys: Some(TopKeys::new()),
            ..Recorders::default()
        };
        assert!(!recorders.is_empty());
    }
}
