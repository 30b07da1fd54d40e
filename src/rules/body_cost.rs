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

    /// Returns the number that the body states; `None` if it states none.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be found.
    pub fn number(&self, head: &RequestHead<'_>) -> Result<Option<u64>, BodyFault> {
        match self {
            Self::Function(limits, cost) => Ok(Some(cost(head.body(*limits)?))),
            Self::Field(field) => field.number(head),
        }
    }

    /// Returns the cost by that number, under a policy with this cost.
    pub fn units(&self, number: u64, own: u64) -> u64 {
        match self {
            Self::Function(..) => number,
            Self::Field(_) => number.max(own),
        }
    }

    pub fn validate(&self) -> Result<(), Error> {
        match self {
            Self::Function(..) => Ok(()),
            Self::Field(field) => field.validate(),
        }
    }
}
