-- Concurrency: the slots of requests in flight, each until its lease ends. Twin of src/algorithm/concurrency.rs, and
-- for the leases, which exist only in Redis, of a model in tests/lua/differential.rs.
--
-- KEYS   one per charge: a sorted set
-- ARGV   takes slots:
--          TAKE_SLOTS
--          cost     slots; 0 peeks
--          limit    slots
--          lease    ms
--          ticket   8 bytes that identify the request
--        releases slots:
--          RELEASE_SLOTS
--          lease    ms
--          pending  1 if a take by one of the tickets may arrive later, else 0
--          members  of up to 50 tickets, see State
--        renews leases:
--          RENEW_SLOTS
--          lease    ms
--          retake   1 to take slots again whose lease has ended, else 0
--          members  of up to 50 tickets
-- Reply  the slots in flight; for RELEASE_SLOTS the slots released; for RENEW_SLOTS a bit for each member that has no
--        slots, the lowest bit for the first member
-- State  a sorted set; a score below 10^9 is the total, below 10^12 a time in s, else a time in ms
--
--          member                          score
--          ''                              total of the slots of all leases; sorts first
--          ticket (8 bytes), 0 (3 bytes)   a bar: until this time in s the ticket takes no slots
--          ticket (8 bytes), slots (3)     a lease: its end in ms
--
--        A release that a take may follow leaves a bar, so that the late take does not occupy slots for a whole lease.
--
--        A take also removes up to 32 leases that have ended. Each ended lease beyond those counts as one slot less in
--        flight. That is exact if each request takes one slot; otherwise the count is too high, never too low.
--
-- Example: 3 at once, leases of 30 s. Times with a `+` are us after 1700000000000000.
--   at +0         'c' 2 3 30000 'ticket-1' -> fits, 2 in flight
--   at +1000000   'c' 2 3 30000 'ticket-2' -> denied, 2 in flight
--   at +2000000   'k' 30000 0 'ticket-1\0\0\2' -> renewed, 0: none is missing
--   at +3000000   'e' 30000 0 'ticket-1\0\0\2' -> released, 2 slots
--   at +4000000   'c' 2 3 30000 'ticket-2' -> fits, 2 in flight

-- The length of a member, the last bytes of a bar, the lowest scores of bars and leases, and how many a take removes.
local MEMBER_LENGTH, NO_SLOTS, FIRST_BAR, FIRST_LEASE, MAX_REMOVED = 11, '\0\0\0', 1000000000, 1000000000000, 32
local is_take = kind == TAKE_SLOTS
-- A denied request is not in flight, so it does not count.
argument_count, counts_denied = is_take and 4 or 3, false
-- Read the total and the member after it, which has the earliest time.
stored = redis_pcall('ZRANGE', key, '0', '1', 'WITHSCORES')
if #stored == 0 and not stored.err then
  stored = false
end
is_ours = not stored or #stored > 0
local total, second_score = 0, nil
if stored and is_ours then
  total, second_score = stored[2] + 0, stored[4] and stored[4] + 0
  is_ours = stored[1] == '' and total >= 0 and total < FIRST_BAR and total % 1 == 0
    and (not second_score
      or #stored[3] == MEMBER_LENGTH and second_score >= FIRST_BAR and second_score * 1000 <= now + FURTHEST)
end
local lease_end = now_millis + ARGV[argument + (is_take and 3 or 1)]
-- Members to remove; scores and members to add.
local removed, added = {}, {}
new1 = 0

if is_ours and is_take then
  local cost, limit, ticket = ARGV[argument + 1] + 0, ARGV[argument + 2] + 0, ARGV[argument + 4]
  assert(#ticket == 8, 'concurrency: a ticket must be 8 bytes')
  local ended_left = 0
  if second_score and second_score <= now_millis then
    removed = redis_call('ZRANGE', key, FIRST_LEASE, now_millis, 'BYSCORE', 'LIMIT', '0', MAX_REMOVED)
    for i = 1, #removed do
      is_ours = is_ours and #removed[i] == MEMBER_LENGTH
      total = total - (is_ours and unpack_bytes('>I3', removed[i], 9) or 0)
    end
    if #removed == MAX_REMOVED then
      local ended_count = redis_pcall('ZCOUNT', key, FIRST_LEASE, now_millis)
      if type(ended_count) == 'table' then
        failure, is_ours = failure or ended_count.err, false
      else
        ended_left = ended_count - MAX_REMOVED
      end
    end
    local bars = redis_call('ZRANGE', key, FIRST_BAR, floor(now_millis / 1000), 'BYSCORE', 'LIMIT', '0', MAX_REMOVED)
    for i = 1, #bars do
      removed[#removed + 1] = bars[i]
    end
  end
  if is_ours then
    -- A total that is too low would make the number in the reply negative.
    total = total > ended_left and total or ended_left
    old1 = total - ended_left
    new1 = old1
    has_room = cost == 0 or old1 + cost <= limit
  end
  if cost == 0 then
    removed = {}
  elseif has_room then
    local member = ticket .. pack_bytes('>I3', cost)
    local scores = stored and redis_pcall('ZMSCORE', key, member, ticket .. NO_SLOTS) or {}
    if scores.err then
      failure, is_ours, has_room = failure or scores.err, false, false
    elseif scores[1] then
      -- The ticket is stored already: a take that is repeated changes nothing. It was denied above if no slot is free.
      removed = {}
    else
      -- A bar denies the take.
      has_room = not scores[2]
    end
    if has_room and not scores[1] then
      added = { lease_end, member }
      total, new1 = total + cost, new1 + cost
      -- Undo with a command that was just allowed: a lease that has ended takes no slots. A key that is new is removed,
      -- by the command that a release needs.
      extra = { undo = { { 'ZADD', key, FIRST_LEASE, member }, not stored and { 'ZREM', key, '', member } or nil } }
    end
  end
elseif is_ours then
  local flag, list = ARGV[argument + 2] == '1', ARGV[argument + 3]
  assert(#list % MEMBER_LENGTH == 0, 'concurrency: members must be 11 bytes each')
  -- `queried` also holds the bars of a renewal that may retake slots.
  local members, queried = {}, {}
  for from = 1, #list, MEMBER_LENGTH do
    local member = sub(list, from, from + MEMBER_LENGTH - 1)
    members[#members + 1] = member
    queried[#members] = member
  end
  if kind == RENEW_SLOTS and flag then
    for i = 1, #members do
      local ticket = sub(members[i], 1, 8)
      queried[#members + i] = ticket .. NO_SLOTS
    end
  end
  local scores = stored and redis_pcall('ZMSCORE', key, unpack(queried)) or {}
  if scores.err then
    failure, is_ours = failure or scores.err, false
  end
  -- A ticket that is listed twice counts once.
  local seen = {}
  for i = 1, is_ours and #members or 0 do
    local ticket, slots = unpack_bytes('>c8I3', members[i])
    local is_first = not seen[members[i]]
    seen[members[i]] = true
    if kind == RELEASE_SLOTS then
      if scores[i] and is_first then
        removed[#removed + 1] = members[i]
        total, new1 = total - slots, new1 + slots
      end
      if flag then
        added[#added + 1], added[#added + 2] = ceil(lease_end / 1000), ticket .. NO_SLOTS
      end
    elseif scores[i] or flag and not scores[#members + i] then
      added[#added + 1], added[#added + 2] = lease_end, members[i]
      total = (scores[i] or not is_first) and total or total + slots
    else
      new1 = new1 + 2 ^ (i - 1)
    end
  end
  has_room, old1 = is_ours, new1
end

if is_ours and (#removed > 0 or #added > 0) then
  total = total > 0 and total or 0
  local list, expiry = {}, nil
  if #added > 0 then
    local longest = stored and redis_call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2] + 0 or 0
    expiry = { 'PEXPIRE', key, (longest > lease_end and longest or lease_end) - now_millis + TTL_MARGIN }
    -- A take begins with ZADD, which a server that is out of memory refuses, as it refuses other charges and probes.
    -- Otherwise PEXPIRE comes first, because the server may refuse it, and accepts all that follows a first write: a
    -- release leaves its bar even when memory is full. It changes nothing while the key does not exist.
    if not is_take then
      list[1] = expiry
    end
  elseif total == 0 and #redis_call('ZRANGE', key, '1', #removed + 1) == #removed then
    -- No lease and no bar is left, so remove the total as well, and with it the key.
    removed[#removed + 1] = ''
  end
  if #removed > 0 then
    list[#list + 1] = { 'ZREM', key, unpack(removed) }
  end
  if removed[#removed] ~= '' then
    list[#list + 1] = { 'ZADD', key, total, '', unpack(added) }
  end
  if expiry and (is_take or not stored) then
    list[#list + 1] = expiry
  end
  extra = extra or {}
  extra[has_room and 'commands' or 'uncounted_commands'] = list
end
