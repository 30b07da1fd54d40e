//! A Redis server, and instances that share it.

use std::time::Duration;

use tollgate::{Policy, RateLimiter};

use super::support::{Mode, Proxy, Server};

/// A Redis server, and instances that share it.
pub(crate) struct Fleet {
    pub server: Server,
    pub limiters: Vec<RateLimiter>,
    calls_before: u64,
    _proxy: Proxy,
}

impl Fleet {
    /// Starts a server, and instances that are this far away from it.
    pub async fn start(instances: usize, policies: &[&Policy], delay: Duration) -> Self {
        let server = Server::start();
        let proxy = Proxy::start(server.address()).await;
        if !delay.is_zero() {
            proxy.set(Mode::RoundTrip(delay));
        }
        let url = if delay.is_zero() {
            server.url()
        } else {
            proxy.url()
        };
        let limiters = (0..instances).map(|_| limiter(policies, &url)).collect();
        let mut fleet = Self {
            server,
            limiters,
            calls_before: 0,
            _proxy: proxy,
        };
        fleet.calls_before = fleet.all_calls();
        fleet
    }

    /// Counts calls from now on.
    pub fn count_calls(&mut self) {
        self.calls_before = self.all_calls();
    }

    /// Returns the number of scripts since then.
    pub fn calls(&self) -> u64 {
        self.all_calls() - self.calls_before
    }

    fn all_calls(&self) -> u64 {
        let calls = self.server.command_calls();
        ["eval", "evalsha"]
            .iter()
            .filter_map(|name| calls.get(*name))
            .sum()
    }

    /// Returns the CPU time of the server.
    pub fn server_cpu(&self) -> Duration {
        super::support::cpu::of_main_thread(self.server.id())
    }
}

/// Returns an instance.
pub(crate) fn limiter(policies: &[&Policy], url: &str) -> RateLimiter {
    let builder = policies
        .iter()
        .fold(RateLimiter::builder(), |builder, policy| {
            builder.policy((*policy).clone())
        });
    builder.redis(url).build().expect("a usable limiter")
}

/// Returns the shortest of the gaps between these times, in microseconds.
pub(crate) fn least_gap(starts: &mut [u64]) -> u64 {
    starts.sort_unstable();
    let gaps = starts.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.min().unwrap_or_default()
}
