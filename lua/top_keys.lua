-- Stores what an instance shares of its top keys, for the others to read.
--
-- KEYS   one: a hash
-- ARGV   id        8 bytes that identify the instance
--        lifetime  ms that the hash lives after it was last written
--        most      instances that the hash may have
--        value     the snapshot of the instance
-- Reply  1, or 0 if the hash has no room for another instance
-- State  a hash: a field for each instance, by its id
--
-- Example: a lifetime of 10 s, and room for two instances
--   'instance' 10000 2 'first'  -> 1
--   'another1' 10000 2 'second' -> 1
--   'another2' 10000 2 'third'  -> 0
--   'instance' 10000 2 'fourth' -> 1: in place of its first value

local key, id, lifetime, most, value = KEYS[1], ARGV[1], ARGV[2], ARGV[3] + 0, ARGV[4]
assert(#KEYS == 1 and #id == 8, 'top keys: one key, and an id of 8 bytes')

if redis.call('HLEN', key) >= most and redis.call('HEXISTS', key, id) == 0 then
  return 0
end
-- Before anything is written, so that nothing is for a user who may not; again below if the key is new.
local has_lifetime = redis.call('PEXPIRE', key, lifetime) == 1
redis.call('HSET', key, id, value)
if not has_lifetime then
  redis.call('PEXPIRE', key, lifetime)
end
return 1
