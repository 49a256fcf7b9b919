-- Set fields of a hash from `values[first…]`: field, value, field, value; an empty value removes the field.
local function merge_hash(key, values, first)
  for i = first, #values - 1, 2 do
    if values[i + 1] == '' then
      redis.call('HDEL', key, values[i])
    else
      redis.call('HSET', key, values[i], values[i + 1])
    end
  end
end
