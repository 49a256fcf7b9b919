-- Give a transaction up: one step, however big it is.
--
-- KEYS  1 txn  2 inflight  3 aborted
-- ARGV  1 txn id  2 `1` to do so only if its lease ran out
-- Reply {`aborted`}, {`committed`} (too late), or {`open`, microseconds of lease left}
--
-- Guarantees: nothing of it is visible, ever; a late commit fails cleanly; twice is once.
--@include sequence

local txn = ARGV[1]
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'committed' then
  return { 'committed' }
end
if ARGV[2] == '1' then
  local _, micros = now()
  local lease = tonumber(redis.call('HGET', KEYS[1], 'lease') or 0)
  if state ~= 'aborted' and lease > micros then
    return { 'open', string.format('%.0f', lease - micros) }
  end
end
-- Only what was in flight can have runs in a log.
if redis.call('SREM', KEYS[2], txn) == 1 then
  redis.call('SADD', KEYS[3], txn)
end
if state then
  redis.call('HSET', KEYS[1], 'state', 'aborted')
end
return { 'aborted' }
