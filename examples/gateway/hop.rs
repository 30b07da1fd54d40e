//! Headers between two connections: which ones end here, and which ones the gateway adds.

use std::net::SocketAddr;

use axum::body::Body;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version,
    header::{
        CONNECTION, COOKIE, EXPECT, FORWARDED, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
        TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
    },
    uri::Authority,
};

/// Returns the request as the backend gets it.
///
/// `Host` is that of the backend; the client's is in `X-Forwarded-Host`.
pub(crate) fn to_backend(request: Request<Body>, uri: Uri, peer: SocketAddr) -> Request<Body> {
    let (mut parts, body) = request.into_parts();
    let headers = &mut parts.headers;
    remove_hop_by_hop(headers);
    headers.remove(EXPECT); // the server has sent 100 Continue once the body is read
    headers.remove(FORWARDED); // it could contradict X-Forwarded-For
    join(
        headers,
        X_FORWARDED_FOR,
        ", ",
        Some(&peer.ip().to_canonical().to_string()),
    );
    join(headers, COOKIE, "; ", None); // HTTP/2 splits it
    headers.append(VIA, HeaderValue::from_static("1.1 tollgate"));

    // HTTP/2 sends the host in the URI. The client library sets the new one.
    let of_header = headers.remove(HOST);
    let of_uri = parts.uri.authority().map(Authority::as_str);
    let host = of_uri.map_or(of_header, |host| HeaderValue::from_str(host).ok());
    headers.remove(X_FORWARDED_HOST);
    headers.extend(host.map(|host| (X_FORWARDED_HOST, host)));

    let mut forwarded = Request::new(body);
    *forwarded.method_mut() = parts.method;
    *forwarded.uri_mut() = uri;
    *forwarded.headers_mut() = parts.headers;
    forwarded
}

/// Returns the response as the client gets it.
pub(crate) fn to_client(mut response: Response<Body>) -> Response<Body> {
    remove_hop_by_hop(response.headers_mut());
    // The backend's connection may have another version than the client's.
    *response.version_mut() = Version::HTTP_11;
    response
}

/// Removes the headers that are about one connection (RFC 9110, section 7.6.1), and those that `Connection` names.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Joins the lines of a header that is a list, with an item after them.
fn join(headers: &mut HeaderMap, name: HeaderName, separator: &str, item: Option<&str>) {
    let lines = headers.get_all(&name).iter().map(HeaderValue::as_bytes);
    let items: Vec<&[u8]> = lines.chain(item.map(str::as_bytes)).collect();
    if !items.is_empty() {
        let joined = HeaderValue::from_bytes(&items.join(separator.as_bytes()));
        headers.insert(
            name,
            joined.expect("values of headers, and characters that may be in them"),
        );
    }
}

const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
