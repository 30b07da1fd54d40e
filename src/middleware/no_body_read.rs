//! Reads no body: the feature `body` is off, and a rule that needs one rejects its requests.

use std::task::{Context, Poll};

use http::Request;

use crate::request::BodyLimits;

/// A request body that is being read: there is none.
pub(super) enum BodyRead {}

impl BodyRead {
    pub fn take<A>(_: &mut Request<A>, _: BodyLimits) -> Option<Box<Self>> {
        None
    }

    pub fn poll(&mut self, _: &mut Context<'_>) -> Poll<()> {
        match *self {}
    }

    pub fn end<A>(self, _: &mut Request<A>) {
        match self {}
    }
}
