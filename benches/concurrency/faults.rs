//! Slots during a network stall and after the death of their holder.

use std::{
    env,
    process::{Child, Command},
    time::{Duration, Instant},
};

use tollgate::Policy;

use crate::{
    slots::Slots,
    support::{Mode, Proxy, Server},
};

pub(crate) fn run(server: &Server) {
    println!(
        "{COUNT} slots of {COUNT}, lease {LEASE:?}; another instance, whose connection does not stall, takes free slots\n"
    );
    println!("| fault | granted twice | leaked 1 s after | all free again after |");
    println!("|---|---|---|---|");
    let runtime = crate::runtime();
    runtime.block_on(async {
        for stall in [Duration::from_millis(100), LEASE / 2] {
            server.command(&["FLUSHALL"]);
            println!("{}", stalled_release(server, stall).await);
        }
        for stall in [Duration::from_millis(100), LEASE / 4, LEASE / 2] {
            server.command(&["FLUSHALL"]);
            println!("{}", stalled_holder(server, stall).await);
        }
        server.command(&["FLUSHALL"]);
        println!("{}", killed_holder(server).await);
    });
}

/// Holds all slots until the process is killed.
pub(crate) fn hold_until_killed(url: &str) {
    crate::runtime().block_on(async {
        let slots = Slots::usual(url, policy());
        let _held = slots.hold(slots.take_many(COUNT, COUNT).await);
        std::future::pending::<()>().await;
    });
}

/// Releases all slots during the stall.
async fn stalled_release(server: &Server, stall: Duration) -> String {
    let (proxy, slots, other) = instances(server).await;
    let held = slots.hold(slots.take_many(COUNT, COUNT).await);
    proxy.stall(stall);
    drop(held);
    tokio::time::sleep(stall).await;
    let ended = Instant::now();
    let (leaked, free) = until_free(&other, ended).await;
    row(
        &format!("released within a stall of {stall:?}"),
        0,
        leaked,
        free,
    )
}

/// Holds all slots through the stall, and for two leases after it.
async fn stalled_holder(server: &Server, stall: Duration) -> String {
    let (proxy, slots, other) = instances(server).await;
    let held = slots.hold(slots.take_many(COUNT, COUNT).await);
    proxy.stall(stall);
    let until = Instant::now() + stall + 2 * LEASE;
    let mut twice = Vec::new();
    while Instant::now() < until {
        // kept, or the same slot would be granted over and over
        twice.extend(other.take().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let count = twice.len();
    other.release_many(twice, COUNT).await;
    drop(held);
    let (leaked, free) = until_free(&other, Instant::now()).await;
    row(
        &format!("held through a stall of {stall:?}"),
        count,
        leaked,
        free,
    )
}

/// Lets another process hold all slots for a lease, and kills it.
async fn killed_holder(server: &Server) -> String {
    let (_proxy, _slots, other) = instances(server).await;
    let mut child = Holder::start(&server.url());
    while other.used().await != Some(COUNT as u64) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (until, mut twice) = (Instant::now() + LEASE, Vec::new());
    while Instant::now() < until {
        twice.extend(other.take().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child.kill();
    let count = twice.len();
    other.release_many(twice, COUNT).await;
    let (leaked, free) = until_free(&other, Instant::now()).await;
    row("holder killed with SIGKILL", count, leaked, free)
}

/// Returns the proxy, the instance behind it, and an instance with a direct connection.
async fn instances(server: &Server) -> (Proxy, Slots, Slots) {
    let proxy = Proxy::start(server.address()).await;
    proxy.set(Mode::Pass);
    let slots = Slots::usual(&proxy.url(), policy());
    let other = Slots::patient(&server.url(), policy());
    // dials and script loads are not part of the fault
    for slots in [&slots, &other] {
        while slots.used().await.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    (proxy, slots, other)
}

/// Returns the slots in use one second later, and the time until none is.
async fn until_free(other: &Slots, since: Instant) -> (u64, Duration) {
    let mut leaked = None;
    loop {
        let used = other.used().await.expect("the server answers");
        let passed = since.elapsed();
        if passed >= Duration::from_secs(1) && leaked.is_none() {
            leaked = Some(used);
        }
        if used == 0 {
            return (leaked.unwrap_or(0), passed);
        }
        assert!(passed < 10 * LEASE, "{used} slots are never free again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn row(fault: &str, twice: usize, leaked: u64, free: Duration) -> String {
    format!(
        "| {fault} | {twice} | {leaked} | {:.2} s |",
        free.as_secs_f64()
    )
}

fn policy() -> Policy {
    Slots::policy("held", COUNT as u64, LEASE)
}

/// A process that holds all slots, killed when dropped.
struct Holder(Child);

impl Holder {
    fn start(url: &str) -> Self {
        let program = env::current_exe().expect("the bench has a path");
        let child = Command::new(program).args(["--holder", url]).spawn();
        Self(child.expect("the bench can be run again"))
    }

    fn kill(&mut self) {
        // both fail only for a child that has ended already
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.kill();
    }
}

const COUNT: usize = 20;
const LEASE: Duration = Duration::from_secs(3);
