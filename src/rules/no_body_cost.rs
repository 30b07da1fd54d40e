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

    pub fn number(&self, _: &RequestHead<'_>) -> Result<Option<u64>, BodyFault> {
        match self.0 {}
    }

    pub fn units(&self, _: u64, _: u64) -> u64 {
        match self.0 {}
    }

    pub fn validate(&self) -> Result<(), Error> {
        match self.0 {}
    }
}
