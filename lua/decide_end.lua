    else
      error('decide: unknown algorithm')
    end

    at = at + 1 + width
    if not is_ours then
      verdict = 2
    elseif not has_room and verdict == 1 then
      verdict = 0
    end
    if not told then
      -- One charge is most groups, and needs no tables: its own word is the group's.
      if value then
        call('SET', KEYS[key], value, 'PX', life)
        b1, b2, b3 = n1, n2, n3
      elseif parts then
        for part = 1, #parts, 2 do
          call('SETRANGE', KEYS[key], parts[part], parts[part + 1])
        end
        call('PEXPIRE', KEYS[key], life)
        b1, b2, b3 = n1, n2, n3
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
      told[i] = { (has_room and 1 or 0) + more, numbers, b1, b2, b3, n1, n2, n3 }
      values[i], lives[i], stern[i] = value or parts, life, is_stern
    end
  end

  -- Phase 2 writes, when all admit; else only what counts denied attempts too.
  reply[said + 1] = verdict
  if told then
    for i = 1, charges do
      local tells = told[i]
      local kept = (verdict == 1 or verdict == 0 and stern[i]) and values[i]
      if type(kept) == 'table' then
        for part = 1, #kept, 2 do
          call('SETRANGE', KEYS[first + i], kept[part], kept[part + 1])
        end
        call('PEXPIRE', KEYS[first + i], lives[i])
      elseif kept then
        call('SET', KEYS[first + i], kept, 'PX', lives[i])
      end
      reply[place] = tells[1]
      for number = 1, tells[2] do
        reply[place + number] = tells[(kept and 5 or 2) + number]
      end
      place = place + 1 + tells[2]
    end
  end
  said = place - 1
end
return pack('>' .. string.rep('I8', said), spread(reply))
