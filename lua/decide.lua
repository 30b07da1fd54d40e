-- Decides groups of charges. A group is one request: all of its charges are made, or none. Groups are decided one after
-- the other, as if each had come in a call of its own.
--
-- KEYS  one per charge, in order; all in one slot of a cluster
-- ARGV  [1] the caller's time in us, or 0 for the server's
--       then per group: the number of its charges, and per charge the tag of its algorithm with that one's arguments
-- Reply integers: the time it was decided at in us, then per group: 1 (all admitted), 0 (not all) or 2 (a value under
--       one of its keys is none of tollgate's, so nothing was decided), and per charge 1 or 0 (it had room by itself)
--       and its state: the new one when the group was admitted, else the old one
--
-- Example: KEYS 'tollgate:{ada}:user', ARGV 0 1 'w' 6000000 54000000
--   -> 1700000000000000, 1, 1, 1700000006000000
--
-- Phase 1 of a group reads and computes, phase 2 writes only when all admit.

assert(#KEYS > 0 and #ARGV > 2, 'decide: no charge')

local now = tonumber(ARGV[1])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local reply, said = { now }, 1

local function write(key, state, life)
  call('SET', key, format('%.0f', state), 'PX', format('%.0f', life))
end

-- A group of one charge, which most are: without the tables that several need.
local function decide_one(key, at)
  local admitted, before, after, life, width = algorithms[ARGV[at]](key, now, at + 1)
  if life > 0 then
    write(key, after, life)
  end
  reply[said + 1] = admitted and 1 or (admitted == nil and 2 or 0)
  reply[said + 2] = admitted and 1 or 0
  reply[said + 3] = after
  said = said + 3
  return at + 1 + width
end

local function decide_all(first, charges, at)
  local verdict, before, after, lives = 1, {}, {}, {}
  for i = 1, charges do
    local admitted, width
    admitted, before[i], after[i], lives[i], width = algorithms[ARGV[at]](KEYS[first + i - 1], now, at + 1)
    reply[said + 2 * i] = admitted and 1 or 0
    if admitted == nil then
      verdict = 2
    elseif not admitted and verdict == 1 then
      verdict = 0
    end
    at = at + 1 + width
  end
  reply[said + 1] = verdict
  for i = 1, charges do
    reply[said + 2 * i + 1] = verdict == 1 and after[i] or before[i]
    if verdict == 1 and lives[i] > 0 then
      write(KEYS[first + i - 1], after[i], lives[i])
    end
  end
  said = said + 1 + 2 * charges
  return at
end

local at, key, last = 2, 1, #ARGV
while at <= last do
  local charges = tonumber(ARGV[at])
  if charges == 1 then
    at = decide_one(KEYS[key], at + 1)
  else
    at = decide_all(key, charges, at + 1)
  end
  key = key + charges
end
return reply
