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
    responses::{Outcome, Seen, TENANTS},
    server::CAPACITY,
};

#[derive(Clone, Copy)]
pub struct Setup {
    pub service: &'static str,
    pub load: f64,
    pub warm_up: Duration,
    pub seconds: Duration,
    pub seed: u64,
}

/// Connections that wait for a request.
type Idle = Rc<RefCell<Vec<TcpStream>>>;

pub async fn run(setup: Setup, address: SocketAddr) -> Outcome {
    let (seen, idle) = (Rc::new(RefCell::new(Seen::default())), Idle::default());
    let mut random = Random(setup.seed);
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let start = Instant::now();
            let end = setup.warm_up + setup.seconds;
            let mut due = Duration::ZERO;
            let mut running = tokio::task::JoinSet::new();
            while due < end {
                let ahead = due.saturating_sub(start.elapsed());
                if ahead > Duration::from_millis(1) {
                    time::sleep(ahead).await;
                }
                while running.try_join_next().is_some() {}
                let request = Sent::draw(setup.service, &mut random);
                let (seen, idle) = (Rc::clone(&seen), Rc::clone(&idle));
                let (sent_at, is_measured) = (start + due, due > setup.warm_up);
                running.spawn_local(async move {
                    let answer = time::timeout(request.patience, ask(address, &idle, &request));
                    let is_served = answer.await == Ok(Some(200));
                    if is_measured {
                        seen.borrow_mut().note(
                            (request.tenant, request.class),
                            is_served.then(|| sent_at.elapsed()),
                        );
                    }
                });
                due += random.exponential(1.0 / (setup.load * CAPACITY));
                tokio::task::yield_now().await;
            }
            running.join_all().await;
        })
        .await;
    let seen = seen.borrow();
    seen.outcome(setup.seconds)
}

struct Sent {
    tenant: usize,
    class: usize,
    patience: Duration,
    text: String,
}

impl Sent {
    fn draw(service: &str, random: &mut Random) -> Self {
        let tenant = match random.unit() < 0.9 {
            true => 0,
            false => 1 + (random.unit() * (TENANTS - 1) as f64) as usize,
        };
        let class = (random.unit() * 3.0) as usize;
        let is_slow = service == "mix" && random.unit() < 0.05;
        let slow = if is_slow { "x-slow: 1\r\n" } else { "" };
        Self {
            tenant,
            class,
            patience: Duration::from_secs(if is_slow { 5 } else { 1 }),
            text: format!(
                "GET / HTTP/1.1\r\nhost: x\r\nx-tenant: t{tenant}\r\nx-class: {}\r\n{slow}\r\n",
                CLASSES[class]
            ),
        }
    }
}

/// Returns the status of the answer.
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

    fn exponential(&mut self, mean: f64) -> Duration {
        Duration::from_secs_f64(-mean * (1.0 - self.unit()).ln())
    }
}

const CLASSES: [&str; 3] = ["critical", "normal", "sheddable"];
