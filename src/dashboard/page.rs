//! The page and its files, which are part of the program.
//!
//! # Why are the files of the page in its query?
//!
//! The server does not know the path in the browser: a proxy may have replaced it, with or without a slash at its end. A link
//! such as `style.css` leads beside the page or below it, depending on that slash. A link of a query alone (`?style.css`) leads
//! to the page's own path, whatever it is. The script has that path, and finds the modules and the API below it.
//!
//! # Why does the page of the dashboard have no framework?
//!
//! It is part of a library. With a framework, each build of the crate would need a second tool chain, or contain a bundle that
//! nobody can read. The page is modules that are served as they are. It shows a state that arrives once a second, so each render
//! sets the texts that have changed. Controls stay in place, and keep the focus. Charts are SVG: they take the colours of the
//! page, and a screen reader can name them.

use axum::{
    extract::Path,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header::CONTENT_TYPE};

/// Returns the page, or the one of its files that the query names.
///
/// A browser resolves a link such as `?boot.js` to the path that it has shown itself. So the links lead here wherever the
/// router is mounted, with a slash at its end or none, and whatever path a proxy has in place of it.
pub(super) fn part(query: Option<&str>) -> Response {
    match query {
        Some("boot.js") => file(SCRIPT, include_str!("assets/boot.js")),
        Some("icon.svg") => file("image/svg+xml", include_str!("assets/icon.svg")),
        Some("style.css") => file("text/css; charset=utf-8", include_str!("assets/style.css")),
        _ => file(
            "text/html; charset=utf-8",
            include_str!("assets/index.html"),
        ),
    }
}

/// Returns a module of the page's program.
pub(super) async fn module(Path(name): Path<String>) -> Response {
    let module = MODULES.iter().find(|(known, _)| *known == name);
    let text = module.map(|(_, text)| file(SCRIPT, text));
    text.unwrap_or_else(|| {
        let response = file("text/plain", "the page has no such file");
        (StatusCode::NOT_FOUND, response).into_response()
    })
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, content_type)], text).into_response()
}

macro_rules! modules {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("assets/", $name)))),*]
    };
}

/// The modules by their names. They import each other by links that are relative to their own path.
const MODULES: &[(&str, &str)] = modules! {
    "api.mjs" "app.mjs" "blocks.mjs" "chart.mjs" "diff.mjs" "elements.mjs" "geometry.mjs" "history.mjs" "keys.mjs"
    "lists.mjs" "live.mjs" "notices.mjs" "numbers.mjs" "overload.mjs" "page.mjs" "policies.mjs" "rules.mjs" "session.mjs"
    "status.mjs" "table.mjs" "text.mjs" "theme.mjs" "top_keys.mjs"
};

const SCRIPT: &str = "text/javascript; charset=utf-8";
