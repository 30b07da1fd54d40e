//! The page and its files, which are part of the program.

use axum::{body::Body, response::Response};
use http::{HeaderValue, Uri, header::CONTENT_TYPE};

/// Returns the page. `uri` is the one that the client asked for, with the prefix at which the router is mounted.
pub(super) fn html(uri: &Uri) -> Response {
    let html = include_str!("assets/index.html");
    respond(
        "text/html; charset=utf-8",
        html.replace("{base}", &base(uri.path())),
    )
}

/// Returns the style sheet.
pub(super) fn css() -> Response {
    respond("text/css; charset=utf-8", include_str!("assets/style.css"))
}

/// Returns the script.
pub(super) fn script() -> Response {
    respond(
        "text/javascript; charset=utf-8",
        include_str!("assets/app.js"),
    )
}

/// Returns the icon.
pub(super) fn icon() -> Response {
    respond("image/svg+xml", include_str!("assets/icon.svg"))
}

fn respond(content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Returns the start of links that lead to files beside the page.
///
/// Browsers resolve links from the last slash of the path, and the page may be mounted without one at its end:
///
/// ```text
/// /ops/limits/   ./style.css           -> /ops/limits/style.css
/// /ops/limits    ./limits/style.css    -> /ops/limits/style.css
/// ```
fn base(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut base = "./".to_owned();
    for character in name.chars() {
        match character {
            '&' => base.push_str("&amp;"),
            '<' => base.push_str("&lt;"),
            '>' => base.push_str("&gt;"),
            '"' => base.push_str("&quot;"),
            '\'' => base.push_str("&#39;"),
            other => base.push(other),
        }
    }
    if !name.is_empty() {
        base.push('/');
    }
    base
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_below_the_path_of_the_page_and_stay_text() {
        for (path, expected) in [
            ("/", "./"),
            ("/ops/limits/", "./"),
            ("/ops/limits", "./limits/"),
            ("/javascript:alert(1)", "./javascript:alert(1)/"),
            ("/a\"><script>'&", "./a&quot;&gt;&lt;script&gt;&#39;&amp;/"),
        ] {
            assert_eq!(base(path), expected);
        }
    }
}
