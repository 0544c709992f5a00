-- list: ARGV: pending or dead, the id after which to go on or nothing, limit. By age, and by id among those of one moment.
-- Answers the server's time, and how each stands.

local order, other = pending, dead
if ARGV[2] == 'dead' then
  order, other = dead, pending
end
local after, limit = ARGV[3], tonumber(ARGV[4])

-- As the server orders ids. Lua's own comparison goes by the server's language.
local function is_after(one, another)
  for at = 1, math.min(#one, #another) do
    if string.byte(one, at) ~= string.byte(another, at) then
      return string.byte(one, at) > string.byte(another, at)
    end
  end
  return #one > #another
end

-- How many of this order come before one that is now in the other order.
local function place_of(score)
  local low = redis.call('ZCOUNT', order, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', order, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_after(redis.call('ZRANGE', order, middle, middle)[1], after) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local from = 0
if after ~= '' then
  local rank = redis.call('ZRANK', order, after)
  local score = redis.call('ZSCORE', other, after)
  if rank then
    from = rank + 1
  elseif score then
    from = place_of(score)
  end
end

local found = {}
if limit < 1 then
  -- Up to the one before the first would be all of them.
  return { digits(now_ms()), found }
end
for _, id in ipairs(redis.call('ZRANGE', order, from, from + limit - 1)) do
  local one = described(id)
  if one then
    add(found, one)
  end
end
return { digits(now_ms()), found }
