-- Decides groups of charges. A group is one request: all of its charges are made, or none.
--
-- KEYS  one per charge, in order; all in one slot of a cluster
-- ARGV  [1] the caller's time in us, or 0 for the server's
--       then per group: the number of its charges, and per charge the tag of its algorithm with that one's arguments
-- Reply integers: the time it was decided at in us, then per group: 1 or 0 (all admitted or not), and per charge
--       1 or 0 (it had room by itself) and its state: the new one when the group was admitted, else the old one
--
-- Example: KEYS 'tollgate:{ada}:user', ARGV 0 1 'w' 6000000 54000000
--   -> 1700000000000000, 1, 1, 1700000006000000
--
-- Phase 1 of a group reads and computes, phase 2 writes only when all admit. An error in phase 1 leaves all that the
-- group names as it was; what groups before it in the call wrote stays.

assert(#KEYS > 0 and #ARGV > 2, 'decide: no charge')

local now = tonumber(ARGV[1])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local reply = { now }
local at, key = 2, 1
while ARGV[at] do
  local charges = tonumber(ARGV[at])
  local verdict = #reply + 1
  local all = true
  local before, after, lives = {}, {}, {}
  reply[verdict] = 0
  at = at + 1
  for i = 1, charges do
    local width
    local admitted
    admitted, before[i], after[i], lives[i], width = algorithms[ARGV[at]](KEYS[key + i - 1], now, at + 1)
    reply[verdict + 2 * i - 1] = admitted and 1 or 0
    all = all and admitted
    at = at + 1 + width
  end
  if all then
    reply[verdict] = 1
  end
  for i = 1, charges do
    reply[verdict + 2 * i] = all and after[i] or before[i]
    if all and lives[i] > 0 then
      call('SET', KEYS[key + i - 1], format('%.0f', after[i]), 'PX', format('%.0f', lives[i]))
    end
  end
  key = key + charges
end
return reply
