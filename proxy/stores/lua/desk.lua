-- Stops and keys. Asks: verb and its words. Answers: done, or what was asked for.

if is_strange(meta()) then return answer({state = 'strange'}) end
local verb, name = A.verb, A.name
if verb == 'stop' then
  redis.call('HSETNX', P .. 'stops', name, A.value)
  return answer({state = 'open', done = true})
elseif verb == 'resume' then
  return answer({state = 'open', done = redis.call('HDEL', P .. 'stops', name) == 1})
elseif verb == 'stops' then
  return answer({state = 'open', pairs = redis.call('HGETALL', P .. 'stops')})
elseif verb == 'keys' then
  return answer({state = 'open', pairs = redis.call('HGETALL', P .. 'keys')})
elseif verb == 'create' then
  if redis.call('HEXISTS', P .. 'keys', name) == 1 or redis.call('SISMEMBER', P .. 'hashes', A.hash) == 1 then
    return answer({state = 'open', done = false})
  end
  redis.call('HSET', P .. 'keys', name, A.value)
  redis.call('SADD', P .. 'hashes', A.hash)
  return answer({state = 'open', done = true})
elseif verb == 'revoke' then
  local known = redis.call('HGET', P .. 'keys', name)
  if not known then return answer({state = 'open', done = false}) end
  local fields = cjson.decode(known)
  if fields.revoked ~= '' then return answer({state = 'open', done = false}) end
  fields.revoked = A.value
  redis.call('HSET', P .. 'keys', name, cjson.encode(fields))
  return answer({state = 'open', done = true})
end
return redis.error_reply('unknown verb')
