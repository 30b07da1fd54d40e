-- Decides requests one after the other, as if each had come in a call of its own. A request is one charge or a group of
-- charges. All charges of a group are made, or none.
--
-- KEYS  one per charge, in order; all in one slot of a cluster
-- ARGV  '@' and the caller's time in us, or neither for the server's time. Then the requests: per charge the tag of its
--       algorithm and the arguments of that algorithm. '*' and the number of charges begin a group of several. Marks
--       before a tag:
--         '!'  a denied attempt counts too, at most until nothing is left
--         '+'  the charge is made whether it fits or not
--         '#'  the same, by a probe of a log, which also tries the commands that only long logs need
--         '-'  a refund of what is still outstanding of a charge. The time when all of it was to be back, in us, and the
--              total refunded on the key before that charge follow
--         ','  a refund with the same two numbers from a queue, unless somebody waits behind the charge
-- Reply  one string of integers, 8 bytes each, the highest byte first: the time of the decision in us; then per request
--        its outcome and its charges. The outcome is
--          1  all charges were made
--          0  denied: at least one charge did not fit
--          2  foreign: a key holds a value that tollgate did not write
--          3  failed: the server refused a command; nothing was charged
--        A charge is 1 if it fits on its own, else 0, plus 2 if one integer more than usual follows; then the integers that
--        its algorithm returns about the state: the new one if the charge or the denied attempt was counted, else the old
--        one.
--        If a request failed: an array of that string and the error of each failed request, in order.
--
-- Example: KEYS 'tollgate:{ada}:user', ARGV 'wAAAA' 6000000 60000000
--   -> 1700000000000000, 1, 1, 1700000006000000
--
-- The script is decide_begin.lua, one branch per algorithm from a file of its own, and decide_end.lua, joined at compile
-- time. Branches and not functions: making and calling those took a quarter of what a decision costs the server. It has
-- no shebang and uses no library but string, math and struct, so that Redis 6.2 and compatible servers run it.
--
-- Numbers are doubles. Times are whole microseconds since the Unix epoch: exact below 2^53, the year 2255. States are
-- packed bytes, the highest first. A number goes to a command as it is, since the server writes whole ones in full;
-- '..' and tostring() would write 1.7e+15. An argument becomes a number by adding 0, which costs no call as tonumber()
-- would.

assert(#KEYS > 0 and #ARGV > 0, 'decide: no charge')

local KEYS, ARGV = KEYS, ARGV
local call, pcall = redis.call, redis.pcall
local floor, ceil = math.floor, math.ceil
local sub = string.sub
local spread = table.unpack or unpack
local pack, unpack = struct.pack, struct.unpack

-- Outcomes of a request.
local DENIED, ADMITTED, FOREIGN, FAILED = 0, 1, 2, 3

-- Milliseconds that a key outlives its state. Before Redis 7.2 the clock moves while a script runs, so the expiry
-- may be counted from a moment before TIME was read.
local MARGIN = 1000

-- Stored times begin in 2001, and none lies more than 2^50 us (35 years) ahead.
local EARLIEST = 1000000000000000
local FURTHEST = 1125899906842624

-- Products below this are exact in a double, with room for an addition.
local EXACT = 4503599627370496

-- Bytes of a log that are read first: all of a short log, and one byte more than that of a long one.
local LOG_HEAD = 783

local now, at = 0, 1
if ARGV[1] == '@' then
  now, at = ARGV[2] + 0, 3
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local clock = floor(now / 1000)

local reply, reply_length, errors = { now }, 1, nil
local key, last = 0, #ARGV
while at <= last do
  local charges, outcome, first, failure = 1, ADMITTED, key, nil
  -- Of a group, per charge: 1 its first integer of the reply, 2 how many follow, 3 to 8 those, old and new; 9 the value
  -- before, 10 to 12 the value or its parts and the life, 13 what few charges have, 14 whether it counts denied attempts.
  local records
  local place = reply_length + 2
  if ARGV[at] == '*' then
    charges = ARGV[at + 1] + 0
    records = {}
    at = at + 2
  end

  -- Phase 1 reads and computes.
  for i = 1, charges do
    key = key + 1
    local tag = ARGV[at]
    local kind = sub(tag, 1, 1)
    local counts_denied, is_forced, is_probe, is_queue, refund_at, refunded_before
    if #tag == 1 and (kind == '!' or kind == '+' or kind == '#' or kind == '-' or kind == ',') then
      is_probe = kind == '#'
      counts_denied, is_forced = kind == '!', kind == '+' or is_probe
      if kind == '-' or kind == ',' then
        is_queue = kind == ','
        refund_at, refunded_before = ARGV[at + 1] + 0, ARGV[at + 2] + 0
        at = at + 2
      end
      at = at + 1
      tag = ARGV[at]
      kind = sub(tag, 1, 1)
    end

    -- The value, or false if the key does not exist. A refused command returns a table without items.
    local text
    if #tag > 1 or kind == 's' then
      text = pcall('GET', KEYS[key])
    elseif kind == 'g' then
      if is_probe then
        -- Changes nothing: an empty value makes no key, and what is written below has its own expiry.
        local answer = pcall('SETRANGE', KEYS[key], '0', '')
        if type(answer) == 'number' then
          answer = pcall('PEXPIRE', KEYS[key], MARGIN)
        end
        if type(answer) == 'number' then
          answer = pcall('STRLEN', KEYS[key])
        end
        text = type(answer) == 'table' and answer
      end
      text = text or pcall('GETRANGE', KEYS[key], '0', LOG_HEAD - 1)
      if text == '' then
        text = pcall('GET', KEYS[key])
      end
    else
      -- The total of the slots, and the member that comes first.
      text = pcall('ZRANGE', KEYS[key], '0', '1', 'WITHSCORES')
      if #text == 0 and not text.err then
        text = false
      end
    end
    local is_ours = not text or #text > 0
    if not is_ours and text ~= '' and not string.find(text.err, 'WRONGTYPE', 1, true) then
      failure = failure or text.err
    end

    -- A branch sets: the number of arguments behind its tag, always; whether the value is one of its own; whether the
    -- charge fits; the numbers that it returns about the state as it is (b1 and so on) and as it becomes when the charge
    -- or the denied attempt is counted (n1 and so on), how many such numbers there are, and 2 when that is one more than
    -- usual. A branch writes nothing. It sets what counting the charge writes: a whole value and its life in ms, or parts
    -- of the value, as offsets and bytes, and the life. With `failure` it leaves `is_ours` false. In `extra` it sets what
    -- few charges have: `commands` that are run instead; the commands that `undo` them or the parts; and what is written
    -- when the charge is not counted, such as the state under a limit that was changed: a value that is `kept` and its
    -- `kept_life`, or `kept_commands`.
    local width, has_room, numbers, more = 0, false, 1, 0
    local b1, b2, b3, n1, n2, n3 = 0, 0, 0, 0, 0, 0
    local value, parts, life, extra
    if kind == '' then
      error('decide: a tag is missing')
