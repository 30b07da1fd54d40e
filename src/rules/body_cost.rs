//! Costs from the bodies of requests.

use std::sync::Arc;

use crate::{
    error::Error,
    extract::{FromBody, KeyExtractor},
    request::{BodyFault, BodyLimits, RequestHead},
};

/// Finds the cost of a request in its body.
#[derive(Clone)]
pub(super) enum BodyCost {
    Function(BodyLimits, CostOfBody),
    /// The number in a field.
    Field(Box<FromBody>),
}

type CostOfBody = Arc<dyn Fn(&[u8]) -> u64 + Send + Sync>;

impl BodyCost {
    pub fn limits(&self) -> Option<BodyLimits> {
        match self {
            Self::Function(limits, _) => Some(*limits),
            Self::Field(field) => field.body_limits(),
        }
    }

    /// Returns the cost; `None` if it is the policy's own.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be found.
    pub fn find(&self, head: &RequestHead<'_>, least: u64) -> Result<Option<u64>, BodyFault> {
        match self {
            Self::Function(limits, cost) => Ok(Some(cost(head.body(*limits)?))),
            Self::Field(field) => Ok(field.number(head)?.map(|units| units.max(least))),
        }
    }

    /// Returns the reason why the cost cannot be found.
    pub fn fault(&self, head: &RequestHead<'_>) -> Option<BodyFault> {
        match self {
            Self::Function(limits, _) => head.body(*limits).err(),
            Self::Field(field) => field.number(head).err(),
        }
    }

    pub fn validate(&self) -> Result<(), Error> {
        match self {
            Self::Function(..) => Ok(()),
            Self::Field(field) => field.validate(),
        }
    }
}
