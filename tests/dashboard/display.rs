//! How the page shows numbers, times and texts.

use http::StatusCode;
use serde_json::json;
use tokio::task::block_in_place;

use super::{
    READ, WRITE,
    site::{Site, confirm, look_up, sign_in, submit, text_of},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_and_shares_are_not_rounded_away() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(READ);
        for (millis, expected) in [
            (250, "5 in 250 ms"),
            (1_000, "5 a second"),
            (1_500, "5 in 1.5 s"),
            (150_000, "5 in 2 min 30 s"),
            (3_600_000, "5 an hour"),
            (9_000_000, "5 in 2 h 30 min"),
            (216_000_000, "5 in 2 days 12 h"),
        ] {
            let limit = json!({ "limit": 5, "period_millis": millis, "algorithm": "token_bucket" });
            assert_eq!(page.evaluate(&format!("limitText({limit})")), expected);
        }
        // A time that passes is rounded up.
        for (millis, expected) in [(1, "1 s"), (3_599_001, "1 h"), (9_059_500, "2 h 31 min")] {
            assert_eq!(page.evaluate(&format!("duration({millis})")), expected);
        }
        // What nothing counts is not full.
        let row = json!({
            "policy": "api", "key": "ada", "limit": null, "remaining": null, "reset_millis": null,
            "counted_by": "uncounted", "penalty": null, "blocked_millis": null, "has_state": true,
        });
        let found = json!({ "policies": [row], "without_key": [] });
        page.evaluate(&format!(
            "window.real = fetch; window.fetch = async (url, options) => String(url).endsWith('/key') \
             ? new Response(JSON.stringify({found})) : real(url, options)"
        ));
        page.evaluate("lookUp({ key: 'ada', form: 'text' })");
        let cells = "[...document.querySelectorAll('#key-states td')].map((it) => it.textContent)";
        assert_eq!(
            page.evaluate(cells),
            json!(["not counted now", "–", "uncounted"])
        );
        for (share, expected) in [("0", "0 %"), ("0.00001", "< 0.01 %"), ("0.123", "12 %")] {
            assert_eq!(page.evaluate(&format!("percent({share})")), expected);
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_sees_and_changes_the_share_of_keys_that_is_enforced() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(WRITE);
        page.until("policies.rows[1]?.querySelector('input')?.value === '100'");
        for number in 0..4 {
            assert_eq!(site.call("ada") == StatusCode::OK, number < 3);
        }
        // What is denied, and what would be, are two numbers.
        page.until("policies.rows[1].cells[3].textContent === '25 %'");
        let write = |percent: &str| {
            format!(
                "(() => {{ const input = policies.querySelector('.rollout input'); input.value = '{percent}'; \
                 input.dispatchEvent(new Event('input')); }})()"
            )
        };
        let set = |percent: &str| {
            let submit = "policies.querySelector('.rollout').requestSubmit()";
            format!("{}; {submit}", write(percent))
        };
        page.evaluate(&set("0"));
        page.until(
            "document.getElementById('confirm-text').textContent.endsWith('in this instance.')",
        );
        confirm(&mut page);
        page.until(&format!(
            "{} === 'Set api to 0 % of keys.'",
            text_of("policies-message")
        ));
        assert_eq!(site.layer.rollout("api"), Some(0.0));
        assert_eq!(site.call("ada"), StatusCode::OK);
        page.until("policies.rows[1].cells[3].textContent.endsWith('% would be')");

        // A number that is being written stays.
        page.evaluate(&write("5"));
        page.evaluate("window.begin = page.state.time");
        page.until("page.state.time > begin + 1500");
        assert_eq!(
            page.evaluate("policies.querySelector('.rollout input').value"),
            "5"
        );

        // A number that cannot be is not sent, and a question that is refused changes nothing.
        page.evaluate(&set("101"));
        assert_eq!(page.evaluate("question.open"), false);
        page.evaluate(&set("12.5"));
        page.until("question.open");
        page.evaluate("question.querySelector('button').click()");
        page.until("policies.querySelector('input').value === '0'");
        assert_eq!(site.layer.rollout("api"), Some(0.0));

        page.evaluate("leave.click()");
        sign_in(&mut page, READ);
        page.until(
            "document.querySelector('#policies .tag')?.textContent === 'enforce, 0 % of keys'",
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_left_follow_the_clock_of_the_server() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(WRITE);
        page.evaluate("Date.now = () => 0");
        look_up(&mut page, "ada");
        submit(&mut page, "block-form");
        confirm(&mut page);
        page.until("document.querySelector('#blocks td[data-name=\"Ends in\"]') !== null");
        let left = "document.querySelector('#blocks td[data-name=\"Ends in\"]').textContent";
        page.until(&format!("{left} === '1 h' || {left}.startsWith('59 min ')"));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selection_stays_and_repeated_results_are_announced() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(WRITE);
        site.call("ada");
        page.until("document.querySelector('#tiers tbody th')?.textContent === 'no tier'");
        page.evaluate(
            "getSelection().selectAllChildren(document.querySelector('#tiers tbody th'))",
        );
        page.evaluate("window.begin = page.state.time");
        site.call("ada");
        page.until("page.state.time > begin + 2000");
        assert_eq!(page.evaluate("String(getSelection())"), "no tier");

        page.evaluate(
            "window.texts = []; new MutationObserver(() => texts.push(document.getElementById('key-message').textContent)) \
             .observe(document.getElementById('key-message'), { childList: true })",
        );
        for times in 1..=2 {
            page.evaluate("report('key', 'the same')");
            page.until(&format!(
                "texts.filter((it) => it === 'the same').length === {times}"
            ));
        }
        assert_eq!(
            page.evaluate("texts"),
            json!(["", "the same", "", "the same"])
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn phone_does_not_zoom_into_fields_and_long_texts_wrap() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(WRITE);
        let long = "x".repeat(200);
        look_up(&mut page, "ada");
        page.evaluate(&format!(
            "document.getElementById('block-reason').value = '{long}'"
        ));
        submit(&mut page, "block-form");
        confirm(&mut page);
        page.until(&format!("{}.includes('{long}')", text_of("blocks")));
        page.until(&format!("{}.includes('{long}')", text_of("key-states")));
        for width in [390, 1_280] {
            page.show_on(width, 800, "light");
            page.until(&format!("innerWidth === {width}"));
            let widest = "[...document.querySelectorAll('#blocks, #key-states')] \
                .map((it) => it.scrollWidth - it.closest('.scroll').clientWidth)";
            assert_eq!(page.evaluate(widest), json!([0, 0]), "{width}");
        }
        page.show_on(390, 800, "light");
        page.evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true; })");
        let small = "[...document.querySelectorAll('input, select, textarea')] \
            .filter((it) => parseFloat(getComputedStyle(it).fontSize) < 16).map((it) => it.id)";
        assert_eq!(page.evaluate(small), json!([]));
    });
}
