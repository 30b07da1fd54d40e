    else
      error('decide: unknown algorithm')
    end

    at = at + 1 + width
    if not is_ours then
      outcome = failure and FAILED or FOREIGN
    elseif not has_room and outcome == ADMITTED then
      outcome = DENIED
    end
    if not records and not extra then
      -- One charge is most requests, and needs no record.
      if value then
        local answer = pcall('SET', KEYS[key], value, 'PX', life)
        if answer.err then
          outcome, failure = FAILED, answer.err
        else
          b1, b2, b3 = n1, n2, n3
        end
      elseif parts then
        -- First what may be refused: after the first SETRANGE of a key none is.
        local answer = pcall('PEXPIRE', KEYS[key], life)
        for part = 1, #parts, 2 do
          if type(answer) == 'number' then
            answer = pcall('SETRANGE', KEYS[key], parts[part], parts[part + 1])
          end
        end
        if type(answer) == 'table' then
          outcome, failure = FAILED, answer.err
        else
          b1, b2, b3 = n1, n2, n3
        end
      end
      reply[place], reply[place + 1] = (has_room and 1 or 0) + more, b1
      if numbers > 1 then
        reply[place + 2] = b2
        if numbers > 2 then
          reply[place + 3] = b3
        end
      end
      place = place + 1 + numbers
    else
      records = records or {}
      records[i] = {
        (has_room and 1 or 0) + more, numbers, b1, b2, b3, n1, n2, n3,
        text, value, parts, life, extra, counts_denied,
      }
    end
  end

  -- Phase 2 writes, if all charges fit; else only what counts denied attempts too, and what is kept.
  if records then
    for i = 1, charges do
      local name, record = KEYS[first + i], records[i]
      local value, parts, life, extra, counts_denied = spread(record, 10, 14)
      local is_counted, commands = false, nil
      if outcome == ADMITTED or outcome == DENIED and counts_denied then
        commands = extra and extra.commands
        is_counted = value or parts or commands
      end
      if not is_counted then
        value, parts = nil, nil
        if extra and outcome <= ADMITTED then
          value, life, commands = extra.kept, extra.kept_life, extra.kept_commands
        end
      end
      local answer, done = nil, 0
      if value then
        answer = pcall('SET', name, value, 'PX', life)
      elseif parts then
        answer = pcall('PEXPIRE', name, life)
        for part = 1, #parts, 2 do
          if type(answer) == 'number' then
            answer = pcall('SETRANGE', name, parts[part], parts[part + 1])
          end
        end
      elseif commands then
        for command = 1, #commands do
          answer = pcall(spread(commands[command]))
          if type(answer) == 'table' then
            break
          end
          done = command
        end
      end

      local is_refused = type(answer) == 'table' and answer.err
      record[10], record[12] = not is_refused and value, life
      if extra and (not is_counted or is_refused and done == 0) then
        extra.undo = nil
      end
      if is_refused then
        outcome, failure, is_counted = FAILED, answer.err, false
        -- Undo what was written, by commands that were just allowed, and return the old numbers.
        for j = i, 1, -1 do
          local before, written, _, written_life, rest = spread(records[j], 9, 13)
          if written and before then
            pcall('SET', KEYS[first + j], before, 'PX', written_life)
          elseif written then
            -- An expiry in the past deletes the key.
            pcall('SET', KEYS[first + j], written, 'PXAT', '1')
          elseif rest and rest.undo then
            for _, command in ipairs(rest.undo) do
              pcall(spread(command))
            end
          end
        end
        place = reply_length + 2
        for j = 1, i - 1 do
          local charge = records[j]
          for number = 0, charge[2] do
            reply[place + number] = charge[number > 0 and number + 2 or 1]
          end
          place = place + 1 + charge[2]
        end
      end

      reply[place] = record[1]
      for number = 1, record[2] do
        reply[place + number] = record[(is_counted and 5 or 2) + number]
      end
      place = place + 1 + record[2]
    end
  end
  if failure then
    errors = errors or {}
    errors[#errors + 1] = failure
  end
  reply[reply_length + 1] = outcome
  reply_length = place - 1
end

-- Lua passes fewer than 8,000 values to a function.
if reply_length <= 4000 and not errors then
  return pack('>' .. string.rep('I8', reply_length), spread(reply))
end
local packed = ''
for from = 1, reply_length, 4000 do
  local to = from + 3999 < reply_length and from + 3999 or reply_length
  packed = packed .. pack('>' .. string.rep('I8', to - from + 1), spread(reply, from, to))
end
if errors then
  return { packed, spread(errors) }
end
return packed
