-- An instance (re)connects and publishes all it knows, as absolute values: once or ten times is the same.
-- Asks: roster, lines ([claim, own, assumed, seen, topup, alerted]), open ([id, expires, [[key, amount]]]).
-- Answers: ledger (its state), alerts.
--
-- A server that starts anew, empty or with what its file kept, may have lost the last second. Each
-- instance's totals and open reservations put that back; the ledger stays closed until all have come.

local state = meta()
if state[1] ~= A.run then
  local empty = state[1] and '0' or '1'
  redis.call('HSET', P .. 'meta', 'run', A.run, 'state', 'recovering', 'since', whole(NOW), 'empty', empty)
  state = meta()
end
redis.call('HSET', P .. 'meta', 's:' .. A.who, A.session)
redis.call('HSET', P .. 'members', A.who, A.run)
redis.call('ZADD', P .. 'seen', whole(NOW), A.who)
for _, other in ipairs(A.roster) do
  if state[2] == 'recovering' and redis.call('HSETNX', P .. 'members', other, '') == 1 then
    redis.call('ZADD', P .. 'seen', whole(NOW), other)
  end
end

local alerts = {}
local own, listed = P .. 'own:' .. A.who, {}
for _, line in ipairs(A.lines) do
  local claim = line[1]
  local key = claim[1]
  local counter = load(key)
  if not counter then
    counter = new(claim)
    counter.touched = NOW
  end
  local news = minus(int(line[2]), int(redis.call('HGET', own, key)))
  local assumed = minus(int(line[3]), int(redis.call('HGET', own, 'a' .. key)))
  counter.used = plus(counter.used, news)
  counter.assumed = plus(counter.assumed, assumed)
  if state[2] == 'open' and less(ZERO, counter.lost) and less(ZERO, news) then
    -- the one whose charges were taken for lost has come after all
    local found = counter.lost
    if less(news, found) then found = news end
    counter.lost = minus(counter.lost, found)
    counter.used = minus(counter.used, found)
    counter.assumed = minus(counter.assumed, found)
  end
  counter.topup = most(counter.topup, int(line[5]))
  counter.alerted = math.max(counter.alerted, tonumber(line[6]))
  crossed(counter, alerts)
  save(counter)
  redis.call('HSET', own, key, line[2], 'a' .. key, line[3])
  listed[key], listed['a' .. key] = true, true
  if state[2] == 'recovering' and state[4] == '1' then
    local floor = most(int(line[4]), int(redis.call('HGET', P .. 'floors', key)))
    redis.call('HSET', P .. 'floors', key, text(floor))
  end
end
for _, key in ipairs(redis.call('HKEYS', own)) do
  if not listed[key] then redis.call('HDEL', own, key) end
end
redis.call('PEXPIRE', own, whole(2 * DAY / 1000))

local open = {}
for _, one in ipairs(A.open) do
  local id, expires = one[1], tonumber(one[2])
  open[id] = true
  if redis.call('EXISTS', P .. 'g:' .. id) == 0 then
    for _, hold in ipairs(one[3]) do
      local counter = load(hold[1])
      if counter then
        counter.held = plus(counter.held, int(hold[2]))
        save(counter)
      end
    end
    put_open(id, A.who, expires, one[3])
  end
end
for _, id in ipairs(redis.call('SMEMBERS', P .. 'open:' .. A.who)) do
  if not open[id] then
    local known = reservation(id)
    if known and known.state ~= 's' then
      give_back(known)  -- settled meanwhile; what it cost is among the totals
    else
      redis.call('SREM', P .. 'open:' .. A.who, id)
    end
  end
end
expire(alerts)
return answer({state = 'open', ledger = state_of_ledger(), alerts = alerts})
