//! A real nginx in front of a server of this process.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{
    in_process::Folder,
    launch::{end, free_port, loopback},
};

/// An nginx on a free port, which is stopped when this is dropped.
pub(crate) struct Nginx {
    child: Child,
    port: u16,
    /// Removed after the process has ended.
    _folder: Folder,
}

impl Nginx {
    /// Starts it with these locations.
    pub(crate) fn start(locations: &str) -> Self {
        let folder = Folder::new();
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let port = free_port();
            let mut child = spawn(&folder, port, locations);
            // It ends if another process has taken the port.
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                if TcpStream::connect(loopback(port)).is_ok() {
                    return Self {
                        child,
                        port,
                        _folder: folder,
                    };
                }
                thread::sleep(Duration::from_millis(5));
            }
            end(&mut child);
            let log = fs::read_to_string(folder.path("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "nginx did not start: {log}");
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        loopback(self.port)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn spawn(folder: &Folder, port: u16, locations: &str) -> Child {
    let place = folder.root().display();
    let temporary = ["client_body", "fastcgi", "proxy", "scgi", "uwsgi"]
        .map(|name| format!("{name}_temp_path {place}/{name};"))
        .concat();
    let configuration = format!(
        "daemon off; master_process off; pid {place}/pid; error_log {place}/log;\nevents {{}}\n\
         http {{ access_log off; {temporary}\nserver {{ listen 127.0.0.1:{port};\n{locations}\n}} }}\n"
    );
    let file = folder.write("nginx.conf", &configuration);
    let spawned = Command::new("nginx")
        .arg("-p")
        .arg(folder.root())
        .arg("-c")
        .arg(&file)
        .arg("-e")
        .arg(folder.path("log"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    spawned.unwrap_or_else(|error| {
        panic!("nginx does not run ({error}): bash tests/run.sh installs it")
    })
}

const START_TIMEOUT: Duration = Duration::from_secs(10);
