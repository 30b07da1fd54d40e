//! The rate limits: rules from a file or from Redis, counted in process or in Redis.

use tollgate::{
    RateLimitLayer,
    builder::RateLimitLayerBuilder,
    config::reload::{ReloadError, RuleSource, RulesHandle},
    remote::RedisStore,
    top_keys::{ShownKeys, TopKeys},
};

use crate::{Failure, customers, settings::Settings};

/// Returns the layer, and the handle to see and replace its rules.
pub(crate) async fn build(settings: &Settings) -> Result<(RateLimitLayer, RulesHandle), Failure> {
    let source = if settings.has_shared_rules {
        let initial = customers::reader().read_file(&settings.rules);
        RuleSource::redis(initial.map_err(|faults| refused(&faults.into()))?)
    } else {
        RuleSource::file(&settings.rules)
    };
    let source = source.reader(customers::reader());
    let built = builder(settings)?.build_reloading(source);
    let (limit, rules) = built.map_err(|error| refused(&error))?;
    if settings.has_shared_rules {
        // Otherwise the rules of the file decide the first requests. They also do if this fails, which is logged.
        let _ = rules.reload().await;
    }
    Ok((limit, rules))
}

fn builder(settings: &Settings) -> Result<RateLimitLayerBuilder, Failure> {
    // Names of customers and addresses, as operators know them.
    let top_keys = TopKeys::builder().shown_keys(ShownKeys::plain()).build()?;
    let builder = RateLimitLayer::builder().top_keys(top_keys);
    Ok(match &settings.redis_url {
        Some(url) => builder.redis(RedisStore::builder(url).shared_blocks(true)),
        None => builder,
    })
}

fn refused(error: &ReloadError) -> String {
    match error {
        ReloadError::Rules(faults) => {
            format!("the rules cannot be used, so the gateway does not start:\n{faults}")
        }
        other => format!("the limits cannot be built: {other}"),
    }
}
