-- Pause: nobody who waits for a key starts before a time. A bucket is also emptied as of then, so that requests that
-- do not wait are denied until then, too, and no burst follows.
--
-- KEYS   the line of the key (lua/line_open.lua), then for a bucket its state (lua/token_bucket.lua)
-- ARGV   the caller's time in us, or '' for the server's time
--        length  of the pause in us
--        then for a bucket
--          tag     of the quota, 4 bytes
--          empty   us from an empty bucket to one with a unit less than it can hold
-- Reply  the time in us at which the pause ends. An earlier pause that ends later stays
-- State  the field `u` of the line, and the TAT of the bucket
--
-- Example: a bucket of 10 a minute. Times with a `+` are us after 1700000000000000.
--   at +0  KEYS 't:{a}:p#q' 't:{a}:p'  ARGV '' 3000000 'AAAA' 54000000  -> +3000000, TAT +57000000

local now
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = ARGV[1] + 0
end
local ends = now + ARGV[2]
local stored = redis.call('HGET', KEYS[1], 'u')
local before = stored and #stored == 7 and struct.unpack('>I7', stored) or 0
if before > ends and before < now + 2 ^ 50 then
  ends = before
end
redis.call('HSET', KEYS[1], 'u', struct.pack('>I7', ends))
local lives = redis.call('PTTL', KEYS[1])
local needed = math.ceil((ends - now) / 1000) + 60000
if lives < needed then
  redis.call('PEXPIRE', KEYS[1], needed)
end
if KEYS[2] then
  local tat = ends + ARGV[4]
  local needed_by_state = math.ceil((tat - now) / 1000) + 1000
  local state = redis.call('GET', KEYS[2])
  if not state then
    redis.call('SET', KEYS[2], struct.pack('>I7c4', tat, ARGV[3]), 'PX', needed_by_state)
  elseif #state >= 11 and string.sub(state, 8, 11) == ARGV[3] and struct.unpack('>I7', state) < tat then
    redis.call('SETRANGE', KEYS[2], '0', struct.pack('>I7', tat))
    if redis.call('PTTL', KEYS[2]) < needed_by_state then
      redis.call('PEXPIRE', KEYS[2], needed_by_state)
    end
  end
end
return ends
