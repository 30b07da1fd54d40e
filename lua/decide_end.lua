    else
      error('decide: unknown algorithm')
    end

    at = at + 1 + width
    reply[said + 2 * i] = admitted and 1 or 0
    if not state then
      verdict = 2
    elseif not admitted and verdict == 1 then
      verdict = 0
    end
    if not befores then
      -- One charge is most groups, and needs no tables: its own word is the group's.
      reply[said + 3] = after or 0
      if life > 0 then
        call('SET', KEYS[key], format('%.0f', after), 'PX', format('%.0f', life))
      end
    else
      befores[i], afters[i], lives[i] = state or 0, after or 0, life
    end
  end

  -- Phase 2 writes, when all admit.
  reply[said + 1] = verdict
  if befores then
    for i = 1, charges do
      reply[said + 2 * i + 1] = verdict == 1 and afters[i] or befores[i]
      if verdict == 1 and lives[i] > 0 then
        call('SET', KEYS[first + i], format('%.0f', afters[i]), 'PX', format('%.0f', lives[i]))
      end
    end
  end
  said = said + 1 + 2 * charges
end
return reply
