//! Shared by the benches: arguments, CPU times, histograms, the plain GCRA script, and the server and proxy of the tests.

mod arguments;
pub(crate) mod cpu;
mod histogram;
mod summary;
#[path = "../../tests/support/mod.rs"]
mod tests;

pub(crate) use self::arguments::Arguments;
pub(crate) use self::histogram::Histogram;
pub(crate) use self::summary::Summary;
pub(crate) use self::tests::{Mode, Proxy, Random, Server, unpack};

/// A hand-written GCRA script: the TAT as a string of 16 digits, on the server's clock. ARGV: emission interval and
/// tolerance, in microseconds.
pub(crate) const PLAIN_GCRA: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tat = tonumber(redis.call('GET', KEYS[1]) or 0)
if tat < now then
  tat = now
end
local moved = tat + tonumber(ARGV[1])
if moved - now > tonumber(ARGV[2]) then
  return { 0, 0, tat }
end
redis.call('SET', KEYS[1], string.format('%.0f', moved), 'PX', math.ceil((moved - now) / 1000))
return { 0, 1, moved }
";
