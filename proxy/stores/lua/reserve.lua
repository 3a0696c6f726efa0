-- Hold all claims or none. Asks: id, ttl (microseconds), names, claims.
-- Answers: taken and told (per claim), or refused (index of the claim) with told, or stopped; alerts.
-- What is tried on a counter is kept only by `save`, so a refusal leaves no trace. The windows are the caller's guess; where the server's time lies outside, it is asked to guess again.

local state = state_of_ledger()
if state ~= 'open' then return answer({state = state}) end
for _, claim in ipairs(A.claims) do
  if NOW < claim[2] or (claim[3] and NOW >= claim[3]) then return answer({state = 'clock'}) end
end

local alerts = {}
expire(alerts)
for _, name in ipairs(A.names) do
  if redis.call('HEXISTS', P .. 'stops', name) == 1 then
    return answer({state = 'open', stopped = name, alerts = alerts})
  end
end

local drafts, order, taken, told_of, holds = {}, {}, {}, {}, {}
for index, claim in ipairs(A.claims) do
  local draft = drafts[claim[1]]
  if not draft then
    draft = load(claim[1]) or new(claim)
    draft.before = draft.held
    drafts[claim[1]] = draft
    order[#order + 1] = draft
  end
  heed(draft, claim)
  if claim[9] then draft.used = int(claim[9]) end
  local left, take = room(draft), int(claim[5])
  if less(left, plus(take, int(claim[11]))) then
    if not claim[8] or less(left, int(claim[8])) then
      draft.held = draft.before
      return answer({state = 'open', refused = index, told = told(draft), alerts = alerts})
    end
    if less(left, take) then take = left end
  end
  draft.held = plus(draft.held, take)
  taken[index] = text(take)
  holds[index] = {claim[1], taken[index]}
end

for _, draft in ipairs(order) do
  crossed(draft, alerts)
  draft.touched = NOW
  save(draft)
end
for index, claim in ipairs(A.claims) do
  local draft = drafts[claim[1]]
  told_of[index] = {text(draft.used), text(draft.topup), whole(draft.alerted)}
end
local expires = NOW + A.ttl
if #holds > 0 then put_open(A.id, A.who, expires, holds) end
return answer({state = 'open', taken = taken, seen = told_of, expires = whole(expires), alerts = alerts})
