//! Redis time per operation, by the number of slots under the key.

use std::{ops::AddAssign, time::Duration};

use redis::Value;

use crate::{
    bystander::Bystander,
    slots::Slots,
    support::{Arguments, Server, cpu},
};

pub(crate) fn run(server: &Server, arguments: &Arguments) {
    let lease = arguments.seconds("--lease", 30.0);
    println!(
        "costs are script us, CPU us per operation; bystander: p50/p99/max ms, share of decisions not made by Redis; \
         lease {lease:?}\n"
    );
    println!(
        "| slots taken | take | denial | release | take of 64 | denial of 64 | release of 64 | renewal | \
         bytes a slot | granted twice | lost | bystander alone | \
         while filling | one at a time | 64 at once | while held |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for limit in arguments.list("--limits", &[100, 10_000, 100_000]) {
        let policy = Slots::policy("slots", limit, lease);
        match policy.validate() {
            Ok(()) => {
                server.command(&["FLUSHALL"]);
                let slots = Slots::patient(&server.url(), policy);
                println!(
                    "{}",
                    crate::runtime().block_on(row(server, &slots, limit, lease))
                );
            }
            Err(error) => println!("| {limit} | refused: {error} |"),
        }
    }
    println!();
}

async fn row(server: &Server, slots: &Slots, limit: u64, lease: Duration) -> String {
    let limit = limit as usize;
    let spare = (limit / 10).clamp(10, 1_000);
    let base = limit - spare;
    let pid = server.info("server")["process_id"].parse();
    let pid = pid.expect("a number");
    let bystander = Bystander::start(&server.url());
    let meter = Meter { server, pid };
    tokio::time::sleep(Duration::from_secs(1)).await;
    let alone = bystander.report();

    let held = slots.hold(slots.take_many(base, 64).await);
    let filling = bystander.report();
    let bytes = bytes(server) as f64 / base as f64;

    // once for the cost without the bystander's decisions, and once for the bystander's latency
    bystander.pause(true);
    let one = cycles(slots, &meter, spare, 1).await;
    let many = cycles(slots, &meter, spare, 64).await;
    bystander.pause(false);
    let _ = bystander.report();
    cycles(slots, &meter, spare, 1).await;
    let one_at_a_time = bystander.report();
    cycles(slots, &meter, spare, 64).await;
    let at_once = bystander.report();

    bystander.pause(true);
    let period = lease / 3;
    let before = meter.read();
    tokio::time::sleep(period).await;
    let renewal = before.until(&meter.read(), base, 1.0);
    bystander.pause(false);
    let _ = bystander.report();
    tokio::time::sleep(period).await;
    let while_held = bystander.report();
    let used = slots.used().await.expect("the server answers");
    let lost = base as i64 - used as i64;
    drop(held);

    let pair = |cost: &Cost| format!("{:.1}, {:.1}", cost.script, cost.cpu);
    format!(
        "| {base} to {limit} | {} | {} | {} | {} | {} | {} | {} ({:.0} % of a core) | {bytes:.0} | {} | {lost} | {alone} | \
         {filling} | {one_at_a_time} | {at_once} | {while_held} |",
        pair(&one.take),
        pair(&one.denial),
        pair(&one.release),
        pair(&many.take),
        pair(&many.denial),
        pair(&many.release),
        pair(&renewal),
        100.0 * renewal.cpu * base as f64 / period.as_micros() as f64,
        one.granted_twice + many.granted_twice,
    )
}

/// The cost of each operation.
#[derive(Default)]
struct Costs {
    take: Cost,
    denial: Cost,
    release: Cost,
    /// Slots that were granted while all were held.
    granted_twice: usize,
}

/// Server time per operation, in microseconds.
#[derive(Default)]
struct Cost {
    script: f64,
    cpu: f64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.script += other.script;
        self.cpu += other.cpu;
    }
}

/// Takes all free slots, asks for as many in vain, and releases them, until a thousand slots were taken.
async fn cycles(slots: &Slots, meter: &Meter<'_>, spare: usize, at_once: usize) -> Costs {
    let mut costs = Costs::default();
    let count = OPERATIONS.div_ceil(spare);
    let each = 1.0 / count as f64;
    for _ in 0..count {
        let before = meter.read();
        let receipts = slots.take_many(spare, at_once).await;
        let taken = meter.read();
        let granted_twice = slots.ask_in_vain(spare, at_once).await;
        let denied = meter.read();
        costs.granted_twice += granted_twice.len();
        slots.release_many(granted_twice, at_once).await;
        let before_release = meter.read();
        slots.release_many(receipts, at_once).await;
        let released = meter.read();
        costs.take += before.until(&taken, spare, each);
        costs.denial += taken.until(&denied, spare, each);
        costs.release += before_release.until(&released, spare, each);
    }
    costs
}

/// Reads the time that the server has used.
struct Meter<'a> {
    server: &'a Server,
    pid: u32,
}

impl Meter<'_> {
    fn read(&self) -> Reading {
        let statistics = self.server.info("commandstats");
        let micros = |name: &str| -> u64 {
            let text = statistics.get(&format!("cmdstat_{name}"));
            let micros = text.and_then(|text| text.split_once("usec=")?.1.split(',').next());
            micros.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        Reading {
            script: Duration::from_micros(micros("evalsha") + micros("eval")),
            cpu: cpu::of_main_thread(self.pid),
        }
    }
}

struct Reading {
    script: Duration,
    cpu: Duration,
}

impl Reading {
    /// Returns the cost per operation between two readings, times `weight`.
    fn until(&self, later: &Self, operations: usize, weight: f64) -> Cost {
        let each = |from: Duration, to: Duration| {
            weight * to.saturating_sub(from).as_secs_f64() * 1e6 / operations as f64
        };
        Cost {
            script: each(self.script, later.script),
            cpu: each(self.cpu, later.cpu),
        }
    }
}

/// Returns the memory of all keys but the bystander's.
fn bytes(server: &Server) -> i64 {
    let keys = server.keys().into_iter();
    keys.filter(|key| !key.contains("bystander"))
        .map(
            |key| match server.command(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]) {
                Value::Int(bytes) => bytes,
                other => panic!("{other:?}"),
            },
        )
        .sum()
}

const OPERATIONS: usize = 1_000;
