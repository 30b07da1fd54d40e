-- Stores rules as the next version and announces it, unless others were stored meanwhile.
--
-- KEYS   one: a hash
-- ARGV   replaced  the stored version that the caller has seen, 0 for none
--        floor     a version that is in use: the next one is above it, even if the key was lost
--        format    of the text
--        text      the rules
--        author    who stores them, may be empty
--        comment   why, may be empty
--        now       us, optional: the caller's time, else the server's time counts
-- Reply  1, the new version, and its time in us; or 0 and the stored version: then nothing has changed; or 2: the key
--        holds a version that tollgate did not write
-- State  a hash
--
--          field       value
--          version     the latest version
--          time        when it was stored, in us
--          7:text      the rules of version 7; so for the latest ten versions
--          7:format    7:author    7:comment    7:time
--
--        The key has no expiry: rules stay until others replace them. The channel with the name of
--        the key gets each new version.
--
-- Example: times with a `+` are us after 1700000000000000
--   at +1  0 0 'yaml' 'rules: []' 'ada' 'first' -> 1 1 1700000000000001
--   at +2  1 1 'yaml' 'rules: 2' 'ada' '' -> 1 2 1700000000000002
--   at +3  1 1 'yaml' 'rules: 3' 'bob' '' -> 0 2: version 2 was stored meanwhile

local key, replaced, floor = KEYS[1], ARGV[1] + 0, ARGV[2] + 0
local format, text, author, comment = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
assert(#KEYS == 1 and #text > 0 and comment, 'rules: one key, a text, an author and a comment')

local now
if ARGV[7] then
  now = ARGV[7] + 0
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local stored = redis.call('HGET', key, 'version') or '0'
if not string.find(stored, '^%d+$') then
  return { 2 }
end
stored = stored + 0
if stored ~= replaced then
  return { 0, stored }
end
local version = (stored > floor and stored or floor) + 1
-- Before anything is written: for a user who may not read the fields or publish, nothing is stored.
local fields = redis.call('HKEYS', key)
redis.call('PUBLISH', key, version)
redis.call('HSET', key, 'version', version, 'time', now)
-- As the server writes it, since it is part of names.
local name = redis.call('HGET', key, 'version')
redis.call('HSET', key, name .. ':text', text, name .. ':format', format, name .. ':author', author)
redis.call('HSET', key, name .. ':comment', comment, name .. ':time', now)

local count, oldest = 1, name
for _, field in ipairs(fields) do
  if string.find(field, '^%d+:text$') then
    local other = string.sub(field, 1, -6)
    count = count + 1
    oldest = other + 0 < oldest + 0 and other or oldest
  end
end
if count > 10 then
  redis.call('HDEL', key, oldest .. ':text', oldest .. ':format', oldest .. ':author')
  redis.call('HDEL', key, oldest .. ':comment', oldest .. ':time')
end
return { 1, version, now }
