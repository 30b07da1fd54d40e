-- luacheck lua
max_line_length = 120

-- What Redis 6.2 and compatible servers provide, as far as the scripts may use it.
stds.server = {
  read_globals = {
    'ARGV', 'KEYS', 'assert', 'ipairs', 'type', 'unpack',
    math = { fields = { 'ceil', 'floor', 'frexp' } },
    redis = { fields = { 'call', 'error_reply', 'pcall' } },
    string = { fields = { 'byte', 'find', 'format', 'rep', 'sub' } },
    struct = { fields = { 'pack', 'unpack' } },
    table = { fields = { 'concat', 'sort', 'unpack' } },
  },
}
std = 'server'

-- Names of decide.lua that the files of the algorithms read.
local shared = {
  -- Tags.
  'BUCKET', 'CLOCK_WINDOW', 'FIRST_HIT_WINDOW', 'MONTH_WINDOW', 'POT_REPORT', 'RELEASE_SLOTS', 'RENEW_SLOTS', 'TAKE_SLOTS',
  'UNEVEN_BUCKET',
  -- Constants.
  'AGAIN', 'EARLIEST', 'EXACT', 'FURTHEST', 'LOG_HEAD', 'NEVER', 'REGION_TURN', 'SHORT_TURNS', 'TTL_MARGIN', 'TURN',
  -- Functions.
  'ceil', 'floor', 'include', 'pack_bytes', 'redis_call', 'redis_pcall', 'sub', 'unpack', 'unpack_bytes',
  -- The call, the request and the charge.
  'argument', 'charge_count', 'charge_number', 'is_probe', 'is_queue', 'key', 'keys_before', 'kind', 'merge_from',
  'merge_until', 'now', 'now_millis', 'penalty_at', 'records', 'refund_at', 'refunded_before', 'report', 'tag',
}

-- Names of decide.lua that they set.
local results = {
  'argument_count', 'ban', 'bans', 'counts_denied', 'extra', 'failure', 'has_room', 'is_forced', 'is_ours', 'is_unsure',
  'more',
  'new1', 'new2', 'new3', 'number_count', 'old1', 'old2', 'old3', 'patches', 'refunded_flag', 'stored', 'ttl_millis',
  'value',
  -- Of leases.
  'asked', 'before', 'born', 'capacity', 'is_late', 'is_new', 'is_other', 'is_reset', 'kept', 'latest', 'over', 'room',
  'turn', 'turn_micros',
}

files['lua/*.lua'] = { read_globals = shared, globals = results }

-- Names of the files that include it.
files['lua/ended_leases.lua'] = {
  read_globals = { 'micros', 'units' },
  globals = { 'tat' },
  -- For lua/lattice.lua.
  ignore = { '211/from', '211/steps', '221/after' },
}
files['lua/lattice.lua'] = { read_globals = { 'from', 'micros', 'steps', 'units' }, globals = { 'after' } }
files['lua/lease_report.lua'] = { globals = { 'cost' } }
files['lua/window_leases.lua'] = {
  read_globals = { 'is_open', 'limit' },
  globals = { 'ended', 'free', 'leased', 'leases' },
}
-- For lua/lattice.lua.
files['lua/token_bucket.lua'] = { ignore = { '211/from', '211/micros', '211/steps', '211/units', '221/after' } }

-- The parts of a line share names of their own, and change those of lua/decide.lua.
local line = {
  'argument', 'denials', 'is_ahead', 'is_blocked', 'key_index', 'line_ages', 'line_ahead', 'line_argument', 'line_callers',
  'line_changed', 'line_class', 'line_gone', 'line_granted', 'line_index', 'line_is_listed', 'line_keys', 'line_length',
  'line_now', 'line_others', 'line_outcome', 'line_owed', 'line_own', 'line_pauses', 'line_place', 'line_places', 'line_poll',
  'line_queue', 'line_start', 'line_steps', 'line_tickets', 'now', 'now_millis', 'outcome', 'reply', 'reply_length',
}
local read_by_line = {
  'ADMITTED', 'DENIED', 'FAILED', 'GROUP', 'LINE_EPSILON', 'LINE_GRACE', 'LINE_LISTED', 'SLIDING_LOG', 'SLIDING_WINDOW',
  'is_shadow', 'last_argument', 'reply_index',
}
for _, part in ipairs({ 'charge', 'check', 'close', 'next', 'open' }) do
  files['lua/line_' .. part .. '.lua'] = {
    read_globals = read_by_line,
    globals = line,
    -- For the other parts, and for lua/lattice.lua.
    ignore = { '211', '221', '231', '241', '431' },
  }
end

-- The parts of a release.
for _, part in ipairs({ 'close', 'open' }) do
  files['lua/release_' .. part .. '.lua'] = {
    globals = { 'argument', 'line_channel', 'line_keys' },
    -- For the other part.
    ignore = { '211' },
  }
end

-- The tickets of each caller take the place of those before.
files['lua/line_next.lua'].globals = { 'ARGV' }
for _, name in ipairs(line) do
  table.insert(files['lua/line_next.lua'].globals, name)
end

-- The composed script of the lines: denials of callers that wait do not count, and each caller has tickets of its own.
files['**/acquire.lua'] = { ignore = { '122', '311/counts_denied', '311/is_unsure' } }

-- Its includes use what it only sets, and set what it only uses. The composed script is checked without this.
files['lua/decide.lua'] = { read_globals = { 'include' }, ignore = { '211', '221', '231' } }
