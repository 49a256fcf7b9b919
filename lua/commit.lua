-- Commit a write: its pending becomes a delta, if the pending is still there.
--
-- KEYS  1 delta  2 pending  3 opened  4 fenced  5 catalogs  6 meta
-- ARGV  1 token  2 mergeType  3 path  4 ts_seq  5 b64  6 catalog  7… meta: key, raw JSON ('' removes the key)
-- Reply `committed`, `fenced` (it can never be in), or `unknown` (Redis knows nothing of it: it was
--       committed and its history cleared since, or Redis lost its memory of it)
--
-- Guarantees: the same commit twice is one commit; meta is merged once; a fenced write never appears.
--@include sequence
--@include hash

local token, ts_seq, b64 = ARGV[1], ARGV[4], ARGV[5]
local member = 'delta|' .. ARGV[2] .. '|' .. ARGV[3] .. '|' .. ts_seq

if redis.call('ZREM', KEYS[1], 'pending|' .. member) == 1 then
  local score = score_of_text(ts_seq)
  redis.call('ZADD', KEYS[1], score, member)
  redis.call('ZADD', KEYS[5], 'GT', score, ARGV[6])
  redis.call('ZREM', KEYS[2], token)
  redis.call('HDEL', KEYS[3], token)
  merge_hash(KEYS[6], ARGV, 7)
  return 'committed'
end
if redis.call('ZSCORE', KEYS[1], member) or redis.call('ZSCORE', KEYS[4], 'removed|' .. ts_seq .. '|' .. b64) then
  return 'committed'
end
if redis.call('ZSCORE', KEYS[4], member .. '|' .. b64) then
  return 'fenced'
end
return 'unknown'
