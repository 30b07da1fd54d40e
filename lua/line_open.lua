-- Line: lets callers wait for units of several keys in order. This part begins a call of the second script, ACQUIRE,
-- which is lua/decide.lua with the files line_open, line_charge, line_check, line_next and line_close.
--
-- A call is made for one queue: callers of one process that wait for the same charges. It makes the charges for its
-- callers in their order, each at the first time at which they fit, up to a few milliseconds ahead of now. It stops
-- at the first caller who must wait longer, and then lists the queue in the line of the key that it waits for:
--
--   a caller    fits now                  charged, starts now
--               fits within `ahead`       charged as of that time, starts then
--               fits later                waits: listed
--               fits, but others of the line go before    waits: listed
--
-- Callers of a higher priority go before, and in the same priority those that came 10 ms earlier or more. A
-- queue that is not due by then does not expect the unit, so it does not block it, unless it waits for more units
-- than this caller. Each unit that a higher priority gets while a lower one waits is worth a tenth of a unit for the
-- lower one.
--
-- KEYS   those of lua/decide.lua for one group, then one per charge for its line
-- ARGV   optionally CALLER_TIME and its time, then
--          queue    8 bytes that identify the queue
--          class    0, 1 or 2: the priority, highest first
--          ahead    us that a start may lie ahead of now; 0 unless all charges are buckets
--          poll     us after which the queue asks again for slots
--          listed   1 to list callers that are left, 0 to leave the line
--          callers  number of the oldest callers in the queue, at most 64
--        then the age of each caller in us, then 8 bytes for each: the ticket of its slots
--        then GROUP, the number of charges, and the charges as in lua/decide.lua
-- Reply  as in lua/decide.lua, but before the outcome of each request the time in us at which the caller starts; and
--        at the end the time in us at which the queue is to ask again, 0 if nobody waits, and the index of the charge
--        that it waits for. There is one request per caller, up to the first that is not admitted
-- State  a hash per key: the queue -> 17 bytes, and 7 for each of up to 8 callers
--
--          0         7           8          15
--          +---------+-----------+----------+--------------+------------+--
--          | due (us)| class     | step (us)| callers (2)  | came (us)  | ..
--          +---------+-----------+----------+--------------+------------+--
--
--        The step is the time that one caller takes of a bucket, 0 for other algorithms. Two more fields: `f` is what
--        is owed to lower priorities, in hundredths of a unit, and `u` the time in us until which the key is paused.
--
-- Example: a bucket of one unit a second, whose unit is taken until +400000. Times with a `+` are us after
-- 1700000000000000.
--   at +0  KEYS 't:{a}:p' 't:{a}:p#q'  ARGV 'queue-01' 1 10000 0 1 1  0  '--------'  '*' 1 'wAAAA' 1000000 1000000
--          -> +400000 (in vain), 0, 0, +400000, +400000, 0: one caller waits, and asks again at +400000

local LINE_GRACE, LINE_EPSILON, LINE_LISTED = 20000, 10000, 8
local line_queue, line_class = ARGV[argument], ARGV[argument + 1] + 0
local line_ahead, line_poll = ARGV[argument + 2] + 0, ARGV[argument + 3] + 0
local line_is_listed, line_callers = ARGV[argument + 4] == '1', ARGV[argument + 5] + 0
local line_ages = argument + 5
local line_tickets = line_ages + line_callers
local line_argument = line_tickets + line_callers + 1
local line_length = ARGV[line_argument + 1] + 0
local line_keys = #KEYS - line_length
local line_now, line_granted, line_outcome = now, 0, DENIED
-- The caller whose turn it is: when it can start, which charge it waits for, whether it is tried again then, and
-- whether others go before.
local line_start, line_index = now, 1
local is_ahead, is_blocked
-- Per charge: the queues in its line, when the key is no longer paused, what is owed, whether that has changed, the
-- step, and the place of the ticket.
local line_others, line_pauses, line_owed, line_changed, line_steps, line_places = {}, {}, {}, {}, {}, {}
-- Per charge: whether this queue is listed, and the queues that did not come.
local line_own, line_gone = {}, {}
for i = 1, line_length do
  local stored_line = redis_pcall('HGETALL', KEYS[line_keys + i])
  local others, gone = {}, {}
  line_others[i], line_gone[i], line_owed[i], line_pauses[i] = others, gone, 0, 0
  -- A line that cannot be read is empty: then callers wait without an order.
  for field = 1, stored_line.err and 0 or #stored_line, 2 do
    local name, text = stored_line[field], stored_line[field + 1]
    if name == line_queue then
      line_own[i] = true
    elseif name == 'f' then
      line_owed[i] = #text == 2 and unpack_bytes('>I2', text) or 0
    elseif name == 'u' then
      line_pauses[i] = #text == 7 and unpack_bytes('>I7', text) or 0
    elseif #text >= 24 and (#text - 17) % 7 == 0 then
      local due, class, step, callers, first = unpack_bytes('>I7I1I7I2I7', text)
      if due + LINE_GRACE < now or due > now + FURTHEST then
        if #gone < 256 then
          gone[#gone + 1] = name
        end
      else
        others[#others + 1] = { due, class, step, callers, first, text }
      end
    end
  end
end
-- The place of the caller's start in the reply.
local line_place = 2
if line_callers > 0 then
  argument, reply_length, reply[line_place] = line_argument, line_place, now
else
  argument = last_argument + 1
end
