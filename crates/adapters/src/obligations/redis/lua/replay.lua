-- replay: ARGV: id. Makes a dead or waiting one due now, with no attempts counted. Answers 1, or 0 if there is none that nobody
-- has in hand.

local id = ARGV[2]
local now = digits(now_ms())
local is_dead = redis.call('EXISTS', terminal .. id) == 1
local is_waiting = redis.call('EXISTS', entry .. id) == 1 and not redis.call('ZSCORE', leased, id)
if not is_dead and not is_waiting then
  return 0
end
local _, reason = tried(redis.call('HGET', tries, id))
redis.call('HSET', tries, id, '0 ' .. reason)
redis.call('ZADD', schedule, now, id)
if is_dead then
  redis.call('ZADD', pending, redis.call('ZSCORE', dead, id) or now, id)
  redis.call('RENAME', terminal .. id, entry .. id)
  redis.call('ZREM', dead, id)
end
return 1
