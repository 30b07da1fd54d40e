    -- Token bucket and leaky bucket, kept as GCRA: the state is the theoretical arrival time (TAT), the moment when the
    -- bucket will be full again. Twin of src/algorithm/token_bucket.rs, which explains and proves the arithmetic.
    --
    -- ARGV for an interval of whole microseconds:
    --   'w' and the quota's tag (4 bytes), increment (us that the charge moves the TAT; 0: peek, -1: never fits), span (us
    --   that the TAT may lie ahead after it)
    -- ARGV for any other rate:
    --   'l' and the quota's tag, cost (units; 0: peek, -1: never fits), span, units, micros (units come back in each micros)
    -- Returns the TAT; and the total refunded on the key if that is not 0
    -- State, 11 bytes: the TAT in 7, then the tag of its quota: the span, as 26 bits and a shift in 6. After a refund 7
    --   bytes more: the total refunded, modulo 2^52
    --
    -- Example: 10 a minute, cost 1, at time 1700000000000000, no key yet:
    --   'wAAAA' 6000000 60000000 -> has room, TAT 1700000006000000
    elseif kind == 'w' or kind == 'l' then
      width = kind == 'w' and 2 or 4
      local cost, span = ARGV[at + 1] + 0, ARGV[at + 2] + 0
      local quota_tag = sub(tag, 2)
      local tat, returned, is_changed = 0, 0, false
      if text and is_ours then
        if #text == 18 then
          returned = unpack('>I7', text, 12)
        end
        tat = (#text == 11 or #text == 18) and unpack('>I7', text) or 0
        is_ours = tat >= EARLIEST and tat <= now + FURTHEST and returned < EXACT
        if is_ours and tat > now and sub(text, 8, 11) ~= quota_tag then
          -- The limit was changed: the debt keeps its share of the span. Stored whatever is decided, or the debt would
          -- go on shrinking by the old span.
          local bits = unpack('>I4', text, 8)
          local old = bits % 67108864 * 2 ^ floor(bits / 67108864)
          old = old > 0 and old or 1
          tat = now + ceil((tat - now < old and tat - now or old) * (span / old))
          is_changed = true
          if cost ~= 0 and not refund_at then
            local kept, length = pack('>I7c4', tat, quota_tag), tat - now
            if returned > 0 then
              kept, length = kept .. pack('>I7', returned), span > length and span or length
            end
            extra = { kept = kept, kept_life = ceil(length / 1000) + MARGIN }
          end
        end
      end
      if is_ours and refund_at then
        has_room, b1 = true, tat
        if tat > now and not is_changed then
          local weight
          if is_queue then
            weight = tat == refund_at and cost or 0
          else
            -- Where the charge ends now, or earlier: those taken back since may all have stood before it. What stands
            -- behind the whole debt is not of it: the key was forgotten in between.
            local ends = refund_at - (returned - refunded_before) % EXACT
            weight = ends <= tat and ends > now and ends - now or 0
            weight = cost < weight and cost or weight
            -- Taking back the last moves no other.
            if ends < tat then
              returned = (returned + weight) % EXACT
            end
          end
          n1 = tat - weight
          value, life = pack('>I7c4', n1, quota_tag), ceil((tat - now) / 1000) + MARGIN
        end
      elseif is_ours then
        b1 = tat
        local from = tat > now and tat or now
        local after
        if cost == 0 then
          has_room = true
        elseif cost > 0 then
          if kind == 'w' then
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
        if counts_denied and cost ~= 0 then
          local full = from > now + span and from or now + span
          after = after and after < full and after or full
        elseif not has_room then
          after = nil
        end
        if after then
          n1 = after
          value, life = pack('>I7c4', after, quota_tag), ceil((after - now) / 1000) + MARGIN
        end
      end
      if returned > 0 and is_ours then
        numbers, more, b2, n2 = 2, 2, returned, returned
        if value then
          -- Kept until nobody knows a charge by an earlier sum that still weighs.
          local least = ceil(span / 1000) + MARGIN
          value, life = value .. pack('>I7', returned), life > least and life or least
        end
      end
