-- Lattice: the time `after` that lies `steps` units after `from` at a rate of `units` in `micros`. A part of
-- lua/token_bucket.lua and lua/ended_leases.lua, which have these names.
--
-- TATs lie on the lattice ceil(k * micros / units), so that fractions do not add up. A time between two points keeps
-- its distance to the lower one.
--
-- KEYS   as in lua/token_bucket.lua
-- ARGV   as in lua/token_bucket.lua
-- Reply  as in lua/token_bucket.lua
-- State  as in lua/token_bucket.lua. Nothing is written here.
--
-- Example: 3 units in 1000000 us, so points at 0, 333334, 666667, 1000000. Two steps after 400000, which is 66666 after
-- the point before it, lie 66666 after the point 1000000: at 1066666.

local point = floor(from % micros * units / micros)
local target = point + steps
local periods = floor(target / units)
after = from + periods * micros
  + ceil((target - periods * units) * micros / units) - ceil(point * micros / units)
