//! Settings of regions.

use std::{fmt, time::Duration};

use crate::{
    error::{Error, ErrorKind},
    key::Key,
    policy::Percent,
    remote::{builder::RedisStoreBuilder, store::RedisStore},
};

use super::{
    home::Home,
    placement::{self, FixedHome, Placement},
    pots::Pots,
    store::RegionStore,
};

/// Servers in several regions that share limits.
///
/// Each region decides at its own server, so at the latency of that. [`here`](Self::here) takes the region of this process, and
/// [`region`](Self::region) each other one. All processes name the same regions. A policy must be a token or leaky bucket, and not
/// count denied requests.
///
/// # Examples
///
/// ```no_run
/// use tollgate::{Policy, Quota, RateLimiter, remote::Regions};
///
/// # fn main() -> Result<(), tollgate::Error> {
/// let regions = Regions::here("eu-west", "redis://redis.eu-west.internal")
///     .region("us-east", "redis://redis.us-east.internal")
///     .region("ap-south", "redis://redis.ap-south.internal");
/// let limiter = RateLimiter::builder()
///     .regions(regions)
///     .policy(Policy::new("tenant", Quota::per_second(1_000)))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "settings do nothing until a limiter is built with them"]
pub struct Regions {
    here: Region,
    others: Vec<Region>,
    fixed_homes: Vec<FixedHome>,
    share: Option<Percent>,
    wait: Duration,
    report_timeout: Duration,
}

#[derive(Clone)]
struct Region {
    name: String,
    server: Box<RedisStoreBuilder>,
}

impl Regions {
    /// Returns settings with the region of this process, and its server.
    pub fn here(name: impl Into<String>, server: impl Into<RedisStoreBuilder>) -> Self {
        Self {
            here: Region::new(name, server),
            others: Vec::new(),
            fixed_homes: Vec::new(),
            share: None,
            wait: Duration::from_millis(500),
            report_timeout: Duration::from_secs(1),
        }
    }

    /// Adds another region, and its server.
    ///
    /// Its deadline is the [`report_timeout`](Self::report_timeout), and its connect timeout at least 2 s.
    pub fn region(mut self, name: impl Into<String>, server: impl Into<RedisStoreBuilder>) -> Self {
        self.others.push(Region::new(name, server));
        self
    }

    /// Sets the region that is the home of the keys for which `has` returns true.
    ///
    /// Default: a hash chooses the home of each key. The first call that has a key counts. For example, `|_| true` makes one region the
    /// home of all keys, so that their requests there never wait for another region.
    ///
    /// `has` takes the key as [`Key::as_str`] returns it, but without the tag of [`co_located_with`](Key::co_located_with): joined keys
    /// as `a|b`, labelled ones as `label!a`, and keys that are too long as hashes. It is called for each decision, so it must not
    /// block. All processes must have the same fixed homes in the same order: while they differ, a key may have two homes, and twice
    /// its limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, remote::Regions};
    ///
    /// let regions = Regions::here("us-east", "redis://redis.us-east.internal")
    ///     .region("eu-west", "redis://redis.eu-west.internal")
    ///     .fixed_home("eu-west", |tenant| tenant.starts_with("eu-"))
    ///     .fixed_home("us-east", |tenant| tenant.starts_with("us-"));
    /// assert_eq!(regions.home_of(&Key::new("eu-acme")), "eu-west");
    /// ```
    pub fn fixed_home(
        mut self,
        region: impl Into<String>,
        has: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.fixed_homes.push(FixedHome::new(region.into(), has));
        self
    }

    /// Sets the part of each limit that this region admits for itself while it cannot reach a key's home.
    ///
    /// Default: 100 % divided by the number of regions. From 0.1 to 100 %. Policies whose `OnOutage` is `Allow` or `Deny` allow or
    /// deny then.
    pub fn share(mut self, share: Percent) -> Self {
        self.share = Some(share);
        self
    }

    /// Sets how long a request waits for a key's home, if this region has no units of the key and the home may have some.
    ///
    /// Default: 500 ms. If the home has not replied by then, it is decided as if the home could not be reached, else denied. At most
    /// 10 s.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = longest;
        self
    }

    /// Sets how long a report to another region takes at most, before it counts as lost.
    ///
    /// Default: 1 s. Set several round trips to the farthest region. At most 1.5 s, since other instances take a report for lost
    /// after 2 s.
    pub fn report_timeout(mut self, timeout: Duration) -> Self {
        self.report_timeout = timeout;
        self
    }

    /// Returns the region that is the home of a key.
    #[must_use]
    pub fn home_of(&self, key: &Key) -> &str {
        placement::home_of(&self.names(), &self.fixed_homes, key)
    }

    /// Returns the names of all regions, with this one first.
    fn names(&self) -> Vec<&str> {
        let others = self.others.iter().map(|other| other.name.as_str());
        std::iter::once(self.here.name.as_str())
            .chain(others)
            .collect()
    }

    /// Returns the server of this region.
    pub(crate) fn own_server(&self) -> RedisStoreBuilder {
        (*self.here.server).clone()
    }

    /// Returns the store over all regions. `here` is that of this region.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for names and times that cannot be used, and those of the other servers.
    pub(crate) fn build(self, here: RedisStore) -> Result<RegionStore, Error> {
        self.validate()?;
        let share = match self.share {
            Some(share) => share.of(1_000),
            None => 1_000 / (self.others.len() + 1) as u64,
        };
        let placement = Placement::new(&self.names(), &self.fixed_homes);
        let homes = self.others.into_iter().map(|region| {
            let server = region
                .server
                .deadline(self.report_timeout)
                .connect_timeout_at_least(Duration::from_secs(2));
            Ok(Home::new(region.name, server.build()?))
        });
        let homes = homes.collect::<Result<_, Error>>()?;
        let share = share.try_into().unwrap_or(u16::MAX).max(1);
        let pots = Pots::new(here, homes, placement, share, self.wait);
        Ok(RegionStore::new(pots))
    }

    fn validate(&self) -> Result<(), Error> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidConfig, message));
        if self.others.is_empty() {
            return invalid(
                "regions with one region: add the others by region(), or use redis()".to_owned(),
            );
        }
        if self.others.len() >= usize::from(u8::MAX) {
            return invalid("over 255 regions".to_owned());
        }
        let regions: Vec<&Region> = std::iter::once(&self.here).chain(&self.others).collect();
        for (place, region) in regions.iter().enumerate() {
            if region.name.is_empty() {
                return invalid(
                    "a region without a name: all processes must name it alike".to_owned(),
                );
            }
            if regions[..place]
                .iter()
                .any(|other| other.name == region.name)
            {
                return invalid(format!(
                    "two regions are named {:?}: name each once",
                    region.name
                ));
            }
            if region.server.has_own_clock() {
                return invalid(format!(
                    "client_time in region {:?}: units end by the clock of each region's server",
                    region.name
                ));
            }
        }
        let names = self.names();
        for fixed in &self.fixed_homes {
            if !names.contains(&fixed.region()) {
                return invalid(format!(
                    "fixed_home in an unknown region {:?}: add it by region()",
                    fixed.region()
                ));
            }
        }
        if let Some(share) = self.share
            && !share.is_a_part()
        {
            return invalid("a share of a region below 0.1 or above 100 %".to_owned());
        }
        if self.wait > LONGEST_WAIT {
            return invalid("a region waits for over 10 s: callers have gone by then".to_owned());
        }
        if self.report_timeout.is_zero() || self.report_timeout > LONGEST_REPORT {
            return invalid(
                "report_timeout of zero or above 1.5 s: a report counts as lost after 2 s"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

impl Region {
    fn new(name: impl Into<String>, server: impl Into<RedisStoreBuilder>) -> Self {
        Self {
            name: name.into(),
            server: Box::new(server.into()),
        }
    }
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others: Vec<&str> = self
            .others
            .iter()
            .map(|other| other.name.as_str())
            .collect();
        f.debug_struct("Regions")
            .field("here", &self.here.name)
            .field("others", &others)
            .field("fixed_homes", &self.fixed_homes)
            .field("share", &self.share)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

const LONGEST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_REPORT: Duration = Duration::from_millis(1_500);
