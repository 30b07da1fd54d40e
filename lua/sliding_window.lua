-- Sliding window counter: the units used in the current window, plus those of the previous window weighted by the part
-- of it that lies within one length before now. Twin of src/algorithm/sliding_window.rs.
--
-- KEYS   one per charge: a string
-- ARGV   SLIDING_WINDOW
--        cost    units; 0 peeks
--        limit   units
--        length  of a window in ms
--        tick    us; the weight changes once per tick
-- Reply  the end of the current window in us, the units used in the previous window, the units used in the current one;
--        then, for a denied charge, the leased units among them if there are any
-- State  19 bytes; then 22 while units are leased (lua/lease.lua):
--
--          0          6                10              14            19
--          +----------+----------------+---------------+-------------+
--          | end (ms) | previous units | current units | length (ms) |
--          +----------+----------------+---------------+-------------+
--
-- Example: 10 units a minute. Times with a `+` are us after 1700000000000000, 20 s into a window.
--   at +0         's' 8 10 60000 1 -> fits, ends +40000000, 0 previous, 8 current
--
--     +40 s               +55 s                                             +100 s
--     |---- 15 s passed ----|--------------- 45 s left -----------------------|
--                           the previous window counts 45 / 60: 8 * 3 / 4 = 6
--
--   at +55000000  's' 4 10 60000 1 -> fits, ends +100000000, 8 previous, 4 current: 6 + 4 = 10
--   at +55000000  's' 1 10 60000 1 -> denied, ends +100000000, 8 previous, 4 current: 6 + 4 + 1 = 11
--   at +70000000  's' 2 10 60000 1 -> fits, ends +100000000, 8 previous, 6 current: half of 8, and 4 + 2

argument_count, number_count = 4, 3
local cost, limit, length = ARGV[argument + 1] + 0, ARGV[argument + 2] + 0, ARGV[argument + 3] + 0
local tick = ARGV[argument + 4] + 0
local ticks = length * 1000 / tick
assert(limit * ticks < EXACT, 'sliding window: limit and length too large for doubles')
stored = redis_pcall('GET', key)
is_ours = not stored or #stored > 0
-- Whether `stored` holds units that still count, under the present length.
local is_current = false
local ends, previous, current = now_millis - now_millis % length + length, 0, 0
-- The leases as they are stored, or nil; how many units that is, and how many can be charged besides.
local leases, leased, free = nil, 0, limit
if stored and is_ours then
  local bytes = #stored
  is_ours = bytes == 19 or bytes == 41
  if is_ours then
    local stored_end, stored_previous, stored_current, stored_length = unpack_bytes('>I6I4I4I5', stored)
    is_ours = stored_end * 1000 >= EARLIEST and stored_end * 1000 <= now + FURTHEST and stored_length > 0
    local is_open, ended = now_millis < stored_end, 0
    if bytes == 41 and is_ours then
      leases = sub(stored, 20)
      include('window_leases.lua')
      stored_current = stored_current + ended < 2 ^ 32 and stored_current + ended or 2 ^ 32 - 1
    end
    if is_ours and now_millis < stored_end + stored_length then
      if not is_open then
        stored_end, stored_previous, stored_current = stored_end + stored_length, stored_current, 0
      end
      if stored_length == length then
        ends, previous, current, is_current = stored_end, stored_previous, stored_current, true
      else
        -- The length was changed: the units that count now stay used, in the window of the new length. This is stored
        -- even if the charge is denied.
        local left = stored_end - now_millis
        current = stored_current
          + ceil(stored_previous * ((left < stored_length and left or stored_length) / stored_length))
        if current > 2 ^ 32 - 1 then
          current = 2 ^ 32 - 1
        end
        is_other = report and current + leased > 0
        if (cost > 0 or merge_from) and current + leased > 0 and not refund_at then
          local state = pack_bytes('>I6I4I4I5', ends, 0, current, length)
          extra = {
            uncounted_value = leases and state .. leases or state,
            uncounted_ttl = ends + length - now_millis + TTL_MARGIN,
          }
        end
      end
    end
  end
end

if report and is_ours then
  is_new = not is_current and not is_other
  include('lease_report.lua')
  if is_reset then
    previous, current = 0, 0
  end
  -- lua/lease.lua stores the leases.
  leases, leased = nil, 0
end

if is_ours and refund_at then
  has_room, old1, old2, old3 = true, ends * 1000, previous, current
  new1, new2, new3 = old1, old2, old3
  -- A charge is known by the time when all of it is back: one length after the end of the window that it was made in.
  if is_current and (ends + length) * 1000 == refund_at then
    new3 = current > cost and current - cost or 0
  elseif is_current and old1 == refund_at then
    new2 = previous > cost and previous - cost or 0
  end
  if new2 < old2 or new3 < old3 then
    value, ttl_millis = pack_bytes('>I6I4I4I5', ends, new2, new3, length), ends + length - now_millis + TTL_MARGIN
  end
elseif is_ours then
  old1, old2, old3 = ends * 1000, previous, current
  local passed = now - (ends - length) * 1000
  local ticks_left = passed > 0 and ticks - floor(passed / tick) or ticks
  -- After the limit was lowered, the previous window weighs at most the whole limit.
  local weighted = ceil((previous < limit and previous or limit) * ticks_left / ticks)
  if merge_from then
    local used = current + weighted
    local merged, most = (merge_from > used and merge_from or used) + cost, used > limit and used or limit
    cost = now < merge_until and (merged < most and merged or most) - used or 0
  end
  has_room = is_forced or cost == 0 or current + weighted + cost <= free
  if leases and leased > 0 and (cost == 0 or not has_room) then
    -- As if all leased units were spent, so that the retry time holds whatever becomes of them.
    old3 = current + leased
    if not has_room then
      number_count, refunded_flag, more = 4, 2, { leased }
    end
  end
  if (cost > 0 or report) and (has_room or counts_denied) then
    -- A denied attempt takes what is left. A forced charge may exceed the limit, as may others while units are leased.
    local most = current > limit and current or limit
    most = has_room and 2 ^ 32 - 1 or most
    new1, new2, new3 = old1, previous, current + cost
    if new3 > most then
      new3 = most
    end
    value, ttl_millis = pack_bytes('>I6I4I4I5', ends, previous, new3, length), ends + length - now_millis + TTL_MARGIN
  end
  if report then
    room, capacity = limit - weighted - new3, limit
  end
end
if leases and value then
  value = value .. leases
end
