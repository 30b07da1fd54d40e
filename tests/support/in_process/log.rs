//! The log lines of one test.

use std::{
    cell::{Cell, RefCell},
    io::{self, Write},
    mem,
    sync::{Arc, Mutex, Once, PoisonError},
};

use tracing::{dispatcher::DefaultGuard, subscriber};

/// Tollgate's log lines of this thread, and of the background work that it started, since the last call; call it once before the
/// first line of interest.
///
/// Besides the subscriber of each test, one serves the whole process. Without it, whether a call site is listened to at all would
/// depend on which test reached it first.
pub(crate) fn logged() -> Vec<String> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_writer(io::sink).finish();
        subscriber::set_global_default(subscriber).expect("no other subscriber");
    });
    LOG.with_borrow_mut(|installed| {
        let (lines, _guard) = installed.get_or_insert_with(|| {
            let lines = Lines::default();
            let writer = lines.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_writer(move || writer.clone())
                .with_ansi(false)
                .finish();
            (lines, subscriber::set_default(subscriber))
        });
        let text = mem::take(&mut *lines.0.lock().unwrap_or_else(PoisonError::into_inner));
        let text = String::from_utf8_lossy(&text);
        let ours = text.lines().filter(|line| line.contains("tollgate"));
        ours.map(str::to_owned).collect()
    })
}

/// Does something whenever tollgate logs a line on this thread, before the line is written.
#[allow(dead_code, reason = "only tests without servers use it")]
pub(crate) fn on_each_line(act: impl Fn() + 'static) {
    logged();
    ACT.set(Some(Box::new(act)));
}

type Act = Box<dyn Fn()>;

thread_local! {
    static LOG: RefCell<Option<(Lines, DefaultGuard)>> = const { RefCell::new(None) };
    static ACT: Cell<Option<Act>> = const { Cell::new(None) };
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Taken out meanwhile: what it does may log a line itself.
        if let Some(act) = ACT.take() {
            act();
            ACT.set(Some(act));
        }
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
