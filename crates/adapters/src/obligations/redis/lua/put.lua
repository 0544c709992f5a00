-- put: ARGV from the second: id, when it was made, entry; and so on. All are put or none. Who is there already, dead or
-- pending, stays as it is; one that has lost its place in the orders gets it again.

local now = digits(now_ms())
local has_dead = redis.call('EXISTS', dead) == 1
local asked = (#ARGV - 1) / 3

-- The usual case, which is all new: nothing is looked up first, as `MSETNX` sets all or none. From the last to the first, so
-- that of an id that comes twice the first counts.
if asked <= PIECE / 2 and not has_dead then
  local new, due, aged, at = {}, {}, {}, 0
  for from = #ARGV - 2, 2, -3 do
    local id = ARGV[from]
    new[at + 1], new[at + 2] = entry .. id, ARGV[from + 2]
    due[at + 1], due[at + 2] = now, id
    aged[at + 1], aged[at + 2] = ARGV[from + 1], id
    at = at + 2
  end
  if redis.call('MSETNX', unpack(new)) == 1 then
    redis.call('ZADD', pending, unpack(aged))
    redis.call('ZADD', schedule, unpack(due))
    return asked
  end
end

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
local terminals = has_dead and values(terminal, ids) or {}
local new, due, aged = {}, {}, {}
for at, id in ipairs(ids) do
  local is_new = not entries[at] and not terminals[at]
  if is_new then
    add_pair(new, entry .. id, bodies[at])
  end
  if is_new or (entries[at] and not has_place(id)) then
    add_pair(due, now, id)
  end
  if is_new or (entries[at] and not redis.call('ZSCORE', pending, id)) then
    add_pair(aged, made[at], id)
  end
end
each_key('MSET', new)
each('ZADD', pending, aged)
each('ZADD', schedule, due)
return #due / 2
