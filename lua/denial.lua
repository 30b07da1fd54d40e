-- Denial: denies the charge of a banned key; of a key that is not banned, counts a denial by the quota, unless failures
-- lead to its bans (lua/failure.lua). The second part of a penalty, after lua/penalty.lua and the file of the
-- algorithm.
--
-- KEYS   as in lua/penalty.lua
-- ARGV   as in lua/penalty.lua
-- Reply  as in lua/penalty.lua
-- State  as in lua/penalty.lua. Nothing is written here: `ban` gets what phase 2 of lua/decide.lua stores.
--
-- Example: in lua/penalty.lua

local since, denial_count, ban_count, forgiven_at, foreign_ban = unpack(ban, 6, 10)
if foreign_ban and is_ours then
  stored, is_ours = foreign_ban, false
end
if foreign_ban or ban[2] > 0 then
  has_room, value, patches = false, nil, nil
  if extra then
    extra.commands = nil
  end
elseif is_ours and not has_room and not is_unsure and ARGV[penalty_at + 1] ~= '0' then
  local first, factor, longest = ARGV[penalty_at + 3] + 0, ARGV[penalty_at + 4] + 0, ARGV[penalty_at + 5] + 0
  -- If the clock was set back, the denials count from now on.
  since = since < now and since or now
  if now >= since + ARGV[penalty_at + 2] or denial_count == 0 then
    since, denial_count = now, 0
  end
  denial_count = denial_count + 1
  local until_micros, forgiven = 0, now
  if denial_count >= ARGV[penalty_at + 1] + 0 then
    local length = first
    for _ = 1, ban_count do
      length = length * factor
      if length >= longest then
        length = longest
        break
      end
    end
    until_micros, forgiven = now + length, now + length
    since, denial_count, ban_count = now, 0, ban_count < 255 and ban_count + 1 or 255
  end
  forgiven = forgiven + ARGV[penalty_at + 6]
  forgiven_at = forgiven > forgiven_at and forgiven or forgiven_at
  ban[3] = pack_bytes('>I7I4I1I7I7', since, denial_count, ban_count, until_micros, forgiven_at)
  ban[4], ban[5] = ceil((forgiven_at - now) / 1000) + TTL_MARGIN, until_micros
end
