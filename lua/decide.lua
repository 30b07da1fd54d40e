-- Decides requests in order, each as if it had come in a separate call. A request is one charge, or a group of charges
-- that are made together or not at all.
--
-- KEYS   for each request one per charge, in their order, then one per penalty; all in one slot of a cluster
-- ARGV   optionally CALLER_TIME and the caller's time in us, else the server's time counts; then the requests, each one
--        charge, or GROUP, the number of charges, and the charges. A charge is an optional mark with its arguments, the
--        tag of its algorithm, and the arguments that the algorithm's file lists. Marks:
--          CANDIDATE     SHADOW, but in place of the charge before it: made if it fits and no other charge denies the
--                        request
--          CANDIDATE_COUNT_DENIED  CANDIDATE and COUNT_DENIED
--          COUNT_DENIED  a denied attempt consumes quota too, at most until none is left
--          FORCE         make the charge even if it does not fit
--          LEASE         report leased units, and lease units. One argument follows: the report, see lua/lease.lua
--          PENALTY       ban the key after several denials. lua/penalty.lua lists its arguments; a mark may follow
--          MERGE         add units that were admitted without Redis, at most until no quota is left. Two arguments
--                        follow: the least usage before them, as units or as a TAT, and the time in us from which on
--                        nothing is added
--          PROBE         FORCE for a sliding log, and also try the commands that only long logs need
--          REFUND        refund as much of an earlier charge as is still outstanding. Two arguments follow: the time in
--                        us when all of that charge was to be back, and the key's total of refunds before that charge
--          SHADOW        denies nothing: made if it fits and all charges without this mark or CANDIDATE fit
--          SHADOW_COUNT_DENIED  SHADOW and COUNT_DENIED
-- Reply  one string of integers, 8 bytes each, big-endian: the time of the decision in us; then for each request
--          its outcome  1  all charges were made, apart from those in shadow that did not fit
--                       0  denied: at least one charge that is not in shadow did not fit
--                       2  foreign: a key holds a value that tollgate did not write; nothing was charged
--                       3  failed: the server refused a command; nothing was charged
--          its charges  each 1 if it fits on its own, else 0, plus 2 if one integer more than usual follows; then the
--                       integers that the algorithm's file lists: the new state if the charge or the denied attempt was
--                       counted, else the old state
--          its penalties  each the end of the key's ban in us, or 0
--        If a request failed: an array of that string and one error text for each failed request, in order.
--        An unknown tag is an error; earlier requests of the call may have been charged then.
--
-- Example: a token bucket of 10 units a minute and a fixed window of 10 a minute, one unit each, in one group
--   KEYS  'tollgate:{ada}:user' 'tollgate:{ada}:minute#f'
--   ARGV  '@' 1700000000000000 '*' 2 'wAAAA' 6000000 60000000 'fAA' 1 10 60000
--   reply 1700000000000000, 1, 1, 1700000006000000, 1, 1700000040000000, 1
--
-- One request:
--
--   one charge, as most requests are:   read --> compute --> write --> reply
--
--   a group, or a charge with `extra`:  read --> compute --> record --+
--                                       read --> compute --> record --+--> all fit?  write all --> reply
--                                       read --> compute --> record --+    one write is refused?  undo all --> reply
--
-- src/remote/protocol/script.rs replaces each include('x.lua') by the text of that file, and drops comments. The
-- files of the line (line_open.lua and others) are in the scripts for callers that wait, and left out of this one. The
-- algorithms are branches and not functions, because to create and call functions took a quarter of the time that a
-- decision costs the server. The script has no shebang and uses no library but math, string, struct and table, so that
-- Redis 6.2 and compatible servers run it.
--
-- Numbers are doubles. Times are whole microseconds since the Unix epoch, exact below 2^53 (the year 2255). Stored
-- states are packed bytes, big-endian. Numbers go to commands as they are, because the server writes whole numbers in
-- full, while `..` and tostring() write 1.7e+15. Adding 0 converts an argument to a number without a function call.

-- Tags. `enum Tag` in src/remote/protocol/arguments.rs lists the same ones, and a test compares them.
local CALLER_TIME = '@'
local GROUP = '*'
local CANDIDATE = '?'
local CANDIDATE_COUNT_DENIED = '/'
local COUNT_DENIED = '!'
local FORCE = '+'
local MERGE = '='
local PENALTY = '^'
local PROBE = '#'
local REFUND = '-'
local SHADOW = '~'
local SHADOW_COUNT_DENIED = ';'
local BUCKET = 'w'
local LEASE = '&'
local POT = 'p'
local POT_REPORT = 'r'
local QUEUE = 'q'
local UNEVEN_BUCKET = 'l'
local CLOCK_WINDOW = 'f'
local FIRST_HIT_WINDOW = 'o'
local MONTH_WINDOW = 'm'
local SLIDING_WINDOW = 's'
local SLIDING_LOG = 'g'
local TAKE_SLOTS = 'c'
local RELEASE_SLOTS = 'e'
local RENEW_SLOTS = 'k'

-- Outcomes of a request, as in src/remote/protocol/reply.rs.
local DENIED, ADMITTED, FOREIGN, FAILED = 0, 1, 2, 3

-- Milliseconds that a key outlives its state. Before Redis 7.2 the clock moves while a script runs, so the TTL may be
-- counted from a moment before TIME was read.
local TTL_MARGIN = 1000

-- Stored times lie between 10^15 us (September 2001) and FURTHEST us (35 years) from now. tollgate wrote no other time.
local EARLIEST = 10 ^ 15
local FURTHEST = 2 ^ 50

-- For the units of other regions (lua/pot.lua).
local AGAIN = 2 ^ 16

-- Later than any time.
local NEVER = 2 ^ 55

-- Microseconds of a turn. Units that are leased in one turn come back, or count as spent, at the end of the next.
local TURN = 1000000

-- Those of a turn of a key whose units other regions lease: the way to them is long. These turns have numbers below
-- SHORT_TURNS until the year 2128, and those of a second have had higher ones since 2001.
local REGION_TURN = 5000000
local SHORT_TURNS = 10 ^ 9

-- Products below this are exact in a double, with room for an addition.
local EXACT = 2 ^ 52

-- Bytes of a log that the first read fetches: all of a log of 128 entries, or the head of a longer one.
local LOG_HEAD = 783

local KEYS, ARGV = KEYS, ARGV
if #KEYS == 0 or #ARGV == 0 then
  return redis.error_reply('ERR decide: no charge')
end

local redis, math, struct = redis, math, struct
local redis_call, redis_pcall = redis.call, redis.pcall
local floor, ceil = math.floor, math.ceil
local sub = string.sub
local unpack = table.unpack or unpack
local pack_bytes, unpack_bytes = struct.pack, struct.unpack

local now
local argument = 1
if ARGV[1] == CALLER_TIME then
  now, argument = ARGV[2] + 0, 3
else
  local time = redis_call('TIME')
  now = time[1] * 1000000 + time[2]
end
local now_millis = floor(now / 1000)

-- `reply_length` counts the integers of complete requests; `errors` is a list once a request has failed.
local reply, reply_length, errors = { now }, 1, nil
local key_index, last_argument = 0, #ARGV
include('line_open.lua')
while argument <= last_argument do
  local charge_count, outcome, keys_before, failure = 1, ADMITTED, key_index, nil
  -- Number of charges that deny the request, and the index of the latest.
  local denials, denied_by = 0, 0
  -- One record per charge if there are several, or if one has `extra`.
  local records
  -- One list per charge with a penalty, see lua/penalty.lua.
  local bans
  -- Index in `reply` of the next charge. The index before the first charge is for the outcome.
  local reply_index = reply_length + 2
  if ARGV[argument] == GROUP then
    charge_count = ARGV[argument + 1] + 0
    records = {}
    argument = argument + 2
  end

  -- Phase 1: read and compute each charge.
  for charge_number = 1, charge_count do
    key_index = key_index + 1
    local key = KEYS[key_index]
    local tag = ARGV[argument]
    local kind = sub(tag, 1, 1)
    local penalty_at
    if kind == PENALTY and #tag == 1 then
      penalty_at = argument
      argument = argument + 7
      tag = ARGV[argument]
      kind = sub(tag, 1, 1)
    end
    local counts_denied, is_forced, is_probe, refund_at, refunded_before, merge_from, merge_until, report
    local is_shadow, is_candidate
    -- A mark is one byte; a tag followed by the quota's tag is longer.
    if #tag == 1
      and (kind == COUNT_DENIED or kind == FORCE or kind == PROBE or kind == REFUND or kind == MERGE or kind == LEASE
        or kind == SHADOW or kind == CANDIDATE or kind == SHADOW_COUNT_DENIED
        or kind == CANDIDATE_COUNT_DENIED) then
      if kind == SHADOW_COUNT_DENIED then
        is_shadow, kind = true, COUNT_DENIED
      elseif kind == CANDIDATE_COUNT_DENIED then
        is_candidate, kind = true, COUNT_DENIED
      end
      is_candidate = is_candidate or kind == CANDIDATE
      is_shadow = is_shadow or is_candidate or kind == SHADOW
      is_probe = kind == PROBE
      counts_denied, is_forced = kind == COUNT_DENIED, kind == FORCE or is_probe
      if kind == REFUND then
        refund_at, refunded_before = ARGV[argument + 1] + 0, ARGV[argument + 2] + 0
        argument = argument + 2
      elseif kind == MERGE then
        is_forced, merge_from, merge_until = true, ARGV[argument + 1] + 0, ARGV[argument + 2] + 0
        argument = argument + 2
      elseif kind == LEASE then
        argument = argument + 1
        report = ARGV[argument]
      end
      argument = argument + 1
      tag = ARGV[argument]
      kind = sub(tag, 1, 1)
    end

    -- The algorithm's file sets these, and writes nothing but what a probe tries:
    --   stored          the key's value, false if there is none, or a table with `err` if the server refused the read
    --   is_ours         whether `stored` is absent or a state of this algorithm; false after a failure
    --   argument_count  number of arguments after the tag
    --   has_room        whether the charge fits
    --   number_count    number of integers that the reply holds about the state,
    --   old1 to old3    those of the state as it is,
    --   new1 to new3    and those of the state after the charge or the denied attempt was counted
    --   more            nil for most charges, else a list of further integers
    --   refunded_flag   2 if number_count is one more than usual, else 0
    --   value           what counting the charge stores,
    --   patches         or instead only parts of it: offset, bytes, offset, bytes ...
    --   ttl_millis      milliseconds that the key then lives
    --   extra           nil for most charges, else a table with some of these:
    --                     commands            run to count the charge, instead of `value` or `patches`
    --                     undo                commands that take back `commands` or `patches`
    --                     uncounted_value     stored if the charge is not counted, such as the state under a limit that
    --                     uncounted_ttl       was changed, and its TTL
    --                     uncounted_commands  run if the charge is not counted
    --   failure         the error of the first command that the server refused
    -- If units were leased, it sets `born` to `over` as in lua/lease.lua, and `turn_micros`, or nil for a second.
    -- With a report, it also sets
    --   room, capacity  the units that fit besides those that are charged, and the most units
    --   is_new          whether nothing was charged or leased before
    --   is_other        whether the state is that of another quota
    local stored, is_ours, argument_count, value, patches, ttl_millis, extra, more, new1, new2, new3
    local has_room, number_count, refunded_flag = false, 1, 0
    local old1, old2, old3 = 0, 0, 0
    local born, turn, before, latest, asked, over, turn_micros
    local kept, is_late, is_new, is_other, is_reset, room, capacity
    -- Whether a denial is no offence of the caller: units may be on their way.
    local is_unsure
    local ban
    if penalty_at then
      include('penalty.lua')
    end
    local is_queue = kind == QUEUE
    if is_queue then
      kind = UNEVEN_BUCKET
    end
    if kind == BUCKET or kind == UNEVEN_BUCKET then
      include('token_bucket.lua')
    elseif kind == CLOCK_WINDOW or kind == FIRST_HIT_WINDOW or kind == MONTH_WINDOW then
      include('fixed_window.lua')
    elseif kind == SLIDING_WINDOW then
      include('sliding_window.lua')
    elseif kind == POT or kind == POT_REPORT then
      include('pot.lua')
    elseif kind == SLIDING_LOG then
      include('sliding_log.lua')
    elseif kind == TAKE_SLOTS or kind == RELEASE_SLOTS or kind == RENEW_SLOTS then
      include('concurrency.lua')
    else
      return redis.error_reply('ERR decide: unknown tag')
    end

    if report then
      if room then
        include('lease.lua')
      else
        -- The value is foreign, or could not be read.
        number_count, more = 8, { 0, 0, 0, 0, 0 }
      end
    end
    include('line_charge.lua')
    if ban then
      include('denial.lua')
    end

    argument = argument + 1 + argument_count
    if not is_ours then
      -- WRONGTYPE means a foreign value; any other error of a read means that the server refused the command.
      local refusal = type(stored) == 'table' and stored.err
      if refusal and not string.find(refusal, 'WRONGTYPE', 1, true) then
        failure = failure or refusal
      end
      outcome = failure and FAILED or FOREIGN
    elseif not has_room and not is_shadow then
      denials, denied_by = denials + 1, charge_number
      if outcome == ADMITTED then
        outcome = DENIED
      end
    end
    if not records and not extra then
      -- Without a record, because most requests are one charge.
      if value then
        local result = redis_pcall('SET', key, value, 'PX', ttl_millis)
        if result.err then
          outcome, failure = FAILED, result.err
        else
          old1, old2, old3 = new1, new2, new3
        end
      elseif patches then
        -- PEXPIRE comes first because the server may refuse it; after a first SETRANGE it refuses no other. A server
        -- that is out of memory accepts them after PEXPIRE: a ring is changed in place, which needs no memory.
        local result = redis_pcall('PEXPIRE', key, ttl_millis)
        for part = 1, #patches, 2 do
          if type(result) == 'number' then
            result = redis_pcall('SETRANGE', key, patches[part], patches[part + 1])
          end
        end
        if type(result) == 'table' then
          outcome, failure = FAILED, result.err
        else
          old1, old2, old3 = new1, new2, new3
        end
      end
      reply[reply_index], reply[reply_index + 1] = (has_room and 1 or 0) + refunded_flag, old1
      if number_count > 1 then
        reply[reply_index + 2] = old2
        if number_count > 2 then
          reply[reply_index + 3] = old3
          for number = 4, number_count do
            reply[reply_index + number] = more[number - 3]
          end
        end
      end
      reply_index = reply_index + 1 + number_count
    else
      records = records or {}
      -- A list, because a table with named fields costs more to create. Phase 2 names the indices.
      records[charge_number] = {
        (has_room and 1 or 0) + refunded_flag, number_count, old1, old2, old3, new1, new2, new3,
        stored, value, patches, ttl_millis, extra, counts_denied, is_candidate, more,
      }
    end
  end

  include('line_check.lua')
  -- Phase 2: write all charges if all fit, else only denied attempts that count, a candidate, and what is stored
  -- regardless.
  if records then
    -- Indices in a record. The old and the new integers follow OLD and NEW.
    local FLAGS, NUMBER_COUNT, OLD, NEW, STORED, VALUE, TTL_MILLIS, EXTRA, COUNTS_DENIED = 1, 2, 2, 5, 9, 10, 12, 13, 14
    local IS_CANDIDATE, MORE = 15, 16
    for i = 1, charge_count do
      local key, record = KEYS[keys_before + i], records[i]
      local value, patches, ttl_millis, extra, counts_denied = unpack(record, VALUE, COUNTS_DENIED)
      local is_counted, commands = false, nil
      -- A candidate is made in place of the charge before it.
      local is_made = outcome == ADMITTED
        or outcome == DENIED and denials == 1 and denied_by == i - 1 and record[IS_CANDIDATE]
      if is_made or outcome == DENIED and counts_denied then
        commands = extra and extra.commands
        is_counted = value or patches or commands
      end
      if not is_counted then
        value, patches = nil, nil
        if extra and outcome <= ADMITTED then
          value, ttl_millis, commands = extra.uncounted_value, extra.uncounted_ttl, extra.uncounted_commands
        end
      end
      local result, commands_done = nil, 0
      if value then
        result = redis_pcall('SET', key, value, 'PX', ttl_millis)
      elseif patches then
        result = redis_pcall('PEXPIRE', key, ttl_millis)
        for part = 1, #patches, 2 do
          if type(result) == 'number' then
            result = redis_pcall('SETRANGE', key, patches[part], patches[part + 1])
          end
        end
      elseif commands then
        for command = 1, #commands do
          result = redis_pcall(unpack(commands[command]))
          if type(result) == 'table' then
            break
          end
          commands_done = command
        end
      end

      local refusal = type(result) == 'table' and result.err
      record[VALUE], record[TTL_MILLIS] = not refusal and value, ttl_millis
      if extra and (not is_counted or refusal and commands_done == 0) then
        extra.undo = nil
      end
      if refusal then
        outcome, failure, is_counted = FAILED, refusal, false
        -- Undo all writes of the request with commands that were allowed a moment ago, and reply with the old state.
        for j = i, 1, -1 do
          local key_before, other = KEYS[keys_before + j], records[j]
          local stored, written = other[STORED], other[VALUE]
          if written and stored then
            redis_pcall('SET', key_before, stored, 'PX', other[TTL_MILLIS])
          elseif written then
            -- An expiry in the past deletes the key, by a command that the user may run.
            redis_pcall('SET', key_before, written, 'PXAT', '1')
          elseif other[EXTRA] and other[EXTRA].undo then
            for _, command in ipairs(other[EXTRA].undo) do
              redis_pcall(unpack(command))
            end
          end
        end
        reply_index = reply_length + 2
        for j = 1, i - 1 do
          local other = records[j]
          reply[reply_index] = other[FLAGS]
          for number = 1, other[NUMBER_COUNT] do
            reply[reply_index + number] = number > 3 and other[MORE][number - 3] or other[OLD + number]
          end
          reply_index = reply_index + 1 + other[NUMBER_COUNT]
        end
      end

      reply[reply_index] = record[FLAGS]
      for number = 1, record[NUMBER_COUNT] do
        reply[reply_index + number] = number > 3 and record[MORE][number - 3]
          or record[(is_counted and NEW or OLD) + number]
      end
      reply_index = reply_index + 1 + record[NUMBER_COUNT]
    end
  end
  if bans then
    -- Indices in a list.
    local BAN_KEY, BANNED_UNTIL, BAN_VALUE, BAN_TTL, NEW_UNTIL = 1, 2, 3, 4, 5
    for i = 1, #bans do
      local ban = bans[i]
      reply[reply_index] = ban[BANNED_UNTIL]
      -- A denial that cannot be stored does not count. The request is denied by the quota anyway.
      if ban[BAN_VALUE] and outcome <= ADMITTED
        and not redis_pcall('SET', ban[BAN_KEY], ban[BAN_VALUE], 'PX', ban[BAN_TTL]).err then
        reply[reply_index] = ban[NEW_UNTIL]
      end
      reply_index = reply_index + 1
    end
    key_index = key_index + #bans
  end
  if failure then
    errors = errors or {}
    errors[#errors + 1] = failure
  end
  reply[reply_length + 1] = outcome
  reply_length = reply_index - 1
  include('line_next.lua')
end
include('line_close.lua')

-- Lua passes fewer than 8,000 values to a function.
if reply_length <= 4000 and not errors then
  return pack_bytes('>' .. string.rep('I8', reply_length), unpack(reply))
end
local packed = ''
for from = 1, reply_length, 4000 do
  local to = from + 3999 < reply_length and from + 3999 or reply_length
  packed = packed .. pack_bytes('>' .. string.rep('I8', to - from + 1), unpack(reply, from, to))
end
if errors then
  return { packed, unpack(errors) }
end
return packed
