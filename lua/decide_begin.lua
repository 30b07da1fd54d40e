-- Decides groups of charges. A group is one request: all of its charges are made, or none. Groups are decided one after
-- the other, as if each had come in a call of its own.
--
-- KEYS  one per charge, in order; all in one slot of a cluster
-- ARGV  '@' and the caller's time in us, or neither for the server's time; then the groups. Per charge the tag of its
--       algorithm with that one's arguments; before a group of several charges '*' and their number; before a tag
--         '!'  an attempt that is denied counts too, at most until nothing is left
--         '+'  the charge is made whether it fits or not
--         '#'  the same, by a probe, which also tries the commands that only long logs need
--         '-'  and by what the charge is known, when all was to be back in us and what had been taken back by then: the
--              charge is taken back from what it still weighs
--         '/'  the lease of the charge's slots begins anew
--         ','  and the same two: the charge is taken back from a queue if nobody stands behind it
-- Reply: one string of integers of 8 bytes each, the highest byte first: the time it was decided at in us, then per group
--       1 (all admitted), 0 (not all) or 2 (a value under one of its keys is none of tollgate's, so nothing was decided),
--       and per charge 1 or 0 (it had room by itself), and 2 more when one number more than usual is told; and what its
--       algorithm tells of the state: the new one when something was counted, else the old one
--
-- Example: KEYS 'tollgate:{ada}:user', ARGV 'wAAAA' 6000000 60000000
--   -> 1700000000000000, 1, 1, 1700000006000000
--
-- The script is decide_begin.lua, one branch per algorithm from a file of its own, and decide_end.lua, joined at compile
-- time. Branches and not functions: making and calling those took a quarter of what a decision costs the server. It has
-- no shebang and uses no library but string, math and struct, so that Redis 6.2 and compatible servers run it.
--
-- Numbers are doubles. Times are whole microseconds since the Unix epoch: exact below 2^53, the year 2255. States are
-- packed bytes, the highest first. A number goes to a command as it is, since the server writes whole ones in full;
-- '..' and tostring() would write 1.7e+15. An argument becomes a number by adding 0, which costs no call as tonumber()
-- would.

assert(#KEYS > 0 and #ARGV > 0, 'decide: no charge')

local KEYS, ARGV = KEYS, ARGV
local call, pcall = redis.call, redis.pcall
local floor, ceil = math.floor, math.ceil
local byte, sub = string.byte, string.sub
local spread = table.unpack or unpack
local pack, unpack = struct.pack, struct.unpack

-- Milliseconds that a key outlives its state. Before Redis 7.2 the clock moves while a script runs, so the expiry
-- may be counted from a moment before TIME was read.
local MARGIN = 1000

-- Stored times begin in 2001, and none lies more than 2^50 us (35 years) ahead.
local EARLIEST = 1000000000000000
local FURTHEST = 1125899906842624

-- Products below this are exact in a double, with room for an addition.
local EXACT = 4503599627370496

local now, at = 0, 1
if ARGV[1] == '@' then
  now, at = ARGV[2] + 0, 3
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local clock = floor(now / 1000)

local reply, said = { now }, 1
local key, last = 0, #ARGV
while at <= last do
  local charges, verdict, first = 1, 1, key
  local told, values, lives, stern
  local place = said + 2
  if ARGV[at] == '*' then
    charges = ARGV[at + 1] + 0
    told, values, lives, stern = {}, {}, {}, {}
    at = at + 2
  end

  -- Phase 1 reads and computes.
  for i = 1, charges do
    key = key + 1
    local tag = ARGV[at]
    local kind = byte(tag)
    local is_stern, is_forced, is_last, is_renewal, made, past
    if kind < 48 then
      is_stern, is_forced, is_renewal = kind == 33, kind == 43 or kind == 35, kind == 47
      if kind == 35 then
        -- Changes nothing: a missing key is not made by an empty value, and what is written below has its own expiry.
        call('SETRANGE', KEYS[key], '0', '')
        call('PEXPIRE', KEYS[key], MARGIN)
        call('STRLEN', KEYS[key])
      end
      if kind == 45 or kind == 44 then
        is_last = kind == 44
        made, past = ARGV[at + 1] + 0, ARGV[at + 2] + 0
        at = at + 2
      end
      at = at + 1
      tag = ARGV[at]
      kind = byte(tag)
    end

    -- false when the key does not exist. One key with a value of another type must not fail the whole call: the error is
    -- a table without items.
    local text
    if kind ~= 103 then
      text = pcall('GET', KEYS[key])
    else
      -- All of a short log, and a byte more than that of a long one.
      text = pcall('GETRANGE', KEYS[key], '0', '782')
      if text == '' then
        text = pcall('GET', KEYS[key])
      end
    end
    local is_ours = not text or #text > 0

    -- What a branch is to set: how many arguments stand behind its tag, always; whether the value is one of its own;
    -- whether the charge has room; what it tells of the state as it is (b1 and so on) and as it becomes when the charge
    -- or the penalty is counted (n1 and so on), how many such numbers there are, and 2 when that is one more than usual;
    -- the value to store then, nil to leave all as it is, or what changes in it, as offsets and bytes, and the
    -- milliseconds to keep it.
    local width, has_room, numbers, more = 0, false, 1, 0
    local b1, b2, b3, n1, n2, n3 = 0, 0, 0, 0, 0, 0
    local value, parts, life
    if not kind then
      error('decide: a tag is missing')
