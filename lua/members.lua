-- Registers an instance, and returns the live instances if they have changed.
--
-- KEYS   one: a sorted set
-- ARGV   id        8 bytes that identify the instance
--        lifetime  ms that an instance counts after it was last registered
--        version   of the instances that the caller knows, 0 for none
--        now       us, optional: the caller's time, else the server's time counts
-- Reply  the present version; then, if it is not the caller's, the ids of all live instances
-- State  a sorted set
--
--          member         score
--          id (8 bytes)   when the instance was last registered, in ms
--          ''             the version: when the set of ids last changed, in us; above every time in ms
--
--        The key lives for one lifetime. A key that was lost gets a later version than it had.
--
-- Example: times with a `+` are us after 1700000000000000; a lifetime of 10 s
--   at +0         'instance' 10000 0 -> 1700000000000000, 'instance'
--   at +2000000   'another1' 10000 0 -> 1700000002000000, 'instance', 'another1'
--   at +3000000   'another1' 10000 1700000002000000 -> 1700000002000000: nothing has changed
--   at +12000000  'another1' 10000 1700000002000000 -> 1700000012000000, 'another1': the other one is 12 s old

local key, id, lifetime, known = KEYS[1], ARGV[1], ARGV[2] + 0, ARGV[3] + 0
assert(#KEYS == 1 and #id == 8, 'members: one key, and an id of 8 bytes')

local now
if ARGV[4] then
  now = ARGV[4] + 0
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local now_millis = math.floor(now / 1000)

local version = redis.call('ZSCORE', key, '')
-- Before anything is written, so that nothing is for a user who may not; again below if the key is new.
local has_lifetime = redis.call('PEXPIRE', key, lifetime) == 1
local removed = redis.call('ZREMRANGEBYSCORE', key, '-inf', now_millis - lifetime)
local added = redis.call('ZADD', key, now_millis, id)
if not version or removed + added > 0 then
  version = version and version + 1 or now
  version = version > now and version or now
  redis.call('ZADD', key, version, '')
end
if not has_lifetime then
  redis.call('PEXPIRE', key, lifetime)
end

version = version + 0
if version == known then
  return { version }
end
-- The version has the highest score. Lua passes fewer than 8,000 values to a function.
local reply = redis.call('ZRANGE', key, '0', '-2')
for i = #reply, 1, -1 do
  reply[i + 1] = reply[i]
end
reply[1] = version
return reply
