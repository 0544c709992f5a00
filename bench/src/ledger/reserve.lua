-- Reserves ARGV[1] of the account KEYS[1] under the hold KEYS[2]. Returns 1 if it did, 0 if an earlier call had.
-- Balances are integer strings moved by DECRBY, which is exact; Lua's doubles only compare, exactly up to 2^53.
local amount = ARGV[1]
local body = KEYS[1] .. ' ' .. amount
local known = redis.call('GET', KEYS[2])
if known then
    if known == body or string.sub(known, 1, #body + 1) == body .. ' ' then
        return 0
    end
    return redis.error_reply('CONFLICT the hold exists with another body')
end
if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(amount) then
    return redis.error_reply('INSUFFICIENT the account has too little')
end
redis.call('DECRBY', KEYS[1], amount)
redis.call('SET', KEYS[2], body)
return 1
