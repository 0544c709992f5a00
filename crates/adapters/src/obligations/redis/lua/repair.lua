-- repair: ARGV: limit. Leases that ran out: each counts as an attempt, and the obligation is due at once. Answers the orphans
-- and how many were given back.

local now = digits(now_ms())
local ids = redis.call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, ARGV[2])
local bodies, counts = values(entry, ids), fields(tries, ids)
local due, kept, back, locks, orphans = {}, {}, {}, {}, {}
for at, id in ipairs(ids) do
  if bodies[at] then
    local count, reason = tried(counts[at])
    add_pair(kept, id, digits(count + 1) .. ' ' .. reason)
    add_pair(due, now, id)
    add(back, id)
    add(locks, lock .. id)
  else
    add(orphans, id)
  end
end
each('HSET', tries, kept)
each('ZADD', schedule, due)
each('ZREM', leased, back)
each_key('DEL', locks)
drop_orphans(orphans)
return { orphans, #back }
