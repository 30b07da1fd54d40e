    -- Sliding window log: the time of each admitted request, and a running sum. Twin of src/algorithm/sliding_log.rs.
    --
    -- ARGV 'g', cost (units), limit (units), length of the period (ms)
    -- Returns the units used, when a denied charge can succeed in us (0 when it was not denied), and when all is back (0
    --   when nothing is used)
    -- State of up to 128 entries, 14 bytes: the time of the last entry in us in 7, length in ms in 5, the sum before the
    --   first entry in 2; then 6 per entry: time in ticks (modulo 2^32), the sum with this entry (modulo 2^16)
    -- State of more, 22 bytes: those three, then in 2 each the sum with all entries, how many there are, the places before
    --   the first one and all places; then a ring of places, 6 bytes each. A decision reads some of it and writes one
    --   place; a ring that is full, or over a quarter empty, is written anew. That keeps it below 8 bytes an entry, where
    --   APPEND would let the server set aside twice the value's size
    --
    -- Example: 10 in any minute, cost 1, at time 1700000000000000, no key yet:
    --   'g' 1 10 60000 -> has room, 1 used, 0, all back at 1700000060000000
    elseif kind == 'g' then
      width, numbers = 3, 3
      local cost, limit, length = ARGV[at + 1] + 0, ARGV[at + 2] + 0, ARGV[at + 3] + 0
      local period = length * 1000
      -- The least power of two of us that divides a period, in us, in at most 2^31.
      local tick = 1
      while tick * 2147483648 < period do
        tick = tick * 2
      end
      local entries, latest, base, total, unit, size = 0, 0, 0, 0, tick, nil
      -- Of a ring: its places, and how many of them lie before the first entry.
      local room, head = 0, 0
      -- Entries at hand: which, and where in `rows` the one before them would begin, less its number.
      local rows, lowest, highest, skip = text, 1, 0, 9
      if text and is_ours then
        if #text < LOG_HEAD then
          is_ours = #text >= 20 and (#text - 14) % 6 == 0
          if is_ours then
            latest, size, base = unpack('>I7I5I2', text)
            entries, total = (#text - 14) / 6, unpack('>I2', text, #text - 1)
            highest = entries
          end
        else
          latest, size, base, total, entries, head, room = unpack('>I7I5I2I2I2I2I2', text)
          local size_in_bytes = pcall('STRLEN', KEYS[key])
          if type(size_in_bytes) == 'table' then
            failure = failure or size_in_bytes.err
          end
          is_ours = entries > 0 and entries <= room and head < room and size_in_bytes == 22 + 6 * room
        end
        is_ours = is_ours and latest >= EARLIEST and latest <= now + FURTHEST and size > 0
        if is_ours and size ~= length then
          unit = 1
          while unit * 2147483648 < size * 1000 do
            unit = unit * 2
          end
        end
      end
      if is_ours then
        local load
        if room > 0 then
          -- Brings these entries at hand.
          load = function(from, to)
            local place = (head + from - 1) % room
            local past = place + to - from + 1 - room
            rows = call('GETRANGE', KEYS[key], 22 + 6 * place, 21 + 6 * (past > 0 and room or room + past))
            if past > 0 then
              local wrapped = call('GETRANGE', KEYS[key], 22, 21 + 6 * past)
              rows = rows .. wrapped
            end
            lowest, highest, skip = from, to, 1 - 6 * from
          end
        end
        -- When entry `i` was made, and the sum with it.
        local turn = latest / unit
        local function entry(i)
          if i > highest or i < lowest then
            local from = i - (i - 1) % 64
            load(from, from + 63 < entries and from + 63 or entries)
          end
          local ticks, sum = unpack('>I4I2', rows, skip + 6 * i)
          return latest - (turn - ticks) % 4294967296 * unit, sum
        end
        -- What still counts: the first entry, the sum before it, and the units. A clock that was set back counts from
        -- the last entry on, whose time may have been rounded up by a tick of the longest period.
        local start, before, used
        repeat
          local present = latest - 16384 > now and latest - 16384 or now
          local high, step = entries + 1, 1
          start = 1
          while start < high do
            -- Mostly few have left since the last charge: look at the first, the third, the seventh, then halve.
            local middle = step > 0 and start + step - 1 or high
            middle = middle < high and middle or floor((start + high) / 2)
            if entry(middle) + period <= present then
              start, step = middle + 1, step * 2
            else
              high, step = middle, 0
            end
          end
          before = base
          if start > 1 then
            local _, sum = entry(start - 1)
            before = sum
          end
          used = (total - before) % 65536
          local is_changed = used > 0 and size ~= length and cost > 0 and not refund_at
          if is_changed then
            -- The period was changed, and the tick perhaps: write the times anew, rounded up. Stored whatever is
            -- decided.
            if load then
              load(start, entries)
            end
            local rounded, newest, merged, last_ticks = {}, latest, 0, nil
            for i = start, entries do
              local added_at, sum = entry(i)
              local ticks = ceil(added_at / tick)
              newest = ticks * tick
              -- Those that fall on one tick become one.
              merged = ticks == last_ticks and merged or merged + 1
              last_ticks = ticks
              rounded[merged] = pack('>I4I2', ticks % 4294967296, sum)
            end
            rows, latest, base, size, unit, turn = table.concat(rounded), newest, before, length, tick, newest / tick
            entries, lowest, highest, skip = merged, 1, merged, -5
            head, room = 0, merged > 128 and merged or 0
            local state = room == 0 and pack('>I7I5I2', latest, length, base)
              or pack('>I7I5I2I2I2I2I2', latest, length, base, total, entries, head, room)
            extra = { kept = state .. rows, kept_life = ceil((latest + period - now) / 1000) + MARGIN }
          end
        until not is_changed

        b1, b3 = used, used > 0 and latest + period or 0
        has_room = is_forced or refund_at or cost == 0 or used + cost <= limit
        local reaching
        if not has_room then
          -- The first entry from which on the sum, counted from `before`, is at least `wanted`: mostly an early one.
          reaching = function(wanted)
            local low, high, step = start, entries + 1, 1
            while low < high do
              local middle = step > 0 and low + step - 1 or high
              middle = middle < high and middle or floor((low + high) / 2)
              local _, sum = entry(middle)
              if (sum - before) % 65536 < wanted then
                low, step = middle + 1, step * 2
              else
                high, step = middle, 0
              end
            end
            return low
          end
        end
        local excess, when = 0, latest
        -- What the log becomes: so many entries from one on, and others behind them; the sum before and with all.
        local from, left_in, added, least, most = start, 0, nil, before, total
        if refund_at then
          -- The entry of that charge, if it still counts and was made under this period.
          local i = start
          if size == length then
            local high = entries + 1
            -- Mostly it is among the last.
            local middle = entries - (entries - 1) % 64
            middle = middle > i and middle or floor((i + high) / 2)
            while i < high do
              if entry(middle) + period < refund_at then
                i = middle + 1
              else
                high = middle
              end
              middle = floor((i + high) / 2)
            end
          end
          if size == length and i <= entries and entry(i) + period == refund_at then
            local earlier, weight = 0, nil
            local _, sum = entry(i)
            weight = (sum - before) % 65536
            if i > start then
              earlier, sum = entry(i - 1)
              weight = weight - (sum - before) % 65536
            end
            local taken = cost < weight and cost or weight
            local changed, newest = {}, earlier
            for later = i, entries do
              local added_at, sum = entry(later)
              if later > i or taken < weight then
                changed[#changed + 1] = pack('>I4I2', added_at / unit % 4294967296, (sum - taken) % 65536)
                newest = added_at
              end
            end
            n1, n3 = used - taken, newest > 0 and newest + period or 0
            if newest > 0 then
              when, left_in, added, most = newest, i - start, table.concat(changed), (total - taken) % 65536
            else
              extra = { commands = { { 'DEL', KEYS[key] } } }
            end
          end
        elseif cost > 0 and (has_room or counts_denied) and not (is_forced and used >= 65535) then
          -- What goes over the limit by a penalty pushes out the oldest.
          local taken, bound = cost < limit and cost or limit, used > limit and used or limit
          if is_forced then
            bound = 65535
            taken = cost < bound - used and cost or bound - used
          end
          if used + taken > bound then
            excess = used + taken - bound
          end
          when = ceil((latest > now and latest or now) / tick) * tick
          if start <= entries then
            from = excess > 0 and reaching(excess + 1) or start
            left_in = (when == latest and entries or entries + 1) - from
            left_in = left_in > 0 and left_in or 0
          end
          least, most = (before + excess) % 65536, (before + used + taken) % 65536
          added = pack('>I4I2', when / tick % 4294967296, most)
          n1, n3 = used + taken - excess, when + period
        end
        if added then
          local count = left_in + #added / 6
          life = ceil((when + period - now) / 1000) + MARGIN
          if count <= room and 4 * count >= 3 * room and not extra then
            local first, place = (head + from - 1) % room, (head + from + left_in - 1) % room
            local state = pack('>I7I5I2I2I2I2I2', when, length, least, most, count, first, room)
            parts = { '0', state, 22 + 6 * place, added }
            local fit = 6 * (room - place)
            if #added > fit then
              parts[4], parts[5], parts[6] = sub(added, 1, fit), 22, sub(added, fit + 1)
            end
            if records and i < charges then
              local undo = { { 'SETRANGE', KEYS[key], '0', sub(text, 1, 22) } }
              for part = 3, #parts, 2 do
                local old = call('GETRANGE', KEYS[key], parts[part], parts[part] + #parts[part + 1] - 1)
                undo[#undo + 1] = { 'SETRANGE', KEYS[key], parts[part], old }
              end
              extra = { undo = undo }
            end
          else
            if left_in > 0 then
              if from < lowest or from + left_in - 1 > highest then
                load(from, from + left_in - 1)
              end
              added = sub(rows, skip + 6 * from, skip - 1 + 6 * (from + left_in)) .. added
            end
            if count <= 128 then
              value = pack('>I7I5I2', when, length, least) .. added
            else
              -- A ring with some room to grow, up to the next size that jemalloc has: four from one power of two to the
              -- next. At most 8 bytes an entry.
              local bytes = 32 + 6.3 * count
              local _, power = math.frexp(bytes)
              local grain = 2 ^ (power - 3)
              local places = floor((ceil(bytes / grain) * grain - 32) / 6)
              places = places < 65535 and places or 65535
              value = pack('>I7I5I2I2I2I2I2', when, length, least, most, count, 0, places) .. added
                .. string.rep('\0', 6 * (places - count))
            end
          end
        end
        if not has_room and cost <= limit then
          -- Enough is back when so many units have left, counted from `before`.
          local wanted = (added and n1 or used) + excess + cost - limit
          local i = reaching(wanted)
          local back = (i <= entries and entry(i) or when) + period
          b2 = back > now and back or now
          n2 = b2
        end
        if records and i < charges and (value or extra and extra.kept) and text and #text == LOG_HEAD then
          -- All of what is overwritten, should it come back.
          text = call('GETRANGE', KEYS[key], '0', '-1')
        end
      end
