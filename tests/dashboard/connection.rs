//! The page while the connection to the server fails.

use tokio::task::block_in_place;

use super::{
    READ,
    site::{Site, text_of},
};
use crate::support::Mode;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_that_dies_silently_is_noticed_and_the_page_recovers() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(READ);
        site.proxy.set(Mode::BlackHole);
        page.until("connection.dataset.state === 'lost'");
        page.until(&format!(
            "{}.startsWith('Not current: ')",
            text_of("status-text")
        ));
        site.proxy.set(Mode::Pass);
        page.evaluate("window.dispatchEvent(new Event('online'))");
        page.until("connection.dataset.state === 'live'");
        // So do the lists, although a request for them never got a response.
        for _ in 0..4 {
            site.call("ada");
        }
        page.until(&format!("{}.includes('ada')", text_of("top-keys")));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempt_to_follow_that_failed_ends_its_stream() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(READ);
        page.evaluate(
            "window.real = fetch; window.streams = []; window.fetch = (url, options) => { \
                 if (String(url).endsWith('/history')) return Promise.reject(new TypeError('lost')); \
                 if (String(url).endsWith('/live')) streams.push(options.signal); \
                 return real(url, options); }",
        );
        page.evaluate("void follow(page.session)");
        // The page and this test each have an attempt at a time.
        page.until("streams.length >= 3 && streams.slice(0, -2).every((it) => it.aborted)");
        page.evaluate("window.fetch = real");
        page.until("connection.dataset.state === 'live'");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_of_the_page_is_not_reported_as_a_lost_connection() {
    let site = Site::start().await;
    block_in_place(|| {
        let mut page = site.open(READ);
        page.evaluate("when('numbers', () => { throw new Error('no such number'); })");
        page.until("connection.textContent.startsWith('the page has a fault: no such number')");
    });
}
