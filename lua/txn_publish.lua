-- Publish the part of a chunk that lies in one shard: one block of sequences, one run per catalog.
--
-- KEYS  1 seq  2 pending  3 opened  4 catalogs  5 inflight  6 aborted, then for each catalog: delta, snap
-- ARGV  1 txn id  2 block `partition.chunk`  3 segment  4 MessagePack of four lists: the catalogs' names, first rows,
--       counts, and expected versions (ts_seq, or '' for any; an empty list if all are)
-- Reply {`published`, first sequence of each catalog…}, {`conflict`, catalog, its version},
--       or {`aborted`} when the transaction is not in flight
--
-- Guarantees: sequences of the block are consecutive, catalog after catalog, and above every member of
-- those catalogs and of the shard; a block that is there already is not added again and answers the same.
--@include sequence
--@include log

local shard = { pending = KEYS[2], opened = KEYS[3], inflight = KEYS[5], aborted = KEYS[6] }
local txn = ARGV[1]
local marker = 'txn|' .. txn .. '|' .. ARGV[2]
-- One call for so many keys or members: what Lua's stack has room for.
local TOGETHER = 1000

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

local names, rows, counts, expected = unpack(cmsgpack.unpack(ARGV[4]))

-- Whether a member of the catalogs' own sets is above (ts, seq). Where no set is there, none is asked.
local function passed(ts, seq)
  local above = '(' .. score_of(ts, seq)
  for kind = 1, 2 do
    local sets = {}
    for i = 1, #names do
      sets[i] = KEYS[4 + kind + 2 * i]
    end
    for from = 1, #sets, TOGETHER do
      local to = math.min(from + TOGETHER - 1, #sets)
      if redis.call('EXISTS', unpack(sets, from, to)) > 0 then
        for i = from, to do
          if redis.call('ZCOUNT', sets[i], above, '+inf') > 0 then
            return true
          end
        end
      end
    end
  end
  return false
end

local known = redis.call('ZSCORE', KEYS[2], marker)
local ts, seq
if known then
  ts, seq = of_score(known)
  seq = seq - 1
else
  for i, version in ipairs(expected) do
    if version ~= '' then
      local found = version_of(KEYS[5 + 2 * i], KEYS[6 + 2 * i])
      if found ~= version then
        return { 'conflict', names[i], found or 'open' }
      end
    end
  end
  local sets = { KEYS[2], KEYS[4] }
  ts, seq = allocator(KEYS[1], sets)
  -- Seldom: the registry knows the last commit of every catalog, so a key was lost if one is ahead of it.
  if passed(ts, seq) then
    for i = 7, #KEYS do
      table.insert(sets, KEYS[i])
    end
    ts, seq = allocator(KEYS[1], sets)
  end
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
local registry = {}
local segment = ARGV[3]
for i = 1, #names do
  local count = counts[i]
  ts, seq = following(ts, seq, count)
  local first = text_of(ts, seq)
  reply[i + 1] = first
  first_score = first_score or score_of(ts, seq)
  seq = seq + count - 1
  if not known then
    local score = score_of(ts, seq)
    redis.call('ZADD', KEYS[5 + 2 * i], score, 'run|' .. first .. '|' .. count .. '|' .. segment .. ':' .. rows[i])
    registry[2 * i - 1] = score
    registry[2 * i] = names[i]
  end
end
for from = 1, #registry, TOGETHER do
  redis.call('ZADD', KEYS[4], 'GT', unpack(registry, from, math.min(from + TOGETHER - 1, #registry)))
end
if not known then
  local _, micros = now()
  redis.call('SET', KEYS[1], text_of(ts, seq))
  redis.call('ZADD', KEYS[2], first_score, marker)
  redis.call('HSET', KEYS[3], marker, string.format('%.0f', micros))
end
return reply
