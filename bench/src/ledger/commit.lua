-- Commits ARGV[1] of the hold KEYS[1], returns the rest to its payer and adds to the revenue KEYS[2]; 1 if it did, 0 if an
-- earlier call had. The payer's key is in the hold: this is one Redis, not a cluster, so keys need not be known beforehand.
local actual = ARGV[1]
local known = redis.call('GET', KEYS[1])
if not known then
    return redis.error_reply('UNKNOWN no such hold')
end
local payer, amount, committed = string.match(known, '^(%S+) (%d+) ?(%d*)$')
if committed ~= '' then
    if committed == actual then
        return 0
    end
    return redis.error_reply('CONFLICT the hold was committed with another amount')
end
local rest = tonumber(amount) - tonumber(actual)
if rest < 0 then
    return redis.error_reply('EXCEEDS more than the hold')
end
if rest > 0 then
    redis.call('INCRBY', payer, rest)
end
redis.call('INCRBY', KEYS[2], actual)
redis.call('SET', KEYS[1], known .. ' ' .. actual)
return 1
