//! Programs that make each decision on a runtime of its own, or on one that they drive for each decision only.

use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tollgate::{Decision, Key, Policy, Quota, RateLimiter, decision::CountedBy};

use crate::support::Server;

/// Longer than anything here takes on a loaded machine.
const HUNG: Duration = Duration::from_secs(60);

/// How a program runs its decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Each on a runtime that ends with it.
    Ended,
    /// All on one runtime, which is driven until each of them is made.
    Undriven,
}

/// A program with one limiter.
struct Program {
    usage: Use,
    runtime: Runtime,
    limiter: RateLimiter,
}

impl Program {
    fn new(server: &Server, usage: Use) -> Self {
        let limiter = RateLimiter::builder().redis(server.url());
        let limiter = limiter.deadline(Duration::from_millis(250)).build();
        Self {
            usage,
            runtime: runtime(),
            limiter: limiter.expect("a usable limiter"),
        }
    }

    fn decide(&self, policy: &Policy, key: Key) -> Decision {
        let charges = [policy.charge(key)];
        let deciding = self.limiter.check(&charges);
        let decided = match self.usage {
            Use::Ended => runtime().block_on(deciding),
            Use::Undriven => self.runtime.block_on(deciding),
        };
        decided.expect("a decision")
    }

    /// Decides on a key of no other meaning until this is so.
    fn until(&self, is_so: impl Fn(&Decision) -> bool) {
        let (started, idle) = (
            Instant::now(),
            Policy::new("idle", Quota::per_second(1_000_000)),
        );
        while !is_so(&self.decide(&idle, Key::GLOBAL)) {
            let Self { usage, limiter, .. } = self;
            assert!(
                started.elapsed() < HUNG,
                "{usage:?}: {:?}",
                limiter.health()
            );
            std::thread::yield_now();
        }
    }
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

fn is_shared(decision: &Decision) -> bool {
    decision.counted_by() == CountedBy::Shared
}

// Regression: the task that registers the instance ended with the runtime of the decision. In an outage, the instance granted the
// whole quota, and others their share as if it did not exist.
#[test]
fn instance_is_registered() {
    let server = Server::start();
    for (before, usage) in [Use::Ended, Use::Undriven].into_iter().enumerate() {
        let program = Program::new(&server, usage);
        let instances = Some(before as u64 + 1);
        program.until(|_| program.limiter.health().instances() == instances);
    }
}

// Regression: each runtime ended before its task had probed Redis, or was not driven, so that the outage never ended.
#[test]
fn outage_ends_and_local_charges_are_merged() {
    for usage in [Use::Ended, Use::Undriven] {
        let mut server = Server::start();
        let program = Program::new(&server, usage);
        program.until(is_shared);
        server.kill();
        program.until(|_| program.limiter.health().is_degraded());
        let daily = Policy::new("daily", Quota::per_day(10));
        assert!(!is_shared(&program.decide(&daily, Key::new("ada"))));
        server.restart();
        program.until(is_shared);
        program.until(|_| program.limiter.health().pending_merges() == 0);
        let shared = program.decide(&daily, Key::new("ada"));
        let usage = shared.states()[0].usage().expect("it is counted");
        assert_eq!(usage.remaining, 8);
    }
}

// A probe dials on the runtime of the last caller, and at home once such a dial was in vain.
#[test]
fn outage_ends_while_nobody_drives_the_runtime_of_the_decisions() {
    let mut server = Server::start();
    let program = Program::new(&server, Use::Undriven);
    program.until(is_shared);
    server.kill();
    program.until(|_| program.limiter.health().is_degraded());
    server.restart();
    let started = Instant::now();
    while program.limiter.health().is_degraded() {
        assert!(started.elapsed() < HUNG, "{:?}", program.limiter.health());
        std::thread::yield_now();
    }
}
