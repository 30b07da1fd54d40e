    -- Sliding window log: the time of each admitted request, and a running sum. Twin of src/algorithm/sliding_log.rs.
    --
    -- ARGV 'g', cost (units), limit (units), length of the period (ms)
    -- Tells the units used, when a denied charge can succeed in us (0 when it was not denied), and when all is back (0
    --   when nothing is used)
    -- State, 14 bytes: the time of the last entry in us in 7, length in ms in 5, the sum before the first entry in 2;
    --   then 6 per entry: time in ticks (modulo 2^32), the sum with this entry (modulo 2^16)
    --
    -- Example: 10 in any minute, cost 1, at time 1700000000000000, no key yet:
    --   'g' 1 10 60000 -> has room, 1 used, 0, all back at 1700000060000000
    elseif kind == 103 then
      width, numbers = 3, 3
      local cost, limit, length = ARGV[at + 1] + 0, ARGV[at + 2] + 0, ARGV[at + 3] + 0
      local period = length * 1000
      -- The least power of two of us that divides a period, in us, in at most 2^31.
      local function tick_of(period)
        local tick = 1
        while tick * 2147483648 < period do
          tick = tick * 2
        end
        return tick
      end
      local tick = tick_of(period)
      local entries, latest, base, unit, size = 0, 0, 0, tick, nil
      if text and is_ours then
        is_ours = #text >= 20 and (#text - 14) % 6 == 0
        if is_ours then
          latest, size, base = unpack('>I7I5I2', text)
          is_ours = latest >= EARLIEST and latest <= now + FURTHEST and size > 0
          entries, unit = (#text - 14) / 6, tick_of(size * 1000)
        end
      end
      if is_ours then
        -- When entry `i` was made, and the sum with it.
        local turn = latest / unit
        local function entry(i)
          local ticks, sum = unpack('>I4I2', text, 9 + 6 * i)
          return latest - (turn - ticks) % 4294967296 * unit, sum
        end
        local function sum(i)
          local _, sum = entry(i)
          return sum
        end
        -- What still counts: the first entry, the sum before it, and the units. A clock that was set back counts from
        -- the last entry on, whose time may have been rounded up by a tick of the longest period.
        local start, before, used
        local function count()
          local present = latest - 16384 > now and latest - 16384 or now
          local high = entries + 1
          start = 1
          while start < high do
            local middle = floor((start + high) / 2)
            if entry(middle) + period <= present then
              start = middle + 1
            else
              high = middle
            end
          end
          before = start > 1 and sum(start - 1) or base
          used = entries > 0 and (sum(entries) - before) % 65536 or 0
        end
        -- The first entry from which on the sum, counted from `before`, is at least `wanted`.
        local function reaching(wanted)
          local low, high = start, entries + 1
          while low < high do
            local middle = floor((low + high) / 2)
            if (sum(middle) - before) % 65536 < wanted then
              low = middle + 1
            else
              high = middle
            end
          end
          return low
        end

        count()
        if used > 0 and size ~= length and cost > 0 and not made then
          -- The period was changed, and the tick perhaps: write the times anew, rounded up. Stored whatever is decided.
          local rows, newest, merged, last_made = {}, latest, 0, nil
          for i = start, entries do
            local made, sum = entry(i)
            made = ceil(made / tick)
            newest = made * tick
            -- Those that fall on one tick become one.
            merged = made == last_made and merged or merged + 1
            last_made = made
            rows[merged] = pack('>I4I2', made % 4294967296, sum)
          end
          latest = newest
          text = pack('>I7I5I2', latest, length, before) .. table.concat(rows)
          entries, base, unit = merged, before, tick
          turn = latest / unit
          call('SET', KEYS[key], text, 'PX', ceil((latest + period - now) / 1000) + MARGIN)
          count()
        end

        b1, b3 = used, used > 0 and latest + period or 0
        has_room = is_forced or made or cost == 0 or used + cost <= limit
        local excess, when = 0, latest
        if made then
          -- The entry of that charge, if it still counts and was made under this period.
          local i = start
          if size == length then
            local high = entries + 1
            while i < high do
              local middle = floor((i + high) / 2)
              if entry(middle) + period < made then
                i = middle + 1
              else
                high = middle
              end
            end
          end
          if size == length and i <= entries and entry(i) + period == made then
            local weight = (sum(i) - (i > start and sum(i - 1) or before)) % 65536
            local taken = cost < weight and cost or weight
            local rows, newest = { sub(text, 9 + 6 * start, 8 + 6 * i) }, i > start and entry(i - 1) or 0
            for later = i, entries do
              local ticks, sum = unpack('>I4I2', text, 9 + 6 * later)
              if later > i or taken < weight then
                rows[#rows + 1] = pack('>I4I2', ticks, (sum - taken) % 65536)
                newest = entry(later)
              end
            end
            n1, n3 = used - taken, newest > 0 and newest + period or 0
            if newest > 0 then
              value = pack('>I7I5I2', newest, length, before) .. table.concat(rows)
              life = ceil((newest + period - now) / 1000) + MARGIN
            else
              call('DEL', KEYS[key])
              b1, b3 = n1, n3
            end
          end
        elseif cost > 0 and (has_room or is_stern) and not (is_forced and used >= 65535) then
          -- What goes over the limit by a penalty pushes out the oldest.
          local taken, most = cost < limit and cost or limit, used > limit and used or limit
          if is_forced then
            most = 65535
            taken = cost < most - used and cost or most - used
          end
          if used + taken > most then
            excess = used + taken - most
          end
          local kept = ''
          when = ceil((latest > now and latest or now) / tick) * tick
          if start <= entries then
            local from = excess > 0 and reaching(excess + 1) or start
            kept = sub(text, 9 + 6 * from, 8 + 6 * (when == latest and entries or entries + 1))
          end
          value = pack('>I7I5I2', when, length, (before + excess) % 65536) .. kept
            .. pack('>I4I2', when / tick % 4294967296, (before + used + taken) % 65536)
          life = ceil((when + period - now) / 1000) + MARGIN
          n1, n3 = used + taken - excess, when + period
        end
        if not has_room and cost <= limit then
          -- Enough is back when so many units have left, counted from `before`.
          local wanted = (value and n1 or used) + excess + cost - limit
          local i = reaching(wanted)
          local back = (i <= entries and entry(i) or when) + period
          b2 = back > now and back or now
          n2 = b2
        end
      end
