//! A call whose response has a body that is still read.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use crate::{clock::Moment, decision::Decision};

use super::{charges::CallCharges, observed::Observed, retry::is_transient, shared::Shared};

/// The part of a call that is needed to obey its trailers.
#[derive(Debug)]
pub(super) struct SentCall {
    pub shared: Arc<Shared>,
    pub charges: Arc<CallCharges>,
    pub sent_at: Moment,
}

impl SentCall {
    /// Obeys the trailers. `decision` is the one that admitted the call.
    pub fn obey(&self, trailers: &HeaderMap, decision: Option<&Decision>) {
        let reaction = &self.shared.reaction;
        let observed = Observed::from_parts(StatusCode::OK, trailers);
        reaction.follow(&self.charges, &observed);
        if observed.refusal().is_some() {
            let sent = (self.sent_at, decision);
            reaction.refused(&self.charges, sent, StatusCode::OK, &observed);
            return;
        }
        if !is_transient(StatusCode::OK, trailers) {
            reaction.succeeded(&self.charges, self.sent_at);
        }
        if let Some(decision) = decision {
            reaction.lower(&self.charges, decision, &observed);
        }
    }
}
