-- Fixed window: the units used in the current window, and the end of that window. Twin of
-- src/algorithm/fixed_window.rs.
--
-- KEYS   one per charge: a string
-- ARGV   one of these, and the quota's tag (2 bytes):
--          CLOCK_WINDOW      windows begin at multiples of their length since the epoch
--          FIRST_HIT_WINDOW  a window begins with the first charge after the previous window
--          MONTH_WINDOW      calendar months in UTC
--        cost    units; 0 peeks
--        limit   units
--        length  of the window in ms; unused for months
-- Reply  the end of the window in us, and the units used in it; then, for a denied charge, the leased units among them
--        if there are any
-- State  12 bytes, or 13 for FIRST_HIT_WINDOW, whose end may be any microsecond; then 22 while units are leased
--        (lua/lease.lua):
--
--          0          6             10          12        0          7             11          13
--          +----------+-------------+-----------+         +----------+-------------+-----------+
--          | end (ms) | units used  | quota tag |         | end (us) | units used  | quota tag |
--          +----------+-------------+-----------+         +----------+-------------+-----------+
--
-- Example: 10 units in each minute by the clock. Times with a `+` are us after 1700000000000000, 20 s into a minute.
--   at +0         'fAA' 6 10 60000 -> fits, ends +40000000, 6 used
--   at +1000000   'fAA' 6 10 60000 -> denied, ends +40000000, 6 used
--   at +40000000  'fAA' 6 10 60000 -> fits, ends +100000000, 6 used: a new window

argument_count, number_count = 3, 2
local cost, limit, length = ARGV[argument + 1] + 0, ARGV[argument + 2] + 0, ARGV[argument + 3] + 0
local quota_tag = sub(tag, 2)
-- Layout of the state, and us per unit of time in it.
local layout, time_unit = '>I6I4c2', 1000
if kind == FIRST_HIT_WINDOW then
  layout, time_unit = '>I7I4c2', 1
end
stored = redis_pcall('GET', key)
is_ours = not stored or #stored > 0
local ends, used, stored_tag
-- The leases as they are stored, or nil; how many units that is, and how many can be charged besides.
local leases, leased, free = nil, 0, limit
if stored and is_ours then
  local bytes = #stored
  if bytes > 13 then
    leases, bytes = sub(stored, -22), bytes - 22
  end
  if bytes == 12 then
    ends, used, stored_tag = unpack_bytes('>I6I4c2', stored)
    ends = ends * 1000
  elseif bytes == 13 then
    ends, used, stored_tag = unpack_bytes('>I7I4c2', stored)
  end
  is_ours = ends and ends >= EARLIEST and ends <= now + FURTHEST
end

local is_open = ends and is_ours and ends > now
if leases and is_ours then
  local ended = 0
  include('window_leases.lua')
  used = used + ended < 2 ^ 32 and used + ended or 2 ^ 32 - 1
end
if report and is_ours then
  is_new, is_other = not is_open, is_open and stored_tag ~= quota_tag
  include('lease_report.lua')
  -- lua/lease.lua stores the leases.
  leases, leased = nil, 0
end
if is_ours and not (is_open and stored_tag == quota_tag) then
  if kind == CLOCK_WINDOW then
    ends = (now_millis - now_millis % length + length) * 1000
  elseif kind == FIRST_HIT_WINDOW then
    ends = now + length * 1000
  elseif kind == MONTH_WINDOW then
    -- The end of the month, by days counted from 1 March of the year 0 in eras of 400 years (146,097 days), as in
    -- src/algorithm/calendar.rs: a leap day is then the last day of its year. Month 0 is March.
    local day = floor(now_millis / 86400000) + 719468
    local era = floor(day / 146097)
    local day_of_era = day - era * 146097
    local year = floor(
      (day_of_era - floor(day_of_era / 1460) + floor(day_of_era / 36524) - floor(day_of_era / 146096)) / 365
    )
    local year_start = 365 * year + floor(year / 4) - floor(year / 100)
    local month = floor((5 * (day_of_era - year_start) + 2) / 153)
    local next_month_start = 146097
    if month < 11 then
      next_month_start = year_start + floor((153 * (month + 1) + 2) / 5)
    elseif year < 399 then
      next_month_start = 365 * (year + 1) + floor((year + 1) / 4) - floor((year + 1) / 100)
    end
    ends = (era * 146097 + next_month_start - 719468) * 86400000000
  end
  if is_open and (cost > 0 or merge_from) and not refund_at then
    -- The window was changed: the units used stay used, until the end of the new window. This is stored even if the
    -- charge is denied, because the old window would end at its own time.
    local state = pack_bytes(layout, ends / time_unit, used, quota_tag)
    extra = {
      uncounted_value = leases and state .. leases or state,
      uncounted_ttl = ceil((ends - now) / 1000) + TTL_MARGIN,
    }
  elseif not is_open then
    used = 0
  end
end
if is_reset and is_ours then
  used = 0
  -- Without leased units, the next hit is the first one.
  ends = kind == FIRST_HIT_WINDOW and before + latest == 0 and now or ends
end

if is_ours and refund_at then
  has_room, old1, old2, new1 = true, ends, used, ends
  -- A refund counts only in the window that the charge was made in.
  if is_open and stored_tag == quota_tag and ends == refund_at then
    new2 = used > cost and used - cost or 0
    value, ttl_millis = pack_bytes(layout, ends / time_unit, new2, quota_tag), ceil((ends - now) / 1000) + TTL_MARGIN
  end
elseif is_ours then
  if merge_from then
    -- The window that the units were admitted in may be unknown here.
    if kind == FIRST_HIT_WINDOW and not is_open and now < merge_until then
      ends = merge_until
    end
    local merged, most = (merge_from > used and merge_from or used) + cost, used > limit and used or limit
    cost = now < merge_until and (merged < most and merged or most) - used or 0
  end
  old1, old2, new1 = ends, used, ends
  has_room = is_forced or cost == 0 or used + cost <= free
  if leases and leased > 0 and (cost == 0 or not has_room) then
    -- As if all leased units were spent, so that the retry time holds whatever becomes of them.
    old2 = used + leased
    if not has_room then
      number_count, refunded_flag, old3, new3 = 3, 2, leased, leased
    end
  end
  if (cost > 0 or report) and (has_room or counts_denied) then
    new2 = used + cost
    -- A denied attempt takes what is left. A forced charge may exceed the limit, as may others while units are leased.
    local most = used > limit and used or limit
    most = has_room and 2 ^ 32 - 1 or most
    if new2 > most then
      new2 = most
    end
    value, ttl_millis = pack_bytes(layout, ends / time_unit, new2, quota_tag), ceil((ends - now) / 1000) + TTL_MARGIN
  end
  if report then
    room, capacity = limit - new2, limit
  end
end
if leases and value then
  value = value .. leases
end
