//! The subjects: policies of this crate, and peers that decide in process and report to Redis.

use std::sync::Arc;

use limitador_redis::{AsyncRateLimiter, limit::Limit, storage::redis::CachedRedisStorage};
use tollgate::{
    Consistency, Key, Percent, Policy, Quota, RateLimiter, decision::CountedBy, remote::RedisStore,
};
use trypema::{
    RateLimit, RateLimitDecision, RateLimiterBuilder as _, WindowSize,
    hybrid::HybridRateLimiterProvider, redis::RedisKey,
};

pub enum Subject {
    Tollgate {
        limiter: RateLimiter,
        policy: Policy,
        keys: Vec<Key>,
    },
    /// Fixed windows of a second, in process, written to Redis now and then.
    Limitador(AsyncRateLimiter),
    /// A sliding window of a second, as before.
    Trypema(Arc<HybridRateLimiterProvider>, RateLimit, Vec<RedisKey>),
}

/// All subjects, by name.
pub const ALL: [&str; 7] = [
    "strict",
    "strict without the denial cache",
    "leased",
    "delayed 1 %",
    "delayed 5 %",
    "limitador cached",
    "trypema hybrid",
];

impl Subject {
    pub async fn new(name: &str, url: String, (limit, burst): (f64, u64), keys: u64) -> Self {
        match name {
            "limitador cached" => {
                let storage = CachedRedisStorage::new(&url).await;
                let storage = Box::new(storage.expect("the server is up"));
                let limiter = AsyncRateLimiter::new_with_storage(storage);
                let none: [&str; 0] = [];
                limiter.add_limit(Limit::new("fleet", limit as i64, 1, none, ["key"]));
                Self::Limitador(limiter)
            }
            "trypema hybrid" => {
                let client = redis::Client::open(url).expect("the url is well formed");
                let connection = client.get_connection_manager().await;
                let connection = connection.expect("the server is up");
                let provider = HybridRateLimiterProvider::builder(connection)
                    .window_size(WindowSize::seconds_or_panic(1));
                let names = (0..keys).map(|key| RedisKey::try_from(key.to_string()));
                Self::Trypema(
                    provider.build().expect("usable settings"),
                    RateLimit::per_second_or_panic(limit),
                    names.map(|name| name.expect("a usable key")).collect(),
                )
            }
            _ => {
                let quota = Quota::per_second(limit as u64).burst(burst);
                let store = RedisStore::builder(url)
                    .deadline(std::time::Duration::from_secs(5))
                    .denial_cache(!name.ends_with("without the denial cache"));
                let limiter = RateLimiter::builder().redis(store).build();
                Self::Tollgate {
                    limiter: limiter.expect("a usable limiter"),
                    policy: Policy::new("fleet", quota).consistency(consistency(name)),
                    keys: (0..keys).map(Key::from).collect(),
                }
            }
        }
    }

    /// Asks for a unit of a key. Returns whether it was admitted, and whether this process decided that by itself; a peer does
    /// not tell.
    pub async fn ask(&self, place: u32) -> (bool, bool) {
        match self {
            Self::Tollgate {
                limiter,
                policy,
                keys,
            } => {
                let decision = limiter.check(&[policy.charge(keys[place as usize])]).await;
                let decision = decision.expect("a decision");
                let here = matches!(
                    decision.counted_by(),
                    CountedBy::Lease | CountedBy::DenialCache
                );
                (decision.is_allowed(), here)
            }
            Self::Limitador(limiter) => {
                let values = [("key".to_owned(), place.to_string())].into();
                let checked = limiter
                    .check_rate_limited_and_update(&"fleet".into(), &values, 1, false)
                    .await;
                (!checked.expect("Redis responds").limited, false)
            }
            Self::Trypema(provider, rate, keys) => {
                let decided = provider
                    .absolute()
                    .inc(&keys[place as usize], rate, 1)
                    .await;
                let decided = decided.expect("Redis responds");
                (matches!(decided, RateLimitDecision::Allowed), false)
            }
        }
    }
}

fn consistency(name: &str) -> Consistency {
    let delayed = |percent| Consistency::Delayed {
        overshoot: Percent::new(percent),
    };
    match name {
        "leased" => Consistency::Leased,
        "delayed 1 %" => delayed(1.0),
        "delayed 5 %" => delayed(5.0),
        _ => Consistency::Strict,
    }
}
