//! Watches a rule file.
//!
//! ```text
//! events of the folder ──┐
//! events of the folder   ├──> wait 50 ms ──> read until two reads are equal ──> Reloader::take_read
//!   behind its links   ──┤
//! poll interval        ──┘
//! ```
//!
//! Folders are watched and not the file: an editor that writes a new file and renames it leaves a watch on the old one.
//! Kubernetes replaces a link beside the file (`..data`), which is an event of the folder too. Every event leads to a read,
//! whatever it is about, and a text that is current already changes nothing.
//!
//! # Why is a rule file read until two reads are equal?
//!
//! A file that is written in place is empty first, and then has the beginning of the new text, which is often a valid set with
//! fewer rules. Events do not show when the writer is done: a copy over a network file system, for example, writes in several
//! steps. So the text is read until it has been the same for 50 ms, at most 20 times in a row. To interpret the events would mean
//! to know all the ways in which editors, configuration management and Kubernetes replace a file. A read of the current text
//! costs one `read`, and at most 20 are made per second.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    thread,
    time::Duration,
};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};

use crate::{
    diagnosis::log,
    error::{Error, ErrorKind},
};

use super::reloader::Reloader;

/// Starts the thread that watches a file for a reloader, until the returned value is dropped.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`] if the system cannot start a thread.
pub(super) fn start(
    reloader: Arc<Reloader>,
    path: PathBuf,
    interval: Duration,
) -> Result<FileWatch, Error> {
    // One wake-up is enough, however many events lead to it.
    let (waker, wakes) = mpsc::sync_channel(1);
    let is_stopped = Arc::new(AtomicBool::new(false));
    let watch = FileWatch {
        waker: waker.clone(),
        is_stopped: Arc::clone(&is_stopped),
    };
    let run =
        move || FileWatcher::new((reloader, path), (waker, wakes), is_stopped, interval).run();
    let thread = thread::Builder::new().name("tollgate-rules".to_owned());
    thread.spawn(run).map_err(|error| {
        let message = "the system cannot start the thread that watches the rules";
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })?;
    Ok(watch)
}

// === FileWatch ===

/// Ends the thread when it is dropped.
pub(super) struct FileWatch {
    waker: SyncSender<()>,
    is_stopped: Arc<AtomicBool>,
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
        // Full means that the thread is about to wake anyway.
        let _ = self.waker.try_send(());
    }
}

// === FileWatcher ===

/// The thread that watches.
struct FileWatcher {
    reloader: Arc<Reloader>,
    path: PathBuf,
    wakes: Receiver<()>,
    is_stopped: Arc<AtomicBool>,
    interval: Duration,
    /// One for each folder: a watcher of a folder and of one in it is notified twice that the inner one is gone, and logs a
    /// warning. Empty if the system has no watch left: then the file is polled.
    watchers: Vec<RecommendedWatcher>,
    /// The folder of each watcher.
    watched: [Option<PathBuf>; 2],
}

/// The end of the thread.
struct Stopped;

impl FileWatcher {
    fn new(
        (reloader, path): (Arc<Reloader>, PathBuf),
        (waker, wakes): (SyncSender<()>, Receiver<()>),
        is_stopped: Arc<AtomicBool>,
        interval: Duration,
    ) -> Self {
        let on_event = move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| may_change_text(event.kind)) {
                // Full means that the thread is about to wake anyway.
                let _ = waker.try_send(());
            }
        };
        let watchers = [(); 2].map(|()| notify::recommended_watcher(on_event.clone()));
        let watchers = watchers.into_iter().collect::<Result<Vec<_>, _>>();
        let watchers = watchers
            .inspect_err(|error| log_polling(&path, interval, error))
            .unwrap_or_default();
        Self {
            reloader,
            path,
            wakes,
            is_stopped,
            interval,
            watchers,
            watched: [None, None],
        }
    }

    fn run(mut self) {
        while let Ok(()) = self.turn() {}
    }

    /// Looks at the file once, and waits for the next event or poll if it has nothing new.
    fn turn(&mut self) -> Result<(), Stopped> {
        self.watch_folders();
        if self.take_settled()? {
            // Looked at again: meanwhile a link may have been led to another folder, or the folder replaced.
            return self.check_stopped();
        }
        if self.wakes.recv_timeout(self.interval).is_ok() {
            self.check_stopped()?;
            self.pause()?;
        }
        self.check_stopped()
    }

    /// Watches the folders of the file, anew each time: one that was deleted and made again is another one.
    fn watch_folders(&mut self) {
        let mut folders = folders(&self.path).into_iter();
        for (watcher, watched) in self.watchers.iter_mut().zip(&mut self.watched) {
            if let Some(folder) = watched.take() {
                // It may be gone, and its watch with it.
                let _ = watcher.unwatch(&folder);
            }
            // A folder that is not there is looked for at the next poll.
            let folder = folders.next();
            *watched =
                folder.filter(|folder| watcher.watch(folder, RecursiveMode::NonRecursive).is_ok());
        }
    }

    /// Takes the text of the file once two reads of it are equal: what is being written is not taken by halves. Returns whether
    /// there was another one.
    fn take_settled(&self) -> Result<bool, Stopped> {
        let read = || self.reloader.reader.read_text(&self.path);
        if self.reloader.is_known(&read()) {
            return Ok(false);
        }
        self.reloader.take_read(settled(read, || self.pause())?);
        Ok(true)
    }

    /// Waits for a moment. The events until then are those of one change.
    fn pause(&self) -> Result<(), Stopped> {
        thread::sleep(SETTLED);
        let _ = self.wakes.try_recv();
        self.check_stopped()
    }

    fn check_stopped(&self) -> Result<(), Stopped> {
        if self.is_stopped.load(Ordering::Acquire) {
            return Err(Stopped);
        }
        Ok(())
    }
}

/// Returns the folders whose events may be about a file: the one of its name, and the one of the file that its links lead to.
fn folders(path: &Path) -> Vec<PathBuf> {
    let folder = |path: &Path| match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Some(PathBuf::from(".")),
        folder => folder.map(Path::to_path_buf),
    };
    let own = folder(path);
    let target = path.canonicalize().ok().as_deref().and_then(folder);
    let is_own = own.as_ref().and_then(|own| own.canonicalize().ok()) == target;
    own.into_iter().chain(target.filter(|_| !is_own)).collect()
}

/// Reads until two reads in a row are equal, with a pause before each but the first.
///
/// However often the text changes: the last change may have had its event before the last read.
fn settled<T: PartialEq>(
    read: impl Fn() -> T,
    pause: impl Fn() -> Result<(), Stopped>,
) -> Result<T, Stopped> {
    let mut last = read();
    loop {
        pause()?;
        let next = read();
        if next == last {
            return Ok(next);
        }
        last = next;
    }
}

/// Returns whether an event may be about another text. Reads of the file are events too.
fn may_change_text(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

fn log_polling(path: &Path, interval: Duration, error: &notify::Error) {
    log::event!(
        WARN,
        "no events for the rule file, it is polled",
        source = path.display(),
        interval_secs = interval.as_secs_f64(),
        error = error,
    );
}

/// The time for which a text must not change, and the least time between two reads.
const SETTLED: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Reads these in turn, and then the last one again and again. Returns what is settled, and the number of pauses.
    fn settle(reads: &[u8]) -> (u8, usize) {
        let (count, pauses) = (Cell::new(0), Cell::new(0));
        let read = || {
            let index = count.replace(count.get() + 1);
            reads[index.min(reads.len() - 1)]
        };
        let pause = || {
            pauses.set(pauses.get() + 1);
            Ok(())
        };
        let settled = settled(read, pause).unwrap_or_else(|Stopped| panic!("it goes on"));
        (settled, pauses.get())
    }

    #[test]
    fn text_that_changes_from_read_to_read_is_not_taken() {
        assert_eq!(settle(&[1]), (1, 1));
        assert_eq!(settle(&[1, 2, 3, 4]), (4, 4));
        assert_eq!(settle(&[1, 2, 1, 2, 2, 3]), (2, 4));
        // After the last change there may be no event any more.
        let all: Vec<u8> = (0..100).collect();
        assert_eq!(settle(&all), (99, 100));
        assert!(settled(|| 1, || Err(Stopped)).is_err());
    }

    #[test]
    fn reading_a_file_does_not_lead_to_another_read() {
        use notify::event::{AccessMode, ModifyKind, RenameMode};
        for kind in [
            EventKind::Access(AccessKind::Open(AccessMode::Read)),
            EventKind::Access(AccessKind::Close(AccessMode::Read)),
        ] {
            assert!(!may_change_text(kind), "{kind:?}");
        }
        for kind in [
            EventKind::Access(AccessKind::Close(AccessMode::Write)),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)),
        ] {
            assert!(may_change_text(kind), "{kind:?}");
        }
    }
}
