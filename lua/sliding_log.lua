-- Sliding window log: the time of each charge, and a running sum of units. Twin of src/algorithm/sliding_log.rs.
--
-- KEYS   one per charge: a string
-- ARGV   SLIDING_LOG
--        cost    units; 0 peeks
--        limit   units
--        length  of the period in ms
-- Reply  the units used; the time in us when a denied charge can succeed, 0 if it fits; the time in us when all units
--        are back, 0 if none are used. With COUNT_DENIED and in a group, the second one is also set if the charge fits,
--        but would not fit once more
-- State  up to 128 entries are a list, from the oldest to the newest:
--
--          0             7             12         14        20
--          +-------------+-------------+----------+---------+---------+--
--          | newest (us) | length (ms) | base sum | entry 1 | entry 2 | ...
--          +-------------+-------------+----------+---------+---------+--
--
--        An entry is its time in ticks modulo 2^32 (4 bytes), and the sum of units up to and with it modulo 2^16 (2
--        bytes). The base sum is the sum before entry 1. A binary search finds the first entry that has not expired by
--        its time, and the entry whose expiry makes enough room by its sum.
--
--        More entries are a ring, of which a decision reads a part and writes one place:
--
--          0             7             12         14          16        18         20        22
--          +-------------+-------------+----------+-----------+---------+----------+---------+---------+--
--          | newest (us) | length (ms) | base sum | total sum | entries | head     | places  | place 0 | ...
--          +-------------+-------------+----------+-----------+---------+----------+---------+---------+--
--
--        The head is the place of entry 1; the entry after the last place is in place 0. A ring that is full or more
--        than a quarter empty is written anew, which keeps it below 8 bytes an entry. APPEND would make the server
--        allocate twice the size of the value.
--
-- Example: 3 units in any minute. Times with a `+` are us after 1700000000000000.
--   at +0         'g' 1 3 60000 -> fits, 1 used, 0, all back +60000000
--   at +10000000  'g' 2 3 60000 -> fits, 3 used, 0, all back +70000000
--
--     base sum 0 | +0 s, sum 1 | +10 s, sum 3 |    3 - 0 units used, 1 of them until +60 s and 2 until +70 s
--
--   at +20000000  'g' 1 3 60000 -> denied, 3 used, +60000000, all back +70000000: entry 1 expires at +60 s
--   at +20000000  'g' 2 3 60000 -> denied, 3 used, +70000000, all back +70000000: 2 units need entry 2 to expire
--   at +60000000  'g' 1 3 60000 -> fits, 3 used, 0, all back +120000000: entry 1 has expired
--
--     base sum 1 | +10 s, sum 3 | +60 s, sum 4 |   4 - 1 units used

argument_count, number_count, new2 = 3, 3, 0
local cost, limit, length = ARGV[argument + 1] + 0, ARGV[argument + 2] + 0, ARGV[argument + 3] + 0
local period = length * 1000
-- Times are stored in ticks. A tick is the least power of two of us that divides the period into at most 2^31 ticks,
-- so the 4 bytes of a time cover two periods.
local tick = 1
while tick * 2 ^ 31 < period do
  tick = tick * 2
end

if is_probe then
  -- Try the commands that only rings need, without a change: SETRANGE of an empty string creates no key, and the charge
  -- of the probe sets the TTL again below.
  local result = redis_pcall('SETRANGE', key, '0', '')
  if type(result) == 'number' then
    result = redis_pcall('PEXPIRE', key, TTL_MARGIN)
  end
  if type(result) == 'number' then
    result = redis_pcall('STRLEN', key)
  end
  stored = type(result) == 'table' and result
end
stored = stored or redis_pcall('GETRANGE', key, '0', LOG_HEAD - 1)
if stored == '' then
  -- Not every empty value is a key that does not exist.
  stored = redis_pcall('GET', key)
end
is_ours = not stored or #stored > 0

-- The stored log. `places` and `head` are those of a ring.
local entry_count, newest_at, base_sum, total_sum, stored_tick, stored_length = 0, 0, 0, 0, tick, nil
local places, head = 0, 0
-- `rows` holds the entries from first_row to last_row. Entry i begins at byte row_offset + 6 * i.
local rows, first_row, last_row, row_offset = stored, 1, 0, 9
if stored and is_ours then
  if #stored < LOG_HEAD then
    is_ours = #stored >= 20 and (#stored - 14) % 6 == 0
    if is_ours then
      newest_at, stored_length, base_sum = unpack_bytes('>I7I5I2', stored)
      entry_count, total_sum = (#stored - 14) / 6, unpack_bytes('>I2', stored, #stored - 1)
      last_row = entry_count
    end
  else
    newest_at, stored_length, base_sum, total_sum, entry_count, head, places =
      unpack_bytes('>I7I5I2I2I2I2I2', stored)
    local size = redis_pcall('STRLEN', key)
    if type(size) == 'table' then
      failure = failure or size.err
    end
    is_ours = entry_count > 0 and entry_count <= places and head < places and size == 22 + 6 * places
  end
  is_ours = is_ours and newest_at >= EARLIEST and newest_at <= now + FURTHEST and stored_length > 0
  if is_ours and stored_length ~= length then
    stored_tick = 1
    while stored_tick * 2 ^ 31 < stored_length * 1000 do
      stored_tick = stored_tick * 2
    end
  end
end

if is_ours then
  local read_rows
  if places > 0 then
    -- Reads the entries from `from` to `to` into `rows`, with a second command if they go on at place 0.
    read_rows = function(from, to)
      local place = (head + from - 1) % places
      local wrapped_count = place + to - from + 1 - places
      local last_place = wrapped_count > 0 and places or places + wrapped_count
      rows = redis_call('GETRANGE', key, 22 + 6 * place, 21 + 6 * last_place)
      if wrapped_count > 0 then
        local wrapped_rows = redis_call('GETRANGE', key, 22, 21 + 6 * wrapped_count)
        rows = rows .. wrapped_rows
      end
      first_row, last_row, row_offset = from, to, 1 - 6 * from
    end
  end
  -- Returns the time of entry `i` in us, and the sum with it. Ticks are modulo 2^32: they count back from the newest.
  -- The 4 bytes are enough, because no entry is 2^32 ticks older than the newest one.
  local newest_ticks = newest_at / stored_tick
  local function entry(i)
    if i > last_row or i < first_row then
      local from = i - (i - 1) % 64
      read_rows(from, from + 63 < entry_count and from + 63 or entry_count)
    end
    local ticks, sum = unpack_bytes('>I4I2', rows, row_offset + 6 * i)
    return newest_at - (newest_ticks - ticks) % 2 ^ 32 * stored_tick, sum
  end

  -- The first entry that has not expired, the sum before it, and the units used.
  local first, sum_before, used
  repeat
    -- If the clock was set back, time stands still at the newest entry. Its time may have been rounded up to a tick,
    -- which is 16,384 us for the longest period.
    local present = newest_at - 16384 > now and newest_at - 16384 or now
    local high, step = entry_count + 1, 1
    first = 1
    while first < high do
      -- Few entries expire between two charges, so try the first, third, seventh ... before halving.
      local middle = step > 0 and first + step - 1 or high
      middle = middle < high and middle or floor((first + high) / 2)
      if entry(middle) + period <= present then
        first, step = middle + 1, step * 2
      else
        high, step = middle, 0
      end
    end
    sum_before = base_sum
    if first > 1 then
      local _, sum = entry(first - 1)
      sum_before = sum
    end
    used = (total_sum - sum_before) % 2 ^ 16
    local is_changed = used > 0 and stored_length ~= length and (cost > 0 or merge_from) and not refund_at
    if is_changed then
      -- The period was changed, and perhaps the tick: write the times anew, rounded up, then look again which entries
      -- count. This is stored even if the charge is denied.
      if read_rows then
        read_rows(first, entry_count)
      end
      local rounded, rounded_newest, rounded_count, last_ticks = {}, newest_at, 0, nil
      for i = first, entry_count do
        local added_at, sum = entry(i)
        local ticks = ceil(added_at / tick)
        rounded_newest = ticks * tick
        -- Entries in one tick become one.
        rounded_count = ticks == last_ticks and rounded_count or rounded_count + 1
        last_ticks = ticks
        rounded[rounded_count] = pack_bytes('>I4I2', ticks % 2 ^ 32, sum)
      end
      rows, base_sum = table.concat(rounded), sum_before
      newest_at, newest_ticks = rounded_newest, rounded_newest / tick
      stored_length, stored_tick = length, tick
      entry_count, first_row, last_row, row_offset = rounded_count, 1, rounded_count, -5
      head, places = 0, rounded_count > 128 and rounded_count or 0
      local state = places == 0 and pack_bytes('>I7I5I2', newest_at, length, base_sum)
        or pack_bytes('>I7I5I2I2I2I2I2', newest_at, length, base_sum, total_sum, entry_count, head, places)
      extra = {
        uncounted_value = state .. rows,
        uncounted_ttl = ceil((newest_at + period - now) / 1000) + TTL_MARGIN,
      }
    end
  until not is_changed

  old1, old3 = used, used > 0 and newest_at + period or 0
  local charged_at = now
  if merge_from then
    charged_at = merge_until - period < now and merge_until - period or now
    local merged, most = (merge_from > used and merge_from or used) + cost, used > limit and used or limit
    cost = now < merge_until and (merged < most and merged or most) - used or 0
  end
  -- A refund and a peek always fit.
  has_room = is_forced or refund_at or cost == 0 or used + cost <= limit
  -- A group may deny a charge that fits, and count it. Then the reply holds when as much fits again.
  local may_wait = not has_room or counts_denied and records and cost > 0 and used + 2 * cost > limit
  local find_sum
  if may_wait then
    -- Returns the first entry up to which at least `wanted` units were used. It is mostly an early one.
    find_sum = function(wanted)
      local low, high, step = first, entry_count + 1, 1
      while low < high do
        local middle = step > 0 and low + step - 1 or high
        middle = middle < high and middle or floor((low + high) / 2)
        local _, sum = entry(middle)
        if (sum - sum_before) % 2 ^ 16 < wanted then
          low, step = middle + 1, step * 2
        else
          high, step = middle, 0
        end
      end
      return low
    end
  end

  -- The log after the charge: `kept_count` entries from `kept_from` on, then those in `appended`; the time of the
  -- newest, and the sums before the first and with the last. `excess` units are dropped with the oldest entries.
  local excess, new_newest = 0, newest_at
  local kept_from, kept_count, appended, new_base, new_total = first, 0, nil, sum_before, total_sum
  if refund_at then
    -- Find the entry of the charge: the one whose units come back at `refund_at`. A changed period has moved that time.
    local found = first
    if stored_length == length then
      local high = entry_count + 1
      -- It is mostly among the newest 64, so begin at the first of the last read.
      local middle = entry_count - (entry_count - 1) % 64
      middle = middle > found and middle or floor((found + high) / 2)
      while found < high do
        if entry(middle) + period < refund_at then
          found = middle + 1
        else
          high = middle
        end
        middle = floor((found + high) / 2)
      end
    end
    if stored_length == length and found <= entry_count and entry(found) + period == refund_at then
      local _, sum = entry(found)
      local units, earlier_at = (sum - sum_before) % 2 ^ 16, 0
      if found > first then
        earlier_at, sum = entry(found - 1)
        units = units - (sum - sum_before) % 2 ^ 16
      end
      local refunded = cost < units and cost or units
      -- Lower the sums of that entry and all later ones. Drop the entry if it has no units left.
      local lowered, lowered_newest = {}, earlier_at
      for later = found, entry_count do
        local added_at, later_sum = entry(later)
        if later > found or refunded < units then
          local ticks = added_at / stored_tick
          lowered[#lowered + 1] = pack_bytes('>I4I2', ticks % 2 ^ 32, (later_sum - refunded) % 2 ^ 16)
          lowered_newest = added_at
        end
      end
      new1, new3 = used - refunded, lowered_newest > 0 and lowered_newest + period or 0
      if lowered_newest > 0 then
        new_newest, kept_count = lowered_newest, found - first
        appended, new_total = table.concat(lowered), (total_sum - refunded) % 2 ^ 16
      else
        extra = { commands = { { 'DEL', key } } }
      end
    end
  elseif cost > 0 and (has_room or counts_denied) and not (is_forced and used >= 2 ^ 16 - 1) then
    -- A denied attempt that counts never exceeds the limit: its units push out the oldest ones.
    local added, most = cost < limit and cost or limit, used > limit and used or limit
    if is_forced then
      most = 2 ^ 16 - 1
      added = cost < most - used and cost or most - used
    end
    if used + added > most then
      excess = used + added - most
    end
    new_newest = ceil((newest_at > charged_at and newest_at or charged_at) / tick) * tick
    if first <= entry_count then
      kept_from = excess > 0 and find_sum(excess + 1) or first
      -- A charge in the same tick as the newest entry replaces it, with the sum of both.
      kept_count = (new_newest == newest_at and entry_count or entry_count + 1) - kept_from
      kept_count = kept_count > 0 and kept_count or 0
    end
    new_base, new_total = (sum_before + excess) % 2 ^ 16, (sum_before + used + added) % 2 ^ 16
    appended = pack_bytes('>I4I2', new_newest / tick % 2 ^ 32, new_total)
    new1, new3 = used + added - excess, new_newest + period
  end

  if appended then
    -- Three ways to store the log, by its number of entries: in the ring as it is, as a list, or as a new ring. After a
    -- change of the period all of it is written, because every entry has changed.
    local count = kept_count + #appended / 6
    ttl_millis = ceil((new_newest + period - now) / 1000) + TTL_MARGIN
    if count <= places and 4 * count >= 3 * places and not extra then
      -- Change only the ring's first 22 bytes and the places of `appended`, which may go on at place 0.
      local new_head, place = (head + kept_from - 1) % places, (head + kept_from + kept_count - 1) % places
      local state = pack_bytes('>I7I5I2I2I2I2I2', new_newest, length, new_base, new_total, count, new_head, places)
      patches = { '0', state, 22 + 6 * place, appended }
      local fitting = 6 * (places - place)
      if #appended > fitting then
        patches[4], patches[5], patches[6] = sub(appended, 1, fitting), 22, sub(appended, fitting + 1)
      end
      if records and charge_number < charge_count then
        -- A later charge of the group may fail, so keep the bytes that are overwritten.
        local undo = { { 'SETRANGE', key, '0', sub(stored, 1, 22) } }
        for part = 3, #patches, 2 do
          local overwritten = redis_call('GETRANGE', key, patches[part], patches[part] + #patches[part + 1] - 1)
          undo[#undo + 1] = { 'SETRANGE', key, patches[part], overwritten }
        end
        extra = { undo = undo }
      end
    else
      if kept_count > 0 then
        if kept_from < first_row or kept_from + kept_count - 1 > last_row then
          read_rows(kept_from, kept_from + kept_count - 1)
        end
        appended = sub(rows, row_offset + 6 * kept_from, row_offset - 1 + 6 * (kept_from + kept_count)) .. appended
      end
      if count <= 128 then
        value = pack_bytes('>I7I5I2', new_newest, length, new_base) .. appended
      else
        -- A new ring with spare places, as many as fill jemalloc's next allocation size. There are four sizes per power
        -- of two, so the ring takes at most 8 bytes an entry.
        local bytes = 32 + 6.3 * count
        local _, exponent = math.frexp(bytes)
        local grain = 2 ^ (exponent - 3)
        local new_places = floor((ceil(bytes / grain) * grain - 32) / 6)
        new_places = new_places < 2 ^ 16 and new_places or 2 ^ 16 - 1
        value = pack_bytes('>I7I5I2I2I2I2I2', new_newest, length, new_base, new_total, count, 0, new_places)
          .. appended .. string.rep('\0', 6 * (new_places - count))
      end
    end
  end

  if may_wait and cost <= limit then
    -- The charge can succeed when the entry expires with which `wanted` units are gone.
    local wanted = (appended and new1 or used) + excess + cost - limit
    local found = find_sum(wanted)
    local back_at = (found <= entry_count and entry(found) or new_newest) + period
    new2 = back_at > now and back_at or now
    old2 = has_room and 0 or new2
  end
  if records and charge_number < charge_count and (value or extra and extra.uncounted_value)
    and stored and #stored == LOG_HEAD then
    -- Only the head was read. Another charge may fail, and then all of the value that is overwritten must be restored.
    stored = redis_call('GETRANGE', key, '0', '-1')
  end
end
