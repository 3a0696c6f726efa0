-- Give open reservations more time. Asks: ids, ttl (microseconds). Answers: alerts.

if is_strange(meta()) then return answer({state = 'strange'}) end
local alerts = {}
expire(alerts)
local expires = whole(NOW + A.ttl)
for _, id in ipairs(A.ids) do
  if redis.call('HGET', P .. 'g:' .. id, 'state') == 'o' then
    redis.call('HSET', P .. 'g:' .. id, 'expires', expires)
    redis.call('ZADD', P .. 'due', expires, id)
  end
end
return answer({state = 'open', expires = expires, alerts = alerts})
