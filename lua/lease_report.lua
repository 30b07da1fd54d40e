-- Report: takes an instance's report of the units that it had leased. The first part of a lease: the file of the
-- algorithm then charges `cost`, the units that were spent, and lua/lease.lua leases units again.
--
-- The file of the algorithm sets `born` to `asked` as they are stored, once leases that have ended are counted, or
-- `born` to nil if there are none. It sets `is_other` if the state is that of another quota, and empties the state if
-- `is_reset` is set here.
--
-- KEYS   as in lua/lease.lua
-- ARGV   as in lua/lease.lua
-- Reply  as in lua/lease.lua
-- State  as in lua/lease.lua. Nothing is written here.
--
-- Example: in lua/lease.lua

local spent, left, reported_turn, reported_born = unpack_bytes('>I4I4I4I4', report)
local purpose = unpack_bytes('>I1', report, 31)
if purpose == 3 then
  if born and turn >= SHORT_TURNS then
    -- The first report of a region. Units that instances had before end later here: reports of them come too late.
    turn = floor(turn * TURN / REGION_TURN)
  end
  turn_micros = REGION_TURN
end
turn_micros = turn_micros or TURN
local this_turn = floor(now / turn_micros)
is_reset = purpose == 2
is_other = is_other and not is_reset
is_late = is_other
if not born then
  born, turn, before, latest, asked = now_millis % 2 ^ 32, this_turn, 0, 0, 0
end
turn = turn > this_turn and turn or this_turn
local reported = spent + left
if reported > 0 then
  if not is_other and reported_born == born and reported_turn == turn and latest >= reported then
    latest = latest - reported
  elseif not is_other and reported_born == born and reported_turn == turn - 1 and before >= reported then
    before = before - reported
  else
    is_late, spent, left = true, 0, 0
  end
end
kept = (purpose == 0 or purpose == 3) and left or 0
if purpose == 1 then
  local stays = unpack_bytes('>I4', report, 34)
  kept = left < stays and left or stays
end
latest = latest + kept
cost, is_forced = spent, true
