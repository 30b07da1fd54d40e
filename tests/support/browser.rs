//! A headless Chromium, driven by its DevTools protocol.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::in_process::folder::fresh_directory;

/// A page in a browser of its own, which knows no address but those of this machine, and calls it `ops.test` too.
///
/// Messages pass through two pipes (`--remote-debugging-pipe`), so the browser needs no port and the test no WebSocket.
/// Calls block: use it beside a server on other threads.
pub(crate) struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    next_id: u64,
    events: Vec<Value>,
    folder: PathBuf,
}

impl Browser {
    /// Starts the program in `TOLLGATE_CHROMIUM`, or else `chromium`.
    pub(crate) fn start() -> Self {
        let program = env::var("TOLLGATE_CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
        let folder = fresh_directory();
        let mut command = Command::new("sh");
        // Chromium reads messages from descriptor 3 and writes them to 4.
        command
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>&2"])
            .arg(&program)
            .args(ARGUMENTS)
            .arg(format!("--user-data-dir={}", folder.display()))
            .args(is_root().then_some("--no-sandbox"))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("a shell");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            for message in output.split(0) {
                let message = message
                    .ok()
                    .and_then(|text| serde_json::from_slice(&text).ok());
                let Some(message) = message else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            input,
            messages,
            session: None,
            next_id: 0,
            events: Vec::new(),
            folder,
        };
        browser.attach(&program);
        browser
    }

    fn attach(&mut self, program: &str) {
        let targets = self.try_call("Target.getTargets", json!({}));
        let targets = targets.unwrap_or_else(|| {
            panic!("{program} does not run: bash tests/run.sh installs Chromium, or set TOLLGATE_CHROMIUM")
        });
        let targets = targets["targetInfos"].as_array().expect("a list").iter();
        let page = targets.clone().find(|target| target["type"] == "page");
        let page = &page.expect("a page")["targetId"];
        let attached = self.call(
            "Target.attachToTarget",
            json!({ "targetId": page, "flatten": true }),
        );
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Opens an address, and waits until the page and its files are loaded.
    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
        let path = json!(url);
        self.until(&format!(
            "location.href === {path} && document.readyState === 'complete'"
        ));
    }

    /// Sets the size of the window and the colour scheme of the system.
    pub(crate) fn show_on(&mut self, width: u32, height: u32, scheme: &str) {
        let is_phone = width < 600;
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone }),
        );
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    /// Returns the value of an expression in the page.
    #[track_caller]
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let options =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let evaluated = self.call("Runtime.evaluate", options);
        let fault = &evaluated["exceptionDetails"];
        assert!(fault.is_null(), "{expression}: {fault}");
        evaluated["result"]["value"].clone()
    }

    /// Waits until an expression in the page is true.
    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.evaluate(expression) != Value::Bool(true) {
            let shown = "document.body?.innerText";
            assert!(
                Instant::now() < deadline,
                "{expression}: {}",
                self.evaluate(shown)
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses a key, such as `Tab`, as a keyboard does.
    pub(crate) fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "ArrowDown" => 40,
            other => panic!("{other} has no code here"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            self.call(
                "Input.dispatchKeyEvent",
                json!({
                    "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code,
                    "text": if kind == "keyDown" { text } else { "" },
                }),
            );
        }
    }

    /// Types into the element that has the focus.
    pub(crate) fn insert_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Returns a picture of the whole page, at most this high, as PNG.
    pub(crate) fn picture(&mut self, max_height: u32) -> Vec<u8> {
        let width = self.evaluate("innerWidth");
        let height = self
            .evaluate("document.documentElement.scrollHeight")
            .as_u64();
        let height = height.expect("a number").min(max_height.into());
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let options = json!({ "format": "png", "clip": clip, "captureBeyondViewport": true, "optimizeForSpeed": false });
        let picture = self.call("Page.captureScreenshot", options);
        decode_base64(picture["data"].as_str().expect("text"))
    }

    /// Returns the addresses of all requests so far.
    pub(crate) fn requests(&mut self) -> Vec<String> {
        self.call("Runtime.evaluate", json!({ "expression": "0" })); // reads what is waiting
        let requests = self.events_of("Network.requestWillBeSent");
        let urls = requests.map(|event| event["params"]["request"]["url"].clone());
        urls.map(|url| url.as_str().expect("text").to_owned())
            .collect()
    }

    /// Returns the errors and warnings in the console so far.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        self.call("Runtime.evaluate", json!({ "expression": "0" }));
        let log = self
            .events_of("Log.entryAdded")
            .map(|event| event["params"]["entry"].clone());
        let log = log.filter(|entry| entry["level"] == "error" || entry["level"] == "warning");
        let console = self.events_of("Runtime.consoleAPICalled");
        let console = console.map(|event| event["params"].clone());
        let console = console.filter(|call| call["type"] == "error" || call["type"] == "warning");
        let thrown = self.events_of("Runtime.exceptionThrown").cloned();
        log.chain(console)
            .chain(thrown)
            .map(|event| event.to_string())
            .collect()
    }

    fn events_of(&self, method: &str) -> impl Iterator<Item = &Value> {
        self.events
            .iter()
            .filter(move |event| event["method"] == method)
    }

    #[track_caller]
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        let result = self.try_call(method, parameters);
        result.unwrap_or_else(|| panic!("{method}: the browser does not respond"))
    }

    /// Returns the result of a command; `None` if the browser does not respond.
    #[track_caller]
    fn try_call(&mut self, method: &str, parameters: Value) -> Option<Value> {
        self.next_id += 1;
        let mut message = json!({ "id": self.next_id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.input
            .write_all(format!("{message}\0").as_bytes())
            .ok()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(message) if message["id"] == self.next_id => {
                    assert!(message["error"].is_null(), "{method}: {message}");
                    return Some(message["result"].clone());
                }
                Ok(event) => self.events.push(event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let session = self.session.take();
        drop(session);
        let _ = self
            .input
            .write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Chromium cannot build its sandbox for root.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn decode_base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let text = text.trim_end_matches('=').as_bytes();
    let groups = text.chunks(4).flat_map(|group| {
        let bits = group.iter().fold(0, |bits, byte| bits << 6 | value(*byte));
        let bits = bits << (6 * (4 - group.len()));
        let bytes = bits.to_be_bytes();
        bytes[1..group.len()].to_vec()
    });
    groups.collect()
}

const ARGUMENTS: [&str; 11] = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP ops.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-first-run",
];

const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_any_length_is_decoded() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYmE+", "fooba>"),
        ] {
            assert_eq!(decode_base64(text), bytes.as_bytes());
        }
    }
}
