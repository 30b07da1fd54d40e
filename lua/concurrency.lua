    -- Concurrency: slots in flight, each until its lease ends.
    --
    -- ARGV 'c', cost (slots; 0: peek), limit (slots), lease (ms), ticket (8 bytes that no other request has): takes slots
    --   'e', lease (ms), whether a take may still be on its way (0 or 1), members: releases the slots of up to 50 tickets
    --   'k', lease (ms), whether to take again what is missing (0 or 1), members: renews the leases of up to 50 tickets
    -- Returns the slots in flight; for 'e' the slots released; for 'k' a bit per missing member, the first one the lowest
    -- State, a sorted set of
    --   ''       by the total of the members' slots, so it comes first
    --   bars     a ticket and 0 in 3 bytes, by a time in s: until then the ticket takes no slots. Left by a release that
    --            a take may follow
    --   members  a ticket and its slots in 3 bytes, by the end of the lease in ms
    --
    -- A take also removes up to 32 leases that have ended. Those beyond are still in the total, but not in flight: each
    -- counts as one slot, which is exact unless requests take several, and never too few are in flight.
    --
    -- Example: 10 at once, cost 1, lease 30 s, at time 1700000000000000, no key yet:
    --   'c' 1 10 30000 'ticket-1' -> has room, 1 taken
    elseif kind == 'c' or kind == 'e' or kind == 'k' then
      -- Bytes of a member, behind its ticket those of a bar; the least time of a bar in s, and of a lease in ms; how many
      -- a take removes.
      local SLOT_BYTES, NO_SLOTS, FIRST_BAR, FIRST_LEASE, MOST_REMOVED = 11, '\0\0\0', 1000000000, 1000000000000, 32
      local is_take, name = kind == 'c', KEYS[key]
      -- A denied request is not in flight.
      width, counts_denied = is_take and 4 or 3, false
      local total, second = 0, nil
      if text and is_ours then
        total, second = text[2] + 0, text[4] and text[4] + 0
        is_ours = text[1] == '' and total >= 0 and total < FIRST_BAR and total % 1 == 0
          and (not second or #text[3] == SLOT_BYTES and second >= FIRST_BAR and second * 1000 <= now + FURTHEST)
      end
      local ends = clock + ARGV[at + (is_take and 3 or 1)]
      -- Members to remove; scores and members to add.
      local removed, added = {}, {}

      if is_ours and is_take then
        local cost, limit, ticket = ARGV[at + 1] + 0, ARGV[at + 2] + 0, ARGV[at + 4]
        assert(#ticket == 8, 'concurrency: a ticket of 8 bytes')
        local unread = 0
        if second and second <= clock then
          removed = call('ZRANGE', name, FIRST_LEASE, clock, 'BYSCORE', 'LIMIT', '0', MOST_REMOVED)
          for i = 1, #removed do
            is_ours = is_ours and #removed[i] == SLOT_BYTES
            total = total - (is_ours and unpack('>I3', removed[i], 9) or 0)
          end
          if #removed == MOST_REMOVED then
            local ended = pcall('ZCOUNT', name, FIRST_LEASE, clock)
            if type(ended) == 'table' then
              failure, is_ours = failure or ended.err, false
            else
              unread = ended - MOST_REMOVED
            end
          end
          local bars = call('ZRANGE', name, FIRST_BAR, floor(clock / 1000), 'BYSCORE', 'LIMIT', '0', MOST_REMOVED)
          for i = 1, #bars do
            removed[#removed + 1] = bars[i]
          end
        end
        if is_ours then
          b1, n1 = total - unread, total - unread
          has_room = cost == 0 or b1 + cost <= limit
        end
        if cost == 0 then
          removed = {}
        elseif has_room then
          local member = ticket .. pack('>I3', cost)
          local scores = text and pcall('ZMSCORE', name, member, ticket .. NO_SLOTS) or {}
          if scores.err then
            failure, is_ours, has_room = failure or scores.err, false, false
          elseif scores[1] then
            -- A ticket takes slots once.
            removed = {}
          else
            has_room = not scores[2]
          end
          if has_room and not scores[1] then
            added = { ends, member }
            total, n1 = total + cost, n1 + cost
            -- By the command that was just allowed: a lease that has ended takes no slot.
            extra = { undo = { { 'ZADD', name, FIRST_LEASE, member } } }
          end
        end
      elseif is_ours then
        local flag, list = ARGV[at + 2] == '1', ARGV[at + 3]
        assert(#list % SLOT_BYTES == 0, 'concurrency: members of 11 bytes')
        local members, asked = {}, {}
        for from = 1, #list, SLOT_BYTES do
          local member = sub(list, from, from + SLOT_BYTES - 1)
          members[#members + 1] = member
          asked[#members] = member
        end
        if kind == 'k' and flag then
          for i = 1, #members do
            local ticket = sub(members[i], 1, 8)
            asked[#members + i] = ticket .. NO_SLOTS
          end
        end
        local scores = text and pcall('ZMSCORE', name, spread(asked)) or {}
        if scores.err then
          failure, is_ours = failure or scores.err, false
        end
        -- A ticket that is listed twice counts once.
        local seen = {}
        for i = 1, is_ours and #members or 0 do
          local ticket, slots = unpack('>c8I3', members[i])
          local is_first = not seen[members[i]]
          seen[members[i]] = true
          if kind == 'e' then
            if scores[i] and is_first then
              removed[#removed + 1] = members[i]
              total, n1 = total - slots, n1 + slots
            end
            if flag then
              added[#added + 1], added[#added + 2] = ceil(ends / 1000), ticket .. NO_SLOTS
            end
          elseif scores[i] or flag and not scores[#members + i] then
            added[#added + 1], added[#added + 2] = ends, members[i]
            total = (scores[i] or not is_first) and total or total + slots
          else
            n1 = n1 + 2 ^ (i - 1)
          end
        end
        has_room, b1 = is_ours, n1
      end

      if is_ours and (#removed > 0 or #added > 0) then
        total = total > 0 and total or 0
        local list, expiry = {}, nil
        if #added > 0 then
          local longest = text and call('ZRANGE', name, '-1', '-1', 'WITHSCORES')[2] + 0 or 0
          expiry = { 'PEXPIRE', name, (longest > ends and longest or ends) - clock + MARGIN }
          -- Before there is a key this only finds out whether it is allowed.
          if not is_take or not text then
            list[1] = expiry
          end
        elseif total == 0 and #call('ZRANGE', name, '1', #removed + 1) == #removed then
          -- Nothing is left, so the key goes too.
          removed[#removed + 1] = ''
        end
        if #removed > 0 then
          list[#list + 1] = { 'ZREM', name, spread(removed) }
        end
        if removed[#removed] ~= '' then
          list[#list + 1] = { 'ZADD', name, total, '', spread(added) }
        end
        if expiry and (is_take or not text) then
          list[#list + 1] = expiry
        end
        extra = extra or {}
        extra[has_room and 'commands' or 'kept_commands'] = list
      end
