//! The response to a rejected request.

use std::mem;

use bytes::Bytes;
use http::{Request, Response};

use crate::{headers::HeaderWriter, rejection::Rejection, request::RequestHead};

use super::{
    admission::{Admission, Rejected},
    body::ResponseBody,
};

impl Admission {
    /// Returns the response to a denied request with all its headers, if they and the format are usual ones.
    fn default_denial(
        &self,
        rejection: &Rejection,
        head: &RequestHead<'_>,
    ) -> Option<Response<Bytes>> {
        let mut headers = self.headers.default_denial(rejection.decision()?)?;
        let (content_type, body) = self.format.make_body(rejection, head)?;
        *headers.values_mut().next()? = content_type;
        let mut response = Response::new(body);
        *response.status_mut() = rejection.status();
        *response.headers_mut() = headers;
        Some(response)
    }

    /// Makes the response to a rejected request, and settles the charges that are kept.
    #[cold]
    pub(super) fn respond<A, B>(
        &self,
        rejected: Rejected,
        mut request: Request<A>,
    ) -> Response<ResponseBody<B>> {
        let Rejected {
            rejection,
            terms,
            settlement,
        } = rejected;
        let head = RequestHead::from(&request);
        let denial = self.default_denial(&rejection, &head);
        let is_default = denial.is_some();
        let response = denial.unwrap_or_else(|| rejection.respond(&*self.format, &head));
        let mut response = response.map(ResponseBody::rejection);
        // The request's map serves the response: a new one would take two allocations.
        let extensions = request.extensions_mut();
        extensions.clear();
        extensions.extend(mem::take(response.extensions_mut()));
        mem::swap(extensions, response.extensions_mut());
        if is_default {
            HeaderWriter::mark_default_denial(response.extensions_mut());
        } else {
            if let Some(decision) = rejection.decision() {
                self.headers
                    .write_rejection(decision, terms.as_deref(), &mut response);
            }
            let reason = || (rejection.code(), rejection.reason().policy());
            self.headers.write_reason(reason, &mut response);
        }
        response.extensions_mut().insert(rejection);
        if let Some(settlement) = settlement {
            settlement.reject(&response);
        }
        response
    }
}
