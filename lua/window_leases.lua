-- Leases of a window: units that nobody has reported count as spent when their lease ends, with its turn or with the
-- window. A part of lua/fixed_window.lua and lua/sliding_window.lua, which set `leases` to the last 22 bytes of the
-- state, `is_open` if its window has not ended, and `ended` to 0. They add `ended` to the units used in that window.
--
-- KEYS   as in lua/lease.lua
-- ARGV   as in lua/lease.lua
-- Reply  as in lua/lease.lua
-- State  as in lua/lease.lua. Nothing is written here.
--
-- Example: in lua/lease.lua

born, turn, before, latest, asked, over = unpack_bytes('>I4I4I4I4I4I2', leases)
while (turn + 1) * TURN <= now and before + latest > 0 do
  ended, before, latest, turn = ended + before, latest, 0, turn + 1
end
if not is_open then
  -- Reports of that window are too late from now on. The next one may have begun in the same millisecond.
  local this_birth = now_millis % 2 ^ 32
  ended, before, latest = ended + before + latest, 0, 0
  born = born == this_birth and (born + 1) % 2 ^ 32 or this_birth
end
leased = before + latest
if leased > 0 then
  free = limit - leased + floor(limit * over / 1000)
end
if leased > 0 or (turn + 3) * TURN >= now then
  leases = pack_bytes('>I4I4I4I4I4I2', born, turn, before, latest, asked, over)
else
  -- Nothing was leased for two turns, so the number of requests is of no use.
  leases, born = nil, nil
end
