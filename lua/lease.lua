-- Lease: takes an instance's report of the units that it had leased from a bucket, and leases units to it again.
-- src/remote/leases/mod.rs has the proof. The charges of lua/token_bucket.lua leave room for leased units.
--
-- KEYS   the key of the bucket
-- ARGV   LEASE and the quota's tag (4 bytes)
--        span    as in lua/token_bucket.lua
--        units   number of units that come back in each `micros`
--        micros  us
--        report  37 bytes, each number big-endian:
--          spent    4  leased units that were spent since the last report
--          kept     4  leased units that are left
--          turn     4  that of these units, or 0
--          born     4  as in the state then, or 0
--          asked    4  units that requests have asked for since the last report, whether they were admitted or not
--          want     4  the most units to lease
--          share    2  the part of what is free, in 1/1024
--          back     4  units that were spent and refunded, or held and not spent, since the last report
--          purpose  1  0, or 1 to give back the units that are left, or 2 to reset the key: leased units stay charged;
--                      or 3 for all of a region: half of what is free, and even single units; all of it, if needed
--          over     2  by how much debt and leased units may exceed the span while some are leased, in 1/1000 of it
--          need     4  units that requests wait for, to be leased if they are free, even if fewer than 4
-- Reply  the TAT in us, without what is leased; twice the units that are leased now, plus 1 if the report came too late
--        and changed nothing; units leased to others; turn; born; asked; and the key's total of refunds in us
-- State  as in lua/token_bucket.lua, without free turns; then 22 bytes:
--
--          0      4      8        12       16      20     22
--          +------+------+--------+--------+-------+------+
--          | born | turn | before | latest | asked | over |
--          +------+------+--------+--------+-------+------+
--
--          born    ms modulo 2^32, when the key was first leased: reports for a state that was lost are ignored
--          turn    number of the latest turn. Each lasts a second
--          before  units that were leased in the turn before it: they end, and count as spent, when `turn` ends
--          latest  units that were leased in `turn`: they end a turn later
--          asked   units that all instances were asked for, modulo 2^32
--          over    as in the latest report, for charges that report nothing
--
-- Example: 10 a second and 100 at once, so an interval of 100 ms. An instance wants 30 units, and gets its half of a
-- quarter of what is free. It reports 5 as spent and keeps 7, and reports these too late. Then requests wait for 3
-- units. The numbers of a report are joined by commas. Times with a `+` are us after 1700000000000000.
--   at +0       '&AAAA' 10000000 1 100000 0,0,0,0,3,30,512,0,0,0,0
--     -> +0 24 0 1700000000 3487918080 3 0
--   at +500000  '&AAAA' 10000000 1 100000 5,7,1700000000,3487918080,5,0,512,0,0,0,0
--     -> +1000000 0 0 1700000000 3487918080 8 0
--   at +2000000 '&AAAA' 10000000 1 100000 3,4,1700000000,3487918080,0,0,512,0,0,0,0
--     -> +2700000 1 0 1700000002 3487918080 8 0
--   at +2000000 '&AAAA' 10000000 1 100000 0,0,0,0,3,0,512,0,0,0,3
--     -> +2700000 6 0 1700000002 3487918080 11 0

argument_count = 4
number_count = 7
has_room = true
local span, units, micros = ARGV[argument + 1] + 0, ARGV[argument + 2] + 0, ARGV[argument + 3] + 0
local spent, kept, report_turn, report_born, asked_now, want, share, back, purpose, over, need =
  unpack_bytes('>I4I4I4I4I4I4I2I4I1I2I4', ARGV[argument + 4])
local quota_tag = sub(tag, 2)
stored = redis_pcall('GET', key)
is_ours = not stored or #stored > 0
local tat, refunded = 0, 0
local this_turn = floor(now / TURN)
local born, turn, before, latest, asked = now_millis % 2 ^ 32, this_turn, 0, 0, 0
local has_leases, is_other = false, false
if stored and is_ours then
  local length = #stored
  has_leases = length == 33 or length == 40
  if length >= 11 and length <= 466 and (has_leases or length % 14 == 11 or length % 14 == 4) then
    tat = unpack_bytes('>I7', stored)
    refunded = (length == 40 or length % 14 == 4) and unpack_bytes('>I7', stored, 12) or 0
    if has_leases then
      born, turn, before, latest, asked = unpack_bytes('>I4I4I4I4I4', stored, length - 21)
    end
  end
  is_ours = tat >= EARLIEST and tat <= now + FURTHEST and refunded < EXACT
  -- A debt under another quota, or the turns of a queue: the next charge converts them.
  is_other = tat > now and (sub(stored, 8, 11) ~= quota_tag or length > 18 and not has_leases)
end

local is_late, granted = false, 0
if is_ours and (not is_other or purpose == 2) then
  is_other = false
  include('ended_leases.lua')
  turn = turn > this_turn and turn or this_turn
  if purpose == 2 then
    tat, refunded = now, 0
  end

  local reported = spent + kept
  if reported > 0 then
    if has_leases and report_born == born and report_turn == turn and latest >= reported then
      latest = latest - reported
    elseif has_leases and report_born == born and report_turn == turn - 1 and before >= reported then
      before = before - reported
    else
      is_late, kept = true, 0
    end
    if not is_late and spent > 0 then
      -- Along the lattice of lua/token_bucket.lua, as if they were charged now.
      local start = tat > now and tat or now
      local point = floor(start % micros * units / micros)
      local target = point + spent
      local periods = floor(target / units)
      tat = start + periods * micros
        + ceil((target - periods * units) * micros / units) - ceil(point * micros / units)
    end
    if not is_late then
      -- The charges that were made before these have their ends earlier by as much, as after a refund here.
      refunded = (refunded + floor(back / units) * micros + ceil(back % units * micros / units)) % EXACT
    end
    if purpose == 1 then
      kept = 0
    end
    latest = latest + kept
  end

  local from = tat > now and tat or now
  local leased = before + latest
  local room_micros = now + span - from
  local room = floor(room_micros / micros) * units + floor(room_micros % micros * units / micros)
  local capacity = floor(span / micros) * units + floor(span % micros * units / micros)
  -- Of a region, the way is longer: it needs more, and fewer are worth it.
  local part, fewest = purpose == 3 and 2 or 4, purpose == 3 and 1 or 4
  local most = floor(capacity / part)
  most = most < 2 ^ 31 and most or 2 ^ 31
  local overdraft = floor(capacity * over / 1000)
  overdraft = overdraft < 2 ^ 30 and overdraft or 2 ^ 30
  local free = ((purpose == 3 or room < most) and room or most) + overdraft - leased
  granted = floor((room - leased) * share / (1024 * part))
  granted = granted < most - leased and granted or most - leased
  if over > 0 then
    -- A sixteenth is left for requests that need units.
    local delayed, left = floor(overdraft * share / 1024), free - ceil(overdraft / 16)
    delayed = delayed < left and delayed or left
    granted = granted > delayed and granted or delayed
  end
  granted = granted < want and granted or want
  granted = granted < fewest and 0 or granted
  if purpose == 3 and need > free * share / 1024 then
    -- What is free goes to all regions that need it.
    need = ceil(free * share / 1024)
  end
  need = need < free and need or free
  granted = granted > need and granted or need
  granted = (purpose == 1 or purpose == 2) and 0 or granted
  latest = latest + granted
  asked = (asked + asked_now) % 2 ^ 32

  local ends = (turn + 2) * TURN
  ends = (tat > ends and tat or ends) + ceil((before + latest) / units) * micros
  tat = tat > EARLIEST and tat or now
  local total = refunded > 0 and pack_bytes('>I7', refunded) or ''
  value = pack_bytes('>I7c4', tat, quota_tag) .. total
    .. pack_bytes('>I4I4I4I4I4I2', born, turn, before, latest, asked, over)
  ttl_millis = ceil((ends + (refunded > 0 and span or 0) - now) / 1000) + TTL_MARGIN
end
-- Under another quota, the TAT has no meaning.
old1, old2, old3 = is_other and now or tat, is_other and 1 or 0, 0
new1, new2, new3 = tat, 2 * granted + (is_late and 1 or 0), before + latest - granted - kept
more = { turn, born, asked, refunded }
