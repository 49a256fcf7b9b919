-- Time sequences: a second and a sequence of 1 to 999999 within it, written `ts_seq`.

local MAX_SEQ = 999999

-- Redis time: whole seconds, and microseconds as one number.
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]), tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function score_of(ts, seq)
  return string.format('%d.%06d', ts, seq)
end

local function text_of(ts, seq)
  return string.format('%d_%d', ts, seq)
end

local function parse(text)
  local ts, seq = string.match(text, '^(%d+)_(%d+)$')
  return tonumber(ts), tonumber(seq)
end

local function score_of_text(text)
  return score_of(parse(text))
end

-- A score is exact to the microsecond in a double, so rounding gives back what was put in.
local function of_score(score)
  local number = tonumber(score)
  local ts = math.floor(number)
  return ts, math.floor((number - ts) * 1000000 + 0.5)
end

local function later(ts, seq, other_ts, other_seq)
  if other_ts > ts or (other_ts == ts and other_seq > seq) then
    return other_ts, other_seq
  end
  return ts, seq
end

-- The shard's last sequence, never below the newest member of the given sets: a clock that steps
-- back, a failover or a lost allocator key can neither repeat nor reorder a sequence.
local function last_sequence(seq_key, sets)
  local ts, seq = 0, 0
  local stored = redis.call('GET', seq_key)
  if stored then
    ts, seq = parse(stored)
  end
  for _, key in ipairs(sets) do
    local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    if newest[2] then
      ts, seq = later(ts, seq, of_score(newest[2]))
    end
  end
  return ts, seq
end

-- The first of `count` consecutive sequences of one second after (ts, seq).
local function following(ts, seq, count)
  if seq + count > MAX_SEQ then
    return ts + 1, 1
  end
  return ts, seq + 1
end

-- Where the allocator stands now: the later of the clock's second and the last sequence.
local function allocator(seq_key, sets)
  local ts, seq = last_sequence(seq_key, sets)
  local second = now()
  if second > ts then
    return second, 0
  end
  return ts, seq
end
