-- Blocks and unblocks keys for all instances, and returns what has changed since an instance last asked.
--
-- KEYS   1  a hash: by target the block
--        2  a sorted set: targets by the end of their block in ms; of one that was unblocked, by the time of that
--        3  a sorted set: targets by the version of their latest change
-- ARGV   now  us: the caller's time, or '' for the server's
--        then one of these:
--          BLOCK, target, duration in us, reason, the most targets
--          UNBLOCK, target
--          CHANGES, the version that the caller knows, 0 for none
-- Reply  of BLOCK and UNBLOCK: 1, or 0 if there are too many targets
--        of CHANGES: the time in us; 1 if there are further changes, else 0; the version after these changes, or the
--        caller's, or 0 if that is above all versions; then for each change the target, and its block or ''
-- State  a target is a policy's name or nothing, a colon, and a key. A block is 16 bytes and the reason:
--
--          0            8            16
--          +------------+------------+----------
--          | since (us) | until (us) | reason ..
--          +------------+------------+----------
--
--        Versions grow: each is the time of the change in us, or more. A target is kept for an hour after its block, so
--        that an instance that asks at least once an hour misses no change. The keys live as long as the last target.
--
-- Example: times with a `+` are us after 1700000000000000
--   at +0         'B' ':ada' 60000000 'scraping' 100000 -> 1
--   at +1000000   'C' 0 -> 1700000001000000, 0, 1700000000000000, ':ada', since +0 until +60000000 'scraping'
--   at +2000000   'U' ':ada' -> 1
--   at +3000000   'C' 1700000000000000 -> 1700000003000000, 0, 1700000002000000, ':ada', ''

local BLOCK, UNBLOCK, CHANGES = 'B', 'U', 'C'
-- How long a target is kept after its block, in ms; the most that are forgotten at once, and that one reply holds.
local KEPT, MAX_FORGOTTEN, PAGE = 3600000, 100, 1000

assert(#KEYS == 3, 'blocks: three keys')
local blocks, ends, versions = KEYS[1], KEYS[2], KEYS[3]
local action, target = ARGV[2], ARGV[3]

local now
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = ARGV[1] + 0
end
local now_millis = math.floor(now / 1000)

if action == CHANGES then
  local known = target
  local last = redis.call('ZRANGE', versions, '-1', '-1', 'WITHSCORES')[2]
  if not last or last + 0 < known + 0 then
    -- Changes were lost, so the next ones may have lower versions than the caller knows.
    known = '0'
  end
  local changes = redis.call('ZRANGE', versions, '(' .. known, '+inf', 'BYSCORE', 'LIMIT', '0', PAGE, 'WITHSCORES')
  local version = changes[#changes] or known
  local reply = { now, #changes == 2 * PAGE and 1 or 0, version + 0 }
  for i = 1, #changes, 2 do
    reply[#reply + 1] = changes[i]
    reply[#reply + 1] = redis.call('HGET', blocks, changes[i]) or ''
  end
  return reply
end

local forgotten = redis.call(
  'ZRANGE', ends, '-inf', now_millis - KEPT, 'BYSCORE', 'LIMIT', '0', MAX_FORGOTTEN
)
for i = 1, #forgotten do
  redis.call('HDEL', blocks, forgotten[i])
  redis.call('ZREM', ends, forgotten[i])
  redis.call('ZREM', versions, forgotten[i])
end

local last = redis.call('ZRANGE', versions, '-1', '-1', 'WITHSCORES')[2]
local version = last and last + 1 or now
version = version > now and version or now
local ends_at = now_millis
if action == BLOCK then
  local until_micros, most = now + ARGV[4], ARGV[6] + 0
  local is_known = redis.call('ZSCORE', ends, target)
  if not is_known and redis.call('ZCOUNT', ends, '-inf', '+inf') >= most then
    return 0
  end
  redis.call('HSET', blocks, target, struct.pack('>I8I8', now, until_micros) .. ARGV[5])
  ends_at = math.ceil(until_micros / 1000)
elseif action == UNBLOCK then
  redis.call('HDEL', blocks, target)
else
  return redis.error_reply('ERR blocks: unknown action')
end
redis.call('ZADD', ends, ends_at, target)
redis.call('ZADD', versions, version, target)
local lifetime = redis.call('ZRANGE', ends, '-1', '-1', 'WITHSCORES')[2] - now_millis + KEPT
for i = 1, #KEYS do
  redis.call('PEXPIRE', KEYS[i], lifetime)
end
return 1
