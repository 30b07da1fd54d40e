-- Line: decides whether the caller whose turn it is goes before the others. A part of lua/line_open.lua.
--
-- KEYS   as in lua/line_open.lua
-- ARGV   as in lua/line_open.lua
-- Reply  as in lua/line_open.lua
-- State  as in lua/line_open.lua. Nothing is written here.
--
-- Example: in lua/line_open.lua

-- Whoever waits has no candidates.
denials, is_ahead, is_blocked = 0, false, false
if outcome == ADMITTED or outcome == DENIED and line_start <= line_now + line_ahead then
  is_ahead = outcome == DENIED
  local came = line_now - ARGV[line_ages + line_granted + 1]
  for i = 1, charge_count do
    local is_owed = line_owed[i] >= 100
    for _, other in ipairs(line_others[i]) do
      local due, class, step, _, first = unpack(other)
      local is_before
      if class == line_class then
        is_before = first + LINE_EPSILON < came
      else
        is_before = (class < line_class) ~= is_owed
      end
      if is_before and not is_blocked
        and (due <= line_start or line_steps[i] > 0 and step > line_steps[i]) then
        is_blocked, line_index = true, i
      end
    end
  end
  if is_blocked then
    outcome, is_ahead = DENIED, false
  elseif is_ahead then
    -- Nothing is stored in this pass.
    outcome = FAILED + 1
  end
end
