//! The page, wherever it is mounted.

use std::fs;

use axum::Router;
use http::{Method, Request, StatusCode};
use tollgate::dashboard::Dashboard;

use super::{API, WRITE, ask, guarded, layer, send};

#[tokio::test]
async fn links_of_the_page_lead_to_its_files_wherever_it_is_mounted() {
    let layer = layer();
    let dashboard = guarded(Dashboard::builder(&layer));
    let apps: [(Router, &[&str]); 4] = [
        (dashboard.router(), &["/"]),
        (
            Router::new().nest("/limits", dashboard.router()),
            &["/limits"],
        ),
        (
            Router::new().nest_service("/ops/limits", dashboard.router::<()>()),
            &["/ops/limits", "/ops/limits/"],
        ),
        (
            Router::new().nest("/ops", Router::new().nest("/limits", dashboard.router())),
            &["/ops/limits"],
        ),
    ];
    for (app, pages) in apps {
        for page in pages {
            let (head, html) = send(&app, Request::get(*page), "").await;
            assert_eq!(head.status, StatusCode::OK, "{page}");
            assert_eq!(head.headers["content-type"], "text/html; charset=utf-8");
            let links: Vec<&str> = html.split("=\"?").skip(1).collect();
            assert_eq!(links.len(), 3, "a style sheet, a script and an icon");
            for link in links {
                let link = link.split('"').next().expect("a link");
                // As a browser resolves it.
                let path = format!("{page}?{link}");
                let (head, _) = send(&app, Request::get(&path), "").await;
                assert_eq!(head.status, StatusCode::OK, "{page}: {path}");
                let content_type = &head.headers["content-type"];
                assert_ne!(content_type, "text/html; charset=utf-8", "{path}");
            }
        }
    }
}

#[tokio::test]
async fn every_response_forbids_caches_frames_and_foreign_content() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let mut requests: Vec<_> = API
        .into_iter()
        .map(|(method, path, body, _)| (ask(method, path, WRITE), body))
        .collect();
    for path in [
        "/",
        "/?boot.js",
        "/assets/app.mjs",
        "/assets/none.mjs",
        "/?style.css",
        "/?icon.svg",
        "/api/none",
        "/none",
    ] {
        requests.push((Request::get(path), ""));
    }
    requests.push((Request::builder().method(Method::DELETE).uri("/"), ""));
    for (request, body) in requests {
        let uri = request.uri_ref().cloned();
        let (head, _) = send(&router, request, body).await;
        for (name, value) in [
            ("cache-control", "no-store"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(head.headers[name], value, "{uri:?}");
        }
        let policy = &head.headers["content-security-policy"];
        let policy = policy.to_str().expect("text");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(!head.headers.contains_key("access-control-allow-origin"));
        assert!(!head.headers.contains_key("set-cookie"));
    }
}

#[tokio::test]
async fn page_has_no_inline_script_or_style_and_no_foreign_link() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let (_, html) = send(&router, Request::get("/"), "").await;
    assert_eq!(html.matches("<script").count(), 1);
    assert!(html.contains("<script src=\"?boot.js\" defer></script>"));
    for inline in ["<style", " style=", " onclick=", " onload=", "javascript:"] {
        assert!(!html.contains(inline), "{inline}");
    }
    let files = ["/", "/?boot.js", "/?style.css", "/?icon.svg"].map(str::to_owned);
    let modules = modules().map(|name| format!("/assets/{name}"));
    for path in files.into_iter().chain(modules) {
        let (head, text) = send(&router, Request::get(&path), "").await;
        assert_eq!(head.status, StatusCode::OK, "{path}");
        let foreign = text.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !foreign.contains("http://") && !foreign.contains("https://"),
            "{path}"
        );
        for sink in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!text.contains(sink), "{path}: {sink}");
        }
    }
}

/// Returns the names of the modules in the folder of the page.
fn modules() -> impl Iterator<Item = String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/dashboard/assets");
    let files = fs::read_dir(folder).expect("a folder");
    let names = files.map(|file| {
        file.expect("a file")
            .file_name()
            .into_string()
            .expect("UTF-8")
    });
    let modules: Vec<_> = names.filter(|name| name.ends_with(".mjs")).collect();
    assert!(modules.len() > 20, "{modules:?}");
    modules.into_iter()
}

#[tokio::test]
async fn modules_of_the_page_are_served_as_scripts_and_nothing_else_beside_them() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for name in modules() {
        let (head, _) = send(&router, Request::get(format!("/assets/{name}")), "").await;
        assert_eq!(
            head.headers["content-type"],
            "text/javascript; charset=utf-8"
        );
    }
    for name in ["index.html", "none.mjs", "..%2fmod.rs", "App.mjs"] {
        let (head, _) = send(&router, Request::get(format!("/assets/{name}")), "").await;
        assert_eq!(head.status, StatusCode::NOT_FOUND, "{name}");
    }
}
