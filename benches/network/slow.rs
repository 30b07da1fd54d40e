//! A server that needs more time for each write, and nothing else.

use redis::{Connection, ConnectionLike, Script};

use crate::support::{PLAIN_GCRA, Server};

/// Keeps a server slow until it is dropped.
///
/// Every write sends keyspace events, and each event is compared with all patterns that somebody has subscribed to. With
/// patterns that match nothing, no message is made: the server just needs that much longer for each write, whichever way
/// it came and however many came together. Nothing else is slowed: neither reads, nor the socket, nor the proxy.
pub(crate) struct Slowed {
    /// Holds the subscriptions.
    _subscriber: Connection,
    /// What a plain GCRA decision costs now, in microseconds of its script.
    pub(crate) service_micros: f64,
}

impl Slowed {
    /// Subscribes to so many patterns that a plain GCRA decision takes about this long.
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

/// Microseconds in the plain script, per call, in the batch that was disturbed least.
fn plain_micros(server: &Server) -> f64 {
    let mut connection = server.connection();
    let batches = (0..BATCHES).map(|_| batch_micros(server, &mut connection));
    batches.fold(f64::INFINITY, f64::min)
}

/// Microseconds in the plain script, per call of one batch, by the server's own count.
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
