-- Decide to publish: from here on the transaction's runs may be in the logs, as open writes.
--
-- KEYS  1 txn  2 inflight  3 app
-- ARGV  1 txn id  2 lease in microseconds  3 application's version, or ''
-- Reply `publishing`, `applied` (the application is at this version or later), `expired`, or the state
--       it is in (`committed`, `aborted`, `missing`)
--
-- Guarantees: a lease that ran out is never revived; again while publishing renews the lease.
--@include sequence

local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'open' and state ~= 'publishing' then
  return state or 'missing'
end
local _, micros = now()
if tonumber(redis.call('HGET', KEYS[1], 'lease')) < micros then
  return 'expired'
end
local applied = ARGV[3] ~= '' and redis.call('GET', KEYS[3])
if applied and tonumber(applied) >= tonumber(ARGV[3]) then
  return 'applied'
end
redis.call('HSET', KEYS[1], 'state', 'publishing', 'lease', string.format('%.0f', micros + tonumber(ARGV[2])))
redis.call('SADD', KEYS[2], ARGV[1])
return 'publishing'
