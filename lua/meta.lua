-- Merge fields into a catalog's meta or files.
--
-- KEYS  1 hash  2 once
-- ARGV  1… field, raw JSON ('' removes the field)
-- Reply 1, or 0 if this very call was made before
--
-- Guarantees: a blind repeat never puts an older value over a newer one (`once` is unique to the call).
--@include hash

if not redis.call('SET', KEYS[2], '1', 'NX', 'EX', 3600) then
  return 0
end
merge_hash(KEYS[1], ARGV, 1)
return 1
