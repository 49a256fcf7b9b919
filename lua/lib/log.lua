-- A catalog's log: what is open in it, what is visible, and fencing. Needs `sequence`.
--
-- Open writes of a shard: sorted set `pending` (member `w|nonce|mergeType|path|b64`, score = its
-- sequence; `txn|id|block` for a published block) and hash `opened` (member -> Redis microseconds at
-- pre-commit). `fenced` remembers writes that can never commit: `delta|…|b64`, score = when.

-- The open write behind a pending member of the log, and its age in microseconds.
local function open_write(shard, member, micros)
  local ts, seq = parse(string.match(member, '|([^|]+)$'))
  local score = score_of(ts, seq)
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', shard.pending, score, score)) do
    local opened = redis.call('HGET', shard.opened, token)
    if opened then
      return token, micros - tonumber(opened)
    end
  end
  -- Not registered (another tool wrote it): its sequence is the only clue to its age.
  return nil, micros - ts * 1000000
end

local function close_write(shard, token)
  redis.call('ZREM', shard.pending, token)
  redis.call('HDEL', shard.opened, token)
end

-- After this the write behind `member` can never commit; vacuum finds its object in `fenced`.
local function fence(shard, delta_key, member, token, b64, micros)
  redis.call('ZREM', delta_key, member)
  if token then
    close_write(shard, token)
  end
  redis.call('ZADD', shard.fenced, string.format('%.6f', micros / 1000000), string.sub(member, 9) .. '|' .. b64)
end

local function txn_of_run(member)
  return string.match(member, '^run|[^|]+|%d+|([^.]+)%.')
end

-- Walk members in order. Reply:
--   visible   members up to the first open write or run in flight
--   open      {member, age} of every open write and every run in flight (age -1)
--   followed  whether anything visible stands behind the first of those
--   expired   {member, token} of abandoned writes before it; the last `passed` of them matter:
--   passed    how many of them have something visible behind them
local function walk(shard, members, timeout, micros)
  local view = { visible = {}, open = {}, followed = false, expired = {}, passed = 0 }
  local function see(member)
    if #view.open > 0 then
      view.followed = true
    else
      table.insert(view.visible, member)
      view.passed = #view.expired
    end
  end
  for _, member in ipairs(members) do
    local kind = string.sub(member, 1, 1)
    if kind == 'p' then
      local token, age = open_write(shard, member, micros)
      if age < timeout then
        table.insert(view.open, { member, age })
      elseif #view.open == 0 then
        table.insert(view.expired, { member, token })
      end
    elseif kind == 'r' then
      local txn = txn_of_run(member)
      if redis.call('SISMEMBER', shard.inflight, txn) == 1 then
        table.insert(view.open, { member, -1 })
      elseif redis.call('SISMEMBER', shard.aborted, txn) == 0 then
        see(member)
      end
    else
      see(member)
    end
  end
  return view
end

-- The score of a snapshot: read off its name, which is quicker than asking for it.
local function score_of_snapshot(snapshot)
  return string.format('%s.%06d', string.match(snapshot, '^snap|[^|]+|(%d+)_(%d+)'))
end

local function stop_of(snapshot)
  return string.match(snapshot, '^snap|[^|]+|([^|]+)')
end
