//! Headers between two connections: which ones end here, and which ones the gateway adds.

use std::net::{Ipv6Addr, SocketAddr};

use axum::body::Body;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version,
    header::{
        CONNECTION, COOKIE, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE, VIA,
    },
    request::Parts,
};

/// Returns the request as the backend gets it.
///
/// `Host` is that of the backend; the client's is in `X-Forwarded-Host`. A peer that is a trusted proxy names the client in
/// `X-Forwarded-For`, and its scheme in `X-Forwarded-Proto`. Other headers that backends take from a proxy alone do not
/// arrive: see [`CLAIMS`].
///
/// # Errors
///
/// The fault of the host.
pub(crate) fn to_backend(
    request: Request<Body>,
    uri: Uri,
    peer: SocketAddr,
    is_proxy: bool,
) -> Result<Request<Body>, &'static str> {
    let (mut parts, body) = request.into_parts();
    let host = host(&parts)?;
    let headers = &mut parts.headers;
    // First, since a client can name them in `Connection`, and its proxy may pass that on.
    let addresses: Vec<_> = headers.get_all(X_FORWARDED_FOR).iter().cloned().collect();
    let scheme = scheme(headers).filter(|_| is_proxy);
    remove_hop_by_hop(headers);
    remove_claims(headers);
    headers.remove(EXPECT); // the server has sent 100 Continue once the body is read
    headers.remove(HOST); // the client library sets the new one
    if is_proxy {
        headers.extend(addresses.into_iter().map(|line| (X_FORWARDED_FOR, line)));
    }
    join(
        headers,
        X_FORWARDED_FOR,
        ", ",
        Some(&peer.ip().to_canonical().to_string()),
    );
    join(headers, COOKIE, "; ", None); // HTTP/2 splits it
    headers.append(VIA, HeaderValue::from_static("1.1 tollgate"));
    headers.extend(host.map(|host| (X_FORWARDED_HOST, host)));
    headers.insert(X_FORWARDED_PROTO, scheme.unwrap_or(HTTP));

    let mut forwarded = Request::new(body);
    *forwarded.method_mut() = parts.method;
    *forwarded.uri_mut() = uri;
    *forwarded.headers_mut() = parts.headers;
    Ok(forwarded)
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

/// Removes what backends take from a proxy alone, and each header whose name a backend may read as another one.
///
/// CGI, WSGI and PHP read `X_Forwarded_For` as `X-Forwarded-For`.
fn remove_claims(headers: &mut HeaderMap) {
    let is_claim = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !name.bytes().all(is_plain)
            || CLAIMS.contains(&name)
            || CLAIM_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let claims: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_claim(name.as_str()))
        .cloned()
        .collect();
    for name in claims {
        headers.remove(name);
    }
}

/// Returns the host that the client asked for; `None` if a client of HTTP/1.0 sends none.
///
/// # Errors
///
/// The fault of the host: servers read it in different ways.
fn host(parts: &Parts) -> Result<Option<HeaderValue>, &'static str> {
    let mut lines = parts.headers.get_all(HOST).iter();
    let line = lines.next().map(HeaderValue::as_bytes);
    // HTTP/2 sends the host in the URI, and it wins (RFC 9112, section 3.2.2).
    let in_uri = parts.uri.authority().map(|it| it.as_str().as_bytes());
    if lines.next().is_some() {
        return Err("the request has several hosts");
    }
    let Some(host) = in_uri.or(line) else {
        let is_old = parts.version < Version::HTTP_11;
        return is_old.then_some(None).ok_or("the request has no host");
    };
    let value = HeaderValue::from_bytes(host).ok();
    let value = value.filter(|_| is_host(host));
    value.map(Some).ok_or("the host is not a valid one")
}

/// Returns whether this is a host and maybe a port, without a user name.
fn is_host(text: &[u8]) -> bool {
    let end = text.iter().rposition(|&byte| byte == b']');
    let colon = text.iter().rposition(|&byte| byte == b':');
    let colon = colon.filter(|&colon| end.is_none_or(|end| colon > end));
    let (host, port) = text.split_at(colon.unwrap_or(text.len()));
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    let is_address = |host: &[u8]| {
        let inner = host.strip_prefix(b"[").and_then(|it| it.strip_suffix(b"]"));
        let inner = inner.and_then(|it| std::str::from_utf8(it).ok());
        inner.is_some_and(|it| it.parse::<Ipv6Addr>().is_ok())
    };
    !host.is_empty()
        && (host.iter().all(is_name) || is_address(host))
        && port.iter().skip(1).all(u8::is_ascii_digit)
}

/// Returns the scheme that a proxy names, if it names one.
fn scheme(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut lines = headers.get_all(X_FORWARDED_PROTO).iter();
    let (line, None) = (lines.next()?, lines.next()) else {
        return None;
    };
    matches!(line.as_bytes(), b"http" | b"https").then(|| line.clone())
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
/// Addresses, users and URLs that backends believe, and methods in place of the one that the limits have seen. `Forwarded`
/// could contradict `X-Forwarded-For`, and CGI reads `Proxy` as `HTTP_PROXY`.
const CLAIMS: [&str; 18] = [
    "cf-connecting-ip",
    "client-ip",
    "cloudfront-viewer-address",
    "fastly-client-ip",
    "fly-client-ip",
    "forwarded",
    "front-end-https",
    "proxy",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-real-ip",
    "x-rewrite-url",
    "x-url-scheme",
];
const CLAIM_PREFIXES: [&str; 5] = [
    "remote-",
    "x-envoy-",
    "x-forwarded",
    "x-original-",
    "x-remote-",
];
const HTTP: HeaderValue = HeaderValue::from_static("http");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
