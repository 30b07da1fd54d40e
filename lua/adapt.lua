-- Adapt: takes a report on how an instance used a key, and returns the key's rate for all instances. Twin of
-- src/algorithm/adaptive.rs, which describes the rules.
--
-- KEYS   the rate of the key
-- ARGV   the caller's time in us, or '' for the server's time
--        floor    the lowest rate, in millionths of a unit per second
--        ceiling  the highest rate
--        used     units that the instance charged since its last report
--        refused  the time in us at which a call was charged that was refused, or '' for none
--        shown    the rate that the other side has shown, or '' for none. It counts in place of a higher ceiling
-- Reply  the rate in millionths of a unit per second
-- State  42 bytes, kept for a day after the last report. The use is counted since a time, for at least a second
--
--          0      7              14            21           28         35           42
--          +------+--------------+-------------+------------+----------+------------+
--          | rate | refused rate | lowered at  | used since | used     | shown rate |
--          +------+--------------+-------------+------------+----------+------------+
--
-- Example: a floor of 1 and a ceiling of 100 a second. Times with a `+` are us after 1700000000000000.
--   at +0        KEYS 't:{a}:p#a'  ARGV '' 1000000 100000000 0 '' ''          -> 1000000
--   at +1000000  KEYS 't:{a}:p#a'  ARGV '' 1000000 100000000 1 '' ''          -> 1100000
--   at +1500000  KEYS 't:{a}:p#a'  ARGV '' 1000000 100000000 1 '+1400000' ''  -> 1000000, the floor: 935000 is below

local DAY, LARGEST = 86400000000, 2 ^ 51
local floor = math.floor
local now
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = ARGV[1] + 0
end
local lowest, highest, newly_used = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local rate, refused_rate, cut_at, since, used, shown_rate = lowest, 0, 0, now, 0, 0
local state = redis.call('GET', KEYS[1])
if state and #state == 42 then
  local stored = { struct.unpack('>I7I7I7I7I7I7', state) }
  if stored[4] + DAY > now then
    rate, refused_rate, cut_at, since, used, shown_rate = unpack(stored, 1, 6)
  end
end
shown_rate = ARGV[6] ~= '' and ARGV[6] + 0 or shown_rate
if shown_rate > 0 then
  highest = shown_rate < highest and shown_rate or highest
  lowest = lowest < highest and lowest or highest
end
rate = rate > lowest and rate or lowest
rate = rate < highest and rate or highest
-- The clock may have been set back.
since = since < now and since or now
cut_at = cut_at < now and cut_at or now
used = used + newly_used
used = used < LARGEST and used or LARGEST
local elapsed = now - since
if ARGV[5] ~= '' and ARGV[5] + 0 > cut_at then
  refused_rate = rate
  rate = floor(rate * 85 / 100)
  rate = rate > lowest and rate or lowest
  cut_at, since, used = now, now, 0
elseif elapsed >= 1000000 then
  -- One unit may fall on either side of an end of the span.
  if used > 0 and used + 1 >= rate / 1000000 * (elapsed / 1000000) * 80 / 100 then
    local growth
    local distance = rate > refused_rate and rate - refused_rate or refused_rate - rate
    if refused_rate == 0 then
      growth = rate / 10
    elseif distance * 10 <= refused_rate then
      growth = refused_rate / 1000
    else
      growth = refused_rate / 100
    end
    rate = rate + floor(growth * (elapsed < 10000000 and elapsed or 10000000) / 1000000)
    rate = rate < highest and rate or highest
  end
  since, used = now, 0
end
local new = struct.pack('>I7I7I7I7I7I7', rate, refused_rate, cut_at, since, used, shown_rate)
redis.call('SET', KEYS[1], new, 'PX', DAY / 1000)
return rate
