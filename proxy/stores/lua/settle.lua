-- Charge what a grant really cost, once. Asks: id, claims, held and actual (strings; false: not known),
-- expires, mine (whether the instance counts the charge among its own totals).
-- Answers: applied, late, overruns, alerts, seen.

if is_strange(meta()) then return answer({state = 'strange'}) end
local alerts, overruns, seen = {}, {}, {}
expire(alerts)

local known = reservation(A.id)
local over = known and known.state == 's' or (not known and A.expires + KEEP_SETTLED <= NOW)
if over or #A.claims == 0 then return answer({state = 'open', applied = false, alerts = alerts}) end

for index, claim in ipairs(A.claims) do
  local held = int(known and known.holds[index][2] or A.held[index])
  local counter = load(claim[1]) or (not known and new(claim))
  if counter then
    local actual = A.actual[index]
    local charge = actual and int(actual) or held
    if known and known.state == 'o' then counter.held = minus(counter.held, held) end
    counter.used = plus(counter.used, charge)
    if known and known.state == 'e' then
      counter.used = minus(counter.used, held)
      counter.assumed = minus(counter.assumed, held)
    end
    if not actual then counter.assumed = plus(counter.assumed, charge) end
    if less(held, charge) and less(plus(counter.hard, counter.topup), counter.used) then
      overruns[#overruns + 1] = told(counter)
    end
    crossed(counter, alerts)
    counter.touched = NOW
    save(counter)
    if A.mine then
      redis.call('HINCRBY', P .. 'own:' .. A.who, claim[1], text(charge))
      if not actual then redis.call('HINCRBY', P .. 'own:' .. A.who, 'a' .. claim[1], text(charge)) end
    end
    seen[index] = {text(counter.used), text(counter.topup), whole(counter.alerted)}
  else
    seen[index] = false
  end
end
put_closed(A.id, 's', known and known.expires or A.expires, known and known.who)
return answer({state = 'open', applied = true, late = known and known.state == 'e' or false,
  overruns = overruns, alerts = alerts, seen = seen})
