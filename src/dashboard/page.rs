//! The page and its files, which are part of the program.

use axum::response::Response;
use http::{HeaderValue, header::CONTENT_TYPE};

/// Returns the page, or the one of its files that the query names.
///
/// A browser resolves a link such as `?app.js` to the path that it has shown itself. So the links lead here wherever the
/// router is mounted, with a slash at its end or none, and whatever path a proxy has in place of it.
pub(super) fn part(query: Option<&str>) -> Response {
    let (content_type, text) = match query {
        Some("app.js") => (
            "text/javascript; charset=utf-8",
            include_str!("assets/app.js"),
        ),
        Some("icon.svg") => ("image/svg+xml", include_str!("assets/icon.svg")),
        Some("style.css") => ("text/css; charset=utf-8", include_str!("assets/style.css")),
        _ => (
            "text/html; charset=utf-8",
            include_str!("assets/index.html"),
        ),
    };
    let mut response = Response::new(text.into());
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
