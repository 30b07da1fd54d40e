//! The charts of the page, which go on from the history that the server has.

use std::time::Duration;

use tokio::task::block_in_place;
use tollgate::{RateLimitLayer, config::reload::RuleSource};

use super::{
    READ,
    site::{RULES, Site, rules},
};
use crate::support::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decision_is_drawn_once_however_often_the_page_connects() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(READ);
        // The numbers of all slots, and the totals up to the latest of them.
        let is_even = "(() => { const sum = (list) => list.flat(9).reduce((all, it) => all + it, 0); \
            return page.history.tracks[0].latest === page.state.second && page.history.tracks.every(({ series }) => \
            sum([...series.values()].map(({ counts }) => counts)) === sum(page.state.decisions.map(({ totals }) => totals))); })()";
        for round in 1..=3 {
            // Events arrive before the history, which contains them.
            page.evaluate(
                "window.real = fetch; window.held = new Promise((resolve) => { window.release = resolve; }); \
                 window.fetch = async (url, options) => { \
                     if (String(url).endsWith('/history')) await held; \
                     return real(url, options); }; \
                 window.begin = page.state.second; void follow(page.session)",
            );
            for caller in 0..20 {
                site.call(&format!("{round}-{caller}"));
            }
            page.until("read('state').then(({ second }) => second > begin + 1)");
            page.evaluate("window.fetch = real; release()");
            page.until("page.state.second > begin + 2");
            page.until(&format!(
                "page.state.decisions[0].totals[0] === {}",
                20 * round
            ));
            page.until(is_even);
        }
        // As if the page had been asleep for ten seconds.
        site.call("late");
        page.evaluate("window.before = page.history; page.history.tracks[0].latest -= 10");
        page.until("page.history !== before");
        page.until("page.state.decisions[0].totals[0] === 61");
        page.until(is_even);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latency_is_unknown_without_calls_and_goes_on_in_both_charts() {
    let server = Server::start();
    let builder = RateLimitLayer::builder()
        .redis(server.url())
        .deadline(Duration::from_secs(1));
    let site = Site::serve(builder, RuleSource::in_process(rules(RULES))).await;
    block_in_place(|| {
        let mut page = site.open(READ);
        let label = "document.querySelector('#latency-chart svg')?.getAttribute('aria-label')";
        page.until(&format!("{label}?.includes('p99 unknown, median unknown')"));
        page.until("page.state.latency[1].median === null");
        site.call("ada");
        page.until("page.history.tracks[1].latency.at(-1).median !== null");
        page.until("page.history.tracks[1].latency.at(-1).p99 !== null");
        page.until("page.history.tracks[0].latency.some(({ median }) => median !== null)");

        // The lines differ by more than their hue.
        let dashes = "new Set([...document.querySelectorAll('#latency-chart path.line')].map((it) => getComputedStyle(it).strokeDasharray)).size";
        let lines = "document.querySelectorAll('#latency-chart path.line').length";
        page.until(&format!("{lines} > 1 && {dashes} === {lines}"));
    });
}
