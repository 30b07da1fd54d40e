//! Keys as operators know them, and as policies count them.

use http::StatusCode;
use tokio::task::block_in_place;
use tollgate::{RateLimitLayer, config::reload::RuleSource};

use super::{
    WRITE,
    site::{Site, confirm, look_up, rules, submit, text_of},
};

const RULES: &str = "rules:
  - id: api
    key: { or_else: [{ header: x-account }, { header: x-caller }] }
    limit: 3/hour
    tier_from: { header: x-plan }
    tiers: { pro: 20/hour }
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_of_a_combined_extractor_is_found_and_blocked() {
    let source = RuleSource::in_process(rules(RULES));
    let site = Site::serve(RateLimitLayer::builder(), source).await;
    block_in_place(|| {
        let mut page = site.open(WRITE);
        look_up(&mut page, "ada");
        let notes = text_of("key-notes");
        page.until(&format!(
            "{notes}.includes('No policy counts this key now.')"
        ));
        page.until(&format!(
            "{notes}.includes('Without tiers: what callers of api have left ')"
        ));

        assert_eq!(site.call("ada"), StatusCode::OK);
        look_up(&mut page, "ada");
        let states = text_of("key-states");
        page.until(&format!("{states}.includes('2 of 3')"));
        page.until(&format!(
            "{states}.includes('Counted as') && {states}.includes('!ada')"
        ));
        page.until(&format!(
            "!{notes}.includes('No policy counts this key now.')"
        ));

        // As it is counted, by its row.
        let reset = "[...document.querySelectorAll('#key-states tbody tr')] \
            .find((it) => it.textContent.includes('2 of 3')).querySelector('button')";
        page.evaluate(&format!("{reset}.click()"));
        page.until(&format!("{}.includes('!ada')", text_of("confirm-title")));
        page.until(&format!(
            "{}.endsWith('in this instance.')",
            text_of("confirm-text")
        ));
        confirm(&mut page);
        page.until(&format!(
            "{states}.includes('3 of 3') && !{states}.includes('2 of 3')"
        ));

        // As the operator knows it, whichever extractor has it.
        submit(&mut page, "block-form");
        page.until(&format!(
            "/ in this instance. It is counted as .*!ada/.test({})",
            text_of("confirm-text")
        ));
        confirm(&mut page);
        page.until(&format!("{}.includes('!ada')", text_of("blocks")));
        assert_eq!(site.call("ada"), StatusCode::TOO_MANY_REQUESTS);
    });
}
