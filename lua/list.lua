-- One atomic view of each of some catalogs of a shard: latest snapshot, what follows it, open writes.
--
-- KEYS  1 pending  2 opened  3 fenced  4 floor  5 inflight  6 aborted  7 seq, then for each catalog: delta, snap
-- ARGV  1 pending timeout in microseconds  2 as-of score or `+inf`
-- Reply for each catalog {snapshot member or '', floor or '', visible members, open {member, age}…, followed}
--       floor: with an as-of score, the sequence up to which history was cleared
--       with an as-of score, the member after it is added when it is a visible run: the caller cuts it
--
-- Guarantees: an abandoned write that the view goes past is fenced in this very step, so it can never
-- commit behind what somebody has read; an as-of view passes every abandoned write below it.
--@include sequence
--@include log

local shard = {
  pending = KEYS[1], opened = KEYS[2], fenced = KEYS[3], inflight = KEYS[5], aborted = KEYS[6],
}
local timeout, upper = tonumber(ARGV[1]), ARGV[2]
local dated = upper ~= '+inf'
local _, micros = now()

local any_floor = dated and redis.call('EXISTS', KEYS[4]) == 1
local last = dated and redis.call('GET', KEYS[7])
if last and tonumber(score_of_text(last)) <= tonumber(upper) then
  -- The shard has nothing above: there is nothing to cut off.
  upper = '+inf'
end
local bounded = upper ~= '+inf'
local any_undecided = redis.call('EXISTS', KEYS[5], KEYS[6]) > 0

-- Whether nothing among the members is open or may be hidden: by far the most common view.
local function plain(members)
  for i = 1, #members do
    local kind = string.sub(members[i], 1, 1)
    if kind == 'p' or (kind == 'r' and any_undecided) then
      return false
    end
  end
  return true
end

local function b64_of(delta_key)
  return string.match(delta_key, '[^:]+$')
end

local function newest_snapshot(snap_key)
  if bounded then
    return redis.call('ZREVRANGEBYSCORE', snap_key, upper, '-inf', 'LIMIT', 0, 1)[1]
  end
  return redis.call('ZREVRANGE', snap_key, 0, 0)[1]
end

local function members_after(delta_key, snapshot)
  if snapshot then
    return redis.call('ZRANGEBYSCORE', delta_key, '(' .. score_of_snapshot(snapshot), upper)
  elseif bounded then
    return redis.call('ZRANGEBYSCORE', delta_key, '-inf', upper)
  end
  return redis.call('ZRANGE', delta_key, 0, -1)
end

local NONE = {}

local function view_of(delta_key, snap_key)
  local snapshot = newest_snapshot(snap_key)
  local members = members_after(delta_key, snapshot)
  local floor = any_floor and redis.call('HGET', KEYS[4], b64_of(delta_key)) or ''
  if bounded then
    local next_member = redis.call('ZRANGEBYSCORE', delta_key, '(' .. upper, '+inf', 'LIMIT', 0, 1)[1]
    if next_member and string.sub(next_member, 1, 4) == 'run|' then
      local first = string.match(next_member, '^run|([^|]+)|')
      if tonumber(score_of_text(first)) <= tonumber(upper) then
        table.insert(members, next_member)
      end
    end
  end
  if plain(members) then
    return { snapshot or '', floor, members, NONE, 0 }
  end
  local view = walk(shard, members, timeout, micros)
  local passed = view.passed
  if dated then
    passed = #view.expired
  end
  for i = 1, passed do
    fence(shard, delta_key, view.expired[i][1], view.expired[i][2], b64_of(delta_key), micros)
  end
  return { snapshot or '', floor, view.visible, view.open, view.followed and 1 or 0 }
end

local views = {}
for i = 8, #KEYS, 2 do
  views[#views + 1] = view_of(KEYS[i], KEYS[i + 1])
end
return views
