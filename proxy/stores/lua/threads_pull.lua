-- Heads that any of the names finds; without names the newest ones.
-- KEYS: prefix. ARGV: names (16 bytes each, in one string), most heads, then pairs of thread and revision
-- that the asker has already.
-- Answers for each: lengths, revision, then thread, busy, head (empty where the asker has it).

local P, names, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
local WIDTH = 16
local known, seen, out = {}, {}, {}
for at = 3, #ARGV, 2 do known[ARGV[at]] = tonumber(ARGV[at + 1]) end

local function take(id)
  if seen[id] or #out >= most then return end
  seen[id] = true
  local there = redis.call('HMGET', P .. 'h:' .. id, 'rev', 'busy', 'head')
  if not there[1] then return end
  local rev, head = tonumber(there[1]), there[3]
  if rev <= (known[id] or -1) then head = '' end
  out[#out + 1] = struct.pack('>I4I4I4I4', rev, #id, #there[2], #head) .. id .. there[2] .. head
end

for at = 1, #names, WIDTH do
  local found = redis.call('LRANGE', P .. 'k:' .. string.sub(names, at, at + WIDTH - 1), 0, -1)
  for _, id in ipairs(found) do take(id) end
end
if #names == 0 then
  for _, id in ipairs(redis.call('ZREVRANGE', P .. 'used', 0, most - 1)) do take(id) end
end
return table.concat(out)
