//! Spellings of a path, a method and a host that a server reads alike: a rule must not miss any of them.

pub(crate) mod steps;

use allocation_counter::measure;
use http::{Method, Request};
use proptest::{collection::vec, prelude::*};
use tollgate::{
    RequestHead,
    matching::{HostPattern, Match, Matcher, Methods, PathPattern, Preflight},
};

use steps::STEPS;

// === Paths ===

// Regression: a segment was called empty before it was cut at `;`. Jetty serves all of these for `/admin/secret`.
#[test]
fn segment_that_is_empty_once_it_is_cut_hides_no_path() {
    let secret = PathPattern::new("/admin/secret");
    let below = PathPattern::new("/admin/{*rest}");
    for path in [
        "/admin/secret/;",
        "/admin/secret/;x=1",
        "/;/admin/secret",
        "/admin/;/secret",
        "/admin/;a=1;b=2/secret",
        "/admin/%3B/secret",
        "/;a%2Fb/admin/secret",
        "/x/..%2Fadmin;a%2Fb/secret",
        "/admin/%00/secret",
    ] {
        assert_eq!(matched(&secret, path), Match::Ambiguous, "{path}");
        assert_eq!(matched(&below, path), Match::Ambiguous, "{path}");
    }
}

#[test]
fn escape_of_a_character_of_an_escape_hides_no_path() {
    let secret = PathPattern::new("/admin/secret");
    for path in [
        "/%2561dmin/secret",
        "/%6%31dmin/secret",
        "/%%361dmin/secret",
        "/%%36%31dmin/secret",
        "/admin%2%46secret",
        "/admin/x%2%66%2e%2%45/secret",
        "/%u0061dmin/secret",
        "/%25u0061dmin/secret",
        "/admin%u002Fsecret",
    ] {
        assert_eq!(matched(&secret, path), Match::Ambiguous, "{path}");
    }
}

#[test]
fn end_that_servers_drop_hides_no_path() {
    let secret = PathPattern::new("/admin/secret");
    for path in [
        "/admin/secret.",
        "/admin/secret%20",
        "/admin/secret%0a",
        "/admin/secret%0D%0A",
        "/admin./secret",
        "/admin%20./secret.%20/",
        "/admin/secret%3Fx",
        "/admin/secret%3Fx/y",
        "/admin/secret%23x/../y",
        "/admin/secret%00/y",
        "/admin/secret/%253Fx",
    ] {
        assert_eq!(matched(&secret, path), Match::Ambiguous, "{path}");
    }
    for path in [
        "/admin/secret.json",
        "/admin/secrets",
        "/admin/%20secret",
        "/admin%3Fx/secret",
        "/admin/.secret",
    ] {
        assert_eq!(matched(&secret, path), Match::Miss, "{path}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn path_before_any_sequence_of_steps_of_normalization_still_matches(
        (pattern, path) in (0..ROUTES.len()).prop_map(|number| ROUTES[number]),
        steps in vec((0..STEPS.len(), any::<u16>(), any::<u16>()), 0..8),
    ) {
        let mut path = path.to_owned();
        let mut taken = Vec::new();
        for (step, place, choice) in steps {
            if let Some(before) = STEPS[step](&path, place.into(), choice.into()) {
                taken.push(before.clone());
                path = before;
            }
        }
        prop_assert_ne!(matched(&PathPattern::new(pattern), &path), Match::Miss, "{} {:#?}", pattern, taken);
    }
}

// Regression: a pattern of eight segments did, if the path has several readings.
#[test]
fn short_path_is_matched_without_an_allocation() {
    let exact = PathPattern::new("/a/b/c/d/e/f/g/h");
    let prefix = PathPattern::prefix("/a/{id}/c/d/e/f/g/h");
    let (escaped, plain) = ("%C3%A9".repeat(21), "x".repeat(255));
    for path in [
        "/a/b/c/d/e/f/g/h",
        "/a/b/c/d/e/f/g/H/",
        "/%61/b/c/d/e/f/g/h",
        "/a/b/c/d/e/f/g/h;x=1",
        "/a/b/c/d/../f/g/h",
        &format!("/{escaped}"),
        &format!("/{plain}"),
    ] {
        for pattern in [&exact, &prefix] {
            let info = measure(|| {
                std::hint::black_box(matched(pattern, path));
            });
            assert_eq!(info.count_total, 0, "{path}");
        }
    }
}

/// Patterns, each with a path that matches.
const ROUTES: [(&str, &str); 6] = [
    ("/admin/secret", "/admin/secret"),
    ("/login", "/login"),
    ("/users/{id}/files", "/users/7/files"),
    ("/static/{*rest}", "/static/a/b"),
    ("/caf\u{e9}", "/caf%C3%A9"),
    ("/", "/"),
];

// === Methods ===

// Regression: `post /login` passed a limit on POST, and Flask runs the handler of POST.
#[test]
fn method_in_another_case_is_a_possible_match() {
    use Match::{Ambiguous, Exact, Miss};
    let writes = Methods::new([Method::POST, Method::DELETE]);
    let reads = Methods::new([Method::GET]);
    for (method, of_writes, of_reads) in [
        ("POST", Exact, Miss),
        ("post", Ambiguous, Miss),
        ("Delete", Ambiguous, Miss),
        ("get", Miss, Ambiguous),
        ("head", Miss, Ambiguous),
        ("posts", Miss, Miss),
    ] {
        let request = Request::builder()
            .method(method)
            .uri("/")
            .body(())
            .expect("a request");
        let (head, ()) = request.into_parts();
        assert_eq!(
            compared(&writes, &RequestHead::from(&head)),
            of_writes,
            "{method}"
        );
        assert_eq!(
            compared(&reads, &RequestHead::from(&head)),
            of_reads,
            "{method}"
        );
    }
    let preflight = |method: &str| {
        let request = Request::builder()
            .method(method)
            .uri("/")
            .header("origin", "https://a.example");
        let request = request
            .header("access-control-request-method", "PUT")
            .body(());
        let (head, ()) = request.expect("a request").into_parts();
        compared(&Preflight, &RequestHead::from(&head))
    };
    assert_eq!(
        ["OPTIONS", "options", "OPTION"].map(preflight),
        [Exact, Ambiguous, Miss]
    );
}

// === Hosts ===

// Regression: a host that the key extractor calls ambiguous was a miss.
#[test]
fn host_that_servers_read_in_several_ways_is_a_possible_match_for_every_pattern() {
    use Match::{Ambiguous, Exact, Miss};
    for (host, expected) in [
        ("api.example.com:80:80", Ambiguous),
        ("u@api.example.com", Ambiguous),
        ("api.example.com@other.example", Ambiguous),
        ("api.example.com:x", Ambiguous),
        ("api.example.com:99999", Ambiguous),
        ("api.example.com..", Ambiguous),
        ("api.example.com/", Ambiguous),
        ("other.example, api.example.com", Ambiguous),
        ("api%2eexample.com", Ambiguous),
        ("api.example.com\u{e9}", Ambiguous),
        ("[::1", Ambiguous),
        ("api.example.com:", Exact),
        ("other.example", Miss),
        ("other.example:80", Miss),
        ("[::1]:80", Miss),
        ("", Miss),
    ] {
        let request = Request::builder().uri("/").header("host", host.as_bytes());
        let (head, ()) = request.body(()).expect("a request").into_parts();
        for pattern in ["api.example.com", "*.example.com"] {
            let found = compared(&HostPattern::new(pattern), &RequestHead::from(&head));
            assert_eq!(found, expected, "{pattern} {host}");
        }
    }
}

#[test]
fn ipv6_host_is_compared_by_its_address() {
    for (host, expected) in [
        ("[::1]", Match::Exact),
        ("[0:0::0001]:80", Match::Exact),
        ("[::2]", Match::Miss),
        ("[::1%25eth0]", Match::Ambiguous),
    ] {
        let request = Request::builder().uri("/").header("host", host);
        let (head, ()) = request.body(()).expect("a request").into_parts();
        assert_eq!(
            compared(&HostPattern::new("[::1]"), &RequestHead::from(&head)),
            expected,
            "{host}"
        );
    }
}

// === What they stand on ===

fn matched(pattern: &PathPattern, path: &str) -> Match {
    pattern.matches_path(path)
}

fn compared(matcher: &impl Matcher, head: &RequestHead) -> Match {
    matcher.matches(head)
}
