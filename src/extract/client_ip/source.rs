//! Which header is read.

use http::{HeaderName, header::FORWARDED};

/// A header in which a proxy or a CDN tells one address, the client's.
///
/// Take it only when that proxy sets it on each request, whatever the client sent. It is read when it comes once. Empty or
/// unreadable, it is ignored, and the peer is the client; from a trusted peer a second one makes the address ambiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SingleHeader {
    /// `CF-Connecting-IP`: Cloudflare.
    CfConnectingIp,
    /// `CloudFront-Viewer-Address`: Amazon CloudFront; the address with a port, IPv6 without brackets.
    CloudFrontViewerAddress,
    /// `Fly-Client-IP`: Fly.io.
    FlyClientIp,
    /// A header of another proxy's.
    Named(HeaderName),
    /// `True-Client-IP`: Akamai, Cloudflare Enterprise.
    TrueClientIp,
    /// `X-Envoy-External-Address`: Envoy, at the edge of a mesh.
    XEnvoyExternalAddress,
    /// `X-Real-IP`: nginx, where it is configured.
    XRealIp,
}

impl SingleHeader {
    /// The header's name.
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

    /// Whether the header is a list, in which clients stand left of what proxies say.
    pub(super) fn is_list(&self) -> bool {
        let name = self.name();
        name == FORWARDED || name == FORWARDED_FOR
    }
}

impl From<HeaderName> for SingleHeader {
    fn from(name: HeaderName) -> Self {
        Self::Named(name)
    }
}

// === Source ===

/// Which header is read, and how.
#[derive(Clone, Debug)]
pub(super) struct Source {
    name: HeaderName,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Forwarded,
    ForwardedFor,
    Single,
    SingleWithPort,
}

impl Source {
    pub(super) fn forwarded() -> Self {
        Self {
            name: FORWARDED,
            form: Form::Forwarded,
        }
    }

    pub(super) fn forwarded_for() -> Self {
        Self {
            name: FORWARDED_FOR,
            form: Form::ForwardedFor,
        }
    }

    pub(super) fn name(&self) -> &HeaderName {
        &self.name
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }
}

impl From<SingleHeader> for Source {
    fn from(header: SingleHeader) -> Self {
        let name = header.name();
        let form = if name == VIEWER_ADDRESS {
            Form::SingleWithPort
        } else {
            Form::Single
        };
        Self { name, form }
    }
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const VIEWER_ADDRESS: &str = "cloudfront-viewer-address";
