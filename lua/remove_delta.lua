-- Take one delta out of a catalog's log; out of a run, by splitting the run around it.
--
-- KEYS  1 delta  2 snap  3 fenced  4 inflight
-- ARGV  1 b64  2 ts_seq
-- Reply {`removed`, member}, {`merged`} (a snapshot contains it), {`open`} (its transaction is in
--       flight) or {`missing`}
--
-- Guarantees: no other delta changes place; twice is once.
--@include sequence
--@include log

local b64, ts_seq = ARGV[1], ARGV[2]
local ts, seq = parse(ts_seq)
local score = score_of(ts, seq)
local mark = 'removed|' .. ts_seq .. '|' .. b64

if redis.call('ZSCORE', KEYS[3], mark) then
  return { 'removed', '' }
end
local newest = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if newest[2] and tonumber(newest[2]) >= tonumber(score) then
  return { 'merged' }
end
local member = redis.call('ZRANGEBYSCORE', KEYS[1], score, '+inf', 'LIMIT', 0, 1)[1]
if not member then
  return { 'missing' }
end

if string.sub(member, 1, 6) == 'delta|' then
  if string.match(member, '|([^|]+)$') ~= ts_seq then
    return { 'missing' }
  end
  redis.call('ZREM', KEYS[1], member)
else
  local first, count, segment, row = string.match(member, '^run|([^|]+)|(%d+)|([^:]+):(%d+)$')
  if not first then
    return { 'missing' }
  end
  local first_ts, first_seq = parse(first)
  local before = seq - first_seq
  if first_ts ~= ts or before < 0 then
    return { 'missing' }
  end
  if redis.call('SISMEMBER', KEYS[4], txn_of_run(member)) == 1 then
    return { 'open' }
  end
  local after = tonumber(count) - before - 1
  local function add(from_seq, many, from_row)
    if many > 0 then
      local run = string.format('run|%s|%d|%s:%d', text_of(ts, from_seq), many, segment, from_row)
      redis.call('ZADD', KEYS[1], score_of(ts, from_seq + many - 1), run)
    end
  end
  redis.call('ZREM', KEYS[1], member)
  add(first_seq, before, tonumber(row))
  add(seq + 1, after, tonumber(row) + before + 1)
end
local _, micros = now()
redis.call('ZADD', KEYS[3], string.format('%.6f', micros / 1000000), mark)
return { 'removed', member }
