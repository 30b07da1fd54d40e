-- Decides groups of charges. A group is one request: all of its charges are made, or none. Groups are decided one after
-- the other, as if each had come in a call of its own.
--
-- KEYS  one per charge, in order; all in one slot of a cluster
-- ARGV  '@' and the caller's time in us, or neither for the server's time; then the groups. Per charge the tag of its
--       algorithm with that one's arguments; before a group of several charges '*' and their number
-- Reply integers: the time it was decided at in us, then per group: 1 (all admitted), 0 (not all) or 2 (a value under
--       one of its keys is none of tollgate's, so nothing was decided), and per charge 1 or 0 (it had room by itself)
--       and its state: the new one when the group was admitted, else the old one
--
-- Example: KEYS 'tollgate:{ada}:user', ARGV 'w' 6000000 54000000
--   -> 1700000000000000, 1, 1, 1700000006000000
--
-- The script is decide_begin.lua, one branch per algorithm from a file of its own, and decide_end.lua, joined at compile
-- time. Branches and not functions: making and calling those took a quarter of what a decision costs the server. It has
-- no shebang and uses no library but string and math, so that Redis 6.2 and compatible servers run it.
--
-- Numbers are doubles. Times are whole microseconds since the Unix epoch: exact below 2^53, the year 2255. A number
-- becomes text only through '%.0f'; '..' and tostring() would write 1.7e+15.

assert(#KEYS > 0 and #ARGV > 0, 'decide: no charge')

local call, pcall = redis.call, redis.pcall
local floor, ceil = math.floor, math.ceil
local format = string.format

-- Milliseconds that a key outlives its state. Before Redis 7.2 the clock moves while a script runs, so the expiry
-- may be counted from a moment before TIME was read.
local MARGIN = 1000

-- A time of 16 digits begins in 2001. A bucket is full again within 2^50 us (35 years), so none is stored further ahead.
local EARLIEST = 1000000000000000
local FURTHEST = 1125899906842624

local now, at = 0, 1
if ARGV[1] == '@' then
  now, at = tonumber(ARGV[2]), 3
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local reply, said = { now }, 1
local key, last = 0, #ARGV
while at <= last do
  local charges, verdict, first = 1, 1, key
  local befores, afters, lives
  if ARGV[at] == '*' then
    charges = tonumber(ARGV[at + 1])
    befores, afters, lives = {}, {}, {}
    at = at + 2
  end

  -- Phase 1 reads and computes.
  for i = 1, charges do
    key = key + 1
    local tag = ARGV[at]

    -- A time that was stored by this script: 16 characters, within bounds. 0 when the key does not exist, false when its
    -- value is anything else: one such key must not fail the whole call.
    local text = pcall('GET', KEYS[key])
    local state = 0
    if text then
      state = type(text) == 'string' and #text == 16 and tonumber(text)
      if state and (state < EARLIEST or state > now + FURTHEST) then
        state = false
      end
    end

    -- What a branch is to set: how many arguments stand behind its tag, always; and for a charge that fits, that it
    -- does, the state after it, and the milliseconds to keep that, 0 to leave all as it is.
    local width, admitted, after, life = 0, false, state, 0
