-- Lease: leases units of a bucket or window to an instance, after lua/lease_report.lua has taken its report of those
-- that it had, and the file of the algorithm has charged what was spent of them. Charges leave room for leased units.
-- src/remote/leases/mod.rs has the proof.
--
-- KEYS   the key
-- ARGV   LEASE, the report, and a charge of 0 units by its algorithm, a bucket always as UNEVEN_BUCKET. The report has
--        37 bytes, each number big-endian:
--          spent    4  leased units that were spent since the last report
--          kept     4  leased units that are left
--          turn     4  that of these units, or 0
--          born     4  as in the state then, or 0
--          asked    4  units that requests have asked for since the last report, whether they were admitted or not
--          want     4  the most units to lease
--          share    2  the part of what is free, in 1/1024
--          back     4  units that were spent and refunded, or held and not spent, since the last report
--          purpose  1  0, or 1 to give back the units that are left, but for `need`; or 2 to reset the key: leased
--                      units stay charged; or 3 for all of a region: half of what is free, and even single units; all
--                      of it, if needed. Its turns are longer
--          over     2  by how much units that are charged and leased may exceed the limit while some are leased, in
--                      1/1000 of it
--          need     4  units that requests wait for, to be leased if they are free, even if fewer than 4
-- Reply  three integers: the state without what is leased, as in the file of the algorithm, a bucket always with its
--        total of refunds, and zeros; twice the units that are leased now, plus 1 if the report came too late and
--        changed nothing; units leased to others; turn; born; and asked
-- State  as in the file of the algorithm, without free turns; then 22 bytes:
--
--          0      4      8        12       16      20     22
--          +------+------+--------+--------+-------+------+
--          | born | turn | before | latest | asked | over |
--          +------+------+--------+--------+-------+------+
--
--          born    ms modulo 2^32, when the key was first leased, or its window: reports for a state that was lost, and
--                  for another window, are ignored
--          turn    number of the latest turn. Each lasts a second, or 5 s if regions lease units of the key
--          before  units that were leased in the turn before it: they end, and count as spent, when `turn` ends
--          latest  units that were leased in `turn`: they end a turn later. All units of a window end with it
--          asked   units that all instances were asked for, modulo 2^32
--          over    as in the latest report, for charges that report nothing
--
-- Example: 10 a second and 100 at once, so an interval of 100 ms. An instance wants 30 units, and gets its half of a
-- quarter of what is free. It reports 5 as spent and keeps 7, and reports these too late. Then requests of a region
-- wait for 3 units. It spends 1, and gives back 1 of the 2 that are left. The numbers of a report are joined by commas.
-- Times with a `+` are us after 1700000000000000.
--   at +0       '&' 0,0,0,0,3,30,512,0,0,0,0 'lAAAA' 0 10000000 1 100000
--     -> +0 0 0 24 0 1700000000 3487918080 3
--   at +500000  '&' 5,7,1700000000,3487918080,5,0,512,0,0,0,0 'lAAAA' 0 10000000 1 100000
--     -> +1000000 0 0 0 0 1700000000 3487918080 8
--   at +2000000 '&' 3,4,1700000000,3487918080,0,0,512,0,0,0,0 'lAAAA' 0 10000000 1 100000
--     -> +2700000 0 0 1 0 1700000002 3487918080 8
--   at +2000000 '&' 0,0,0,0,3,0,512,0,3,0,3 'lAAAA' 0 10000000 1 100000
--     -> +2700000 0 0 6 0 340000000 3487918080 11
--   at +3000000 '&' 1,2,340000000,3487918080,1,0,512,0,1,0,1 'lAAAA' 0 10000000 1 100000
--     -> +3100000 0 0 0 0 340000000 3487918080 12
--
-- Example: 100 units in each minute by the clock. An instance gets 25 units 2 s before a window ends. It reports 5 as
-- spent and keeps 20. Its next report is for a window that has ended.
--   at +38000000 '&' 0,0,0,0,25,25,1024,0,0,0,0 'fAA' 0 100 60000
--     -> +40000000 0 0 50 0 1700000038 3487956080 25
--   at +39000000 '&' 5,20,1700000038,3487956080,5,0,1024,0,0,0,0 'fAA' 0 100 60000
--     -> +40000000 5 0 0 0 1700000039 3487956080 30
--   at +40000000 '&' 9,11,1700000039,3487956080,9,25,1024,0,0,0,0 'fAA' 0 100 60000
--     -> +100000000 0 0 51 0 1700000040 3487958080 39
--
-- Example: the same in a sliding window, where all 25 units count as spent in the window that has ended, and weigh on.
--   at +38000000 '&' 0,0,0,0,25,25,1024,0,0,0,0 's' 0 100 60000 1
--     -> +40000000 0 0 50 0 1700000038 3487956080 25
--   at +39000000 '&' 5,20,1700000038,3487956080,5,0,1024,0,0,0,0 's' 0 100 60000 1
--     -> +40000000 0 5 0 0 1700000039 3487956080 30
--   at +40000000 '&' 9,11,1700000039,3487956080,9,25,1024,0,0,0,0 's' 0 100 60000 1
--     -> +100000000 25 0 37 0 1700000040 3487958080 39

if is_other then
  -- Before a charge has converted it, the state is not changed.
  value = nil
end
local granted = 0
if value then
  local asked_now, want, share = unpack_bytes('>I4I4I2', report, 17)
  local purpose, overshoot, need = unpack_bytes('>I1I2I4', report, 31)
  local leased_before = before + latest
  -- A region has a longer way to go: it needs more units, and fewer are worth a report.
  local part, fewest = purpose == 3 and 2 or 4, purpose == 3 and 1 or 4
  local most = floor(capacity / part)
  most = most < 2 ^ 31 and most or 2 ^ 31
  local overdraft = floor(capacity * overshoot / 1000)
  overdraft = overdraft < 2 ^ 30 and overdraft or 2 ^ 30
  local limit = purpose == 3 and 2 ^ 31 or most
  local grantable = (room < limit and room or limit) + overdraft - leased_before
  -- A region gets its part of all that is free: of a few units, one more than a part that is not whole.
  granted = (room - leased_before) * share / 1024
  granted = purpose == 3 and ceil(granted) or floor(granted / 4)
  granted = granted < most - leased_before and granted or most - leased_before
  if overshoot > 0 then
    -- A sixteenth is left for requests that need units.
    local delayed, left = floor(overdraft * share / 1024), grantable - ceil(overdraft / 16)
    delayed = delayed < left and delayed or left
    granted = granted > delayed and granted or delayed
  end
  granted = granted < want and granted or want
  granted = granted < fewest and 0 or granted
  if purpose == 3 and need > grantable then
    -- All regions that need units get a part of the free ones.
    need = ceil(grantable * share / 1024)
  end
  need = need < grantable and need or grantable
  granted = granted > need and granted or need
  granted = (purpose == 1 or purpose == 2) and 0 or granted
  latest = latest + granted
  asked = (asked + asked_now) % 2 ^ 32
  value = value .. pack_bytes('>I4I4I4I4I4I2', born, turn, before, latest, asked, overshoot)
  if is_new and before + latest == 0 then
    -- A window begins with its first unit.
    value = nil
  end
end
new2, new3 = new2 or 0, new3 or 0
number_count, refunded_flag = 8, 0
more = { 2 * granted + (is_late and 1 or 0), before + latest - granted - kept, turn, born, asked }
