-- claim: ARGV: worker, limit, lease in ms, the token, 24 digits. Takes those that are due, the longest due first. Answers
-- the orphans, and then id, entry and attempts of each.

local worker, limit, lease, token = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local now = now_ms()
local ids = redis.call('ZRANGEBYSCORE', schedule, '-inf', digits(now), 'LIMIT', 0, limit)
if #ids == 0 then
  return { {}, {} }
end
local bodies, counts = values(entry, ids), fields(tries, ids)

local ends, held = digits(now + lease), token .. ' ' .. worker
local leases, locks, claimed, orphans = {}, {}, {}, {}
for at, id in ipairs(ids) do
  if bodies[at] then
    add_pair(leases, ends, id)
    add_pair(locks, lock .. id, held)
    add_pair(claimed, id, bodies[at])
    add(claimed, counts[at] and digits((tried(counts[at]))) or '0')
  else
    add(orphans, id)
  end
end
each_key('MSET', locks)
each('ZADD', leased, leases)
-- They are the first of the schedule, which is cheaper than to look each up.
redis.call('ZREMRANGEBYRANK', schedule, 0, #ids - 1)
drop_orphans(orphans)
return { orphans, claimed }
