-- The head of every script.
--
-- KEYS: the four orders, which also name the slot. ARGV[1]: the prefix of all other keys, in the same slot; which of them a
-- script touches is only known once it has looked into an order.
--   schedule  what waits, by when it is due       leased   what somebody has, by when the lease runs out
--   pending   both, by when they were made        dead     what is given up, by when it was made
--   entry:ID  what is told: opaque bytes          lock:ID  24 digits of the claim's token, a space, the worker
--   tries     a hash by id: the attempts, a space, the last reason; absent before the first
--   terminal:ID  the entry of a dead one
-- Nothing here ever expires. In every script an obligation is put into its new place before it is taken out of its old one,
-- so that a write which the server refuses loses nothing. Amounts are inside of entries and never become numbers here.

local schedule, leased, pending, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local entry, lock, tries, terminal = ARGV[1] .. 'entry:', ARGV[1] .. 'lock:', ARGV[1] .. 'tries', ARGV[1] .. 'terminal:'

-- The server's time in milliseconds: no client's clock moves a due time.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A whole number as text; Lua's own way would round after 14 digits.
local function digits(number)
  return string.format('%.0f', number)
end

-- Lua hands over some 8,000 arguments at once. An even number, so that no pair is torn.
local PIECE = 4000

-- Runs a command over a list of any length, none included.
local function each(command, key, list)
  for first = 1, #list, PIECE do
    redis.call(command, key, unpack(list, first, math.min(first + PIECE - 1, #list)))
  end
end

local function each_key(command, list)
  for first = 1, #list, PIECE do
    redis.call(command, unpack(list, first, math.min(first + PIECE - 1, #list)))
  end
end

-- A part of a list, of at most a piece.
local function copied(list, first, last)
  return { unpack(list, first, last) }
end

-- The keys under a prefix of a part of a list of ids, of at most a piece.
local function keys_of(prefix, ids, first, last)
  local keys = copied(ids, first, last)
  for at = 1, last - first + 1 do
    keys[at] = prefix .. keys[at]
  end
  return keys
end

-- The values under a prefix, one for each id; false where there is none.
local function values(prefix, ids)
  local found = {}
  for first = 1, #ids, PIECE do
    local keys = keys_of(prefix, ids, first, math.min(first + PIECE - 1, #ids))
    local piece = redis.call('MGET', unpack(keys))
    if first == 1 and #ids <= PIECE then
      return piece
    end
    for at, value in ipairs(piece) do
      found[first + at - 1] = value
    end
  end
  return found
end

-- The same of a hash, by its fields.
local function fields(key, ids)
  local found = {}
  for first = 1, #ids, PIECE do
    local piece = redis.call('HMGET', key, unpack(ids, first, math.min(first + PIECE - 1, #ids)))
    for at, value in ipairs(piece) do
      found[first + at - 1] = value
    end
  end
  return found
end

local function add(list, value)
  list[#list + 1] = value
end

-- Two at once, as commands take them: a score and a member, a key and its value.
local function add_pair(list, first, second)
  local count = #list
  list[count + 1] = first
  list[count + 2] = second
end

-- The attempts and the last reason out of a value of `tries`.
local function tried(value)
  if not value then
    return 0, ''
  end
  local count, reason = string.match(value, '^(%d+) (.*)$')
  return tonumber(count) or 0, reason or ''
end

-- Takes out members of the orders that have no entry.
local function drop_orphans(ids)
  for _, id in ipairs(ids) do
    redis.call('ZREM', schedule, id)
    redis.call('ZREM', leased, id)
    redis.call('ZREM', pending, id)
    redis.call('HDEL', tries, id)
    redis.call('DEL', lock .. id)
  end
end

-- Whether somebody has it or will claim it.
local function has_place(id)
  return redis.call('ZSCORE', schedule, id) or redis.call('ZSCORE', leased, id)
end

-- How one stands: its entry, attempts, reason, place, moment and worker; nothing if there is none, or if a server that
-- drops data has dropped its place in the orders: nobody would ever claim it, until it is put again.
local function described(id)
  local body = redis.call('GET', entry .. id)
  local place = 'due'
  if not body then
    body, place = redis.call('GET', terminal .. id), 'dead'
  end
  if not body then
    return nil
  end
  local count, reason = tried(redis.call('HGET', tries, id))
  local at, worker = '', ''
  if place == 'due' then
    at = redis.call('ZSCORE', leased, id)
    if at then
      place = 'leased'
      worker = string.sub(redis.call('GET', lock .. id) or '', 26)
    else
      at = redis.call('ZSCORE', schedule, id)
    end
    if not at then
      return nil
    end
  end
  return { id, body, digits(count), reason, place, at, worker }
end

