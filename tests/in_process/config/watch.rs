//! Rule files that change while they are watched, on real files.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tollgate::{
    RateLimitLayer,
    config::{
        Format, RuleSet,
        reload::{NewRules, ReloadError, RuleSource, RulesHandle, RulesState},
    },
};

use crate::support::{Folder, logged};

fn text(limit: u64) -> String {
    format!("rules:\n  - id: api\n    key: peer_ip\n    limit: {limit}/min\n")
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("it can be written");
}

/// Watches a file by events alone: the next poll is an hour away.
fn watch(path: &Path) -> (RateLimitLayer, RulesHandle) {
    let source = RuleSource::file(path).poll_interval(Duration::from_secs(3_600));
    let built = RateLimitLayer::builder().build_reloading(source);
    built.unwrap_or_else(|error| panic!("{error}"))
}

async fn until(
    states: &mut watch::Receiver<RulesState>,
    is_reached: impl Fn(&RulesState) -> bool,
) -> RulesState {
    let reached = states.wait_for(is_reached);
    let reached = tokio::time::timeout(Duration::from_secs(20), reached).await;
    let state = reached.expect("it is reached in time");
    state.expect("the layer is there").clone()
}

/// Waits until the rules have this limit, and nothing is refused.
async fn until_limit(states: &mut watch::Receiver<RulesState>, limit: u64) -> RulesState {
    let text = text(limit);
    until(states, |state| {
        state.version().text() == text && state.last_error().is_none()
    })
    .await
}

#[tokio::test]
async fn file_that_is_written_in_place_is_taken() {
    let folder = Folder::new();
    let path = folder.write("rules.yaml", &text(1));
    let (_layer, rules) = watch(&path);
    let mut states = rules.subscribe();
    for limit in 2..=4 {
        write(&path, &text(limit));
        let state = until_limit(&mut states, limit).await;
        assert_eq!(state.version().number(), limit);
        assert_eq!(state.rules().rules().len(), 1);
    }
}

#[tokio::test]
async fn file_that_an_editor_replaces_by_renaming_is_taken_each_time() {
    let folder = Folder::new();
    let path = folder.write("rules.yaml", &text(1));
    let (_layer, rules) = watch(&path);
    let mut states = rules.subscribe();
    for limit in 2..=4 {
        // As vim does: the old file becomes a backup, and another one gets its name.
        let (new, backup) = (folder.path("rules.yaml~new"), folder.path("rules.yaml~"));
        write(&new, &text(limit));
        fs::rename(&path, &backup).expect("a backup");
        fs::rename(&new, &path).expect("renamed");
        until_limit(&mut states, limit).await;
    }
}

#[tokio::test]
async fn last_of_very_many_edits_is_taken_whenever_it_comes() {
    let edit = async |time| {
        let folder = Folder::new();
        let (path, new) = (folder.path("rules.yaml"), folder.path("new"));
        write(&path, &text(1));
        let (_layer, rules) = watch(&path);
        let started = Instant::now();
        let edits = (10..).take_while(|_| started.elapsed() < time);
        for limit in edits.chain([5]) {
            write(&new, &text(limit));
            fs::rename(&new, &path).expect("renamed");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        until_limit(&mut rules.subscribe(), 5).await;
    };
    let times = (0..24).map(|number| Duration::from_millis(900 + number * 40));
    futures_util::future::join_all(times.map(edit)).await;
}

#[tokio::test]
async fn file_that_is_deleted_is_refused_once_and_taken_when_it_is_there_again() {
    let folder = Folder::new();
    let path = folder.write("rules.yaml", &text(1));
    let (_layer, rules) = watch(&path);
    let mut states = rules.subscribe();
    fs::remove_file(&path).expect("deleted");
    let state = until(&mut states, |state| state.last_error().is_some()).await;
    let error = RuleSet::from_file(&path).expect_err("it is gone");
    let refused = state.last_error().expect("refused").to_string();
    assert_eq!(refused, error.to_string());
    assert_eq!(state.version().text(), text(1));
    // The same rules again are no new version.
    write(&path, &text(1));
    assert_eq!(until_limit(&mut states, 1).await.version().number(), 1);
    write(&path, &text(2));
    assert_eq!(until_limit(&mut states, 2).await.version().number(), 2);
}

#[tokio::test]
async fn kubernetes_swap_of_a_link_to_a_folder_is_taken_each_time() {
    let folder = Folder::new();
    let version = |limit: u64| format!("..2026_{limit}");
    let place = |limit| {
        let own = folder.path(&version(limit));
        fs::create_dir(&own).expect("a folder");
        write(&own.join("rules.yaml"), &text(limit));
    };
    place(1);
    symlink(version(1), folder.path("..data")).expect("a link");
    let path = folder.path("rules.yaml");
    symlink("..data/rules.yaml", &path).expect("a link");
    let (_layer, rules) = watch(&path);
    let mut states = rules.subscribe();
    for limit in 2..=4 {
        place(limit);
        symlink(version(limit), folder.path("..data_tmp")).expect("a link");
        fs::rename(folder.path("..data_tmp"), folder.path("..data")).expect("swapped");
        fs::remove_dir_all(folder.path(&version(limit - 1))).expect("the old one goes");
        until_limit(&mut states, limit).await;
    }
}

#[tokio::test]
async fn file_behind_a_link_to_another_folder_is_taken_when_it_is_written_there() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let (path, target) = (folder.path("rules.yaml"), elsewhere.path("shared.yaml"));
    write(&target, &text(1));
    symlink(&target, &path).expect("a link");
    let (_layer, rules) = watch(&path);
    let mut states = rules.subscribe();
    write(&target, &text(2));
    until_limit(&mut states, 2).await;
}

#[tokio::test]
async fn broken_file_is_refused_with_the_text_of_its_faults_and_the_next_good_one_is_taken() {
    let folder = Folder::new();
    let path = folder.write("rules.yaml", &text(1));
    let (_layer, rules) = watch(&path);
    let mut states = rules.subscribe();
    // Truncated and half written, for longer than a write takes.
    for broken in [
        "",
        "rules:\n  - id: api\n    key: pe",
        "rules:\n  - id: api\n    limt: 5/mn\n",
    ] {
        write(&path, broken);
        let error = RuleSet::from_file(&path).expect_err("broken").to_string();
        let state = until(&mut states, |state| {
            state
                .last_error()
                .is_some_and(|last| last.to_string() == error)
        });
        assert_eq!(state.await.version().text(), text(1));
        assert!(matches!(rules.last_error(), Some(ReloadError::Rules(_))));
    }
    write(&path, &text(2));
    assert_eq!(until_limit(&mut states, 2).await.version().number(), 2);
}

/// A file behind a link to its folder, and a function that replaces the link: nothing that is watched reports that.
fn behind_a_replaced_link(folder: &Folder) -> (PathBuf, impl Fn(&str, &str)) {
    let root = folder.root().to_path_buf();
    let place = move |release: &str, text: &str| {
        fs::create_dir(root.join(release)).expect("a folder");
        write(&root.join(release).join("rules.yaml"), text);
        symlink(release, root.join("next")).expect("a link");
        fs::rename(root.join("next"), root.join("current")).expect("swapped");
    };
    (folder.path("current").join("rules.yaml"), place)
}

#[tokio::test]
async fn change_without_an_event_is_taken_at_the_next_poll() {
    let folder = Folder::new();
    let (path, place) = behind_a_replaced_link(&folder);
    place("1", &text(1));
    let source = RuleSource::file(&path).poll_interval(Duration::from_millis(20));
    let built = RateLimitLayer::builder().build_reloading(source);
    let (_layer, rules) = built.expect("rules without a fault");
    let mut states = rules.subscribe();
    place("2", &text(2));
    until_limit(&mut states, 2).await;
    place("3", &text(3));
    until_limit(&mut states, 3).await;
}

#[tokio::test]
async fn reload_reads_at_once_and_each_swap_and_each_refusal_is_one_event() {
    let folder = Folder::new();
    let (path, place) = behind_a_replaced_link(&folder);
    place("1", &text(1));
    let (_layer, rules) = watch(&path);
    logged();
    rules.reload().await.expect("the current rules");
    assert_eq!(logged(), [""; 0]);
    place("2", &text(2));
    rules.reload().await.expect("new rules");
    assert_eq!(rules.version().text(), text(2));
    let name = path.display();
    let [line] = &logged()[..] else {
        panic!("one line for a swap");
    };
    let event =
        format!("INFO tollgate: rules replaced source={name} version=2 rules=1 author=unknown");
    assert!(line.ends_with(&event), "{line}");
    place("3", "rules: [{ id: api, key: peer_ip, limit: 5/mn }]");
    for _ in 0..2 {
        let error = rules.reload().await.expect_err("broken");
        let faults = RuleSet::from_file(&path).expect_err("broken");
        assert_eq!(error.to_string(), faults.to_string());
        assert_eq!(
            rules.last_error().expect("refused").to_string(),
            faults.to_string()
        );
    }
    let faults = RuleSet::from_file(&path).expect_err("broken");
    let [line] = &logged()[..] else {
        panic!("one line for a refusal");
    };
    let event = format!(
        "WARN tollgate: rules refused, the current rules stay source={name} version=2 error={faults}"
    );
    assert!(line.ends_with(&event), "{line}");
    fs::remove_file(&path).expect("deleted");
    for _ in 0..2 {
        rules.reload().await.expect_err("it is gone");
    }
    assert_eq!(logged().len(), 1, "one line for a file that is gone");
    let pushed = rules.push(NewRules::new(Format::Yaml, text(4)));
    let error = pushed.await.expect_err("a file is edited").to_string();
    assert_eq!(error, format!("the rules come from {name}: edit that file"));
    assert_eq!(rules.history().await.expect("a history").len(), 2);
}

#[test]
fn layer_is_not_built_with_a_file_that_is_missing_or_broken() {
    let folder = Folder::new();
    let path = folder.path("rules.yaml");
    for text in [None, Some("rules: []")] {
        if let Some(text) = text {
            write(&path, text);
        }
        let built = RateLimitLayer::builder().build_reloading(RuleSource::file(&path));
        let error = RuleSet::from_file(&path).expect_err("not usable");
        assert_eq!(
            built.expect_err("not usable").to_string(),
            error.to_string()
        );
    }
}

#[tokio::test]
async fn thread_that_watches_ends_with_the_layer() {
    let folder = Folder::new();
    let path = folder.write("rules.yaml", &text(1));
    let (layer, rules) = watch(&path);
    let mut states = rules.subscribe();
    write(&path, &text(2));
    until_limit(&mut states, 2).await;
    drop(layer);
    // The thread has the only sender.
    let closed = async { while states.changed().await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(20), closed)
        .await
        .expect("the thread has ended");
    assert_eq!(rules.version().text(), text(2));
    assert!(rules.reload().await.is_err());
}

fn make_pipe(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo runs").success());
}

// Regression: opening a pipe that nobody writes to waits for a writer, so the layer was never built.
#[test]
fn pipe_in_place_of_a_file_is_refused_at_once() {
    let folder = Folder::new();
    let path = folder.path("rules.yaml");
    make_pipe(&path);
    let (sender, results) = std::sync::mpsc::channel();
    let read = path.clone();
    std::thread::spawn(move || sender.send(RuleSet::from_file(read).map_err(|e| e.to_string())));
    let result = results.recv_timeout(Duration::from_secs(20));
    let error = result.expect("it is not waited for").expect_err("a pipe");
    assert!(error.contains("not a file"), "{error}");
}

// Regression: the thread waited for a writer, and `reload` did so with the lock of the history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipe_that_replaces_the_file_is_refused_and_the_next_file_is_taken() {
    let folder = Folder::new();
    let path = folder.write("rules.yaml", &text(1));
    let (_layer, rules) = watch(&path);
    let mut states = rules.subscribe();
    let pipe = folder.path("pipe");
    make_pipe(&pipe);
    fs::rename(&pipe, &path).expect("renamed");
    let state = until(&mut states, |state| state.last_error().is_some()).await;
    assert_eq!(state.version().text(), text(1));
    let new = folder.path("new");
    write(&new, &text(2));
    fs::rename(&new, &path).expect("renamed");
    until_limit(&mut states, 2).await;
}

// Regression: a pipe that got the name after the look at it was opened, which waits for a writer: the thread that watches
// stopped for good.
#[test]
fn pipe_that_gets_the_name_after_the_look_at_it_is_not_waited_for() {
    let folder = Folder::new();
    let (path, file, pipe) = (
        folder.path("rules.yaml"),
        folder.path("file"),
        folder.path("pipe"),
    );
    write(&file, &text(1));
    make_pipe(&pipe);
    fs::hard_link(&file, &path).expect("a name");
    let is_over = Arc::new(AtomicBool::new(false));
    let swapping = {
        let (path, next) = (path.clone(), folder.path("next"));
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                for target in [&pipe, &file] {
                    fs::hard_link(target, &next).expect("a name");
                    fs::rename(&next, &path).expect("swapped");
                    // A rename between two names of one file leaves both.
                    let _ = fs::remove_file(&next);
                }
            }
        })
    };
    let (sender, results) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let started = Instant::now();
        let mut reads = [0, 0];
        while started.elapsed() < Duration::from_secs(2) {
            let read = RuleSet::from_file(&path);
            reads[usize::from(read.is_ok())] += 1;
            if let Err(error) = read {
                assert_eq!(error.faults()[0].reason(), "not a file", "{error}");
            }
        }
        sender.send(reads)
    });
    let reads = results.recv_timeout(Duration::from_secs(30));
    is_over.store(true, Ordering::Relaxed);
    swapping.join().expect("it swaps");
    let reads = reads.expect("no read waits for a writer");
    assert!(reads.iter().all(|count| *count > 0), "{reads:?}");
}

#[test]
fn what_is_not_a_file_is_refused_and_a_file_without_a_size_is_read() {
    let folder = Folder::new();
    let socket = folder.path("socket.yaml");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let directory = folder.path("directory.yaml");
    fs::create_dir(&directory).expect("a folder");
    let device = folder.path("device.yaml");
    symlink("/dev/zero", &device).expect("a link");
    for path in [socket, directory, device] {
        let error = RuleSet::from_file(&path)
            .expect_err("not a file")
            .to_string();
        assert!(error.contains(":1:1: not a file: "), "{error}");
    }
    // The system says that it has no bytes.
    let path = folder.path("process.yaml");
    symlink("/proc/sys/kernel/ostype", &path).expect("a link");
    let error = RuleSet::from_file(&path).expect_err("no rules").to_string();
    assert!(
        error.ends_with(":1:1: this is text: begin with `rules:`"),
        "{error}"
    );
}

// Regression: a name with a line break began a line of the log.
#[tokio::test]
async fn file_cannot_write_log_lines_of_its_own_or_long_ones() {
    let folder = Folder::new();
    let path = folder.write("rules.yaml", &text(1));
    let (_layer, rules) = watch(&path);
    let forged = r#""x\r\n2026-01-01T00:00:00Z  INFO tollgate: all is well\e[2J": 1"#;
    let many: String = (0..9_000)
        .map(|number| format!("unknown_field_{number}: 1\n"))
        .collect();
    let escapes = format!("\"{}\": 1\n", r"\e".repeat(2_000));
    for broken in [format!("{forged}\n"), format!("{many}{forged}\n"), escapes] {
        logged();
        write(&path, &broken);
        let error = rules.reload().await.expect_err("broken").to_string();
        for line in error.lines() {
            let is_fault =
                line.starts_with(&*path.display().to_string()) || line.starts_with("and ");
            assert!(is_fault && !line.chars().any(char::is_control), "{line:?}");
            assert!(line.len() < 2_048, "{}", line.len());
        }
        assert!(error.len() < 150_000, "{}", error.len());
        let lines = logged();
        assert!(lines.len() <= 1, "{lines:?}");
        for line in lines {
            assert!(line.contains("WARN tollgate: rules refused"), "{line}");
            assert!(line.len() < 5_000, "{}", line.len());
            assert!(!line.contains('\u{1b}'), "{line:?}");
        }
    }
}

#[test]
fn name_of_a_file_cannot_begin_a_line() {
    let folder = Folder::new();
    let path = folder.path("x\r\nINFO all is well\u{1b}[2J.yaml");
    let missing = RuleSet::from_file(&path).expect_err("it is missing");
    write(&path, "");
    let empty = RuleSet::from_file(&path).expect_err("no rules");
    for error in [missing, empty] {
        let error = error.to_string();
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
}

/// What the watcher of files warned of, in all tests.
struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

impl log::Log for Warnings {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.level() <= log::Level::Warn {
            let text = record.args().to_string();
            self.0.lock().expect("no test panics here").push(text);
        }
    }

    fn flush(&self) {}
}

// Regression: a folder in a watched one was watched by the same watcher, which heard twice that it is gone.
#[tokio::test]
async fn swap_of_kubernetes_is_not_warned_of() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        log::set_logger(&WARNINGS).expect("no other logger");
        log::set_max_level(log::LevelFilter::Warn);
    });
    let folder = Folder::new();
    let place = |limit: u64| {
        let version = format!("..2026_{limit}");
        fs::create_dir(folder.path(&version)).expect("a folder");
        write(&folder.path(&version).join("rules.yaml"), &text(limit));
        symlink(version, folder.path("..data_tmp")).expect("a link");
        fs::rename(folder.path("..data_tmp"), folder.path("..data")).expect("swapped");
    };
    place(1);
    let path = folder.path("rules.yaml");
    symlink("..data/rules.yaml", &path).expect("a link");
    let (_layer, rules) = watch(&path);
    let mut states = rules.subscribe();
    for limit in 2..=6 {
        place(limit);
        let old = format!("..2026_{}", limit - 1);
        fs::remove_dir_all(folder.path(&old)).expect("the old one goes");
        until_limit(&mut states, limit).await;
    }
    let own = folder.root().display().to_string();
    let mut warnings = WARNINGS.0.lock().expect("no test panics here").clone();
    warnings.retain(|warning| warning.contains(&own));
    assert_eq!(warnings, [""; 0]);
}
