-- The first sequence of a shard that may still change: everything below it is decided for good.
--
-- KEYS  1 seq  2 pending  3 opened  4 fenced  5 inflight  6 catalogs
-- ARGV  1 pending timeout in microseconds  2 prefix of the shard's delta keys
-- Reply {the shard's last sequence ('' when nothing was ever written), sequence and token of the first open
--       write or block in flight ('' when nothing is open), how many transactions are in flight in all, age of
--       the open write in microseconds (-1 when it is none)}
--
-- Guarantees: abandoned writes before the answer are fenced first, so nothing can commit below it;
-- blocks of decided transactions leave the shard's open writes here.
--@include sequence
--@include log

local shard = { pending = KEYS[2], opened = KEYS[3], fenced = KEYS[4] }
local timeout = tonumber(ARGV[1])
local _, micros = now()

-- The registry knows the last commits if the allocator's key is lost.
local last_ts, last_seq = last_sequence(KEYS[1], { KEYS[6] })
local last = last_ts > 0 and text_of(last_ts, last_seq) or ''
local inflight = redis.call('SCARD', KEYS[5])
local open = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #open, 2 do
  local token = open[i]
  local text = text_of(of_score(open[i + 1]))
  local txn = string.match(token, '^txn|([^|]+)|')
  if txn then
    if redis.call('SISMEMBER', KEYS[5], txn) == 1 then
      return { last, text, token, inflight, -1 }
    end
    close_write(shard, token)
  else
    local opened = redis.call('HGET', KEYS[3], token)
    local age = opened and micros - tonumber(opened)
    if age and age < timeout then
      return { last, text, token, inflight, age }
    end
    local merge_type, path, b64 = string.match(token, '^w|[^|]+|(%d+)|([^|]+)|([^|]+)$')
    fence(shard, ARGV[2] .. b64, 'pending|delta|' .. merge_type .. '|' .. path .. '|' .. text, token, b64, micros)
  end
end
return { last, '', '', inflight, -1 }
