-- Ended leases: units of a bucket that nobody has reported count as spent when their lease ends. A part of
-- lua/token_bucket.lua, which sets `tat`, `turn`, `before` and `latest`, as they are stored, the length of the turn,
-- and the rate: `units` in each `micros`. lua/window_leases.lua is the same for windows.
--
-- KEYS   as in lua/lease.lua
-- ARGV   as in lua/lease.lua
-- Reply  as in lua/lease.lua
-- State  as in lua/lease.lua. Nothing is written here.
--
-- Example: in lua/lease.lua

while (turn + 1) * turn_micros <= now and before + latest > 0 do
  if before > 0 then
    local ends, steps, after = (turn + 1) * turn_micros, before
    local from = tat > ends and tat or ends
    include('lattice.lua')
    tat = after
  end
  before, latest, turn = latest, 0, turn + 1
end
