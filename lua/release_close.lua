-- Release: lets the queue ask that waits longest, once a slot is free. The last part of lua/release_open.lua.
--
-- A queue that is due was woken before, or asks by itself. It has 20 ms to come, in which no younger one overtakes it.
-- The slots of the next release go to the next queue. In a cluster, a queue that listens at another node is not due, so
-- that younger ones may overtake it.
--
-- KEYS   as in lua/release_open.lua
-- ARGV   as in lua/release_open.lua
-- Reply  as in lua/release_open.lua
-- State  as in lua/release_open.lua. The queue that is woken is due now.
--
-- Example: in lua/release_open.lua

for i = line_keys + 1, #KEYS do
  local stored_line = redis_pcall('HGETALL', KEYS[i])
  local queue, class_before, came_before, entry
  for field = 1, stored_line.err and 0 or #stored_line, 2 do
    local text = stored_line[field + 1]
    if #text >= 24 and (#text - 17) % 7 == 0 then
      local due, class, _, _, came = unpack_bytes('>I7I1I7I2I7', text)
      if due > now and due <= now + FURTHEST
        and (not queue or class < class_before or class == class_before and came < came_before) then
        queue, class_before, came_before, entry = stored_line[field], class, came, text
      end
    end
  end
  if queue then
    local channel = line_channel .. string.format('%02x%02x%02x%02x', string.byte(queue, 1, 4))
    -- Nobody may listen, or a user may lack the right to publish. Such a queue asks by itself, later.
    local told = redis_pcall('PUBLISH', channel, queue)
    if type(told) == 'number' and told > 0 then
      redis_pcall('HSET', KEYS[i], queue, pack_bytes('>I7', now) .. sub(entry, 8))
    end
  end
end
