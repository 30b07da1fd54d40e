//! The page in a browser.

use http::StatusCode;
use tokio::task::block_in_place;
use tollgate::rules::RuleMode;

use super::{
    READ, WRITE, call,
    site::{RULES, Site, confirm, sign_in, text_of},
};
use crate::support::{Browser, Mode};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_sees_numbers_move_finds_keys_and_stops_limits_in_a_browser() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = Browser::start();
        page.show_on(1_280, 900, "light");
        page.open(&site.url);

        // Closed without a token, and with a wrong one.
        page.until("!login.hidden && main.hidden && document.activeElement === token");
        sign_in(&mut page, "wrong-0123456789abcdef");
        page.until("document.getElementById('login-error').textContent === 'The token is wrong.'");
        assert_eq!(page.evaluate("sessionStorage.length"), 0);
        sign_in(&mut page, WRITE);
        page.until("login.hidden && !main.hidden && connection.dataset.state === 'live'");

        // Numbers move.
        let total = text_of("total-0");
        page.until(&format!("{total} === '0 since the start'"));
        for _ in 0..3 {
            assert_eq!(site.call("ada"), StatusCode::OK);
        }
        assert_eq!(site.call("ada"), StatusCode::TOO_MANY_REQUESTS);
        page.until(&format!("{total}.startsWith('3 since')"));
        page.until(&format!("{}.startsWith('1 since')", text_of("total-1")));
        page.until("policies.rows[1].textContent.includes('3 an hour')");
        page.until("document.querySelectorAll('#decisions-chart path').length >= 4");
        page.until("document.getElementById('top-keys').textContent.includes('ada')");
        page.until("document.querySelector('#tiers tbody').textContent.includes('no tier')");
        page.evaluate("document.querySelector('details').open = true");
        page.until("document.querySelectorAll('#decisions-table tbody tr').length > 0");

        // A key, from the keyboard.
        page.evaluate("key.focus()");
        page.insert_text("ada");
        page.press("Enter");
        page.until("document.getElementById('key-states').textContent.includes('0 of 3')");
        page.evaluate("document.querySelector('#key-states button').click()");
        confirm(&mut page);
        page.until("document.getElementById('key-states').textContent.includes('3 of 3')");
        assert_eq!(site.call("ada"), StatusCode::OK);

        // A key of the list, by its button.
        page.evaluate("document.querySelector('#top-keys button').click()");
        page.until("document.getElementById('key-states').textContent.includes('2 of 3')");

        // A block, under all policies, and its end.
        page.evaluate("document.getElementById('block-reason').value = 'scraping'");
        page.evaluate("document.querySelector('#block-form button').click()");
        confirm(&mut page);
        page.until("document.getElementById('key-states').textContent.includes('1 h: scraping')");
        page.until("document.getElementById('blocks').textContent.includes('scraping')");
        assert_eq!(site.call("ada"), StatusCode::TOO_MANY_REQUESTS);
        page.evaluate("document.querySelector('#blocks button').click()");
        confirm(&mut page);
        page.until("document.getElementById('blocks').textContent.includes('No key is blocked')");
        assert_eq!(site.call("ada"), StatusCode::OK);

        // A ban, which is lifted from the keyboard, and a refund.
        for _ in 0..3 {
            assert_eq!(site.call("eve"), StatusCode::OK);
        }
        page.evaluate("key.focus(); key.select()");
        page.insert_text("eve");
        page.press("Enter");
        page.until("document.getElementById('key-states').textContent.includes('0 of 3')");
        assert_eq!(
            page.evaluate("document.getElementById('key-states').textContent.includes('Penalty')"),
            false
        );
        for _ in 0..2 {
            assert_eq!(site.call("eve"), StatusCode::TOO_MANY_REQUESTS);
        }
        page.press("Enter");
        page.until(
            "document.getElementById('key-states').textContent.includes('2 of the 5 denials that lead to a ban')",
        );
        for _ in 0..3 {
            assert_eq!(site.call("eve"), StatusCode::TOO_MANY_REQUESTS);
        }
        page.press("Enter");
        page.until(
            "document.getElementById('key-states').textContent.includes('banned for 1 h, ban 1')",
        );
        let lift = "document.querySelector('#key-states button')";
        assert_eq!(
            page.evaluate(&format!("{lift}.getAttribute('aria-label')")),
            "Lift the ban of eve under api"
        );
        page.evaluate(&format!("{lift}.focus()"));
        page.press("Enter");
        page.until("question.open");
        // The question has no default: the tabulator leads to the answer.
        page.evaluate("document.getElementById('confirm-yes').focus()");
        page.press("Enter");
        page.until("document.getElementById('key-states').textContent.includes('3 of 3')");
        page.until(
            "document.getElementById('key-message').textContent.startsWith('Lifted the ban under api. ')",
        );
        for _ in 0..2 {
            assert_eq!(site.call("eve"), StatusCode::OK);
        }
        page.evaluate("key.focus()");
        page.press("Enter");
        page.until("document.getElementById('key-states').textContent.includes('1 of 3')");
        page.evaluate("document.getElementById('refund-units').focus(); document.getElementById('refund-units').select()");
        page.insert_text("2");
        page.press("Enter");
        confirm(&mut page);
        page.until(
            "document.getElementById('key-message').textContent.startsWith('Refunded under api. ')",
        );
        page.until("document.getElementById('key-states').textContent.includes('3 of 3')");
        assert_eq!(
            page.evaluate(
                "document.getElementById('refund-policy').selectedOptions[0].textContent"
            ),
            "api"
        );

        // Rules with a fault, better ones, what they change, and back.
        page.until(
            "document.getElementById('rules-note').textContent.startsWith('Version 1 is current')",
        );
        page.until("document.getElementById('rules-text').value.includes('3/hour')");
        page.evaluate("document.getElementById('rules-editor').open = true");
        let submit = |text: &str| {
            format!(
                "document.getElementById('rules-format').value = 'yaml'; document.getElementById('rules-text').value = {}; document.getElementById('rules-form').requestSubmit()",
                serde_json::json!(text)
            )
        };
        page.evaluate(&submit(&RULES.replace("limit", "limitt")));
        confirm(&mut page);
        page.until("document.getElementById('rules-result').textContent.includes('limitt')");
        assert_eq!(site.rules.version().number(), 1);
        for (version, limit) in [(2, 9), (3, 12)] {
            page.evaluate("document.getElementById('rules-editor').open = true");
            page.evaluate(&submit(&RULES.replace("3/hour", &format!("{limit}/hour"))));
            confirm(&mut page);
            let limit = format!("'{limit} an hour'");
            page.until(&format!(
                "document.getElementById('policies').textContent.includes({limit})"
            ));
            page.until(&format!(
                "document.getElementById('rules-note').textContent.startsWith('Version {version} ')"
            ));
        }
        page.evaluate("document.querySelector('#versions button').click()");
        page.until("document.getElementById('diff').innerText.includes('-     limit: 9/hour')");
        page.until("document.getElementById('diff').innerText.includes('+     limit: 12/hour')");
        page.evaluate("[...document.querySelectorAll('#versions button')].findLast((it) => it.textContent === 'Roll back').click()");
        confirm(&mut page);
        page.until("document.getElementById('policies').textContent.includes('3 an hour')");
        assert_eq!(site.rules.version().number(), 4);

        // The kill switch, first refused by its own question.
        let choose = |mode| {
            format!(
                "(() => {{ const select = document.getElementById('layer-mode'); select.value = '{mode}'; \
                 select.dispatchEvent(new Event('change')); }})()"
            )
        };
        page.evaluate(&choose("off"));
        page.until("question.open");
        page.evaluate("question.querySelector('button').click()");
        page.until("!question.open && document.getElementById('layer-mode').value === 'enforce'");
        assert_eq!(site.layer.mode(), RuleMode::Enforce);
        page.evaluate(&choose("off"));
        confirm(&mut page);
        page.until(
            "document.getElementById('status-text').textContent.startsWith('Limits are off')",
        );
        for _ in 0..5 {
            assert_eq!(site.call("ada"), StatusCode::OK);
        }
        page.evaluate(&choose("enforce"));
        confirm(&mut page);
        page.until("document.getElementById('status-text').textContent === 'Limiting normally'");
        let rule = "document.querySelector('#policies select')";
        page.evaluate(&format!(
            "{rule}.value = 'shadow'; {rule}.dispatchEvent(new Event('change'))"
        ));
        confirm(&mut page);
        page.until(
            "document.getElementById('status-detail').textContent.includes('In shadow: api')",
        );
        assert_eq!(site.layer.rule_mode("api"), Some(RuleMode::Shadow));
        // It was changed elsewhere.
        site.layer
            .set_rule_mode("api", RuleMode::Enforce)
            .expect("a rule");
        page.until(&format!("{rule}.value === 'enforce'"));

        // With the read token, there is nothing to change.
        page.evaluate("leave.click()");
        page.until("main.hidden");
        sign_in(&mut page, READ);
        page.until("!main.hidden && connection.dataset.state === 'live'");
        assert_eq!(
            page.evaluate("key.value + document.getElementById('key-states').textContent"),
            ""
        );
        page.until("document.querySelector('#policies .tag')?.textContent === 'enforce'");
        let controls = "document.querySelectorAll('#policies select, #key-states button').length";
        page.evaluate("key.focus()");
        page.insert_text("eve");
        page.press("Enter");
        page.until("document.getElementById('key-states').textContent.includes('of 3')");
        page.until("document.getElementById('refund-form').hidden && document.getElementById('block-form').hidden");
        assert_eq!(page.evaluate(controls), 0);
        page.until("document.getElementById('layer-mode-label').hidden");

        // The browser reports each response of 4xx: only the refused rules got one.
        let complaints = page.complaints();
        let is_refusal = |text: &String| text.contains("422") && text.contains("/api/rules/push");
        assert!(
            complaints.len() == 1 && complaints.iter().all(is_refusal),
            "{complaints:?}"
        );
        for url in page.requests() {
            assert!(url.starts_with(&site.origin), "{url}");
            assert!(!url.contains("0123456789abcdef"), "{url}");
        }

        // The connection is lost, and comes back.
        site.proxy.set(Mode::Refuse);
        page.until("connection.dataset.state === 'lost'");
        site.proxy.set(Mode::Pass);
        page.until("connection.dataset.state === 'live'");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_can_be_used_by_keyboard_and_screen_reader_and_read_on_a_phone() {
    let site = Site::start().await;
    for _ in 0..4 {
        call(&site.layer, "ada").await;
    }
    block_in_place(|| {
        let mut page = Browser::start();
        for (width, scheme) in [
            (390, "light"),
            (390, "dark"),
            (1_280, "light"),
            (1_280, "dark"),
        ] {
            page.show_on(width, 800, scheme);
            page.open(&site.url);
            page.until("!login.hidden || !main.hidden");
            if page.evaluate("main.hidden") == true {
                sign_in(&mut page, WRITE);
            }
            page.until("connection.dataset.state === 'live' && policies.rows.length === 2");
            page.until("document.querySelectorAll('#top-keys tbody tr').length > 0");
            page.evaluate(
                "document.querySelectorAll('details').forEach((it) => { it.open = true; })",
            );
            let widest = "document.documentElement.scrollWidth <= innerWidth";
            assert_eq!(
                page.evaluate(widest),
                true,
                "{width} pixels do not need to scroll"
            );
            assert_eq!(
                page.evaluate(NAMELESS),
                serde_json::json!([]),
                "all controls have names"
            );
            assert_eq!(page.evaluate(UNREADABLE), serde_json::json!([]), "{scheme}");
        }
        let structure = "['header', 'main', 'h1', 'main h2', 'a.skip'].every((it) => document.querySelector(it)) \
            && [...document.querySelectorAll('table')].every((it) => it.closest('section[aria-labelledby]')) \
            && [...document.querySelectorAll('.chart svg[role=img]')].every((it) => it.getAttribute('aria-label'))";
        assert_eq!(page.evaluate(structure), true);

        // Numbers are not read aloud: only the results of actions and the state are.
        let is_quiet = "[...document.querySelectorAll('[aria-live], [role=status], [role=alert]')].map((it) => it.id)";
        assert_eq!(
            page.evaluate(is_quiet),
            serde_json::json!([
                "login-error",
                "policies-message",
                "overload-message",
                "key-message",
                "blocks-message",
                "rules-message",
                "rules-outdated-text",
                "rules-result",
                "announcer"
            ])
        );

        // From the top, the tabulator visits the page in its order, and nothing twice.
        page.open(&site.url);
        page.until("connection.dataset.state === 'live' && policies.rows.length === 2");
        let mut visited = Vec::new();
        for _ in 0..11 {
            page.press("Tab");
            let focus = "document.activeElement.id || document.activeElement.className || \
                document.activeElement.getAttribute('aria-label') || document.activeElement.localName";
            visited.push(page.evaluate(focus).as_str().expect("a name").to_owned());
        }
        let expected = [
            "skip",
            "theme",
            "leave",
            "chart-policy",
            "chart-track",
            "summary",
            "layer-mode",
            "Mode of api",
            "Percent of keys for which api is enforced",
            "overload-mode",
            "key",
        ];
        assert_eq!(visited, expected);

        page.evaluate("theme.click()");
        page.until("document.documentElement.dataset.theme === 'light'");
        assert_eq!(page.complaints(), Vec::<String>::new());
    });
}

/// Controls that a screen reader could not name.
const NAMELESS: &str = "[...document.querySelectorAll('main button, main select, main input, header button')] \
    .filter((it) => !(it.labels?.length || it.getAttribute('aria-label') || it.textContent.trim())) \
    .map((it) => it.outerHTML)";

/// Texts whose contrast with their panel is below 4.5 to 1.
const UNREADABLE: &str = "(() => {
    const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
        .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
    const behind = (node) => {
        for (let it = node; it; it = it.parentElement) {
            const color = parts(getComputedStyle(it).backgroundColor);
            if (color.length === 3 || color[3] > 0) return color;
        }
        return [255, 255, 255];
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = new Set();
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || !node.checkVisibility?.() || node.closest('.skip, noscript, script')) continue;
        const style = getComputedStyle(node);
        const text = light(parts(node.closest('svg') ? style.fill : style.color));
        const ground = light(behind(node));
        const ratio = (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
        if (ratio < 4.5) found.add(`${node.localName}.${node.className.baseVal ?? node.className}: ${ratio.toFixed(2)}`);
    }
    return [...found];
})()";
