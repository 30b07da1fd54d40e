//! Operators' actions on the page, and the messages of those that fail.

use http::StatusCode;
use tokio::task::block_in_place;
use tollgate::rules::RuleMode;

use super::{
    READ, WRITE,
    site::{RULES, Site, confirm, look_up, sign_in, submit, text_of},
};
use crate::support::Mode;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn action_that_failed_is_shown_in_its_panel() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(WRITE);
        look_up(&mut page, "ada");
        let message = text_of("key-message");

        // 101 letters of two bytes each.
        page.evaluate("document.getElementById('block-reason').value = 'ж'.repeat(101)");
        submit(&mut page, "block-form");
        page.until(&format!(
            "{message}.includes('it has 202 bytes, of at most 200')"
        ));
        assert_eq!(page.evaluate("question.open"), false);

        // The policy is replaced while the question is open.
        page.evaluate("document.getElementById('block-reason').value = 'scraping'");
        page.evaluate("document.getElementById('block-policy').value = 'api'");
        submit(&mut page, "block-form");
        page.until("question.open");
        site.replace(&RULES.replace("api", "other"));
        confirm(&mut page);
        page.until(&format!(
            "{message} === 'That failed: there is no policy of this name.'"
        ));
        page.until("document.getElementById('key-message').classList.contains('bad')");
        assert_eq!(site.call("ada"), StatusCode::OK);

        page.until("policies.rows[1].textContent.startsWith('other')");
        page.until("document.querySelectorAll('#versions button').length > 0");
        site.proxy.set(Mode::Refuse);
        page.evaluate("document.querySelector('#versions button').click()");
        let lost = "That failed: the connection is lost.";
        page.until(&format!("{} === '{lost}'", text_of("rules-message")));
        page.evaluate("policies.querySelector('select').value = 'off'");
        page.evaluate("policies.querySelector('select').dispatchEvent(new Event('change'))");
        confirm(&mut page);
        page.until(&format!("{} === '{lost}'", text_of("policies-message")));
        assert_eq!(
            page.evaluate("policies.querySelector('select').value"),
            "enforce"
        );
        site.proxy.set(Mode::Pass);
        page.until("connection.dataset.state === 'live'");
        page.evaluate("policies.querySelector('select').value = 'off'");
        page.evaluate("policies.querySelector('select').dispatchEvent(new Event('change'))");
        confirm(&mut page);
        page.until(&format!(
            "{} === 'Set other to off.'",
            text_of("policies-message")
        ));
        assert_eq!(site.layer.rule_mode("other"), Some(RuleMode::Off));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn action_hits_the_key_that_the_page_names() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(WRITE);
        look_up(&mut page, "ada");
        submit(&mut page, "block-form");
        page.until("document.getElementById('confirm-title').textContent === 'Block ada?'");
        page.evaluate("question.querySelector('button').click()");
        page.until("!question.open");

        // Another key is being typed.
        page.evaluate("key.focus(); key.select()");
        page.insert_text("b");
        page.until("document.getElementById('block-form').hidden && document.getElementById('key-shown').hidden");
        assert_eq!(
            page.evaluate("document.getElementById('key-states').rows.length"),
            0
        );

        // The response for the first key comes after that for the second.
        page.evaluate(
            "window.real = fetch; window.fetch = async (url, options) => { \
                 const response = await real(url, options); \
                 if (options.body?.includes('slow')) await new Promise((resolve) => { window.release = resolve; }); \
                 return response; }",
        );
        page.evaluate("key.value = 'slow'; document.getElementById('key-form').requestSubmit()");
        page.until("typeof release === 'function'");
        look_up(&mut page, "eve");
        page.evaluate("release(); new Promise((resolve) => setTimeout(resolve))");
        assert_eq!(page.evaluate(&text_of("key-shown")), "State of eve");
        assert_eq!(page.evaluate("key.value"), "eve");

        // A key that is typed while another one is unblocked.
        submit(&mut page, "block-form");
        confirm(&mut page);
        page.until("document.querySelector('#blocks button') !== null");
        assert_eq!(site.call("eve"), StatusCode::TOO_MANY_REQUESTS);
        page.evaluate("key.focus(); key.select()");
        page.insert_text("bob");
        page.evaluate("document.querySelector('#blocks button').click()");
        confirm(&mut page);
        page.until(&format!(
            "{}.startsWith('Unblocked eve')",
            text_of("blocks-message")
        ));
        assert_eq!(page.evaluate("key.value"), "bob");
        assert_eq!(site.call("eve"), StatusCode::OK);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_of_blocks_is_current_while_a_button_has_the_focus() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(WRITE);
        for key in ["ada", "eve"] {
            look_up(&mut page, key);
            submit(&mut page, "block-form");
            confirm(&mut page);
            page.until(&format!("{}.includes('{key}')", text_of("blocks")));
        }
        page.until("document.querySelectorAll('#blocks button').length === 2");
        let label = "Unblock under all policies";
        page.until(&format!("[...document.querySelectorAll('#key-states button')].some((it) => it.textContent === '{label}')"));

        // From the keyboard: the focus stays on the row of the other key, whatever happens to the first.
        let button = |key| {
            format!(
                "document.querySelector('#blocks button[aria-label=\"Unblock {key} under all policies\"]')"
            )
        };
        page.evaluate(&format!("{}.focus()", button("eve")));
        page.evaluate("window.kept = document.activeElement");
        page.evaluate("write('key/unblock', { key: 'ada', form: 'counted', policy: null })");
        page.until("document.querySelectorAll('#blocks button').length === 1");
        assert_eq!(page.evaluate("document.activeElement === kept"), true);

        page.press("Enter");
        confirm(&mut page);
        page.until(&format!(
            "{}.includes('No key is blocked')",
            text_of("blocks")
        ));
        page.until("document.activeElement.id === 'blocks-title'");
        assert_eq!(site.call("eve"), StatusCode::OK);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_that_is_no_longer_valid_ends_the_session_but_not_a_draft() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(WRITE);
        look_up(&mut page, "ada");
        page.until("document.getElementById('rules-text').value.includes('3/hour')");
        page.evaluate("document.getElementById('rules-text').value = 'a draft'");
        submit(&mut page, "block-form");
        page.until("question.open");
        // Only a list is read with the new token: the stream goes on.
        page.evaluate("stored('tollgate-token', 'rotated-0123456789abcdef'); refreshLists()");
        page.until("main.hidden && !login.hidden && !question.open");
        assert_eq!(page.evaluate(&text_of("login-error")), "Sign in again.");
        assert_eq!(page.evaluate("document.activeElement === token"), true);

        let left = "document.querySelectorAll('main :is(td, svg, #store dd, li)').length";
        assert_eq!(page.evaluate(left), 0);
        assert_eq!(page.evaluate("key.value"), "");
        sign_in(&mut page, WRITE);
        page.until("!main.hidden && connection.dataset.state === 'live'");
        assert_eq!(
            page.evaluate("document.getElementById('rules-text').value"),
            "a draft"
        );

        page.evaluate("leave.click()");
        page.until("main.hidden");
        assert_eq!(
            page.evaluate("document.getElementById('rules-text').value"),
            ""
        );
        sign_in(&mut page, READ);
        page.until("!main.hidden && connection.dataset.state === 'live'");
        page.until("document.getElementById('rules-editor').hidden");
    });
}
