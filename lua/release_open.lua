-- Release: frees slots, and lets the queue ask that waits longest for them. This part begins a call of the third
-- script, RELEASE, which is lua/decide.lua with the files release_open and release_close.
--
-- KEYS   one per release as in lua/decide.lua, then one per release for its line (lua/line_open.lua)
-- ARGV   optionally CALLER_TIME and its time, then
--          channel   start of the channels' names
--          lines     number of releases
--        then the releases as in lua/concurrency.lua
-- Reply  as in lua/decide.lua
-- State  as in lua/decide.lua and lua/line_open.lua
--
-- Example: one slot is freed, and a queue waits. Times with a `+` are us after 1700000000000000.
--   at +0  KEYS 't:{a}:p#c' 't:{a}:p#q'  ARGV 't:wake:' 1 'e' 30000 0 'ticket-1\0\0\1'
--          -> +0, 1, 1, 1: released; 'queue-01' is due at +0, and is published to 't:wake:71756575'

local line_channel, line_keys = ARGV[argument], #KEYS - ARGV[argument + 1]
argument = argument + 2
