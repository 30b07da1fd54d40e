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
      local tick = ceil(period / 2147483648)
      local entries, latest, base, unit, size = 0, 0, 0, tick, nil
      if text and is_ours then
        is_ours = #text >= 20 and (#text - 14) % 6 == 0
        if is_ours then
          latest, size, base = unpack('>I7I5I2', text)
          is_ours = latest >= EARLIEST and latest <= now + FURTHEST and size > 0
          entries, unit = (#text - 14) / 6, ceil(size * 1000 / 2147483648)
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
        -- the last entry on.
        local present, start, before, used
        local function count()
          present = latest > now and latest or now
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
        if size and size ~= length and cost > 0 then
          -- The period was changed, and the tick perhaps: write the times anew, rounded up. Stored whatever is decided.
          local rows, newest = {}, latest
          for i = start, entries do
            local made, sum = entry(i)
            made = ceil(made / tick)
            newest = made * tick
            rows[#rows + 1] = pack('>I4I2', made % 4294967296, sum)
          end
          latest = newest
          text = pack('>I7I5I2', latest, length, before) .. table.concat(rows)
          entries, base, unit = entries - start + 1, before, tick
          turn = latest / unit
          if entries > 0 then
            call('SET', KEYS[key], text, 'PX', ceil((latest + period - now) / 1000) + MARGIN)
          end
          count()
        end

        b1, b3 = used, used > 0 and latest + period or 0
        has_room = cost == 0 or used + cost <= limit
        local excess, made = 0, latest
        if cost > 0 and (has_room or is_stern) then
          -- What goes over the limit by a penalty pushes out the oldest.
          local taken, most = cost < limit and cost or limit, used > limit and used or limit
          if used + taken > most then
            excess = used + taken - most
          end
          local kept = ''
          made = ceil(present / tick) * tick
          if start <= entries then
            local from = excess > 0 and reaching(excess + 1) or start
            kept = sub(text, 9 + 6 * from, 8 + 6 * (made == latest and entries or entries + 1))
          end
          value = pack('>I7I5I2', made, length, (before + excess) % 65536) .. kept
            .. pack('>I4I2', made / tick % 4294967296, (before + used + taken) % 65536)
          life = ceil((made + period - now) / 1000) + MARGIN
          n1, n3 = used + taken - excess, made + period
        end
        if not has_room and cost <= limit then
          -- Enough is back when so many units have left, counted from `before`.
          local wanted = (value and n1 or used) + excess + cost - limit
          local i = reaching(wanted)
          local back = (i <= entries and entry(i) or made) + period
          b2 = back > now and back or now
          n2 = b2
        end
      end
