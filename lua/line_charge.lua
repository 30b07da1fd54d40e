-- Line: computes when a charge that does not fit can be made. A part of lua/line_open.lua.
--
-- A denial is no offence of the caller: it waits. So it is not counted.
--
-- KEYS   as in lua/line_open.lua
-- ARGV   as in lua/line_open.lua
-- Reply  as in lua/line_open.lua
-- State  as in lua/line_open.lua. Nothing is written here.
--
-- Example: in lua/line_open.lua

is_unsure, counts_denied = true, false
local start, step = now, 0
if kind == TAKE_SLOTS then
  line_places[charge_number] = argument + 4
elseif kind == BUCKET then
  step = ARGV[argument + 1] + 0
elseif kind == UNEVEN_BUCKET then
  step = ceil(ARGV[argument + 1] * ARGV[argument + 4] / ARGV[argument + 3])
end
line_steps[charge_number] = step > 0 and step or 0
if is_ours and not has_room and not is_shadow then
  local first, limit = ARGV[argument + 1] + 0, ARGV[argument + 2] + 0
  if kind == BUCKET then
    start = first < 0 and NEVER or (old1 > now and old1 or now) + first - limit
  elseif kind == UNEVEN_BUCKET then
    local from, steps, units, micros = old1 > now and old1 or now, first, ARGV[argument + 3] + 0, ARGV[argument + 4] + 0
    local after
    include('lattice.lua')
    start = first < 0 and NEVER or after - limit
  elseif kind == TAKE_SLOTS then
    start = first > limit and NEVER or now + line_poll
  elseif kind == SLIDING_LOG then
    start = first > limit and NEVER or old2
  elseif kind == SLIDING_WINDOW then
    local micros = ARGV[argument + 3] * 1000
    local ticks = micros / ARGV[argument + 4]
    -- The window that must weigh less, and how many units it may then count for.
    local from, weighing, free = old1 - micros, old2, limit - old3 - first
    if free < 0 then
      from, weighing, free = old1, old3, limit - first
    end
    weighing = weighing < limit and weighing or limit
    local most = weighing > 0 and floor(free * ticks / weighing) or ticks
    start = first > limit and NEVER or from + (ticks - (most < ticks and most or ticks)) * ARGV[argument + 4]
  else
    start = first > limit and NEVER or old1
  end
  -- Rounded, it may be now.
  start = start > now and start or now + 1000
end
if ban and ban[2] > start then
  start = ban[2]
end
if is_ours and not is_shadow and line_pauses[charge_number] > now then
  has_room, value, patches = false, nil, nil
  if extra then
    extra.commands = nil
  end
  start = line_pauses[charge_number] > start and line_pauses[charge_number] or start
end
if start > line_start and not is_shadow then
  line_start, line_index = start, charge_number
end
