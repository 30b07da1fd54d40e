//! Headers of a response that is still to come.
//!
//! # Why are headers kept as numbers until the response?
//!
//! Made in advance, three headers cost 150 ns more, in the future of the request, which is copied. So the default headers are
//! three numbers. Others need the layer's configuration and perhaps a prepared value, and are boxed. The box is one more
//! allocation, but without it all requests would pay for the larger future. The default headers also need no shared pointer to
//! the configuration, which would cost two writes to a counter that all cores share.
//!
//! For the same reason, a decision about one policy is kept within 128 bytes, and so is `Next`. The compiler copies a larger
//! value by a function call, which waits until the latest writes have reached memory. Without three such copies, the layer adds a
//! tenth less time.

use std::sync::Arc;

use http::response::Parts;

use crate::decision::{Decision, Usage};

use super::{
    families::HeaderValues,
    terms::PolicyTerms,
    writer::{HeaderWriter, write_default},
};

/// Headers of a response that is still to come, as the numbers of which they will be made.
///
/// It moves along with the request, so it is small.
#[derive(Debug)]
pub(crate) enum PendingHeaders {
    /// The headers that a layer has by default.
    Default { usage: Usage, is_concurrency: bool },
    /// Other headers. Boxed, and with a clone of the `Arc`, whose counter all cores share: the default needs neither.
    Chosen(Box<ChosenHeaders>),
}

impl PendingHeaders {
    /// Returns the headers for a decision that admits the request. `None` if there are none.
    #[inline]
    pub fn new(
        writer: &Arc<HeaderWriter>,
        decision: &Decision,
        tier_terms: Option<&[PolicyTerms]>,
    ) -> Option<Self> {
        if !writer.is_default() {
            return Self::chosen(writer, decision, tier_terms, false);
        }
        let narrowest = decision.narrowest()?;
        Some(Self::Default {
            usage: decision.header_usage(narrowest)?,
            is_concurrency: narrowest.is_concurrency(),
        })
    }

    /// Returns the headers of a layer inside another one. The outer layer has to know which headers this one writes.
    #[cold]
    pub fn nested(
        writer: &Arc<HeaderWriter>,
        decision: &Decision,
        tier_terms: Option<&[PolicyTerms]>,
    ) -> Option<Self> {
        Self::chosen(writer, decision, tier_terms, true)
    }

    fn chosen(
        writer: &Arc<HeaderWriter>,
        decision: &Decision,
        tier_terms: Option<&[PolicyTerms]>,
        is_nested: bool,
    ) -> Option<Self> {
        let is_written = writer.writes_on_success();
        is_written.then(|| {
            Self::Chosen(Box::new(ChosenHeaders {
                writer: Arc::clone(writer),
                values: writer.values(decision, tier_terms, is_nested),
            }))
        })
    }

    /// Adds the headers to a response. Headers that the inner service has set stay.
    #[inline]
    pub fn write(&mut self, parts: &mut Parts) {
        match self {
            Self::Default {
                usage,
                is_concurrency,
            } => write_default(parts, usage, *is_concurrency),
            Self::Chosen(chosen) => chosen.writer.write_values(&mut chosen.values, parts),
        }
    }
}

// === ChosenHeaders ===

/// Values of headers, and the writer that formats them.
#[derive(Debug)]
pub(crate) struct ChosenHeaders {
    writer: Arc<HeaderWriter>,
    values: HeaderValues,
}
