//! The clients: open loop, over HTTP/1.1.

use std::{
    cell::RefCell,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time,
};

use super::{
    responses::{Seen, TENANTS},
    scenario::{Event, Scenario},
    server::CAPACITY,
};

/// Connections that wait for a request.
type Idle = Rc<RefCell<Vec<TcpStream>>>;

/// Sends the requests of a run, and returns what came back.
pub async fn run(scenario: &Scenario, seed: u64, address: SocketAddr) -> Vec<Seen> {
    let (seen, idle) = (Rc::new(RefCell::new(Vec::new())), Idle::default());
    let mut random = Random(seed);
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let start = Instant::now();
            let mut due = 0.0;
            let mut running = tokio::task::JoinSet::new();
            while due < scenario.seconds {
                let came_at = scenario.comes_at(due);
                let due_at = start + Duration::from_secs_f64(came_at);
                let ahead = due_at.saturating_duration_since(Instant::now());
                if ahead > Duration::from_millis(1) {
                    time::sleep(ahead).await;
                }
                while running.try_join_next().is_some() {}
                let request = Sent::draw(scenario, came_at, &mut random);
                let (seen, idle) = (Rc::clone(&seen), Rc::clone(&idle));
                running.spawn_local(async move {
                    let delay = due_at.elapsed().as_secs_f64();
                    let is_served = request.is_served_in_time(address, &idle).await;
                    seen.borrow_mut().push(Seen {
                        tenant: request.tenant,
                        class: request.class,
                        came_at,
                        delay,
                        took: is_served.then(|| due_at.elapsed().as_secs_f64()),
                    });
                });
                due += random.exponential(1.0 / (scenario.load * CAPACITY));
                tokio::task::yield_now().await;
            }
            running.join_all().await;
        })
        .await;
    seen.take()
}

struct Sent {
    tenant: usize,
    class: usize,
    /// A response after this time is late.
    in_time: Duration,
    /// When the client hangs up.
    patience: Duration,
    text: String,
}

impl Sent {
    fn draw(scenario: &Scenario, came_at: f64, random: &mut Random) -> Self {
        let tenant = match random.unit() < 0.9 {
            true => 0,
            false => 1 + (random.unit() * (TENANTS - 1) as f64) as usize,
        };
        let class = (random.unit() * 3.0) as usize;
        let is_slow = match scenario.event {
            Event::Poison => tenant == POISONER && scenario.is_during(came_at),
            _ => scenario.service == "mix" && random.unit() < 0.05,
        };
        let in_time = Duration::from_secs(if is_slow { 5 } else { 1 });
        let slow = if is_slow { "x-slow: 1\r\n" } else { "" };
        Self {
            tenant,
            class,
            in_time,
            patience: in_time.max(Duration::from_secs_f64(scenario.patience)),
            text: format!(
                "GET / HTTP/1.1\r\nhost: x\r\nx-tenant: t{tenant}\r\nx-class: {}\r\n{slow}\r\n",
                CLASSES[class]
            ),
        }
    }

    async fn is_served_in_time(&self, address: SocketAddr, idle: &Idle) -> bool {
        let start = Instant::now();
        let status = time::timeout(self.patience, ask(address, idle, self)).await;
        status == Ok(Some(200)) && start.elapsed() <= self.in_time
    }
}

/// Returns the status of the response.
async fn ask(address: SocketAddr, idle: &Idle, request: &Sent) -> Option<u16> {
    let free = idle.borrow_mut().pop();
    let mut stream = match free {
        Some(stream) => stream,
        None => TcpStream::connect(address).await.ok()?,
    };
    let _ = stream.set_nodelay(true);
    stream.write_all(request.text.as_bytes()).await.ok()?;
    let mut read = Vec::with_capacity(1_024);
    loop {
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        if read.len() >= end + 4 + length.unwrap_or(0) {
            idle.borrow_mut().push(stream);
            return head.get(9..12)?.parse().ok();
        }
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// One of the quiet tenants.
const POISONER: usize = 7;
const CLASSES: [&str; 3] = ["critical", "normal", "sheddable"];
