-- Prelude of the decision script: what every algorithm needs.
--
-- The script is prelude.lua, one file per algorithm, and decide.lua, joined at compile time. It has no shebang and
-- uses no library but string and math, so that Redis 6.2 and compatible servers run it.
--
-- Numbers are doubles. Times are whole microseconds since the Unix epoch: exact below 2^53, the year 2255. A number
-- becomes text only through '%.0f'; '..' and tostring() would write 1.7e+15.

local call, pcall = redis.call, redis.pcall
local floor, ceil = math.floor, math.ceil
local find, format = string.find, string.format

-- Each algorithm registers itself under the tag that stands in ARGV:
--   algorithms[tag] = function(key, now, at) -> admitted, state, next_state, time_to_live, width
-- It reads its arguments from ARGV[at] on and tells how many they were; it writes nothing. admitted is nil when the
-- value under the key is none of tollgate's.
local algorithms = {}

-- Milliseconds that a key outlives its state. Before Redis 7.2 the clock moves while a script runs, so the expiry
-- may be counted from a moment before TIME was read.
local MARGIN = 1000

-- A bucket is full again within 2^50 us (35 years), so no script ever stores a time further ahead.
local FURTHEST = 1125899906842624

-- A time that was stored by this script: 16 digits from 2001 to 2286. 0 when the key does not exist, nil when its value
-- is anything else: one such key must not fail the whole call.
local function stored_time(key, now)
  local text = pcall('GET', key)
  if not text then
    return 0
  end
  local time = type(text) == 'string' and #text == 16 and not find(text, '%D') and tonumber(text)
  if not time or time > now + FURTHEST then
    return nil
  end
  return time
end
