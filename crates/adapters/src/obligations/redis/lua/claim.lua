-- claim: ARGV: worker, limit, lease in ms, the token, 24 digits. Takes those that are due, the longest due first. Answers
-- the orphans, and then the ids, the entries and the attempts of what was claimed, each a list; no attempts if none has any.

local worker, limit, lease, token = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local now = now_ms()
local ids = redis.call('ZRANGEBYSCORE', schedule, '-inf', digits(now), 'LIMIT', 0, limit)
local found = #ids
if found == 0 then
  return { {}, {}, {}, {} }
end
local bodies, orphans = values(entry, ids), {}
for at = 1, found do
  if not bodies[at] then
    add(orphans, ids[at])
  end
end
local count = found - #orphans
if count < found then
  local kept_ids, kept_bodies = {}, {}
  for at = 1, found do
    if bodies[at] then
      add(kept_ids, ids[at])
      add(kept_bodies, bodies[at])
    end
  end
  ids, bodies = kept_ids, kept_bodies
end
local counts = {}
if redis.call('EXISTS', tries) == 1 then
  counts = fields(tries, ids)
  for at = 1, count do
    counts[at] = digits((tried(counts[at])))
  end
end

-- Lists begin as copies, which have their room at once: one that grows is made anew again and again.
local ends, held = digits(now + lease), token .. ' ' .. worker
local locks, leases = copied(ids, 1, count), copied(ids, 1, count)
for at = 1, count do
  locks[2 * at - 1], locks[2 * at] = lock .. ids[at], held
end
-- From the last to the first: a short order is a list that is searched from its head, and ids that come later are mostly greater.
for at = 1, count do
  leases[2 * at - 1], leases[2 * at] = ends, ids[count + 1 - at]
end
each_key('MSET', locks)
each('ZADD', leased, leases)
-- They are the first of the schedule, which is cheaper than to look each up.
redis.call('ZREMRANGEBYRANK', schedule, 0, found - 1)
drop_orphans(orphans)
return { orphans, ids, bodies, counts }
