-- One slice of tidying: end what has expired, forget what is over. Answers: more, alerts.

if is_strange(meta()) then return answer({state = 'strange'}) end
local alerts = {}
local ended = expire(alerts)
local over = redis.call('ZRANGEBYSCORE', P .. 'counters', '-inf', whole(NOW), 'LIMIT', 0, 200)
local forgotten = 0
for _, key in ipairs(over) do
  local counter = load(key)
  if counter and (counter.held[1] ~= 0 or counter.held[2] ~= 0) then
    redis.call('ZADD', P .. 'counters', whole(NOW + SECOND * 3600), key)  -- asked again when it is settled
  else
    redis.call('DEL', P .. 'c:' .. key)
    redis.call('ZREM', P .. 'counters', key)
    for _, who in ipairs(redis.call('HKEYS', P .. 'members')) do
      redis.call('HDEL', P .. 'own:' .. who, key, 'a' .. key)
    end
  end
  forgotten = forgotten + 1
end
return answer({state = 'open', more = ended == EXPIRE_AT_ONCE or forgotten == 200, alerts = alerts})
