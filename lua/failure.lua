-- Failure: a key is denied for a time after each failure, longer each time. Twin: src/policy/penalty.rs.
--
-- KEYS   the key of the ban, as in lua/penalty.lua, which reads it
-- ARGV   the caller's time in us, or '' for the server's time
--        first     us: the length of the first delay
--        factor    by which each further delay is longer
--        longest   us: the length of the longest delay
--        forgiven  us after the end of a delay, when all is forgiven
-- Reply  the time in us at which the delay ends
-- State  as in lua/penalty.lua, with 0 denials
--
-- Example: delays from 1 s up to 15 minutes. Times with a `+` are us after 1700000000000000.
--   at +0        KEYS 't:{a}:p#b'  ARGV '' 1000000 2 900000000 900000000  -> +1000000
--   at +500000   KEYS 't:{a}:p#b'  ARGV '' 1000000 2 900000000 900000000  -> +2500000

local now
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = ARGV[1] + 0
end
local length, factor, longest, forgiven = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local count = 0
local stored = redis.call('GET', KEYS[1])
if stored then
  if #stored ~= 26 then
    return redis.error_reply('WRONGTYPE the key of the ban holds another value')
  end
  local bans, forgiven_at = struct.unpack('>I1', stored, 12), struct.unpack('>I7', stored, 20)
  if forgiven_at < 10 ^ 15 or forgiven_at > now + 2 ^ 50 then
    return redis.error_reply('WRONGTYPE the key of the ban holds another value')
  end
  if now < forgiven_at then
    count = bans
  end
end
for _ = 1, count do
  length = length * factor
  if length >= longest then
    length = longest
    break
  end
end
local ends = now + length
local state = struct.pack('>I7I4I1I7I7', now, 0, count < 255 and count + 1 or 255, ends, ends + forgiven)
redis.call('SET', KEYS[1], state, 'PX', math.ceil((length + forgiven) / 1000) + 1000)
return ends
