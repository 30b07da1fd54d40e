//! A Redis Cluster on loopback ports.

use std::{
    env,
    net::TcpListener,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use redis::{Client, Connection};

use crate::child::KillOnDrop;

/// Primaries with equal shares of the slots, killed when dropped.
#[derive(Debug)]
pub struct Cluster {
    processes: Vec<(KillOnDrop, u32)>,
    folder: PathBuf,
    /// The addresses of the primaries, as `redis://127.0.0.1:PORT/`.
    pub urls: Vec<String>,
}

impl Cluster {
    /// Starts a cluster without replicas and waits until it serves all slots.
    ///
    /// # Panics
    ///
    /// Panics if it does not start.
    pub fn start(primaries: usize) -> Self {
        let binary = env::var("TOLLGATE_REDIS_SERVER").unwrap_or_default();
        let binary = if binary.is_empty() {
            "redis-server"
        } else {
            &binary
        };
        let folder = env::temp_dir().join(format!("peers-{}-{primaries}", std::process::id()));
        let (mut processes, mut urls) = (Vec::new(), Vec::new());
        for _ in 0..primaries {
            let port = free_port();
            let own = folder.join(port.to_string());
            std::fs::create_dir_all(&own).expect("the folder can be created");
            let process = Command::new(binary)
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
                .args([
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--cluster-enabled",
                    "yes",
                ])
                .arg("--dir")
                .arg(&own)
                .stdout(Stdio::null())
                .spawn()
                .unwrap_or_else(|error| panic!("cannot run {binary}: {error}"));
            let id = process.id();
            processes.push((KillOnDrop(process), id));
            urls.push(format!("redis://127.0.0.1:{port}/"));
        }
        let cluster = Self {
            processes,
            folder,
            urls,
        };
        cluster.join();
        cluster
    }

    /// Returns the process ids of the primaries.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.processes.iter().map(|(_, id)| *id)
    }

    /// Gives each primary its slots, and makes them meet.
    fn join(&self) {
        let mut nodes: Vec<Connection> = self.urls.iter().map(|url| connect(url)).collect();
        let count = nodes.len();
        let port = self.urls[0].trim_end_matches('/').rsplit(':').next();
        let port = port.expect("a url has a port").to_owned();
        for (index, node) in nodes.iter_mut().enumerate() {
            let (first, end) = (index * SLOTS / count, (index + 1) * SLOTS / count);
            for words in [
                vec!["SET-CONFIG-EPOCH".to_owned(), (index + 1).to_string()],
                vec![
                    "ADDSLOTSRANGE".to_owned(),
                    first.to_string(),
                    (end - 1).to_string(),
                ],
                vec!["MEET".to_owned(), "127.0.0.1".to_owned(), port.clone()],
            ] {
                let done = redis::cmd("CLUSTER").arg(words).exec(node);
                done.expect("the node accepts it");
            }
        }
        let deadline = Instant::now() + PATIENCE;
        for node in &mut nodes {
            loop {
                let slots: Vec<redis::Value> = redis::cmd("CLUSTER")
                    .arg("SLOTS")
                    .query(node)
                    .expect("ranges");
                let info: String = redis::cmd("CLUSTER").arg("INFO").query(node).expect("text");
                if info.contains("cluster_state:ok") && slots.len() == count {
                    break;
                }
                assert!(Instant::now() < deadline, "the cluster did not come up");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.processes.clear();
        // A folder that stays does not void the run.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
        let port = listener.local_addr().expect("it is bound").port();
        // The port of the cluster bus is 10,000 higher.
        if port < 55_000 {
            return port;
        }
    }
}

fn connect(url: &str) -> Connection {
    let client = Client::open(url).expect("the url is well formed");
    let deadline = Instant::now() + PATIENCE;
    loop {
        match client.get_connection() {
            Ok(connection) => return connection,
            Err(error) => assert!(Instant::now() < deadline, "{url}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

const SLOTS: usize = 16_384;
const PATIENCE: Duration = Duration::from_secs(20);
