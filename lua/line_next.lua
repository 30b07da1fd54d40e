-- Line: goes on to the next caller, or to the same one at the time at which it can start. A part of lua/line_open.lua.
--
-- KEYS   as in lua/line_open.lua
-- ARGV   as in lua/line_open.lua
-- Reply  as in lua/line_open.lua
-- State  as in lua/line_open.lua. Nothing is written here.
--
-- Example: in lua/line_open.lua

local is_next = false
if is_ahead then
  -- From here on, all is decided as of that time: later callers do not start before this one.
  now, now_millis = line_start, floor(line_start / 1000)
  reply_length = line_place
else
  line_outcome, reply[line_place] = outcome, now
  if outcome == ADMITTED then
    line_granted = line_granted + 1
    for i = 1, charge_count do
      local owed = line_owed[i]
      for _, other in ipairs(line_others[i]) do
        if other[2] > line_class then
          owed = line_owed[i] + 10
        end
      end
      for _, other in ipairs(line_others[i]) do
        if other[2] < line_class and other[1] <= now then
          owed = line_owed[i] - 100
        end
      end
      owed = owed > 0 and (owed < 300 and owed or 300) or 0
      line_owed[i], line_changed[i] = owed, line_changed[i] or owed ~= line_owed[i]
    end
    is_next = line_granted < line_callers
  end
end
if is_next then
  for i = 1, charge_count do
    if line_places[i] then
      ARGV[line_places[i]] = ARGV[line_tickets + line_granted + 1]
    end
  end
  reply_length = reply_length + 1
  line_place, reply[reply_length] = reply_length, now
end
if is_next or is_ahead then
  argument, key_index, line_start, line_index = line_argument, 0, now, 1
else
  argument = last_argument + 1
end
