-- What every script of the shared ledger begins with. The rules are those of proxy/ledger.py.
--
-- KEYS[1]  prefix of all keys; its hash tag keeps one ledger on one node
-- ARGV[1]  JSON object: run (which start of the server), who (the instance), session (its connection),
--          now (microseconds; absent: the server's time), grace and patience (microseconds: how long a
--          recovery waits for an instance that does not come, and at least for one that nobody knows),
--          and what the script asks for
--
-- <prefix>meta         run, state (recovering, open), since, empty, s:<who> (session)
-- <prefix>c:<key>      a counter            <prefix>counters   their keys by when they may be forgotten
-- <prefix>g:<id>       a reservation        <prefix>due        open ones by when they end
-- <prefix>own:<who>    what an instance has charged to each counter, absolute; "a" .. key: of it, assumed
-- <prefix>open:<who>   its reservations that it has not settled
-- <prefix>members      instance -> run of which it has published its totals;  <prefix>seen  by last sign of life
-- <prefix>floors       during a recovery: what anybody had seen used
-- <prefix>stops, <prefix>keys, <prefix>hashes (of the keys)
--
-- Amounts are decimal strings outside and pairs {billions, rest} inside, since a Lua number is exact only
-- up to 2^53. A claim is [key, starts, ends|false, meta, amount, limit, hard, minimum|false, level|false, shares, spare].

local P = KEYS[1]
local A = cjson.decode(ARGV[1])
local BILLION = 1000000000
local SECOND = 1000000
local DAY = 86400 * SECOND
local KEEP_SETTLED, KEEP_COUNTER, KEEP_MINUTES, LIVE = DAY, 35 * DAY, 2 * DAY, DAY
local KEEP_MEMBER = 60 * SECOND
local EXPIRE_AT_ONCE = 200

local NOW = A.now
if not NOW then
  local time = redis.call('TIME')
  NOW = time[1] * SECOND + time[2]
end

-- whole numbers

local ZERO = {0, 0}

local function normal(billions, rest)
  local carry = math.floor(rest / BILLION)
  return {billions + carry, rest - carry * BILLION}
end

local function minus(a, b) return normal(a[1] - b[1], a[2] - b[2]) end
local function plus(a, b) return normal(a[1] + b[1], a[2] + b[2]) end
local function less(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end
local function most(a, b) if less(a, b) then return b end return a end

local function int(text)
  if not text then return ZERO end
  local negative = string.sub(text, 1, 1) == '-'
  local digits = negative and string.sub(text, 2) or text
  local number = {0, tonumber(digits)}
  if #digits > 9 then
    number = {tonumber(string.sub(digits, 1, -10)), tonumber(string.sub(digits, -9))}
  end
  if negative then return minus(ZERO, number) end
  return number
end

local function text(number)
  if number[1] < 0 then return '-' .. text(minus(ZERO, number)) end
  if number[1] == 0 then return string.format('%.0f', number[2]) end
  return string.format('%.0f%09.0f', number[1], number[2])
end

local function whole(number) return string.format('%.0f', number) end  -- times and shares fit a Lua number

-- a share in ten-thousandths, rounded down; every product stays below 2^53
local function share_of(number, share)
  local first = math.floor(number[1] * share / 10000)
  local left = number[1] * share - first * 10000
  return normal(first, math.floor((left * BILLION + number[2] * share) / 10000))
end

-- counters

local FIELDS = {'used', 'held', 'assumed', 'limit', 'hard', 'topup', 'alerted', 'shares', 'ends', 'meta',
  'window', 'touched', 'lost'}
local held_in_memory = {}

local function load(key)
  if held_in_memory[key] ~= nil then return held_in_memory[key] end
  local row = redis.call('HMGET', P .. 'c:' .. key, unpack(FIELDS))
  if not row[1] then
    held_in_memory[key] = false
    return false
  end
  local counter = {
    key = key, used = int(row[1]), held = int(row[2]), assumed = int(row[3]), limit = int(row[4]),
    hard = int(row[5]), topup = int(row[6]), alerted = tonumber(row[7]), shares = row[8],
    ends = row[9] ~= '' and tonumber(row[9]), meta = row[10], window = row[11], touched = tonumber(row[12]),
    lost = int(row[13] or '0'),
  }
  held_in_memory[key] = counter
  return counter
end

local function heed(counter, claim)
  counter.limit, counter.hard = int(claim[6]), int(claim[7])
  counter.shares = claim[10]
end

local function new(claim)
  local counter = {
    key = claim[1], used = ZERO, held = ZERO, assumed = ZERO, topup = ZERO, alerted = 0, ends = claim[3],
    meta = claim[4], window = cjson.decode(claim[4])[5], touched = 0, lost = ZERO,
  }
  heed(counter, claim)
  held_in_memory[counter.key] = counter
  return counter
end

local function forget_at(counter)
  if counter.window == 'total' then return '+inf' end
  if counter.window == 'life' then return whole(counter.touched + KEEP_COUNTER) end
  return whole(counter.ends + (counter.window == 'minute' and KEEP_MINUTES or KEEP_COUNTER))
end

local function save(counter)
  redis.call('HSET', P .. 'c:' .. counter.key,
    'used', text(counter.used), 'held', text(counter.held), 'assumed', text(counter.assumed),
    'limit', text(counter.limit), 'hard', text(counter.hard), 'topup', text(counter.topup),
    'alerted', whole(counter.alerted), 'shares', counter.shares,
    'ends', counter.ends and whole(counter.ends) or '', 'meta', counter.meta, 'window', counter.window,
    'touched', whole(counter.touched), 'lost', text(counter.lost))
  redis.call('ZADD', P .. 'counters', forget_at(counter), counter.key)
end

local function told(counter)
  return {counter.meta, text(plus(counter.limit, counter.topup)), text(plus(counter.hard, counter.topup)),
    text(counter.used), text(counter.held), text(counter.assumed), counter.ends and whole(counter.ends) or ''}
end

local function room(counter)
  return minus(minus(plus(counter.hard, counter.topup), counter.used), counter.held)
end

local function crossed(counter, alerts)
  local limit = plus(counter.limit, counter.topup)
  for share in string.gmatch(counter.shares, '%d+') do
    share = tonumber(share)
    if share > counter.alerted and less(ZERO, counter.used)
      and not less(counter.used, share_of(limit, share)) then
      counter.alerted = share
      alerts[#alerts + 1] = {share, told(counter)}
    end
  end
end

-- reservations: state o(pen), e(xpired), s(ettled)

local function reservation(id)
  local row = redis.call('HMGET', P .. 'g:' .. id, 'state', 'holds', 'who', 'expires')
  if not row[1] then return false end
  return {id = id, state = row[1], holds = row[2] and cjson.decode(row[2]) or {}, who = row[3],
    expires = tonumber(row[4])}
end

local function put_open(id, who, expires, holds)
  redis.call('HSET', P .. 'g:' .. id, 'state', 'o', 'holds', cjson.encode(holds), 'who', who,
    'expires', whole(expires))
  redis.call('ZADD', P .. 'due', whole(expires), id)
  redis.call('SADD', P .. 'open:' .. who, id)
end

local function put_closed(id, state, expires, who)
  local name = P .. 'g:' .. id
  redis.call('HSET', name, 'state', state, 'expires', whole(expires))
  redis.call('ZREM', P .. 'due', id)
  local keep = KEEP_COUNTER
  if state == 's' then
    redis.call('HDEL', name, 'holds')
    if who then redis.call('SREM', P .. 'open:' .. who, id) end
    keep = KEEP_SETTLED
  end
  redis.call('PEXPIRE', name, whole(math.max(1000, (math.max(NOW, expires) + keep - NOW) / 1000)))
end

-- give a reservation back: what it holds, or what was assumed when it expired
local function give_back(known)
  for _, hold in ipairs(known.holds) do
    local counter = load(hold[1])
    if counter then
      local amount = int(hold[2])
      if known.state == 'o' then
        counter.held = minus(counter.held, amount)
      else
        counter.used = minus(counter.used, amount)
        counter.assumed = minus(counter.assumed, amount)
      end
      save(counter)
    end
  end
  put_closed(known.id, 's', known.expires, known.who)
end

local function expire(alerts)
  local due = redis.call('ZRANGEBYSCORE', P .. 'due', '-inf', whole(NOW), 'LIMIT', 0, EXPIRE_AT_ONCE)
  for _, id in ipairs(due) do
    local known = reservation(id)
    if known then
      for _, hold in ipairs(known.holds) do
        local counter = load(hold[1])
        if counter then
          local amount = int(hold[2])
          counter.held = minus(counter.held, amount)
          counter.used = plus(counter.used, amount)
          counter.assumed = plus(counter.assumed, amount)
          crossed(counter, alerts)
          save(counter)
        end
      end
      put_closed(id, 'e', known.expires)
    else
      redis.call('ZREM', P .. 'due', id)
    end
  end
  return #due
end

-- recovery: after a start of the server everybody's totals are needed before anybody may spend

local function try_open(state)
  local since, run = tonumber(state[3]), state[1]
  local waited, complete = NOW - since, true
  local members = redis.call('HGETALL', P .. 'members')
  for index = 2, #members, 2 do
    complete = complete and members[index] == run
  end
  if waited < 0 then  -- the clock was put back
    redis.call('HSET', P .. 'meta', 'since', whole(NOW))
    waited = 0
  end
  if not (waited >= A.grace or (complete and waited >= A.patience)) then return false end
  for index = 1, #members, 2 do
    if members[index + 1] ~= run then
      redis.call('HDEL', P .. 'members', members[index])
      redis.call('ZREM', P .. 'seen', members[index])
    end
  end
  -- Somebody saw more on a counter than all who came back have charged: it was charged by one who did not.
  local floors = redis.call('HGETALL', P .. 'floors')
  for index = 1, #floors, 2 do
    local counter, floor = load(floors[index]), int(floors[index + 1])
    if counter and less(counter.used, floor) then
      counter.lost = minus(floor, counter.used)
      counter.used = floor
      counter.assumed = plus(counter.assumed, counter.lost)
      save(counter)
    end
  end
  redis.call('DEL', P .. 'floors')
  redis.call('HSET', P .. 'meta', 'state', 'open')
  return true
end

local function meta()
  return redis.call('HMGET', P .. 'meta', 'run', 'state', 'since', 'empty', 's:' .. A.who)
end

-- strange: the server has started anew since, or the instance has a newer connection than this one
local function is_strange(state) return state[1] ~= A.run or state[5] ~= A.session end

-- open, recovering or strange
local function state_of_ledger()
  local state = meta()
  if is_strange(state) then return 'strange' end
  if state[2] ~= 'open' and not try_open(state) then return 'recovering' end
  return 'open'
end

local function answer(fields)
  fields.now = whole(NOW)
  return cjson.encode(fields)
end
