-- Penalty: a key that was denied several times is banned for a time, whatever the algorithm. Twin:
-- src/policy/penalty.rs.
-- This part reads the ban before the charge is computed; lua/denial.lua applies it, and counts a denial.
--
-- KEYS   one per charge with a penalty, after the keys of all charges of the request: a string
-- ARGV   before the charge and its mark:
--          PENALTY
--          most       denials that lead to a ban, or 0 if failures do (lua/failure.lua)
--          within     us in which they are counted
--          first      us: the length of the first ban
--          factor     by which each further ban is longer
--          longest    us: the length of the longest ban
--          forgiven   us after the last denial or ban, when all is forgiven
-- Reply  one integer per charge with a penalty, after all charges of the request: the end of the ban in us, or 0
-- State  26 bytes, of a key that was denied:
--
--          0             7         11     12            19            26
--          +-------------+---------+------+-------------+-------------+
--          | since (us)  | denials | bans | until (us)  | forgiven at |
--          +-------------+---------+------+-------------+-------------+
--
--          since is the time of the first denial that is counted or, of a banned key, that at which the ban began.
--
-- Example: one a minute, banned for 30 s after 2 denials in 60 s. Times with a `+` are us after 1700000000000000.
--   '^' 2 60000000 30000000 2 3600000000 600000000 'wAAAA' 60000000 60000000
--   at +0        -> fits, TAT +60000000, ban 0
--   at +1000000  -> denied, TAT +60000000, ban 0
--   at +2000000  -> denied, TAT +60000000, ban +32000000
--   at +3000000  -> denied, TAT +60000000, ban +32000000: nothing is written

bans = bans or {}
local ban_key = KEYS[keys_before + charge_count + #bans + 1]
local stored_ban = redis_pcall('GET', ban_key)
local since, denial_count, ban_count, banned_until, forgiven_at = now, 0, 0, 0, 0
local foreign_ban
if stored_ban then
  if #stored_ban == 26 then
    since, denial_count, ban_count, banned_until, forgiven_at = unpack_bytes('>I7I4I1I7I7', stored_ban)
  end
  if forgiven_at < EARLIEST or forgiven_at > now + FURTHEST then
    foreign_ban = stored_ban
  end
  if foreign_ban or now >= forgiven_at then
    denial_count, ban_count, banned_until, forgiven_at = 0, 0, 0, 0
  end
end
local moved, moved_ttl
if banned_until > now then
  local longest = ARGV[penalty_at + 5] + 0
  if since > now then
    -- The clock was set back. Stored, because otherwise the ban would begin with each request.
    since = now
    banned_until = banned_until < now + longest and banned_until or now + longest
    local forgiven = banned_until + ARGV[penalty_at + 6]
    forgiven_at = forgiven < forgiven_at and forgiven or forgiven_at
    moved = pack_bytes('>I7I4I1I7I7', since, denial_count, ban_count, banned_until, forgiven_at)
    moved_ttl = ceil((forgiven_at - now) / 1000) + TTL_MARGIN
  end
  -- A ban may have been made under other settings.
  banned_until = banned_until < since + longest and banned_until or since + longest
end
if banned_until > now then
  counts_denied = false
else
  banned_until = 0
end
-- Without names, as the records. Phase 2 names the first five indices; denial.lua reads the others, and if it counts a
-- denial, replaces the value, its TTL and the end of the ban that the reply then holds.
ban = {
  ban_key, banned_until, moved, moved_ttl, banned_until, since, denial_count, ban_count, forgiven_at, foreign_ban,
}
bans[#bans + 1] = ban
