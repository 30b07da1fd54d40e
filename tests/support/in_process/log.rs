//! The log lines of one test.

use std::{
    cell::{Cell, RefCell},
    io::{self, Write},
    mem,
    sync::{Mutex, Once, PoisonError},
    thread,
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

/// Tollgate's log lines of background work that contain this text, which is to be of one test: all tests share that thread.
#[allow(dead_code, reason = "not every binary uses it")]
pub(crate) fn logged_at_home(text: &str) -> Vec<String> {
    let log = AT_HOME.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = String::from_utf8_lossy(&log);
    let lines = lines.lines().filter(|line| line.contains(text));
    lines.map(str::to_owned).collect()
}

static AT_HOME: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Does something whenever tollgate logs a line on this thread, before the line is written.
#[allow(dead_code, reason = "only tests without servers use it")]
pub(crate) fn on_each_line(act: impl Fn() + 'static) {
    logged();
    ACT.set(Some(Box::new(act)));
}

type Act = Box<dyn Fn()>;

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static ACT: Cell<Option<Act>> = const { Cell::new(None) };
}

struct ThreadLog;

impl Write for ThreadLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Taken out meanwhile: what it does may log a line itself.
        if let Some(act) = ACT.take() {
            act();
            ACT.set(Some(act));
        }
        if thread::current().name() == Some("tollgate-home") {
            let mut log = AT_HOME.lock().unwrap_or_else(PoisonError::into_inner);
            log.extend_from_slice(bytes);
        } else {
            LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
