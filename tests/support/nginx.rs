//! A real nginx in front of a server of this process.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::launch::{end, free_port, fresh_directory, loopback};

/// An nginx on a free port, which is stopped when this is dropped.
pub(crate) struct Nginx {
    child: Child,
    port: u16,
    folder: PathBuf,
}

impl Nginx {
    /// Starts it with these locations.
    pub(crate) fn start(locations: &str) -> Self {
        let folder = fresh_directory();
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
                        folder,
                    };
                }
                thread::sleep(Duration::from_millis(5));
            }
            end(&mut child);
            let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
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
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(folder: &Path, port: u16, locations: &str) -> Child {
    let place = folder.display();
    let temporary = ["client_body", "fastcgi", "proxy", "scgi", "uwsgi"]
        .map(|name| format!("{name}_temp_path {place}/{name};"))
        .concat();
    let configuration = format!(
        "daemon off; master_process off; pid {place}/pid; error_log {place}/log;\nevents {{}}\n\
         http {{ access_log off; {temporary}\nserver {{ listen 127.0.0.1:{port};\n{locations}\n}} }}\n"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, configuration).expect("the directory is writable");
    let spawned = Command::new("nginx")
        .arg("-p")
        .arg(folder)
        .arg("-c")
        .arg(&file)
        .arg("-e")
        .arg(folder.join("log"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    spawned.unwrap_or_else(|error| {
        panic!("nginx does not run ({error}): bash tests/run.sh installs it")
    })
}

const START_TIMEOUT: Duration = Duration::from_secs(10);
