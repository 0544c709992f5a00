-- complete: ARGV from the second: id, token, outcome, pause in ms, reason; and so on. Answers 1 for each that was completed and
-- 0 for each whose lease is not good. An outcome is delivered, retry, returned or dead.

local now = now_ms()
local ids = {}
for at = 2, #ARGV, 5 do
  add(ids, ARGV[at])
end
local locks = values(lock, ids)

local answers, done = {}, {}
local gone, gone_keys = {}, {}
local again, again_ids, again_locks, kept = {}, {}, {}, {}
local buried = {}

local function wait(id, pause)
  add_pair(again, digits(now + pause), id)
  add(again_ids, id)
  add(again_locks, lock .. id)
end

for number, id in ipairs(ids) do
  local at = 2 + (number - 1) * 5
  local token, outcome, pause, reason = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local is_good = locks[number] and string.sub(locks[number], 1, 24) == token and not done[id]
  -- Counting an attempt on what is not there would make a ghost.
  if is_good and outcome ~= 'delivered' and redis.call('EXISTS', entry .. id) == 0 then
    drop_orphans({ id })
    is_good = false
  end
  answers[number] = is_good and 1 or 0
  if is_good then
    done[id] = true
    if outcome == 'delivered' then
      add(gone, id)
      add_pair(gone_keys, entry .. id, lock .. id)
    elseif outcome == 'returned' then
      wait(id, pause)
    else
      local count = tried(redis.call('HGET', tries, id))
      add_pair(kept, id, digits(count + 1) .. ' ' .. reason)
      if outcome == 'retry' then
        wait(id, pause)
      else
        add(buried, id)
      end
    end
  end
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
return answers
