//! A store under test, with the clock that moves its time.

use std::{
    collections::BTreeMap,
    env,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use redis::Value;
use tollgate::{
    Charge, Decision, Error, Key, Policy, RateLimiter,
    charge::{Receipt, Settlement},
    clock::{Clock, Timestamp},
    decision::{CountedBy, Retry, Usage},
    memory::MemoryStore,
    remote::{RedisStore, RedisStoreBuilder, TlsConfig},
    store::{Store, StoreFuture},
};

use crate::{
    remote::servers::{BLOCK_RIGHTS, LINE_RIGHTS, OPTIONAL_RIGHTS, REGISTRATION_RIGHTS, RIGHTS},
    support::{Authority, Cluster, Sentinels, Server},
};

/// 20 seconds after a full minute, 80 after two, 800 after a full hour; 2023-11-14, 22:13:20 UTC.
pub(super) const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

pub(super) const MICRO: Duration = Duration::from_micros(1);

/// A store under test, with the clock that moves its time.
pub(super) struct Place {
    pub(super) clock: Clock,
    store: AnyStore,
}

enum AnyStore {
    Memory(MemoryStore),
    Redis(RedisStore, Servers, Box<RedisStoreBuilder>),
}

/// The servers that keep the counts.
enum Servers {
    One(Server),
    /// Servers that several places share, each with a prefix of its own.
    Shared(&'static [Server], String),
}

impl Place {
    pub(super) fn memory() -> Self {
        let clock = Clock::manual(START);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let store = AnyStore::Memory(store.expect("a usable store"));
        Self { clock, store }
    }

    pub(super) fn redis() -> Self {
        Self::server(Server::start())
    }

    /// The server whose binary this variable names; `tests/run.sh` installs it and sets the variable.
    pub(super) fn named(variable: &str) -> Self {
        let binary = env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: run `bash tests/run.sh`, which installs this server")
        });
        Self::server(Server::start_binary(binary, &[]))
    }

    fn server(server: Server) -> Self {
        let store = RedisStore::builder(server.url());
        Self::redis_store(store, Servers::One(server))
    }

    /// A cluster of one node, as many providers offer it.
    pub(super) fn one_shard() -> Self {
        let nodes = &Cluster::shared(1).nodes;
        Self::shared(&nodes[0].url(), nodes)
    }

    /// A cluster of three primaries.
    pub(super) fn cluster() -> Self {
        let nodes = &Cluster::shared(3).nodes;
        Self::shared(&nodes[0].url(), nodes)
    }

    /// A primary behind sentinels.
    pub(super) fn sentinel() -> Self {
        let watched = Sentinels::shared();
        Self::shared(&watched.url(), &watched.servers[..1])
    }

    /// A server by TLS and in RESP3, as an ACL user with the documented rights.
    pub(super) fn secured() -> Self {
        let authority = Authority::new();
        let server = Server::start_tls(&authority, &authority.sign("localhost"), &[]);
        let mut user = vec!["ACL", "SETUSER", "limiter", "on", ">secret", "~tollgate:*"];
        user.extend(RIGHTS.iter().chain(&REGISTRATION_RIGHTS));
        user.extend(BLOCK_RIGHTS.iter().chain(&LINE_RIGHTS));
        user.extend(OPTIONAL_RIGHTS);
        server.command(&user);
        let client = authority.sign("client");
        let tls = TlsConfig::new()
            .ca_certificates(authority.pem())
            .client_certificate(client.certificate, client.key);
        let store = RedisStore::builder(server.tls_url())
            .tls(tls)
            .username("limiter")
            .password("secret")
            .resp3(true);
        Self::redis_store(store, Servers::One(server))
    }

    fn shared(url: &str, servers: &'static [Server]) -> Self {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("place-{}", PLACES.fetch_add(1, Ordering::Relaxed));
        let store = RedisStore::builder(url).prefix(&prefix);
        Self::redis_store(store, Servers::Shared(servers, prefix))
    }

    fn redis_store(store: RedisStoreBuilder, servers: Servers) -> Self {
        let clock = Clock::manual(START);
        // A deadline that a loaded machine keeps: how deadlines work is tested elsewhere.
        let builder = store
            .deadline(Duration::from_secs(10))
            .client_time(clock.clone());
        let store = builder.clone().build().expect("a usable store");
        let store = AnyStore::Redis(store, servers, Box::new(builder));
        Self { clock, store }
    }

    /// The same with room for one key, when it is in process.
    pub(super) fn crowded(self) -> Self {
        match self.store {
            AnyStore::Memory(_) => {
                let store = MemoryStore::builder()
                    .clock(self.clock.clone())
                    .max_keys(1)
                    .build();
                let store = AnyStore::Memory(store.expect("a usable store"));
                Self { store, ..self }
            }
            AnyStore::Redis(..) => self,
        }
    }

    /// Another instance of the service, whose keys can be blocked.
    pub(super) fn instance(&self, policies: &[&Policy]) -> RateLimiter {
        let policies = policies.iter().copied().cloned();
        let limiter = match &self.store {
            AnyStore::Memory(store) => RateLimiter::new(store.clone(), policies),
            AnyStore::Redis(_, _, builder) => {
                let store = builder.clone().shared_blocks(true).build();
                RateLimiter::new(store.expect("a usable store"), policies)
            }
        };
        limiter.expect("usable policies")
    }

    pub(super) fn limiter(&self, policies: &[&Policy]) -> RateLimiter {
        self.build(policies).expect("usable policies")
    }

    pub(super) fn build(&self, policies: &[&Policy]) -> Result<RateLimiter, Error> {
        let policies = policies.iter().copied().cloned();
        match &self.store {
            AnyStore::Memory(store) => RateLimiter::new(store.clone(), policies),
            AnyStore::Redis(store, ..) => RateLimiter::new(store.clone(), policies),
        }
    }

    /// Lets the lease of what was charged begin anew, as whoever holds it does.
    pub(super) async fn renew(&self, receipt: &Receipt) {
        self.try_renew(receipt).await.expect("renewed");
    }

    pub(super) fn try_renew(&self, receipt: &Receipt) -> StoreFuture<()> {
        let settlements = receipt.settlements().iter();
        let charges: Vec<Charge<'_>> = settlements.map(Settlement::charge).collect();
        match &self.store {
            AnyStore::Memory(store) => store.renew(&charges),
            AnyStore::Redis(store, ..) => store.renew(&charges),
        }
    }

    /// A policy as it counts one key.
    pub(super) fn count(&self, policy: Policy, key: &str) -> Count<'_> {
        Count {
            place: self,
            limiter: self.limiter(&[&policy]),
            policy,
            key: Key::new(key),
        }
    }

    pub(super) fn counted_by(&self) -> CountedBy {
        match self.store {
            AnyStore::Memory(_) => CountedBy::InProcess,
            AnyStore::Redis(..) => CountedBy::Shared,
        }
    }

    /// Whether servers keep the counts, and not this process.
    pub(super) fn is_on_servers(&self) -> bool {
        matches!(self.store, AnyStore::Redis(..))
    }

    /// The start of every key on the servers.
    pub(super) fn prefix(&self) -> &str {
        match &self.store {
            AnyStore::Redis(_, Servers::Shared(_, prefix), _) => prefix,
            AnyStore::Redis(_, Servers::One(_), _) | AnyStore::Memory(_) => "tollgate",
        }
    }

    /// Every key of this place with the server that holds it; nothing when the store is in process.
    pub(super) fn keys(&self) -> Vec<(String, &Server)> {
        let servers = match &self.store {
            AnyStore::Memory(_) => &[],
            AnyStore::Redis(_, Servers::One(server), _) => std::slice::from_ref(server),
            AnyStore::Redis(_, Servers::Shared(servers, _), _) => servers,
        };
        let prefix = format!("{}:{{", self.prefix());
        let keys = servers.iter().flat_map(|server| {
            let keys = server.keys().into_iter();
            keys.map(move |key| (key, server))
        });
        let is_shared = matches!(&self.store, AnyStore::Redis(_, Servers::Shared(..), _));
        keys.filter(|(key, _)| !is_shared || key.starts_with(&prefix))
            .collect()
    }

    /// Every key of this place with its value, serialized; nothing when the store is in process.
    pub(super) fn values(&self) -> BTreeMap<String, Value> {
        let keys = self.keys().into_iter();
        keys.map(|(key, server)| {
            let value = server.command(&["DUMP", &key]);
            (key, value)
        })
        .collect()
    }
}

// === Count ===

/// A policy as it counts one key.
pub(super) struct Count<'a> {
    place: &'a Place,
    pub(super) limiter: RateLimiter,
    pub(super) policy: Policy,
    pub(super) key: Key,
}

impl Count<'_> {
    pub(super) fn charge(&self) -> Charge<'_> {
        self.policy.charge(self.key)
    }

    pub(super) async fn take(&self, cost: u64) -> Decision {
        check(&self.limiter, &[self.charge().cost(cost)]).await
    }

    /// Takes what is given back by settling the receipt, if it is admitted.
    pub(super) async fn borrow(&self, cost: u64) -> Option<Receipt> {
        let charges = [self.charge().cost(cost)];
        let decision = check(&self.limiter, &charges).await;
        Receipt::of(&charges, &decision)
    }

    /// Takes so many one by one, each to be given back by itself.
    pub(super) async fn borrow_each(&self, units: u64) -> Vec<Receipt> {
        let mut receipts = Vec::new();
        for taken in 0..units {
            let receipt = self.borrow(1).await;
            receipts.push(receipt.unwrap_or_else(|| panic!("denied after {taken}")));
        }
        receipts
    }

    /// Gives back what was taken.
    pub(super) async fn give_back(&self, receipts: impl IntoIterator<Item = Receipt>) {
        for receipt in receipts {
            self.limiter.settle(receipt).await.expect("given back");
        }
    }

    /// Takes one by one, all of them admitted.
    pub(super) async fn spend(&self, units: u64) {
        for taken in 0..units {
            assert!(self.take(1).await.is_allowed(), "after {taken}");
        }
    }

    /// Takes one by one until one is denied: how many were admitted.
    pub(super) async fn drain(&self) -> u64 {
        let mut taken = 0;
        while self.take(1).await.is_allowed() {
            taken += 1;
        }
        taken
    }

    pub(super) async fn peek(&self) -> Usage {
        let decision = self.limiter.peek(&[self.charge()]).await;
        let decision = decision.expect("a decision");
        assert!(decision.is_allowed(), "a peek is never denied");
        usage(&decision)
    }

    pub(super) async fn left(&self) -> u64 {
        self.peek().await.remaining
    }

    /// Moves the clock to a time so long after the start at which so much can be had again, and not a microsecond
    /// before, and takes it.
    pub(super) async fn comes_back(&self, cost: u64, after: Duration) {
        let at = START + after;
        assert_eq!(self.retry(cost).await, Retry::At(at), "as told before");
        self.place.clock.set(at - MICRO);
        assert_eq!(self.retry(cost).await, Retry::At(at), "as told just before");
        self.place.clock.set(at);
        assert_eq!(
            self.retry(cost).await,
            Retry::Now,
            "at the time that was told"
        );
    }

    pub(super) async fn retry(&self, cost: u64) -> Retry {
        self.take(cost).await.states()[0].retry()
    }
}

pub(super) async fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    limiter.check(charges).await.expect("a decision")
}

pub(super) fn usage(decision: &Decision) -> Usage {
    decision.states()[0].usage().expect("counted")
}
