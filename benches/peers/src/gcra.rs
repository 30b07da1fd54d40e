//! GCRA in Redis as written by hand: one `EVALSHA` per decision.

use redis::{Cmd, Script, aio::MultiplexedConnection};

/// KEYS[1]; ARGV: the emission interval and the burst, both in microseconds. Reply: allowed (0 or 1), TAT.
const SCRIPT: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tat = tonumber(redis.call('GET', KEYS[1]) or 0)
if tat < now then
  tat = now
end
local moved = tat + tonumber(ARGV[1])
if moved - now > tonumber(ARGV[2]) then
  return { 0, tat }
end
redis.call('SET', KEYS[1], string.format('%.0f', moved), 'PX', math.ceil((moved - now) / 1000))
return { 1, moved }
";

/// Loads the script into the server and returns its SHA-1.
///
/// # Panics
///
/// Panics if the server rejects it.
pub async fn load(connection: &mut MultiplexedConnection) -> String {
    let script = Script::new(SCRIPT);
    let loaded = script.prepare_invoke().load_async(connection).await;
    loaded.expect("the script compiles");
    script.get_hash().to_owned()
}

/// The command that decides one request of this key. Reply: allowed (0 or 1), TAT.
pub fn decide(hash: &str, key: &str) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command
        .arg(hash)
        .arg(1)
        .arg(key)
        .arg(1_000_000)
        .arg(BURST_SECONDS * 1_000_000);
    command
}

/// At one unit a second every key stays in debt and none runs out: a burst of 30 years.
pub const BURST_SECONDS: u64 = 1_000_000_000;
