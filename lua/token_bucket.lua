    -- Token bucket and leaky bucket, kept as GCRA: the state is the theoretical arrival time (TAT), the moment when the
    -- bucket will be full again. Twin of src/algorithm/token_bucket.rs, which explains and proves the arithmetic.
    --
    -- ARGV for an interval of whole microseconds:
    --   'w' and the shape (4 bytes), increment (us that the charge moves the TAT; 0: peek, -1: never fits), span (us that
    --   the TAT may lie ahead after it)
    -- ARGV for any other rate:
    --   'l' and the shape, cost (units; 0: peek, -1: never fits), span, units, micros (units come back in each micros)
    -- Tells the TAT
    -- State, 11 bytes: the TAT in 7, then the shape: the span it was made under, as 26 bits and a shift in 6
    --
    -- Example: 10 a minute, cost 1, at time 1700000000000000, no key yet:
    --   'wAAAA' 6000000 60000000 -> has room, TAT 1700000006000000
    elseif kind == 119 or kind == 108 then
      width = kind == 119 and 2 or 4
      local cost, span = ARGV[at + 1] + 0, ARGV[at + 2] + 0
      local shape = sub(tag, 2)
      local tat, is_changed = 0, false
      if text and is_ours then
        tat = #text == 11 and unpack('>I7', text) or 0
        is_ours = tat >= EARLIEST and tat <= now + FURTHEST
        if is_ours and tat > now and sub(text, 8) ~= shape then
          -- The limit was changed: the debt keeps its share of the span. Stored whatever is decided, or the debt would
          -- go on shrinking by the old span.
          local bits = unpack('>I4', text, 8)
          local old = bits % 67108864 * 2 ^ floor(bits / 67108864)
          old = old > 0 and old or 1
          tat = now + ceil((tat - now < old and tat - now or old) * (span / old))
          is_changed = true
          if cost ~= 0 and not made then
            call('SET', KEYS[key], pack('>I7c4', tat, shape), 'PX', ceil((tat - now) / 1000) + MARGIN)
          end
        end
      end
      if is_ours and made then
        has_room, b1 = true, tat
        if tat > now and not is_changed then
          local weight = made > now and made - now or 0
          if is_last then
            weight = tat == made and cost or 0
          end
          n1 = tat - (cost < weight and cost or weight)
          value, life = pack('>I7c4', n1, shape), ceil((tat - now) / 1000) + MARGIN
        end
      elseif is_ours then
        b1 = tat
        local from = tat > now and tat or now
        local after
        if cost == 0 then
          has_room = true
        elseif cost > 0 then
          if kind == 119 then
            after = from + cost
          else
            local units, micros = ARGV[at + 3] + 0, ARGV[at + 4] + 0
            -- Products of units and micros stay below 2^52, and so does cost: the quota was refused otherwise.
            assert(units * micros < EXACT, 'token bucket: rate too fine for doubles')
            -- The lattice point at or before the TAT, and how far the one `cost` further on lies from it.
            local point = floor((from % micros) * units / micros)
            local target = point + cost
            local periods = floor(target / units)
            after = from + periods * micros
              + ceil((target - periods * units) * micros / units) - ceil(point * micros / units)
          end
          has_room = is_forced or after - now <= span
          if is_forced then
            local most = now + FURTHEST / 2
            most = from > most and from or most
            after = after < most and after or most
          end
        end
        if is_stern and cost ~= 0 then
          local full = from > now + span and from or now + span
          after = after and after < full and after or full
        elseif not has_room then
          after = nil
        end
        if after then
          n1 = after
          value, life = pack('>I7c4', after, shape), ceil((after - now) / 1000) + MARGIN
        end
      end
