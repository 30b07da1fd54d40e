-- Ended leases: units that nobody has reported count as spent when their lease ends. A part of lua/token_bucket.lua and
-- lua/lease.lua, which set `tat`, `turn`, `before` and `latest`, as they are stored, and the rate: `units` in `micros`.
--
-- KEYS   as in lua/lease.lua
-- ARGV   as in lua/lease.lua
-- Reply  as in lua/lease.lua
-- State  as in lua/lease.lua. Nothing is written here.
--
-- Example: in lua/lease.lua

while (turn + 1) * TURN <= now and before + latest > 0 do
  if before > 0 then
    local ends = (turn + 1) * TURN
    local from = tat > ends and tat or ends
    local point = floor(from % micros * units / micros)
    local target = point + before
    local periods = floor(target / units)
    tat = from + periods * micros
      + ceil((target - periods * units) * micros / units) - ceil(point * micros / units)
  end
  before, latest, turn = latest, 0, turn + 1
end
