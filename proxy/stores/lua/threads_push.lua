-- Puts a thread's head away, unless a newer one stands there.
-- KEYS: prefix. ARGV: thread, revision it was made from, busy, ttl in ms, most heads, names (16 bytes
-- each, in one string), head.
-- Answers: 1 and the new revision; or 0, the revision that stands there, and its head.

local P, id, base, busy = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local ttl, most, names, head = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7]
local WIDTH, EQUALS = 16, 32
local home = P .. 'h:' .. id

local function name_key(list, at) return P .. 'k:' .. string.sub(list, at, at + WIDTH - 1) end

local function drop(thread)
  local list = redis.call('HGET', P .. 'h:' .. thread, 'names')
  for at = 1, list and #list or 0, WIDTH do redis.call('LREM', name_key(list, at), 0, thread) end
  redis.call('DEL', P .. 'h:' .. thread)
end

local there = redis.call('HMGET', home, 'rev', 'names', 'head', 'fresh')
local rev = tonumber(there[1] or 0)
if rev > base then return struct.pack('>I4I4', 0, rev) .. there[3] end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fresh = tonumber(there[4] or 0)
local renew = now - fresh > ttl / 4
local old, new = {}, {}
for at = 1, there[2] and #there[2] or 0, WIDTH do old[name_key(there[2], at)] = true end
for at = 1, #names, WIDTH do
  local key = name_key(names, at)
  new[key] = true
  if not old[key] then
    redis.call('LPUSH', key, id)
    redis.call('LTRIM', key, 0, EQUALS - 1)
  end
  if renew or not old[key] then redis.call('PEXPIRE', key, ttl) end
end
for key in pairs(old) do
  if not new[key] then redis.call('LREM', key, 0, id) end
end
rev = base + 1
redis.call('HSET', home, 'rev', rev, 'names', names, 'head', head, 'busy', busy, 'fresh', renew and now or fresh)
if renew then redis.call('PEXPIRE', home, ttl) end
redis.call('ZADD', P .. 'used', now, id)
if redis.call('ZCARD', P .. 'used') > most then
  local gone = redis.call('ZPOPMIN', P .. 'used', 16)
  for at = 1, #gone, 2 do drop(gone[at]) end
end
return struct.pack('>I4I4', 1, rev)
