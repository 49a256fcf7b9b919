-- Take a name out of a shard's registry, if its log has nothing: no delta, no run, no open write, no snapshot.
--
-- KEYS  1 catalogs  2 delta  3 snap  4 seq
-- ARGV  1 catalog
-- Reply 1 if it was taken out, else 0
--
-- Guarantees: a catalog that somebody writes to stays, and so does the order of the shard; twice is once.
--@include sequence

local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then
  return 0
end
-- The registry keeps sequences from being given twice; what it forgets here the allocator must know.
local ts, seq = of_score(score)
local last_ts, last_seq = last_sequence(KEYS[4], {})
if last_ts < ts or (last_ts == ts and last_seq < seq) then
  redis.call('SET', KEYS[4], text_of(ts, seq))
end
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
