    -- Token bucket, kept as GCRA: the state is the theoretical arrival time (TAT), the moment when the bucket will be
    -- full again. Twin of src/algorithm/token_bucket.rs, which explains and proves the arithmetic.
    --
    -- ARGV for an interval of whole microseconds:
    --   'w', increment (us that the charge moves the TAT), tolerance (us that the TAT may lie ahead before it; -1: never)
    -- ARGV for any other rate:
    --   'l', cost (units), units, micros (units come back in each micros), span (us the TAT may lie ahead after;
    --   -1: never)
    --
    -- Example: 10 a minute, cost 1, at time 1700000000000000, no key yet:
    --   'w' 6000000 54000000 -> admitted, TAT 1700000006000000
    if tag == 'w' then
      width = 2
      if state then
        local increment, tolerance = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
        local from = state > now and state or now
        if increment == 0 then
          admitted = tolerance >= 0
        elseif from - now <= tolerance then
          admitted, after = true, from + increment
          life = ceil((after - now) / 1000) + MARGIN
        end
      end
    elseif tag == 'l' then
      width = 4
      if state then
        local cost, units = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
        local micros, span = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
        -- Products of units and micros stay below 2^52, and so does cost: the quota was refused otherwise.
        assert(units * micros < 4503599627370496, 'token bucket: rate too fine for doubles')
        if cost == 0 then
          admitted = true
        elseif span >= 0 then
          -- The lattice point at or before the TAT, and how far the one `cost` further on lies from it.
          local from = state > now and state or now
          local point = floor((from % micros) * units / micros)
          local target = point + cost
          local periods = floor(target / units)
          local moved = from + periods * micros
            + ceil((target - periods * units) * micros / units) - ceil(point * micros / units)
          if moved - now <= span then
            admitted, after = true, moved
            life = ceil((after - now) / 1000) + MARGIN
          end
        end
      end
