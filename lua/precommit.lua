-- Open a write: allocate its sequence and add the pending to the catalog and to the shard.
--
-- KEYS  1 delta  2 snap  3 seq  4 pending  5 opened  6 catalogs
-- ARGV  1 token `w|nonce|mergeType|path|b64`  2 mergeType  3 path
-- Reply the write's sequence, `ts_seq`
--
-- Guarantees: sequences of a shard grow strictly, above every member of the catalog's sets and of the shard's;
-- the same token twice opens one write and gives one sequence.
--@include sequence

local token, merge_type, path = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('ZSCORE', KEYS[4], token)
if known then
  return text_of(of_score(known))
end

local ts, seq = allocator(KEYS[3], { KEYS[1], KEYS[2], KEYS[4], KEYS[6] })
ts, seq = following(ts, seq, 1)
local _, micros = now()
local text, score = text_of(ts, seq), score_of(ts, seq)
redis.call('SET', KEYS[3], text)
redis.call('ZADD', KEYS[1], score, 'pending|delta|' .. merge_type .. '|' .. path .. '|' .. text)
redis.call('ZADD', KEYS[4], score, token)
redis.call('HSET', KEYS[5], token, string.format('%.0f', micros))
return text
