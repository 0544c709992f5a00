-- claim: ARGV: worker, limit, lease in ms, the first 24 digits of the tokens. Takes those that are due, the longest due first.
-- Answers the orphans, and then entry, attempts and token of each.

local worker, limit, lease, nonce = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local now = now_ms()
local ids = redis.call('ZRANGEBYSCORE', schedule, '-inf', digits(now), 'LIMIT', 0, limit)
local bodies, counts = values(entry, ids), values(tries, ids)

local ends = digits(now + lease)
local leases, locks, claimed, orphans = {}, {}, {}, {}
for at, id in ipairs(ids) do
  if bodies[at] then
    local token = nonce .. string.format('%08x', at)
    add_pair(leases, ends, id)
    add_pair(locks, lock .. id, token .. ' ' .. worker)
    add_pair(claimed, id, bodies[at])
    add_pair(claimed, counts[at] and digits((tried(counts[at]))) or '0', token)
  else
    add(orphans, id)
  end
end
each_key('MSET', locks)
each('ZADD', leased, leases)
each('ZREM', schedule, ids)
drop_orphans(orphans)
return { orphans, claimed }
