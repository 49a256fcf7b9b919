-- Take a snapshot whose body cannot be read out of the index, if the log can do without it.
--
-- KEYS  1 snap  2 delta  3 floor
-- ARGV  1 member  2 b64  3 stop  4 `1` to ask only
-- Reply `removed` (or, when only asked, that it would be), `missing`, or `needed` (what it merged is no longer
--       in the log)
--
-- Guarantees: every version that could be read still can be, from an earlier snapshot and the deltas after it;
-- twice is once.
--@include sequence

local member, b64, score = ARGV[1], ARGV[2], score_of_text(ARGV[3])

if not redis.call('ZSCORE', KEYS[1], member) then
  return 'missing'
end
-- Clearing removes what a snapshot merged, the change at its stop with it.
if redis.call('ZCOUNT', KEYS[2], score, score) == 0 then
  return 'needed'
end
local floor = redis.call('HGET', KEYS[3], b64)
if floor and redis.call('ZCOUNT', KEYS[1], score_of_text(floor), '(' .. score) == 0 then
  return 'needed'
end
if ARGV[4] ~= '1' then
  redis.call('ZREM', KEYS[1], member)
end
return 'removed'
