//! Matchers on the method of a request.

use http::{
    Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
};

use crate::{
    error::{Error, ErrorKind},
    request::RequestHead,
};

use super::matcher::{Match, Matcher};

/// Requests with one of these methods.
///
/// HEAD is a possible match for GET, since routers serve both with the same handler. A method in another case (`post`) is a
/// possible match too, since some servers convert it to upper case.
///
/// Some frameworks take another method from a header (`X-HTTP-Method-Override`, `X-Method-Override`, `X-HTTP-Method`) or a
/// form field (`_method`). Such a request matches the method of its request line only: if your service has this enabled,
/// let a layer outside of this one remove the header, or reject it with [`HasHeader`](super::HasHeader).
#[derive(Clone, Debug)]
pub struct Methods {
    methods: Box<[Method]>,
}

impl Methods {
    /// Matches these methods.
    pub fn new(methods: impl IntoIterator<Item = Method>) -> Self {
        Self {
            methods: methods.into_iter().collect(),
        }
    }

    fn contains_in_any_case(&self, method: &Method) -> bool {
        let mut methods = self.methods.iter();
        methods.any(|own| is_in_any_case(method, own))
    }
}

impl Matcher for Methods {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        if self.methods.contains(head.method) {
            return Match::Exact;
        }
        let is_possible = self.contains_in_any_case(head.method)
            || is_in_any_case(head.method, &Method::HEAD)
                && self.contains_in_any_case(&Method::GET);
        if is_possible {
            Match::Ambiguous
        } else {
            Match::Miss
        }
    }

    fn validate(&self) -> Result<(), Error> {
        if self.methods.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "a matcher without methods matches nothing: name at least one",
            ));
        }
        Ok(())
    }
}

// === Preflight ===

/// CORS preflight requests: OPTIONS with `Origin` and `Access-Control-Request-Method`. Other OPTIONS requests do not match.
///
/// Browsers send preflights automatically, and a 429 makes the request after it fail without a visible reason. They are
/// counted by default nevertheless, since any client can send the two headers:
/// [skip](crate::builder::RateLimitLayerBuilder::skip) them, or better, let a CORS layer outside of this one respond. The
/// section on [CORS headers](crate::headers#browsers-and-cors) shows how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preflight;

impl Matcher for Preflight {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        let has = |name| head.headers.contains_key(name);
        let is_preflight = is_in_any_case(head.method, &Method::OPTIONS)
            && has(&ORIGIN)
            && has(&ACCESS_CONTROL_REQUEST_METHOD);
        match is_preflight {
            true if head.method == Method::OPTIONS => Match::Exact,
            true => Match::Ambiguous,
            false => Match::Miss,
        }
    }
}

fn is_in_any_case(found: &Method, method: &Method) -> bool {
    found.as_str().eq_ignore_ascii_case(method.as_str())
}
