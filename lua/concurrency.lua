    -- Concurrency: the slots that are taken, each with the end of its lease. Counted as src/algorithm/slots.rs does.
    --
    -- ARGV 'c', cost (slots; 0: peek), limit (slots), lease (ms), ticket (8 bytes that no other request has). After '-' the
    --   slots of the ticket are given back, after '/' their lease begins anew, even if it had ended
    -- Tells the slots that are taken
    -- State: the soonest end of a lease in ms in 6 (or an earlier time), slots in 4; then 16 per ticket: the ticket in 8,
    --   the end of its lease in ms in 6, its slots in 2
    --
    -- Example: 10 at once, cost 1, lease 30 s, at time 1700000000000000, no key yet:
    --   'c' 1 10 30000 'ticket-1' -> has room, 1 taken
    elseif kind == 99 then
      -- A denied request is not in flight.
      width, is_stern = 4, false
      local cost, limit, lease = ARGV[at + 1] + 0, ARGV[at + 2] + 0, ARGV[at + 3] + 0
      local ticket = ARGV[at + 4]
      assert(#ticket == 8, 'concurrency: a ticket of 8 bytes')
      local soonest, used, slots = 0, 0, ''
      if text and is_ours then
        is_ours = #text >= 26 and (#text - 10) % 16 == 0
        if is_ours then
          soonest, used = unpack('>I6I4', text)
          is_ours = soonest * 1000 >= EARLIEST and soonest * 1000 <= now + FURTHEST
          slots = sub(text, 11)
        end
      end
      if is_ours then
        if slots ~= '' and soonest <= clock then
          -- A lease may have ended: look at all.
          local kept = {}
          soonest, used = nil, 0
          for i = 1, #slots, 16 do
            local ends, units = unpack('>I6I2', slots, i + 8)
            if ends > clock then
              kept[#kept + 1] = sub(slots, i, i + 15)
              used = used + units
              soonest = soonest and soonest < ends and soonest or ends
            end
          end
          slots = table.concat(kept)
        end
        if made or is_renewal then
          local i = string.find(slots, ticket, 1, true)
          while i and i % 16 ~= 1 do
            i = string.find(slots, ticket, i + 1, true)
          end
          if i then
            local _, units = unpack('>I6I2', slots, i + 8)
            slots, used = sub(slots, 1, i - 1) .. sub(slots, i + 16), used - units
          end
        end
        b1, n1 = used, used
        has_room = made or is_renewal or cost == 0 or used + cost <= limit
        if has_room and cost > 0 then
          life = lease + MARGIN
          if text then
            -- Others may hold longer leases, from before the policy was changed.
            local left = call('PTTL', KEYS[key])
            life = left > life and left or life
          end
          if not made then
            local ends = clock + lease
            soonest = slots ~= '' and soonest < ends and soonest or ends
            slots, used = slots .. ticket .. pack('>I6I2', ends, cost), used + cost
          end
          n1 = used
          if slots ~= '' then
            value = pack('>I6I4', soonest, used) .. slots
          elseif text then
            call('DEL', KEYS[key])
          end
        end
      end
