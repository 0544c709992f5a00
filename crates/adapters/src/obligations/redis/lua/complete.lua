-- complete: ARGV from the second: token, outcome, pause in ms, reason, how many, and their ids; and so on. Answers the places,
-- from 1, of those whose lease is not good: none, mostly. An outcome is delivered, retry, returned or dead.

-- The usual case, which is one claim and all of it delivered: what is given is passed on as it is. Answers nothing, and has
-- done nothing, if a lease is not good.
local function deliver_all(token, first, last)
  local lock_keys = keys_of(lock, ARGV, first, last)
  local locks, good = redis.call('MGET', unpack(lock_keys)), nil
  for at = 1, #lock_keys do
    -- They are alike, and one look at each that is not is enough.
    if locks[at] ~= good then
      if not locks[at] or string.sub(locks[at], 1, 24) ~= token then
        return nil
      end
      good = locks[at]
    end
  end
  redis.call('ZREM', leased, unpack(ARGV, first, last))
  redis.call('ZREM', pending, unpack(ARGV, first, last))
  redis.call('DEL', unpack(keys_of(entry, ARGV, first, last)))
  if redis.call('EXISTS', tries) == 1 then
    redis.call('HDEL', tries, unpack(ARGV, first, last))
  end
  local twice, seen = {}, {}
  if redis.call('DEL', unpack(lock_keys)) < #lock_keys then
    for at, key in ipairs(lock_keys) do
      if seen[key] then
        add(twice, at)
      end
      seen[key] = true
    end
  end
  return twice
end

if ARGV[3] == 'delivered' and tonumber(ARGV[6]) == #ARGV - 6 then
  local lost = deliver_all(ARGV[2], 7, #ARGV)
  if lost then
    return lost
  end
end

local now = now_ms()
local lost, asked, done = {}, 0, {}
local gone, gone_keys, gones = {}, {}, 0
local again, again_ids, again_locks, kept = {}, {}, {}, {}
local buried = {}

local function deliver(id, lock_key)
  gones = gones + 1
  gone[gones] = id
  gone_keys[2 * gones - 1], gone_keys[2 * gones] = entry .. id, lock_key
end

local function wait(id, pause)
  add_pair(again, digits(now + pause), id)
  add(again_ids, id)
  add(again_locks, lock .. id)
end

-- What was tried, and is not delivered.
local function failed(id, outcome, pause, reason)
  local count = tried(redis.call('HGET', tries, id))
  add_pair(kept, id, digits(count + 1) .. ' ' .. reason)
  if outcome == 'retry' then
    wait(id, pause)
  else
    add(buried, id)
  end
end

-- Those of one claim that came to the same, from place `first` on.
local function settle(first, count, token, outcome, pause, reason)
  local keys = keys_of(lock, ARGV, first, first + count - 1)
  local locks = redis.call('MGET', unpack(keys))
  for at = 1, count do
    local id = ARGV[first + at - 1]
    local is_good = locks[at] and string.sub(locks[at], 1, 24) == token and not done[id]
    -- Counting an attempt on what is not there would make a ghost.
    if is_good and outcome ~= 'delivered' and redis.call('EXISTS', entry .. id) == 0 then
      drop_orphans({ id })
      is_good = false
    end
    asked = asked + 1
    if not is_good then
      add(lost, asked)
    else
      done[id] = true
      if outcome == 'delivered' then
        deliver(id, keys[at])
      elseif outcome == 'returned' then
        wait(id, pause)
      else
        failed(id, outcome, pause, reason)
      end
    end
  end
end

local at = 2
while at <= #ARGV do
  local count = tonumber(ARGV[at + 4])
  settle(at + 5, count, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
  at = at + 5 + count
end

-- What is delivered goes first: that needs no memory, and so goes well on a full server.
each('ZREM', leased, gone)
each('ZREM', pending, gone)
each_key('DEL', gone_keys)
if redis.call('EXISTS', tries) == 1 then
  each('HDEL', tries, gone)
end
each('HSET', tries, kept)
each('ZADD', schedule, again)
each('ZREM', leased, again_ids)
each_key('DEL', again_locks)
for _, id in ipairs(buried) do
  redis.call('ZADD', dead, redis.call('ZSCORE', pending, id) or digits(now), id)
  redis.call('RENAME', entry .. id, terminal .. id)
  redis.call('ZREM', leased, id)
  redis.call('ZREM', pending, id)
  redis.call('DEL', lock .. id)
end
return lost
