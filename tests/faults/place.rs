//! The servers of a row, and how the instances reach them.

use std::{
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use redis::Value;
use tokio::runtime::Builder;
use tollgate::remote::{RedisStore, RedisStoreBuilder, TlsConfig};

use crate::support::{Authority, Cluster, Mode, Proxy, Sentinels, Server};

/// The servers, and a proxy for each instance.
pub(crate) struct Place {
    pub(crate) servers: Servers,
    /// Empty if the instances connect directly.
    pub(crate) proxies: Vec<Proxy>,
    /// An open connection to the only server, for commands while it accepts no other.
    control: Option<redis::Connection>,
    /// Commands that do not return before the fault ends.
    pending: Vec<JoinHandle<()>>,
    fillers: u32,
}

pub(crate) enum Servers {
    One(Server),
    Tls(Server, Box<Authority>),
    Cluster(Cluster),
    Sentinels(Sentinels),
}

/// Which servers a row needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One server behind the proxies, with these arguments.
    One(&'static [&'static str]),
    Tls,
    /// Three primaries with a replica each.
    Cluster,
    /// Three primaries without replicas.
    ClusterWithoutReplicas,
    Sentinels,
}

impl Kind {
    /// Returns the number of nodes that an instance may probe at the same time.
    pub(crate) fn nodes(self) -> u64 {
        match self {
            Self::One(_) | Self::Tls | Self::Sentinels => 1,
            Self::Cluster | Self::ClusterWithoutReplicas => 3,
        }
    }
}

impl Place {
    pub(crate) fn start(kind: Kind, instances: usize) -> Self {
        let servers = match kind {
            Kind::One(arguments) => Servers::One(Server::start_with(arguments)),
            Kind::Tls => {
                let authority = Authority::new();
                let identity = authority.sign("localhost");
                let arguments = ["--tls-auth-clients", "no"];
                let server = Server::start_tls(&authority, &identity, &arguments);
                Servers::Tls(server, Box::new(authority))
            }
            Kind::Cluster => Servers::Cluster(Cluster::start(3, 1)),
            Kind::ClusterWithoutReplicas => Servers::Cluster(Cluster::start(3, 0)),
            Kind::Sentinels => {
                Servers::Sentinels(Sentinels::start_with(Duration::from_millis(500)))
            }
        };
        let mut place = Self {
            servers,
            proxies: Vec::new(),
            control: None,
            pending: Vec::new(),
            fillers: 0,
        };
        if let Servers::One(server) = &place.servers {
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            let start = |_| runtime.block_on(Proxy::start(server.address()));
            place.proxies = (0..instances).map(start).collect();
            place.control = Some(server.connection());
        }
        if let Servers::Tls(server, _) = &place.servers {
            place.control = Some(server.connection());
        }
        place
    }

    /// Returns the store of one instance.
    pub(crate) fn store(&self, instance: usize) -> RedisStoreBuilder {
        match &self.servers {
            Servers::One(_) => RedisStore::builder(self.proxies[instance].url()),
            Servers::Tls(server, authority) => RedisStore::builder(server.tls_url())
                .tls(TlsConfig::new().ca_certificates(authority.pem())),
            Servers::Cluster(cluster) => RedisStore::builder(cluster.nodes[instance % 3].url()),
            Servers::Sentinels(sentinels) => RedisStore::builder(sentinels.url()),
        }
    }

    pub(crate) fn server(&mut self) -> &mut Server {
        match &mut self.servers {
            Servers::One(server) | Servers::Tls(server, _) => server,
            Servers::Cluster(cluster) => &mut cluster.nodes[0],
            Servers::Sentinels(sentinels) => &mut sentinels.servers[0],
        }
    }

    pub(crate) fn cluster(&mut self) -> &mut Cluster {
        let Servers::Cluster(cluster) = &mut self.servers else {
            panic!("the row needs a cluster");
        };
        cluster
    }

    pub(crate) fn sentinels(&mut self) -> &mut Sentinels {
        let Servers::Sentinels(sentinels) = &mut self.servers else {
            panic!("the row needs sentinels");
        };
        sentinels
    }

    pub(crate) fn authority(&self) -> &Authority {
        let Servers::Tls(_, authority) = &self.servers else {
            panic!("the row needs TLS");
        };
        authority
    }

    /// Sets the mode of all proxies.
    pub(crate) fn network(&self, mode: Mode) {
        self.proxies.iter().for_each(|proxy| proxy.set(mode));
    }

    /// Runs a command on the open connection, or on a new one if the server was restarted.
    pub(crate) fn command(&mut self, words: &[&str]) {
        let command = command(words);
        let control = self.control.as_mut().expect("a connection");
        let mut reply = command.query::<Value>(control);
        if reply.as_ref().is_err_and(redis::RedisError::is_io_error) {
            let next = self.server().connection();
            let control = self.control.insert(next);
            reply = command.query(control);
        }
        reply.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    }

    /// Closes all connections but the open one.
    pub(crate) fn close_connections(&mut self) {
        self.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }

    /// Runs a command on a thread, since it does not return before the fault ends.
    pub(crate) fn begin(&mut self, words: &'static [&'static str]) {
        let mut connection = self.server().connection();
        self.pending.push(thread::spawn(move || {
            // It is ended from outside, by an error.
            let _ = command(words).query::<Value>(&mut connection);
        }));
    }

    /// Waits until the commands that were begun have returned.
    pub(crate) fn join(&mut self) {
        for pending in self.pending.drain(..) {
            pending.join().expect("it does not panic");
        }
    }

    /// Gives the server a memory limit that the filler exceeds, and a policy by which it then evicts keys.
    pub(crate) fn evict(&mut self, policy: &str) {
        self.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        self.command(&["CONFIG", "SET", "maxmemory", "4mb"]);
    }

    /// Writes 500 kB of keys that nobody reads.
    pub(crate) fn fill(&mut self) {
        self.fillers += 1;
        let prefix = format!("filler{}", self.fillers);
        self.command(&["DEBUG", "POPULATE", "500", &prefix, "1000"]);
    }

    /// Waits until a condition holds.
    #[track_caller]
    pub(crate) fn wait(&mut self, what: &str, condition: impl Fn(&mut Self) -> bool) {
        let deadline = Instant::now() + HUNG;
        while !condition(self) {
            assert!(Instant::now() < deadline, "never: {what}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns whether the nodes that reply have all slots.
    pub(crate) fn is_cluster_up(&mut self) -> bool {
        let nodes = self.cluster().nodes.iter();
        let mut states = nodes.map(|node| node.command(&["CLUSTER", "INFO"]));
        states.all(|state| {
            let text: String = redis::from_redis_value(state).expect("text");
            text.contains("cluster_state:ok")
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.network(Mode::Pass);
    }
}

/// Returns whether this server is a primary now. While its role changes, it closes connections.
pub(crate) fn is_primary(server: &Server) -> bool {
    let role = redis::Client::open(server.url())
        .and_then(|client| client.get_connection())
        .and_then(|mut connection| redis::cmd("ROLE").query::<Vec<Value>>(&mut connection));
    let name = role.ok().and_then(|role| role.into_iter().next());
    name.and_then(|name| redis::from_redis_value::<String>(name).ok())
        .is_some_and(|name| name == "master")
}

/// Returns whether all sentinels return the replica as the primary.
pub(crate) fn is_found(sentinels: &Sentinels) -> bool {
    sentinels.sentinels().iter().all(|sentinel| {
        let query = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Sentinels::NAME];
        let (_, port): (String, u16) =
            redis::from_redis_value(sentinel.command(&query)).expect("an address");
        port == sentinels.servers[1].port()
    })
}

fn command(words: &[&str]) -> redis::Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}

/// Sentinels whose votes are split try again after some seconds.
const HUNG: Duration = Duration::from_secs(120);
