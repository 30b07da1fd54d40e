//! Recorders of denied requests, which an operator can ask later.

#[cfg(feature = "top-keys")]
use crate::{charge::Charge, decision::Decision, error::Error, top_keys::TopKeys};

/// The recorders of one limiter. Without features it has no size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorders {
    /// Counts denied requests by key.
    #[cfg(feature = "top-keys")]
    pub(crate) top_keys: Option<TopKeys>,
}

impl Recorders {
    /// Returns whether nothing is recorded, so that decisions need not be shown.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        #[cfg(feature = "top-keys")]
        let has_top_keys = self.top_keys.is_some();
        #[cfg(not(feature = "top-keys"))]
        let has_top_keys = false;
        !has_top_keys
    }

    /// Records a decision that denied the request.
    #[cfg(feature = "top-keys")]
    #[inline]
    pub(super) fn record(&self, charges: &[Charge<'_>], result: &Result<Decision, Error>) {
        let Ok(decision) = result else { return };
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

    #[cfg(feature = "top-keys")]
    #[test]
    fn decisions_are_shown_to_top_keys() {
        let recorders = Recorders {
            top_keys: Some(TopKeys::new()),
        };
        assert!(!recorders.is_empty());
    }
}
