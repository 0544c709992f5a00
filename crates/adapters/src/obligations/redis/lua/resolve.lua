-- resolve: ARGV: id, note. Takes a dead one out for good; what it was and why stays in the list `resolved`. Answers 1 or 0.

local id, note = ARGV[2], ARGV[3]
local body = redis.call('GET', terminal .. id)
if not body then
  return 0
end
redis.call('RPUSH', ARGV[1] .. 'resolved', digits(now_ms()) .. ' ' .. body .. ' ' .. note)
redis.call('ZREM', dead, id)
redis.call('HDEL', tries, id)
redis.call('DEL', terminal .. id)
return 1
