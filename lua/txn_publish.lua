-- Publish the part of a chunk that lies in one shard: one block of sequences, one run per catalog.
--
-- KEYS  1 seq  2 pending  3 opened  4 catalogs  5 inflight  6 aborted, then for each catalog: delta, snap
-- ARGV  1 txn id  2 block `partition.chunk`  3 segment, then for each catalog: name, first row, count,
--       expected version (ts_seq, or '' for any)
-- Reply {`published`, first sequence of each catalog…}, {`conflict`, catalog, its version},
--       or {`aborted`} when the transaction is not in flight
--
-- Guarantees: sequences of the block are consecutive, catalog after catalog, and above every member of
-- those catalogs and of the shard; a block that is there already is not added again and answers the same.
--@include sequence
--@include log

local shard = { pending = KEYS[2], opened = KEYS[3], inflight = KEYS[5], aborted = KEYS[6] }
local txn, segment = ARGV[1], ARGV[3]
local marker = 'txn|' .. txn .. '|' .. ARGV[2]

if redis.call('SISMEMBER', KEYS[5], txn) == 0 then
  return { 'aborted' }
end

-- The version a catalog is at; nil while something open could still change it.
local function version_of(delta_key, snap_key)
  local members = redis.call('ZREVRANGE', delta_key, 0, -1)
  for _, member in ipairs(members) do
    if string.sub(member, 1, 6) == 'delta|' then
      return string.match(member, '|([^|]+)$')
    elseif string.sub(member, 1, 8) == 'pending|' then
      return nil
    elseif redis.call('SISMEMBER', shard.inflight, txn_of_run(member)) == 1 then
      return nil
    elseif redis.call('SISMEMBER', shard.aborted, txn_of_run(member)) == 0 then
      local first, count = string.match(member, '^run|([^|]+)|(%d+)|')
      local ts, seq = parse(first)
      return text_of(ts, seq + tonumber(count) - 1)
    end
  end
  local snapshot = redis.call('ZREVRANGE', snap_key, 0, 0)[1]
  return snapshot and stop_of(snapshot) or '0_0'
end

local catalogs = {}
for i = 4, #ARGV, 4 do
  local at = 7 + (i - 4) / 2
  table.insert(catalogs, {
    name = ARGV[i], row = ARGV[i + 1], count = tonumber(ARGV[i + 2]), expected = ARGV[i + 3],
    delta = KEYS[at], snap = KEYS[at + 1],
  })
end

local known = redis.call('ZSCORE', KEYS[2], marker)
local ts, seq
if known then
  ts, seq = of_score(known)
  seq = seq - 1
else
  local sets = { KEYS[2], KEYS[4] }
  for _, catalog in ipairs(catalogs) do
    if catalog.expected ~= '' then
      local version = version_of(catalog.delta, catalog.snap)
      if version ~= catalog.expected then
        return { 'conflict', catalog.name, version or 'open' }
      end
    end
    table.insert(sets, catalog.delta)
    table.insert(sets, catalog.snap)
  end
  ts, seq = allocator(KEYS[1], sets)
end

-- Blocks of decided transactions leave the shard's open writes as new ones come in.
for _, token in ipairs(redis.call('ZRANGE', KEYS[2], 0, 7)) do
  local other = string.match(token, '^txn|([^|]+)|')
  if other and redis.call('SISMEMBER', KEYS[5], other) == 0 then
    close_write(shard, token)
  end
end

local reply = { 'published' }
local first_score
for _, catalog in ipairs(catalogs) do
  ts, seq = following(ts, seq, catalog.count)
  local first = text_of(ts, seq)
  table.insert(reply, first)
  first_score = first_score or score_of(ts, seq)
  seq = seq + catalog.count - 1
  if not known then
    local score = score_of(ts, seq)
    local run = string.format('run|%s|%d|%s:%s', first, catalog.count, segment, catalog.row)
    redis.call('ZADD', catalog.delta, score, run)
    redis.call('ZADD', KEYS[4], 'GT', score, catalog.name)
  end
end
if not known then
  local _, micros = now()
  redis.call('SET', KEYS[1], text_of(ts, seq))
  redis.call('ZADD', KEYS[2], first_score, marker)
  redis.call('HSET', KEYS[3], marker, string.format('%.0f', micros))
end
return reply
