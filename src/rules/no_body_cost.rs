//! Stands in for costs from bodies, which need the feature `body`.

use std::convert::Infallible;

use crate::{
    error::Error,
    request::{BodyFault, BodyLimits, RequestHead},
};

/// A cost that no rule has.
#[derive(Clone)]
pub(super) struct BodyCost(Infallible);

impl BodyCost {
    pub fn limits(&self) -> Option<BodyLimits> {
        match self.0 {}
    }

    pub fn find(&self, _: &RequestHead<'_>, _: u64) -> Result<Option<u64>, BodyFault> {
        match self.0 {}
    }

    pub fn fault(&self, _: &RequestHead<'_>) -> Option<BodyFault> {
        match self.0 {}
    }

    pub fn validate(&self) -> Result<(), Error> {
        match self.0 {}
    }
}
