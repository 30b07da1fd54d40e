//! The log lines of one test.

use std::{
    cell::RefCell,
    io::{self, Write},
    mem,
    sync::Once,
};

/// Tollgate's log lines of this thread since the last call; call it once before the first line of interest.
///
/// One subscriber serves the whole process: with one per test, whether a call site is listened to at all would depend
/// on which test reached it first.
pub(crate) fn logged() -> Vec<String> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_writer(|| ThreadLog)
            .with_ansi(false)
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("no other subscriber");
    });
    let text = LOG.with_borrow_mut(mem::take);
    let text = String::from_utf8_lossy(&text);
    let ours = text.lines().filter(|line| line.contains("tollgate"));
    ours.map(str::to_owned).collect()
}

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct ThreadLog;

impl Write for ThreadLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
