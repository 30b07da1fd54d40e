//! `docs/images/gateway.png`: what a newcomer sees after some minutes.

use std::{fs, time::Duration};

use tokio::task::block_in_place;

use super::process::Gateway;
use crate::support::Browser;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes docs/images: cargo test --all-features --test suite -- --ignored pictures"]
async fn pictures_show_the_gateway_under_its_demo_load() {
    let gateway = Gateway::start(&[]);
    tokio::time::sleep(Duration::from_secs(240)).await;
    let url = gateway.dashboard();
    block_in_place(|| {
        let mut page = Browser::start();
        page.show_on(1_280, 900, "light");
        page.open(&url);
        page.until("!login.hidden");
        page.evaluate("token.focus()");
        let [read, _] = gateway.tokens();
        page.insert_text(read);
        page.press("Enter");
        page.until("connection.dataset.state === 'live'");
        page.until("document.querySelectorAll('#top-keys tbody tr').length > 3");
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/images/gateway.png");
        fs::write(path, page.picture(1_500)).expect("written");
    });
}
