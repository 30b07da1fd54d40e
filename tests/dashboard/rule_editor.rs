//! Versions of the rules on the page.

use std::fs;

use tokio::task::block_in_place;
use tollgate::{RateLimitLayer, config::reload::RuleSource, remote::Script};

use super::{
    WRITE,
    site::{RULES, Site, confirm, look_up, rules, submit, text_of},
};
use crate::support::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_of_another_operator_are_not_overwritten_unseen() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(WRITE);
        let text = "document.getElementById('rules-text').value";
        page.until(&format!("{text}.includes('3/hour')"));
        page.evaluate("document.getElementById('rules-editor').open = true");

        // An untouched text follows the rules, also in an open editor.
        site.replace(&RULES.replace("3/hour", "4/hour"));
        page.until(&format!("{text}.includes('4/hour')"));

        // A draft stays, with a warning that names its base version.
        page.evaluate(&format!("{text} = {text}.replace('4/hour', '5/hour')"));
        site.replace(&RULES.replace("3/hour", "6/hour"));
        let warning = text_of("rules-outdated-text");
        page.until(&format!(
            "{warning}.startsWith('You began with version 2. Since then, version 3 ')"
        ));
        page.until(&format!(
            "{}.startsWith('Version 3 ')",
            text_of("rules-note")
        ));
        for _ in 0..2 {
            submit(&mut page, "rules-form");
            page.until(
                "document.getElementById('confirm-text').textContent.includes('replace version 2')",
            );
            confirm(&mut page);
            page.until(&format!(
                "{}.includes('meanwhile')",
                text_of("rules-result")
            ));
        }
        assert_eq!(site.rules.version().number(), 3);
        assert_eq!(page.evaluate(&format!("{text}.includes('5/hour')")), true);

        page.evaluate("document.getElementById('rules-compare').click()");
        page.until("document.getElementById('diff').innerText.includes('-     limit: 6/hour')");
        page.evaluate("document.getElementById('rules-keep').click()");
        page.until("document.getElementById('rules-outdated').hidden");
        submit(&mut page, "rules-form");
        confirm(&mut page);
        page.until(&format!(
            "{} === 'Version 4 is current.'",
            text_of("rules-message")
        ));
        page.until("policies.textContent.includes('5 an hour')");

        // A text that could not be read is read again.
        page.evaluate(
            "window.real = fetch; window.missed = 0; \
             window.fetch = (url, options) => { \
                 if (!/rules\\/\\d/.test(url) || missed > 0) return real(url, options); \
                 missed += 1; return Promise.reject(new TypeError('lost')); }",
        );
        site.replace(&RULES.replace("3/hour", "7/hour"));
        page.until("missed === 1");
        page.until(&format!("{text}.includes('7/hour')"));

        // The text can be given up.
        page.evaluate(&format!("{text} = 'mine'"));
        site.replace(&RULES.replace("3/hour", "8/hour"));
        page.until(&format!(
            "{warning}.startsWith('You began with version 5.')"
        ));
        page.evaluate("document.getElementById('rules-discard').click()");
        page.until(&format!("{text}.includes('8/hour')"));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_rules_that_were_refused_are_replaced_on_the_page() {
    let server = Server::start();
    let builder = RateLimitLayer::builder().redis(server.url());
    let site = Site::serve(builder, RuleSource::redis(rules(RULES))).await;
    block_in_place(|| {
        let mut page = site.open(WRITE);
        site.replace(&RULES.replace("3/hour", "4/hour"));
        let text = "document.getElementById('rules-text').value";
        page.until(&format!("{text}.includes('4/hour')"));

        // As a later tollgate does, which knows more fields.
        let mut command = redis::cmd("EVAL");
        command
            .arg(Script::RULES.source())
            .arg(1)
            .arg("tollgate:{!}:rules")
            .arg(1)
            .arg(0);
        command
            .arg("yaml")
            .arg("rules: [{ id: api, limt: 5/h }]")
            .arg("eve")
            .arg("");
        let reply: Vec<u64> = command.query(&mut server.connection()).expect("stored");
        assert_eq!(reply[..2], [1, 2]);
        page.until(&format!("{}.includes('limt')", text_of("rules-error")));
        page.until("page.edited.replaced === 2");
        page.evaluate("document.getElementById('rules-editor').open = true");
        page.evaluate(&format!("{text} = {text}.replace('4/hour', '6/hour')"));
        submit(&mut page, "rules-form");
        page.until(
            "document.getElementById('confirm-text').textContent.includes('replace version 2')",
        );
        confirm(&mut page);
        page.until(&format!(
            "{} === 'Version 3 is current.'",
            text_of("rules-message")
        ));
        page.until("policies.textContent.includes('6 an hour')");

        // What is in Redis is changed for all instances.
        look_up(&mut page, "ada");
        submit(&mut page, "refund-form");
        page.until(
            "document.getElementById('confirm-text').textContent.endsWith(', for all instances.')",
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_of_a_file_are_shown_and_not_offered_for_editing() {
    let name = format!("tollgate-dashboard-{}.yaml", std::process::id());
    let file = std::env::temp_dir().join(name);
    fs::write(&file, RULES).expect("written");
    let site = Site::serve(RateLimitLayer::builder(), RuleSource::file(&file)).await;
    fs::write(&file, RULES.replace("3/hour", "4/hour")).expect("written");
    site.rules.reload().await.expect("reloaded");
    block_in_place(|| {
        let mut page = site.open(WRITE);
        page.until(&format!(
            "{}.endsWith('The rules come from a file: to change them, edit it.')",
            text_of("rules-note")
        ));
        page.until("document.querySelectorAll('#versions button').length > 0");
        let buttons = "[...document.querySelectorAll('#versions button')].every((it) => it.textContent === 'Compare')";
        assert_eq!(page.evaluate(buttons), true);
        assert_eq!(
            page.evaluate("document.getElementById('rules-editor').hidden"),
            true
        );
    });
    fs::remove_file(&file).expect("removed");
}
