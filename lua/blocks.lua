-- Blocks and unblocks keys for all instances, and returns what has changed since an instance last asked.
--
-- KEYS   1  a hash: by target the block
--        2  a sorted set: targets by the end of their block in ms; of one that was unblocked, by the time of that
--        3  a sorted set: targets by the version of their latest change
-- ARGV   now  us: the caller's time, or '' for the server's
--        then one of these:
--          BLOCK, target, duration in us, reason, the most blocks in force
--          UNBLOCK, target, the most blocks in force
--          CHANGES, the version that the caller knows, 0 for none; the most blocks in force; the longest reason
-- Reply  of BLOCK: 1; or 0 if too many blocks are in force; or 2 if too many targets are kept after their block
--        of UNBLOCK: 1
--        of CHANGES: the time in us; 1 if there are further changes, else 0; the version after these changes, or the
--        caller's, or 0 if that is above all versions; how many targets are too many, of which the oldest changes are
--        left out; then for each change the target, and its block or ''
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
--        UNBLOCK keeps a target that is not known, too, because instances may know a block that Redis has lost, but
--        only while fewer targets are kept than the most blocks. BLOCK keeps a new target below twice as many.
--
-- Example: times with a `+` are us after 1700000000000000
--   at +0         'B' ':ada' 60000000 'scraping' 100000 -> 1
--   at +1000000   'C' 0 100000 200
--                 -> 1700000001000000, 0, 1700000000000000, 0, ':ada', since +0 until +60000000 'scraping'
--   at +2000000   'U' ':ada' 100000 -> 1
--   at +3000000   'C' 1700000000000000 100000 200 -> 1700000003000000, 0, 1700000002000000, 0, ':ada', ''

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
  local known, most, longest = target, ARGV[4] + 0, 16 + ARGV[5]
  local last = redis.call('ZRANGE', versions, '-1', '-1', 'WITHSCORES')[2]
  if not last or last + 0 < known + 0 then
    -- Changes were lost, so the next ones may have lower versions than the caller knows.
    known = '0'
  end
  -- Others than this script may have written targets, or there were twice as many within an hour.
  local excess = redis.call('ZCOUNT', versions, '-inf', '+inf') - 2 * most
  if excess > 0 then
    local newest = redis.call('ZRANGE', versions, excess - 1, excess - 1, 'WITHSCORES')[2]
    known = newest + 0 > known + 0 and newest or known
  end
  local changes = redis.call('ZRANGE', versions, '(' .. known, '+inf', 'BYSCORE', 'LIMIT', '0', PAGE, 'WITHSCORES')
  local version = changes[#changes] or known
  local reply = { now, #changes == 2 * PAGE and 1 or 0, version + 0, excess > 0 and excess or 0 }
  for i = 1, #changes, 2 do
    reply[#reply + 1] = changes[i]
    reply[#reply + 1] = string.sub(redis.call('HGET', blocks, changes[i]) or '', 1, longest)
  end
  return reply
end

if action ~= BLOCK and action ~= UNBLOCK then
  return redis.error_reply('ERR blocks: unknown action')
end
local most = ARGV[action == BLOCK and 6 or 4] + 0
local known_end = redis.call('ZSCORE', ends, target)
local kept_count = redis.call('ZCOUNT', ends, now_millis - KEPT + 1, '+inf')
local until_micros, ends_at = nil, now_millis
if action == BLOCK then
  until_micros = now + ARGV[4]
  ends_at = math.ceil(until_micros / 1000)
  local is_in_force = known_end and known_end + 0 > now_millis
  if not is_in_force and redis.call('ZCOUNT', ends, now_millis + 1, '+inf') >= most then
    return 0
  end
  if not known_end and kept_count >= 2 * most then
    return 2
  end
elseif not known_end and kept_count >= most then
  return 1
end

local function expire()
  local last_end = redis.call('ZRANGE', ends, '-1', '-1', 'WITHSCORES')[2] or 0
  last_end = last_end + 0 > ends_at and last_end or ends_at
  for i = 1, #KEYS do
    redis.call('PEXPIRE', KEYS[i], last_end - now_millis + KEPT)
  end
end
-- Before anything is written, so that nothing is for a user who may not; again below for keys that are new.
expire()

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
if action == BLOCK then
  redis.call('HSET', blocks, target, struct.pack('>I8I8', now, until_micros) .. ARGV[5])
else
  redis.call('HDEL', blocks, target)
end
redis.call('ZADD', ends, ends_at, target)
redis.call('ZADD', versions, version, target)
expire()
return 1
