-- Every live counter; A.lasting: without those of steps, turns, threads and sessions. Answers: balances, alerts.

local PASSING = {step = true, turn = true, thread = true, session = true}

local state = state_of_ledger()
if state ~= 'open' then return answer({state = state}) end
local alerts, balances = {}, {}
expire(alerts)
for _, key in ipairs(redis.call('ZRANGE', P .. 'counters', 0, -1)) do
  local scope = A.lasting and string.match(key, '^[^\31]*\31([^\31]*)')
  local counter = not PASSING[scope] and load(key)
  if counter then
    local live = counter.window == 'total' or less(ZERO, counter.held) or less(counter.held, ZERO)
    if counter.ends then
      live = live or NOW < counter.ends
    else
      live = live or NOW - counter.touched < LIVE
    end
    if live then balances[#balances + 1] = told(counter) end
  end
end
return answer({state = 'open', balances = balances, alerts = alerts})
