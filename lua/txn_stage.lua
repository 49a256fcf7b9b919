-- Open a transaction, or add staged segments to it; either way its lease starts anew.
--
-- KEYS  1 txn
-- ARGV  1 owner (open only if new; '' to add only)  2 lease in microseconds  3 seconds to remember it  4… segment,
--       what it holds
-- Reply `open`, `taken` (another owner has this id), or the state that no longer takes segments
--       (`publishing`, `committed`, `aborted`, `missing`)
--
-- Guarantees: nothing of it is in any log yet; twice is once.
--@include sequence
--@include hash

local owner = ARGV[1]
local state = redis.call('HGET', KEYS[1], 'state')
if not state then
  if owner == '' then
    return 'missing'
  end
  redis.call('HSET', KEYS[1], 'state', 'open', 'owner', owner)
elseif owner ~= '' and redis.call('HGET', KEYS[1], 'owner') ~= owner then
  return 'taken'
elseif state ~= 'open' then
  return state
end
local _, micros = now()
redis.call('HSET', KEYS[1], 'lease', string.format('%.0f', micros + tonumber(ARGV[2])))
redis.call('EXPIRE', KEYS[1], ARGV[3])
merge_hash(KEYS[1], ARGV, 4)
return 'open'
