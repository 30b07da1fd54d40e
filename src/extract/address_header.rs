//! The header that holds the client's address.
//!
//! # Why is one header read, and not whichever is present?
//!
//! A proxy that sets `X-Forwarded-For` passes on `Forwarded` and `X-Real-IP` as the client sent them. If the first header that is
//! present counted, the client would choose it. So the configuration chooses one.

use http::{HeaderMap, HeaderName, header::FORWARDED};

/// A header in which a proxy or a CDN sends one address, the client's.
///
/// Choose it only if that proxy sets it on every request, whatever the client sent. The header must come once. If it is
/// empty or unreadable, it is ignored, and the peer is the client. If a trusted peer sends the header twice, the
/// address is ambiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SingleHeader {
    /// `CF-Connecting-IP`: Cloudflare.
    CfConnectingIp,
    /// `CloudFront-Viewer-Address`: Amazon CloudFront; the address with a port, IPv6 without brackets.
    CloudFrontViewerAddress,
    /// `Fly-Client-IP`: Fly.io.
    FlyClientIp,
    /// The header of another proxy.
    Named(HeaderName),
    /// `True-Client-IP`: Akamai, Cloudflare Enterprise.
    TrueClientIp,
    /// `X-Envoy-External-Address`: Envoy, at the edge of a mesh.
    XEnvoyExternalAddress,
    /// `X-Real-IP`: nginx, where it is configured.
    XRealIp,
}

impl SingleHeader {
    /// Returns the header's name.
    #[must_use]
    pub fn name(&self) -> HeaderName {
        HeaderName::from_static(match self {
            Self::CfConnectingIp => "cf-connecting-ip",
            Self::CloudFrontViewerAddress => VIEWER_ADDRESS,
            Self::FlyClientIp => "fly-client-ip",
            Self::Named(name) => return name.clone(),
            Self::TrueClientIp => "true-client-ip",
            Self::XEnvoyExternalAddress => "x-envoy-external-address",
            Self::XRealIp => "x-real-ip",
        })
    }

    /// Returns whether the header is a list. Clients can write the left end of such a list.
    pub(super) fn is_list(&self) -> bool {
        let name = self.name();
        name == FORWARDED || name == X_FORWARDED_FOR
    }
}

impl From<HeaderName> for SingleHeader {
    fn from(name: HeaderName) -> Self {
        Self::Named(name)
    }
}

// === AddressHeader ===

/// The header that is read, and how.
#[derive(Clone, Debug)]
pub(super) struct AddressHeader {
    pub name: HeaderName,
    pub syntax: HeaderSyntax,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum HeaderSyntax {
    /// A list of `for=..;by=..` elements (RFC 7239).
    Forwarded,
    /// One address.
    Single,
    /// One address with a port, IPv6 without brackets.
    SingleWithPort,
    /// A list of addresses.
    XForwardedFor,
}

impl AddressHeader {
    pub fn forwarded() -> Self {
        Self {
            name: FORWARDED,
            syntax: HeaderSyntax::Forwarded,
        }
    }

    pub fn x_forwarded_for() -> Self {
        Self {
            name: X_FORWARDED_FOR,
            syntax: HeaderSyntax::XForwardedFor,
        }
    }
}

impl From<SingleHeader> for AddressHeader {
    fn from(header: SingleHeader) -> Self {
        let name = header.name();
        let syntax = if name == VIEWER_ADDRESS {
            HeaderSyntax::SingleWithPort
        } else {
            HeaderSyntax::Single
        };
        Self { name, syntax }
    }
}

/// Returns whether a request has a header in which proxies send the client's address.
pub(super) fn is_in(headers: &HeaderMap) -> bool {
    let single = [
        SingleHeader::CfConnectingIp,
        SingleHeader::CloudFrontViewerAddress,
        SingleHeader::FlyClientIp,
        SingleHeader::TrueClientIp,
        SingleHeader::XEnvoyExternalAddress,
        SingleHeader::XRealIp,
    ];
    let has = |name: HeaderName| headers.contains_key(name);
    has(X_FORWARDED_FOR) || has(FORWARDED) || single.iter().any(|header| has(header.name()))
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const VIEWER_ADDRESS: &str = "cloudfront-viewer-address";
