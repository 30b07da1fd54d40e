-- Token bucket, kept as GCRA: the value under the key is the theoretical arrival time (TAT), the moment when the
-- bucket will be full again. Twin of src/algorithm/token_bucket.rs, which explains and proves the arithmetic.
--
-- ARGV for an interval of whole microseconds:
--   'w', increment (us that the charge moves the TAT), tolerance (us that the TAT may lie ahead before it; -1: never)
-- ARGV for any other rate:
--   'l', cost (units), units, micros (units come back in each micros), span (us the TAT may lie ahead after; -1: never)
--
-- Example: 10 a minute, cost 1, at time 1700000000000000, no key yet:
--   'w' 6000000 54000000 -> admitted, TAT 1700000006000000

algorithms['w'] = function(key, now, at)
  local tat = stored_time(key, now)
  if not tat then
    return nil, 0, 0, 0, 2
  end
  local increment, tolerance = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  if increment == 0 then
    return tolerance >= 0, tat, tat, 0, 2
  end
  local from = tat > now and tat or now
  if from - now > tolerance then
    return false, tat, tat, 0, 2
  end
  local moved = from + increment
  return true, tat, moved, ceil((moved - now) / 1000) + MARGIN, 2
end

algorithms['l'] = function(key, now, at)
  local tat = stored_time(key, now)
  if not tat then
    return nil, 0, 0, 0, 4
  end
  local cost, units = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local micros, span = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  -- Products of units and micros stay below 2^52, and so does cost: the quota was refused otherwise.
  assert(units * micros < 4503599627370496, 'token bucket: rate too fine for doubles')
  if cost == 0 then
    return true, tat, tat, 0, 4
  end
  if span < 0 then
    return false, tat, tat, 0, 4
  end
  -- The lattice point at or before the TAT, and how far the one `cost` further on lies from it.
  local from = tat > now and tat or now
  local point = floor((from % micros) * units / micros)
  local target = point + cost
  local periods = floor(target / units)
  local moved = from + periods * micros
    + ceil((target - periods * units) * micros / units) - ceil(point * micros / units)
  if moved - now > span then
    return false, tat, tat, 0, 4
  end
  return true, tat, moved, ceil((moved - now) / 1000) + MARGIN, 4
end
