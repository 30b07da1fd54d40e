-- Pot: units of a bucket that another region's server, the key's home, has leased to this region. Its instances spend
-- them here, and report them to the home (lua/lease.lua). src/remote/regions/mod.rs has the rules and the proof.
--
-- KEYS   one per charge: a string, apart from that of the bucket
-- ARGV   POT
--          cost    units; 0 peeks
--          span    us, as in lua/token_bucket.lua
--          units   number of units that come back in each `micros`
--          micros  us
--          share   0; or if the home cannot be reached, what is admitted without it, in 1/1000 of the limit, and above
--                  1000 everything; AGAIN more for a request that has asked before
--        POT_REPORT
--          report  packed, each number big-endian:
--            step       1  1 begins a report; 2 begins one if nobody asked for `idle`, and gives back what is left but
--                          for a reserve. The rest end the report that began at `at`: 3 by its reply, 4 by a reply that
--                          it came too late, 5 without a reply, 6 because it was not sent
--            at         7  us: when it began. 0 for 1 and 2
--            idle       7  us: for 2, as above; for 3 to 6, how long the next report waits
--            granted    4  units that are leased now; for 2, those that stay if the key was asked for within a turn;
--                          for 6, those that were to be given back
--            lasts      7  us after `at` until they end
--            turn       4  as in lua/lease.lua
--            born       4  as in lua/lease.lua
--            tat        7  us: the TAT at the home, by this server's clock
--            elsewhere  4  units leased to others
--            low        4  the next report begins when so few units are left; 2^32 - 1 after units were given back
--            dry        7  us that requests are denied at once, and do not wait for units: the home had too few
--            share      2  this region's part of all requests, in 1/1024
--            asked      4  units that all regions were asked for, modulo 2^32
--            rate       4  units a second that this region was asked for
--            paid       4  units admitted without the home, which are charged there now
--            told       4  units refunded here, which are noted at the home now
--            refunded   7  us: the key's total of refunds at the home
--            life       7  us that the state is of use after its last unit
-- Reply  POT: the TAT in us, as far as it is known; a number; and the key's total of refunds at the home in us. The
--        number is the sum of
--          1  a report is due; for a refund, it was not made here, since the home knows of the charge
--          2  denied, but the home may have units
--          4  admitted without the home; or denied while a report is under way; for a refund, that of the charge
--          8  the last report has failed
--         16  times the number of reports that began, modulo 4096
--        POT_REPORT: 1 if a report began, else 0; units spent since the last report; units left; turn; born; units
--          asked for since the last report; units among them that were not there; us since the last report began, or 0
--          if there was none or it gave units back; units admitted without the home; since when in us; `share` and
--          `asked` of the last reply; units that were refunded here since the last report; `rate`; units that stay; for
--          2 if no report began, us until one may
-- State  120 bytes, each number as above; us by this server's clock:
--
--          0      7     14      21      28          35           42         49     53      57         61       65
--          +------+-----+-------+-------+-----------+------------+----------+------+-------+----------+--------+--
--          | ends | TAT | began | waits | share TAT | owed since | asked at | left | spent | reported | missed | ..
--          +------+-----+-------+-------+-----------+------------+----------+------+-------+----------+--------+--
--
--             65      69     73     77          81    85     89          93     97
--          ---+-------+------+------+-----------+-----+------+-----------+------+--
--          .. | asked | turn | born | elsewhere | low | owed | all asked | back | ..
--          ---+-------+------+------+-----------+-----+------+-----------+------+--
--
--             97       99      101        108         115    119        120
--          ---+--------+-------+----------+-----------+------+----------+
--          .. | number | share | refunded | dry until | rate | failures |
--          ---+--------+-------+----------+-----------+------+----------+
--
--          reported  of the units spent, those that the report under way has; `waits` is 2^55 while one is under way
--          missed    of the units asked for since the last report, those that were not there
--          owed      units admitted without the home
--          back      units that were refunded here since the last report
--          failures  reports in a row that have failed
--
-- Example: 10 a minute. Nothing is known of the key; the home is out of reach from the second line on, and a quarter of
-- the limit is admitted. Times with a `+` are us after 1700000000000000.
--   at +0        'p' 1 60000000 1 6000000 0 -> denied, TAT +66001000, 32771, 0: a report is due, and may bring units
--   at +1000000  'p' 2 60000000 1 6000000 250 -> fits, TAT +1000000, 32773, 0: without the home
--   at +2000000  'p' 1 60000000 1 6000000 250 -> denied, TAT +68001000, 32769, 0: a quarter of 10 is 2.5
--   at +16000000 'p' 1 60000000 1 6000000 250 -> fits, TAT +16000000, 32773, 0: one comes back in 24 s

argument_count, number_count = kind == POT_REPORT and 1 or 5, kind == POT_REPORT and 16 or 3
stored = redis_pcall('GET', key)
is_ours = not stored or #stored == 120
local ends, tat, began, waits, share_tat, owed_since, asked_at = 0, 0, 0, 0, 0, 0, 0
local left, spent, reported, missed = 0, 0, 0, 0
local elsewhere, low, owed, all_asked, back, part, refunded, dry_until, rate, failures = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
-- Not that of a state that has expired, so that no refund of before is made here.
local number = floor(now / 1000) % 4096
asked, turn, born = 0, 0, 0
if stored and is_ours then
  ends, tat, began, waits, share_tat, owed_since, asked_at, left, spent, reported, missed, asked, turn, born, elsewhere,
    low, owed, all_asked, back, number, part, refunded, dry_until, rate,
    failures = unpack_bytes('>I7I7I7I7I7I7I7I4I4I4I4I4I4I4I4I4I4I4I4I2I2I7I7I4I1', stored)
  is_ours = ends <= now + FURTHEST and tat <= now + FURTHEST
end
local was_set_back = began > now or asked_at > now or ends > now + 2 * REGION_TURN
if (now >= ends or was_set_back) and left + spent > 0 then
  -- At the home, they count as spent now.
  left, spent, reported, number = 0, 0, 0, (number + 1) % 4096
end
if was_set_back then
  ends, began, waits, asked_at, dry_until = 0, 0, 0, 0, 0
end
if waits == NEVER and now > began + 2 * TURN then
  -- Whoever made the report has gone. It ends as without a reply.
  waits, spent, reported, turn, born, number = 0, 0, 0, 0, 0, (number + 1) % 4096
end

if kind == POT_REPORT then
  more = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
end
local is_written, life = false, 0
if is_ours and kind == POT_REPORT then
  has_room = true
  local step, at, idle, granted, lasts, new_turn, new_born, new_tat, new_elsewhere, new_low, dry, new_part, new_asked
  local new_rate, paid, told, new_refunded
  step, at, idle, granted, lasts, new_turn, new_born, new_tat, new_elsewhere, new_low, dry, new_part, new_asked,
    new_rate, paid, told, new_refunded, life =
    unpack_bytes('>I1I7I7I4I7I4I4I7I4I4I7I2I4I4I4I4I7I7', ARGV[argument + 1])
  local stays, due_at = left, 0
  if step == 2 then
    local reserve = asked_at + REGION_TURN > now and granted or 0
    stays = left < reserve and left or reserve
    due_at = asked_at + idle
    if left == stays and left > 0 and due_at < ends - TURN then
      -- Nothing is to be given back, but to be moved to the next turn.
      due_at = ends - TURN
    end
  end
  if step <= 2 and waits <= now and (step == 1 or due_at <= now and left + spent > 0) then
    is_written = true
    local since = began > 0 and low < 2 ^ 32 - 1 and now - began or 0
    more = { turn, born, asked, missed, since, owed, owed_since, part, all_asked, back, rate, stays, 0 }
    old1, old2, old3 = 1, spent, left
    began, waits, reported, asked, missed, number = now, NEVER, spent, 0, 0, (number + 1) % 4096
    left = stays
  elseif step > 2 and waits == NEVER and at == began then
    is_written = true
    waits = now + idle
    if step == 3 or step == 4 then
      if step == 3 then
        spent = spent - reported
      else
        left, spent, number = 0, 0, (number + 1) % 4096
      end
      left = left + granted < 2 ^ 32 and left + granted or 2 ^ 32 - 1
      ends, turn, born, tat, elsewhere, failures = at + lasts, new_turn, new_born, new_tat, new_elsewhere, 0
      low, part, all_asked, rate, refunded, dry_until = new_low, new_part, new_asked, new_rate, new_refunded, now + dry
      back = back > told and back - told or 0
    else
      failures = failures < 255 and failures + 1 or 255
      if step == 5 then
        -- The home may have taken it: what is left can be spent until it ends. For the next report, it is of no lease.
        spent, turn, born, number = 0, 0, 0, (number + 1) % 4096
      else
        -- Those that were to be given back.
        left = left + granted < 2 ^ 32 and left + granted or 2 ^ 32 - 1
      end
    end
    owed, reported = owed > paid and owed - paid or 0, 0
    -- The rest was admitted since the report began.
    owed_since = paid > 0 and at or owed_since
  end
  if old1 == 0 then
    old2, old3 = spent, left
    local due_in = due_at > now and due_at - now or 0
    more = { turn, born, asked, missed, 0, owed, owed_since, part, all_asked, back, rate, stays, due_in }
  end
  new1, new2, new3 = old1, old2, old3
elseif is_ours then
  local cost, span, units, micros, share =
    ARGV[argument + 1] + 0, ARGV[argument + 2] + 0, ARGV[argument + 3] + 0, ARGV[argument + 4] + 0,
    ARGV[argument + 5] + 0
  -- A request that asks again is counted already.
  local is_again = share >= AGAIN
  share = is_again and share - AGAIN or share
  life = span
  local is_due, is_shared, is_missing
  if refund_at then
    has_room, is_due, is_shared, is_missing = true, 0, 0, 0
    local of = floor(refunded_before / 16) % 4096
    if floor(refunded_before / 4) % 2 == 1 then
      is_written, owed = owed > 0, owed > cost and owed - cost or 0
    elseif number == of and spent - reported >= cost and now < ends and refund_at > began then
      left, spent, back, is_written = left + cost, spent - cost, back + cost, true
    else
      is_due = 1
      is_shared = waits == NEVER and number == (of + 1) % 4096 and 4 or 0
    end
  elseif cost == 0 or merge_until and now >= merge_until then
    has_room = true
  elseif not is_forced and cost * micros > span * units then
    -- It never fits.
    is_due = 0
  else
    if not is_forced and not is_again then
      asked, asked_at = (asked + cost) % 2 ^ 32, now
    end
    is_written = true
    if left >= cost then
      has_room = true
      left, spent = left - cost, spent + cost
    elseif is_forced then
      has_room = true
      owed, left, spent = owed + cost - left, 0, spent + left
    elseif share > 0 then
      local from = share_tat > now and share_tat or now
      local after = from + ceil(cost * micros / units * 1000 / share)
      has_room = share > 1000 or after - now <= span
      if has_room then
        is_shared, share_tat, owed = 4, after, owed + cost
      end
    end
    if has_room and is_again then
      missed = missed > cost and missed - cost or 0
    end
    if owed > 0 and owed_since == 0 then
      owed_since = now
    end
    owed_since = owed > 0 and owed_since or 0
    owed = owed < 2 ^ 32 and owed or 2 ^ 32 - 1
  end
  -- As if all that is not reported yet were charged now.
  local from = tat > now and tat or now
  local shown = from + ceil(spent * micros / units)
  if not has_room then
    local with_others = shown + ceil(elsewhere * micros / units)
    if not is_again and not is_due then
      missed = missed + cost < 2 ^ 32 and missed + cost or 2 ^ 32 - 1
    end
    if share == 0 then
      -- It is worth waiting if the home may have enough for all that were denied since the last report.
      local may_fit = not is_due and with_others + ceil(missed * micros / units) - now <= span
      is_missing = may_fit and now >= dry_until and 2 or 0
      is_shared = waits == NEVER and 4 or 0
    end
    -- Others may have the units that seem to be free.
    local least = now + span - floor((cost - 2) * micros / units) + 1000
    shown = with_others > least and with_others or least
  end
  if not is_due then
    -- A pot that is spent to its last unit is low too: the home counts its units as leased until it has the report.
    local is_low = left <= low and (low > 0 or spent > reported) or left > 0 and ends - now < TURN
    is_low = is_low and born > 0
    is_due = waits <= now and cost > 0 and (not has_room or owed > 0 or is_low)
    is_due = is_due and 1 or 0
  end
  is_unsure = is_missing == 2
  old1, old3 = shown, refunded
  old2 = is_due + (is_missing or 0) + (is_shared or 0) + (failures > 0 and 8 or 0) + 16 * number
  new1, new2, new3 = old1, old2, old3
end

if is_written then
  local last = ends > tat and ends or tat
  last = (last > share_tat and last or share_tat) + (owed > 0 and life or 0)
  last = last > now + 4 * TURN and last or now + 4 * TURN
  local state = pack_bytes('>I7I7I7I7I7I7I7I4I4I4I4I4I4I4I4I4I4I4I4I2I2I7I7I4I1', ends, tat, began, waits, share_tat,
    owed_since, asked_at, left, spent, reported, missed, asked, turn, born, elsewhere, low, owed, all_asked, back,
    number, part, refunded, dry_until, rate, failures)
  ttl_millis = ceil((last - now) / 1000) + TTL_MARGIN
  if has_room then
    value = state
  else
    extra = { uncounted_value = state, uncounted_ttl = ttl_millis }
  end
end
