    -- Fixed window: a count, and when the window closes. Twin of src/algorithm/fixed_window.rs.
    --
    -- ARGV 'f' (opened by the clock), 'o' (by the first hit) or 'm' (by the calendar month) and the quota's tag (2 bytes),
    --   cost (units), limit (units), length of the window (ms; a month ignores it)
    -- Returns when the window closes in us, and the units used in it
    -- State, 12 bytes: when it closes in ms in 6, units in 4, the tag of its quota in 2. A window that the first hit opens
    --   may close at any microsecond, so its state is 13 bytes: when it closes in us in 7, then the same
    --
    -- Example: 10 in each minute, cost 1, at time 1700000000000000, no key yet:
    --   'fAA' 1 10 60000 -> has room, closes at 1700000040000000, 1 used
    elseif kind == 'f' or kind == 'o' or kind == 'm' then
      width, numbers = 3, 2
      local cost, limit, length = ARGV[at + 1] + 0, ARGV[at + 2] + 0, ARGV[at + 3] + 0
      local quota_tag = sub(tag, 2)
      local format, unit = '>I6I4c2', 1000
      if kind == 'o' then
        format, unit = '>I7I4c2', 1
      end
      local closes, used, opened
      if text and is_ours then
        if #text == 12 then
          closes, used, opened = unpack('>I6I4c2', text)
          closes = closes * 1000
        elseif #text == 13 then
          closes, used, opened = unpack('>I7I4c2', text)
        end
        is_ours = closes and closes >= EARLIEST and closes <= now + FURTHEST
      end
      local is_open = closes and is_ours and closes > now
      if is_ours and not (is_open and opened == quota_tag) then
        if kind == 'f' then
          closes = (clock - clock % length + length) * 1000
        elseif kind == 'o' then
          closes = now + length * 1000
        else
          -- Days in eras of 400 years that begin on the first of March, as in src/algorithm/calendar.rs.
          local day = floor(clock / 86400000) + 719468
          local era = floor(day / 146097)
          local rest = day - era * 146097
          local year = floor((rest - floor(rest / 1460) + floor(rest / 36524) - floor(rest / 146096)) / 365)
          local start = 365 * year + floor(year / 4) - floor(year / 100)
          local month = floor((5 * (rest - start) + 2) / 153)
          local following = 146097
          if month < 11 then
            following = start + floor((153 * (month + 1) + 2) / 5)
          elseif year < 399 then
            following = 365 * (year + 1) + floor((year + 1) / 4) - floor((year + 1) / 100)
          end
          closes = (era * 146097 + following - 719468) * 86400000000
        end
        if is_open and cost > 0 and not refund_at then
          -- The window was changed: what was used stays used. Stored whatever is decided, or the old one would close.
          extra = {
            kept = pack(format, closes / unit, used, quota_tag), kept_life = ceil((closes - now) / 1000) + MARGIN,
          }
        elseif not is_open then
          used = 0
        end
      end
      if is_ours and refund_at then
        has_room, b1, b2, n1 = true, closes, used, closes
        if is_open and opened == quota_tag and n1 == refund_at then
          n2 = used > cost and used - cost or 0
          value, life = pack(format, closes / unit, n2, quota_tag), ceil((closes - now) / 1000) + MARGIN
        end
      elseif is_ours then
        b1, b2, n1 = closes, used, closes
        has_room = is_forced or cost == 0 or used + cost <= limit
        if cost > 0 and (has_room or counts_denied) then
          n2 = used + cost
          local most = used > limit and used or limit
          most = is_forced and 4294967295 or most
          if n2 > most then
            n2 = most
          end
          value, life = pack(format, closes / unit, n2, quota_tag), ceil((closes - now) / 1000) + MARGIN
        end
      end
