-- Note that an indicator of a catalog was sampled at a score.
--
-- KEYS  1 sample
-- ARGV  1 indicator  2 score
-- Reply the score now noted
--
-- Guarantees: a sample never moves back; twice is once.
redis.call('ZADD', KEYS[1], 'GT', ARGV[2], ARGV[1])
return redis.call('ZSCORE', KEYS[1], ARGV[1])
