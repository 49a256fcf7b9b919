-- Forget a catalog's history below one of its snapshots, and abandoned writes anywhere in its log.
--
-- KEYS  1 delta  2 snap  3 floor  4 pending  5 opened  6 fenced
-- ARGV  1 pending timeout in microseconds  2 b64  3 stop of the oldest snapshot to keep
-- Reply {`cleared`, members fenced…}, or {`gone`} if there is no snapshot with that stop
--
-- Guarantees: the kept snapshots and everything after the oldest of them stay; twice is once.
--@include sequence
--@include log

local shard = { pending = KEYS[4], opened = KEYS[5], fenced = KEYS[6] }
local timeout, b64, stop = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local score = score_of_text(stop)
local _, micros = now()

if #redis.call('ZRANGEBYSCORE', KEYS[2], score, score) == 0 then
  return { 'gone' }
end
local reply = { 'cleared' }
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if string.sub(member, 1, 8) == 'pending|' then
    local token, age = open_write(shard, member, micros)
    if age >= timeout then
      fence(shard, KEYS[1], member, token, b64, micros)
      table.insert(reply, member)
    end
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', score)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. score)
local floor = redis.call('HGET', KEYS[3], b64)
if not floor or tonumber(score_of_text(floor)) < tonumber(score) then
  redis.call('HSET', KEYS[3], b64, stop)
end
return reply
