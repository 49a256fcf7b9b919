-- Commit a transaction: at this instant all of it is visible, in every catalog.
--
-- KEYS  1 txn  2 inflight  3 aborted  4 app
-- ARGV  1 txn id  2 application's version, or ''  3 seconds to remember the transaction
--       4 `1` to remember the application's version no longer than that
--       5 the version that the application must be at (0: none yet), or '' for any
-- Reply `committed`, `applied` (the application got this version from another transaction first, or is not
--       where it must be: this one is aborted), or `aborted`
--
-- Guarantees: only a transaction in flight commits; one version of an application applies once; twice is once.

local txn, version = ARGV[1], ARGV[2]
if redis.call('HGET', KEYS[1], 'state') == 'committed' then
  return 'committed'
end
if redis.call('SREM', KEYS[2], txn) == 0 then
  return 'aborted'
end
if version ~= '' then
  local applied = redis.call('GET', KEYS[4])
  local moved = ARGV[5] ~= '' and tonumber(applied or 0) ~= tonumber(ARGV[5])
  if moved or (applied and tonumber(applied) >= tonumber(version)) then
    redis.call('SADD', KEYS[3], txn)
    redis.call('HSET', KEYS[1], 'state', 'aborted')
    return 'applied'
  end
  redis.call('SET', KEYS[4], version)
  if ARGV[4] == '1' then
    redis.call('EXPIRE', KEYS[4], ARGV[3])
  end
end
redis.call('HSET', KEYS[1], 'state', 'committed')
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 'committed'
