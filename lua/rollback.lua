-- Take back a write whose body could not be stored.
--
-- KEYS  1 delta  2 pending  3 opened  4 fenced
-- ARGV  1 token  2 mergeType  3 path  4 ts_seq  5 b64  6 `1` to remember the object for vacuum
-- Reply 1 if the pending was there, else 0
--
-- Guarantees: only an open write is taken back, never a delta; twice is once.
--@include sequence

local member = 'delta|' .. ARGV[2] .. '|' .. ARGV[3] .. '|' .. ARGV[4]
local removed = redis.call('ZREM', KEYS[1], 'pending|' .. member)
if removed == 1 then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('HDEL', KEYS[3], ARGV[1])
  if ARGV[6] == '1' then
    local _, micros = now()
    redis.call('ZADD', KEYS[4], string.format('%.6f', micros / 1000000), member .. '|' .. ARGV[5])
  end
end
return removed
