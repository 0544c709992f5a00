-- stats: answers the server's time, how many are pending and dead, when the oldest pending one was made, and when the next one
-- is due or its lease runs out; an empty text for what there is not.

local function first(order)
  return redis.call('ZRANGE', order, 0, 0, 'WITHSCORES')[2]
end

local due, expiry = first(schedule), first(leased)
local next = due
if expiry and (not due or tonumber(expiry) < tonumber(due)) then
  next = expiry
end
return {
  digits(now_ms()),
  digits(redis.call('ZCARD', pending)),
  digits(redis.call('ZCARD', dead)),
  first(pending) or '',
  next or '',
}
