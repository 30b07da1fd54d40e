-- Token bucket and leaky bucket, kept as GCRA: the state is the theoretical arrival time (TAT), the moment when the
-- bucket is full again. Twin of src/algorithm/token_bucket.rs, which explains and proves the arithmetic.
--
-- KEYS   one per charge: a string
-- ARGV   if the interval between two units is a whole number of microseconds:
--          BUCKET and the quota's tag (4 bytes)
--          increment  us by which the charge moves the TAT; 0 peeks, -1 never fits
--          span       us that the TAT may lie ahead of now after the charge
--        for any other rate:
--          UNEVEN_BUCKET and the quota's tag (4 bytes)
--          cost       units; 0 peeks, -1 never fits
--          span       as above
--          units      number of units that come back in each `micros`
--          micros     us
--        for a queue QUEUE, with the same arguments as UNEVEN_BUCKET at every rate: a charge takes the first turn
--        that was given up and is long enough, and a refund keeps the turn of the charge
--        Other refunds and merges take BUCKET at every rate. Their increment, and the cost of a refund to a queue, is
--        the us that the units moved the TAT. A report of leased units takes UNEVEN_BUCKET.
-- Reply  the TAT in us; then, if it is not 0, the key's total of refunds in us; or for a charge of a queue that takes
--        a turn that was given up, the time in us when that is over; or for a denied charge the us of leased units in
--        its TAT
-- State  11 bytes; 18 once a charge was refunded; then 14 for each span of free turns of a queue, at most 32, or 22
--        while units are leased (lua/lease.lua):
--
--          0          7           11                    18
--          +----------+-----------+---------------------+------------+----------+---
--          | TAT (us) | quota tag | total refunded (us) | start (us) | end (us) | ..
--          +----------+-----------+---------------------+------------+----------+---
--
--        The quota's tag is the span that the TAT was computed with: a shift in 6 bits, then 26 bits. A charge that
--        leaves a part of the bucket to others has the tag of the whole bucket, and a shorter span. The total is
--        modulo 2^52, and left out while it is 0. Free turns were given up while others were behind them. They are in
--        order. Later charges take them, or they come back once all turns behind them are given up too: see
--        src/algorithm/free_turns.rs.
--
-- Example: 2 units a minute, so an interval of 30 s and a span of 60 s. Times with a `+` are
-- microseconds after 1700000000000000.
--   at +0         'wAAAA' 30000000 60000000 -> fits, TAT +30000000
--   at +1000000   'wAAAA' 30000000 60000000 -> fits, TAT +60000000
--   at +2000000   'wAAAA' 30000000 60000000 -> denied, TAT +60000000: +90000000 is more than 60 s ahead
--   at +2000000   '-' +30000000 0 'wAAAA' 30000000 60000000 -> refunded, TAT +32000000, total 28000000
--   at +30000000  'wAAAA' 30000000 60000000 -> fits, TAT +62000000, total 28000000
--
-- Example: the same key later, as a queue of one a second. The second of three callers leaves, a fourth one takes its
-- turn and leaves, and then the third one leaves.
--   at +100000000 'qAAAA' 1 60000000 1 1000000 -> fits, TAT +101000000
--   at +100000000 'qAAAA' 1 60000000 1 1000000 -> fits, TAT +102000000
--   at +100000000 'qAAAA' 1 60000000 1 1000000 -> fits, TAT +103000000
--   at +100000000 '-' +102000000 0 'qAAAA' 1000000 60000000 1 1000000 -> refunded, TAT +103000000
--   at +100000000 'qAAAA' 1 60000000 1 1000000 -> fits, TAT +103000000, over at +102000000
--   at +100000000 '-' +102000000 0 'qAAAA' 1000000 60000000 1 1000000 -> refunded, TAT +103000000
--   at +100000000 '-' +103000000 0 'qAAAA' 1000000 60000000 1 1000000 -> refunded, TAT +101000000

argument_count = kind == BUCKET and 2 or 4
local cost, span = ARGV[argument + 1] + 0, ARGV[argument + 2] + 0
local quota_tag = sub(tag, 2)
stored = redis_pcall('GET', key)
is_ours = not stored or #stored > 0
local tat, refunded, free_turns, is_changed = 0, 0, '', false
-- When the free turn is over that the charge takes, or nil.
local turn_ends
-- The leases as they are stored, or nil; all leased units in us; when the leases end, and for how long they count then.
local leases, leased_micros, leases_end, leases_life
if stored and is_ours then
  local length = #stored
  local has_total = length % 14 == 4
  if length >= 11 and length <= 466 and (has_total or length % 14 == 11) then
    tat = unpack_bytes('>I7', stored)
    if has_total then
      refunded = unpack_bytes('>I7', stored, 12)
    end
    -- Under another quota, the turns are elsewhere.
    free_turns = length > 18 and sub(stored, 8, 11) == quota_tag and sub(stored, has_total and 19 or 12) or ''
  elseif length == 33 or length == 40 then
    tat = unpack_bytes('>I7', stored)
    refunded = length == 40 and unpack_bytes('>I7', stored, 12) or 0
    leases = sub(stored, -22)
    born, turn, before, latest, asked, over = unpack_bytes('>I4I4I4I4I4I2', leases)
    turn_micros = turn < SHORT_TURNS and REGION_TURN or TURN
  end
  is_ours = tat >= EARLIEST and tat <= now + FURTHEST and refunded < EXACT
  if is_ours and tat > now and sub(stored, 8, 11) ~= quota_tag then
    -- The limit was changed: the debt keeps its share of the span. This is stored even if the charge is denied, because
    -- until then the debt shrinks at the old rate.
    local bits, new_bits = unpack_bytes('>I4', stored, 8), unpack_bytes('>I4', quota_tag)
    local old_span = bits % 2 ^ 26 * 2 ^ floor(bits / 2 ^ 26)
    old_span = old_span > 0 and old_span or 1
    -- A charge that leaves a reserve has a shorter span than its tag.
    local new_span = new_bits % 2 ^ 26 * 2 ^ floor(new_bits / 2 ^ 26)
    new_span = new_span > span and new_span or span
    -- While units are leased, it may be larger, by the whole span at most.
    local most = leases and 2 * old_span or old_span
    tat = now + ceil((tat - now < most and tat - now or most) * (new_span / old_span))
    is_changed = true
    if (cost ~= 0 or merge_from) and not refund_at then
      local rescaled, life = pack_bytes('>I7c4', tat, quota_tag), tat - now
      if refunded > 0 then
        rescaled, life = rescaled .. pack_bytes('>I7', refunded), span > life and span or life
      end
      if leases then
        local ends = (turn + 2) * turn_micros
        rescaled, life = rescaled .. leases, (tat > ends and tat or ends) - now + 2 * span
      end
      extra = { uncounted_value = rescaled, uncounted_ttl = ceil(life / 1000) + TTL_MARGIN }
    end
  end
end

if leases and is_ours then
  leases_life = 2 * span
  if (cost > 0 or kind == UNEVEN_BUCKET) and not refund_at and not merge_from and not is_forced then
    -- An increment is that of one unit, or of a policy that is not leased: then all leases take a quarter of the span.
    local units, micros = 1, cost
    local overdraft = floor(span * over / 1000)
    local most_leased = ceil(span / 4) + overdraft
    local most = (tat > now and tat or now) + most_leased
    if kind == UNEVEN_BUCKET then
      units, micros = ARGV[argument + 3] + 0, ARGV[argument + 4] + 0
    end
    include('ended_leases.lua')
    if not report then
      local leased = before + latest
      leased_micros = floor(leased / units) * micros + ceil(leased % units * micros / units)
      if kind == BUCKET then
        tat = tat < most and tat or most
        leased_micros = leased_micros < most_leased and leased_micros or most_leased
      end
      span = span - leased_micros + (leased > 0 and overdraft or 0)
    end
    leases = pack_bytes('>I4I4I4I4I4I2', born, turn, before, latest, asked, over)
  end
  leases_end = (turn + 2) * turn_micros
  if before + latest == 0 and leases_end + turn_micros < now and tat <= now + span then
    -- Nothing was leased for two turns, so the number of requests is of no use; nor is the key ahead of its limit.
    leases = nil
  end
end

if report and is_ours then
  local units, micros = ARGV[argument + 3] + 0, ARGV[argument + 4] + 0
  -- At a region's report, there may be no charge here that converts it.
  is_other = is_changed and sub(report, 31, 31) ~= '\3' or tat > now and free_turns ~= ''
  include('lease_report.lua')
  if is_reset then
    tat, refunded = now, 0
  end
  if not is_late then
    -- The charges that were made before these have their ends earlier by as much, as after a refund here.
    local back = unpack_bytes('>I4', report, 27)
    refunded = (refunded + floor(back / units) * micros + ceil(back % units * micros / units)) % EXACT
  end
  -- lua/lease.lua stores the leases.
  free_turns, leases, leases_end, leases_life = '', '', (turn + 2) * turn_micros, 2 * span
end

if is_ours and refund_at then
  has_room, old1 = true, tat
  if tat > now and not is_changed then
    local outstanding
    if is_queue then
      local start, finish = refund_at > cost and refund_at - cost or 0, refund_at
      outstanding = 0
      if finish == tat then
        while #free_turns > 0 and unpack_bytes('>I7', free_turns, #free_turns - 6) >= start do
          local free_from = unpack_bytes('>I7', free_turns, #free_turns - 13)
          start = free_from < start and free_from or start
          free_turns = sub(free_turns, 1, -15)
        end
        outstanding = tat - start
      elseif finish < tat and finish > now then
        local earlier, later = '', ''
        for at = 1, #free_turns, 14 do
          local other_start, other_finish = unpack_bytes('>I7I7', free_turns, at)
          if other_finish < start then
            earlier = other_finish > now and earlier .. sub(free_turns, at, at + 13) or earlier
          elseif other_start > finish then
            later = sub(free_turns, at)
            break
          else
            start = other_start < start and other_start or start
            finish = other_finish > finish and other_finish or finish
          end
        end
        free_turns = earlier .. pack_bytes('>I7I7', start, finish) .. later
        -- The most that are kept are 32.
        free_turns = #free_turns > 448 and sub(free_turns, -448) or free_turns
      end
    else
      free_turns = ''
      -- Refunds since the charge may all have been of charges made before it, so its end is earlier by as much. If the
      -- end is after the TAT, the key expired in between and nothing of the charge is outstanding.
      local ends = refund_at - (refunded - refunded_before) % EXACT
      outstanding = ends <= tat and ends > now and ends - now or 0
      outstanding = cost < outstanding and cost or outstanding
      -- A refund of the last charge moves no other charge, so it does not add to the total; but leased units may be
      -- behind it.
      if ends < tat or leases then
        refunded = (refunded + outstanding) % EXACT
      end
    end
    new1 = tat - outstanding
    value, ttl_millis = pack_bytes('>I7c4', new1, quota_tag), ceil((tat - now) / 1000) + TTL_MARGIN
  end
elseif is_ours then
  if is_queue and free_turns ~= '' and cost > 0 and not is_forced then
    local steps, units, micros = cost, ARGV[argument + 3] + 0, ARGV[argument + 4] + 0
    for at = 1, #free_turns, 14 do
      local free_from, free_until = unpack_bytes('>I7I7', free_turns, at)
      local from = free_from > now and free_from or now
      local after
      include('lattice.lua')
      if after <= free_until and after - now <= span then
        local rest = after < free_until and pack_bytes('>I7I7', after, free_until) or ''
        turn_ends, free_turns = after, sub(free_turns, 1, at - 1) .. rest .. sub(free_turns, at + 14)
        break
      end
    end
  end
  old1 = tat
  local from = tat > now and tat or now
  if merge_from then
    -- The TAT grows by `cost`, from at least `merge_from`, up to a whole span. Both may be in the past.
    local merged, most = (merge_from > tat and merge_from or tat) + cost, from > now + span and from or now + span
    cost = now < merge_until and merged > from and (merged < most and merged or most) - from or 0
  end
  local after
  if turn_ends then
    has_room, after = true, tat
  elseif cost == 0 then
    has_room, after = true, report and from
    if leased_micros and leased_micros > 0 then
      old1 = from + leased_micros
    end
  elseif cost > 0 then
    if kind == BUCKET then
      after = from + cost
    else
      local steps, units, micros = cost, ARGV[argument + 3] + 0, ARGV[argument + 4] + 0
      -- `cost` is below 2^52 as well, because the Rust side rejects other quotas.
      assert(units * micros < EXACT, 'token bucket: rate too fine for doubles')
      include('lattice.lua')
    end
    has_room = is_forced or after - now <= span
    if leased_micros and not has_room then
      -- As if all leased units were spent, so that the retry time holds whatever becomes of them.
      old1 = from + leased_micros
    end
    if is_forced then
      local most = now + FURTHEST / 2
      most = from > most and from or most
      after = after < most and after or most
    end
  end
  if counts_denied and cost ~= 0 and not turn_ends then
    local full = from > now + span and from or now + span
    after = after and after < full and after or full
  elseif not has_room then
    after = nil
  end
  if after then
    new1 = after
    value, ttl_millis = pack_bytes('>I7c4', after, quota_tag), ceil((after - now) / 1000) + TTL_MARGIN
  end
  if report then
    local units, micros, free = ARGV[argument + 3] + 0, ARGV[argument + 4] + 0, now + span - after
    room = floor(free / micros) * units + floor(free % micros * units / micros)
    capacity = floor(span / micros) * units + floor(span % micros * units / micros)
  end
end

if is_ours and (refunded > 0 or free_turns ~= '' or turn_ends or leases) then
  local total = refunded > 0 and pack_bytes('>I7', refunded) or ''
  -- A denied charge is not refunded, and a refund to a queue needs no total.
  local second = not has_room and leased_micros or turn_ends or is_queue and 0 or has_room and refunded or 0
  if second > 0 then
    number_count, refunded_flag, old2, new2 = 2, 2, second, second
  end
  if value then
    -- The total lives as long as a charge that was made under an earlier total can be outstanding.
    local least = refunded > 0 and ceil(span / 1000) + TTL_MARGIN or 0
    if leases then
      free_turns = leases
      least = ceil(((new1 > leases_end and new1 or leases_end) + leases_life - now) / 1000) + TTL_MARGIN
    end
    value, ttl_millis = value .. total .. free_turns, ttl_millis > least and ttl_millis or least
  end
end
