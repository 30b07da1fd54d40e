    -- Sliding window counter: the count of this window, and the last one's weighted by how much of it is still near.
    -- Twin of src/algorithm/sliding_window.rs.
    --
    -- ARGV 's', cost (units), limit (units), length of the window (ms), tick (us in which the weight stays the same)
    -- Returns when the younger window closes in us, the units used in the elder, and those used in the younger
    -- State, 19 bytes: when the younger closes in ms in 6, units of the elder in 4, of the younger in 4, length in ms in 5
    --
    -- Example: 10 in each minute, cost 1, at time 1700000000000000, no key yet:
    --   's' 1 10 60000 1 -> has room, closes at 1700000040000000, 0 before, 1 within
    elseif kind == 's' then
      width, numbers = 4, 3
      local cost, limit, length = ARGV[at + 1] + 0, ARGV[at + 2] + 0, ARGV[at + 3] + 0
      local tick = ARGV[at + 4] + 0
      local ticks = length * 1000 / tick
      assert(limit * ticks < EXACT, 'sliding window: limit and length too large for doubles')
      local is_same = false
      local closes, before, within = clock - clock % length + length, 0, 0
      if text and is_ours then
        is_ours = #text == 19
        if is_ours then
          local closed, elder, younger, size = unpack('>I6I4I4I5', text)
          is_ours = closed * 1000 >= EARLIEST and closed * 1000 <= now + FURTHEST and size > 0
          if is_ours and clock < closed + size then
            if clock >= closed then
              closed, elder, younger = closed + size, younger, 0
            end
            if size == length then
              closes, before, within, is_same = closed, elder, younger, true
            else
              -- The window was changed: what was used stays used. Stored whatever is decided.
              local left = closed - clock
              within = younger + ceil(elder * ((left < size and left or size) / size))
              if within > 4294967295 then
                within = 4294967295
              end
              if cost > 0 and within > 0 and not refund_at then
                extra = {
                  kept = pack('>I6I4I4I5', closes, 0, within, length), kept_life = closes + length - clock + MARGIN,
                }
              end
            end
          end
        end
      end
      if is_ours and refund_at then
        has_room, b1, b2, b3 = true, closes * 1000, before, within
        n1, n2, n3 = b1, b2, b3
        if is_same and (closes + length) * 1000 == refund_at then
          n3 = within > cost and within - cost or 0
        elseif is_same and b1 == refund_at then
          n2 = before > cost and before - cost or 0
        end
        if n2 < b2 or n3 < b3 then
          value, life = pack('>I6I4I4I5', closes, n2, n3, length), closes + length - clock + MARGIN
        end
      elseif is_ours then
        b1, b2, b3 = closes * 1000, before, within
        local passed = now - (closes - length) * 1000
        local left = passed > 0 and ticks - floor(passed / tick) or ticks
        -- Above a limit that was lowered, the elder is no more than all of it.
        local elder = ceil((before < limit and before or limit) * left / ticks)
        has_room = is_forced or cost == 0 or within + elder + cost <= limit
        if cost > 0 and (has_room or counts_denied) then
          local most = within > limit and within or limit
          most = is_forced and 4294967295 or most
          n1, n2, n3 = b1, before, within + cost
          if n3 > most then
            n3 = most
          end
          value, life = pack('>I6I4I4I5', closes, before, n3, length), closes + length - clock + MARGIN
        end
      end
