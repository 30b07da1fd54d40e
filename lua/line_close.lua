-- Line: lists the callers that are left, or ends the place of a queue. The last part of lua/line_open.lua.
--
-- A queue is listed where its first caller waits. A caller that another key denies when its turn comes keeps its
-- place in the lines before, so that it need not wait twice. What is owed to lower priorities ends with the last queue.
--
-- KEYS   as in lua/line_open.lua
-- ARGV   as in lua/line_open.lua
-- Reply  as in lua/line_open.lua
-- State  as in lua/line_open.lua
--
-- Example: in lua/line_open.lua

local line_left, line_due = line_callers - line_granted, 0
if line_outcome <= ADMITTED and line_left > 0 then
  -- The first unit that no other caller before this one expects.
  local came = line_now - ARGV[line_ages + line_granted + 1]
  local others = line_others[line_index]
  table.sort(others, function(one, other)
    return one[1] < other[1]
  end)
  line_due = line_start
  for _, other in ipairs(others) do
    local due, class, step, callers = unpack(other)
    local before = 0
    if due <= line_due and class == line_class then
      for at = 18, #other[6], 7 do
        if unpack_bytes('>I7', other[6], at) < came then
          before = before + 1
        end
      end
    elseif due <= line_due and class < line_class then
      -- A lower class gets one unit after ten of a higher one.
      before = callers < 10 and callers or 10
    end
    if before > 0 then
      line_due = step > 0 and line_due + step * before or (due > line_due and due or line_due) + 1000
    end
  end
  line_due = line_due > line_now + 1000 and line_due or line_now + 1000
  line_due = line_due < line_now + FURTHEST and line_due or line_now + FURTHEST
end
local line_entry
if line_due > 0 and line_is_listed then
  local listed = line_left < LINE_LISTED and line_left or LINE_LISTED
  line_entry = ''
  for i = 1, listed do
    line_entry = line_entry .. pack_bytes('>I7', line_now - ARGV[line_ages + line_granted + i])
  end
end
for i = 1, line_length do
  local line_key, gone, is_own = KEYS[line_keys + i], line_gone[i], line_own[i]
  local is_listed = line_entry and (i == line_index or is_own and line_granted == 0)
  if is_own and not is_listed then
    gone[#gone + 1] = line_queue
  end
  local is_over = not is_listed and #line_others[i] == 0
  if is_over and (line_owed[i] > 0 or line_changed[i]) then
    gone[#gone + 1] = 'f'
  end
  if #gone > 0 then
    redis_pcall('HDEL', line_key, unpack(gone))
  end
  if line_changed[i] and not is_over then
    redis_pcall('HSET', line_key, 'f', pack_bytes('>I2', line_owed[i]))
  end
  if is_listed then
    local latest = line_pauses[i] > line_due and line_pauses[i] or line_due
    for _, other in ipairs(line_others[i]) do
      latest = other[1] > latest and other[1] or latest
    end
    -- Where it only keeps its place, it expects no units yet that others must leave.
    local step = i == line_index and line_steps[i] or 0
    local head = pack_bytes('>I7I1I7I2', line_due, line_class, step, line_left)
    redis_pcall('HSET', line_key, line_queue, head .. line_entry)
    redis_pcall('PEXPIRE', line_key, ceil((latest - line_now) / 1000) + 60000)
  end
end
reply[reply_length + 1], reply[reply_length + 2] = line_due, line_index - 1
reply_length = reply_length + 2
