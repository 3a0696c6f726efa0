-- A sign of life. Asks: drop (keys of own totals that nobody needs any more), leave.
-- Answers: ledger (its state), roster.

if is_strange(meta()) then return answer({state = 'strange'}) end
for _, key in ipairs(A.drop) do redis.call('HDEL', P .. 'own:' .. A.who, key, 'a' .. key) end
if A.leave then
  redis.call('HDEL', P .. 'members', A.who)
  redis.call('ZREM', P .. 'seen', A.who)
  redis.call('HDEL', P .. 'meta', 's:' .. A.who)
  return answer({state = 'open', ledger = 'open', roster = {}})
end
redis.call('HSET', P .. 'members', A.who, A.run)
redis.call('ZADD', P .. 'seen', whole(NOW), A.who)
redis.call('PEXPIRE', P .. 'own:' .. A.who, whole(2 * DAY / 1000))
local state = state_of_ledger()
if state == 'open' then
  for _, who in ipairs(redis.call('ZRANGEBYSCORE', P .. 'seen', '-inf', whole(NOW - KEEP_MEMBER))) do
    redis.call('ZREM', P .. 'seen', who)
    redis.call('HDEL', P .. 'members', who)
    redis.call('HDEL', P .. 'meta', 's:' .. who)
  end
end
return answer({state = 'open', ledger = state, roster = redis.call('HKEYS', P .. 'members')})
