//! A Redis server whose writes take longer.

use redis::{Connection, ConnectionLike, Script};

use crate::support::{PLAIN_GCRA, Server};

/// Slows a server down until it is dropped.
///
/// Redis publishes keyspace events for each write and compares every event with all subscribed patterns. A thousand
/// patterns that match nothing produce no message, and cost some 35 us per write. So the service time of the server grows
/// per decision, batched or not; reads, sockets and the proxy are as quick as before.
pub(crate) struct SlowServer {
    /// The connection that holds the subscriptions.
    _subscriber: Connection,
    /// Script time of a plain GCRA decision on the slowed server, in microseconds.
    pub(crate) service_micros: f64,
}

impl SlowServer {
    /// Subscribes to as many patterns as it takes for a plain GCRA decision to need about `service_micros`.
    pub(crate) fn to(server: &Server, service_micros: f64) -> Self {
        server.command(&["CONFIG", "SET", "notify-keyspace-events", "KEA"]);
        let mut subscriber = server.connection();
        let bare = plain_micros(server);
        if service_micros > bare {
            subscribe(&mut subscriber, 0..TRIAL);
            let each = (plain_micros(server) - bare) / TRIAL as f64;
            let count = ((service_micros - bare) / each) as usize;
            subscribe(&mut subscriber, TRIAL..count.max(TRIAL));
        }
        Self {
            _subscriber: subscriber,
            service_micros: plain_micros(server),
        }
    }
}

fn subscribe(subscriber: &mut Connection, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let mut command = redis::cmd("PSUBSCRIBE");
        command.arg(format!("nothing:{number}"));
        let packed = command.get_packed_command();
        let replied = subscriber.req_packed_command(&packed);
        replied.expect("a pattern can be subscribed to");
    }
}

/// Returns the script time per call of the plain script, in microseconds: that of the fastest batch.
fn plain_micros(server: &Server) -> f64 {
    let mut connection = server.connection();
    let batches = (0..BATCHES).map(|_| batch_micros(server, &mut connection));
    batches.fold(f64::INFINITY, f64::min)
}

/// Returns the script time per call in one batch, from `INFO commandstats`.
fn batch_micros(server: &Server, connection: &mut Connection) -> f64 {
    let script = Script::new(PLAIN_GCRA);
    server.flush_stats();
    for number in 0..CALLS {
        let reply = script
            .key(format!("slow:{}", number % 100))
            .arg(1_000_000)
            .arg(1_000_000_000_000_000_u64)
            .invoke::<[u64; 3]>(connection);
        reply.expect("the server decides");
    }
    let statistics = server.info("commandstats").remove("cmdstat_evalsha");
    let statistics = statistics.expect("it ran");
    let micros = statistics.split_once("usec_per_call=");
    let micros = micros.and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
    micros.expect("it has the number")
}

const TRIAL: usize = 200;
const BATCHES: usize = 10;
const CALLS: usize = 200;
