-- put: ARGV from the second: id, when it was made, entry; and so on. All are put or none. Who is there already, dead or
-- pending, stays as it is; one that has lost its place in the orders gets it again.

local now = digits(now_ms())
local ids, made, bodies, seen = {}, {}, {}, {}
for at = 2, #ARGV, 3 do
  local id = ARGV[at]
  if not seen[id] then
    seen[id] = true
    local count = #ids + 1
    ids[count], made[count], bodies[count] = id, ARGV[at + 1], ARGV[at + 2]
  end
end

local entries = values(entry, ids)
local terminals = redis.call('EXISTS', dead) == 1 and values(terminal, ids) or {}
local new, due, aged = {}, {}, {}
for at, id in ipairs(ids) do
  local is_new = not entries[at] and not terminals[at]
  if is_new then
    add_pair(new, entry .. id, bodies[at])
  end
  local is_lost = entries[at] and not redis.call('ZSCORE', pending, id) and not redis.call('ZSCORE', leased, id)
  if is_new or is_lost then
    add_pair(due, now, id)
    add_pair(aged, made[at], id)
  end
end
each_key('MSET', new)
each('ZADD', pending, aged)
each('ZADD', schedule, due)
return #due / 2
