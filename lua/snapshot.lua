-- Register snapshots of some catalogs of a shard, each only if it is exactly what the log says.
--
-- KEYS  1 pending  2 opened  3 fenced  4 inflight  5 aborted, then for each catalog: delta, snap
-- ARGV  1 pending timeout in microseconds, then for each catalog: b64, start, stop, digest, member
--       digest: the first 16 hex digits of SHA-1 over the predecessor's member ('' if none) and the
--       visible members merged, joined by newlines
-- Reply for each catalog `added`, `known` (it was there already), `stale` (another snapshot came first),
--       `open` (an open write or a run in flight is at or below its stop) or `changed` (another log)
--
-- Guarantees: a snapshot follows on the newest one and merges exactly the visible members between its
-- start and its stop; nothing can commit at or below a stop afterwards; twice is once.
--@include sequence
--@include log

local shard = {
  pending = KEYS[1], opened = KEYS[2], fenced = KEYS[3], inflight = KEYS[4], aborted = KEYS[5],
}
local timeout = tonumber(ARGV[1])
local _, micros = now()

local function add(delta_key, snap_key, b64, start, stop, digest, member)
  if redis.call('ZSCORE', snap_key, member) then
    return 'known'
  end
  local newest = redis.call('ZREVRANGE', snap_key, 0, 0)[1]
  local lower = '-inf'
  if newest then
    lower = '(' .. score_of_text(stop_of(newest))
  end
  if start ~= (newest and stop_of(newest) or '0_0') then
    return 'stale'
  end
  local upper = score_of_text(stop)
  local view = walk(shard, redis.call('ZRANGEBYSCORE', delta_key, lower, upper), timeout, micros)
  if #view.open > 0 then
    return 'open'
  end
  table.insert(view.visible, 1, newest or '')
  if string.sub(redis.sha1hex(table.concat(view.visible, '\n')), 1, 16) ~= digest then
    return 'changed'
  end
  for _, write in ipairs(view.expired) do
    fence(shard, delta_key, write[1], write[2], b64, micros)
  end
  redis.call('ZADD', snap_key, upper, member)
  return 'added'
end

local replies = {}
for i = 2, #ARGV, 5 do
  local n = (i - 2) / 5
  replies[n + 1] = add(KEYS[6 + 2 * n], KEYS[7 + 2 * n], ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
end
return replies
