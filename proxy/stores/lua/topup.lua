-- Raise a counter's limit. Asks: claims (one), add. Answers: told, seen.

local state = state_of_ledger()
if state ~= 'open' then return answer({state = state}) end
local claim = A.claims[1]
if NOW < claim[2] or (claim[3] and NOW >= claim[3]) then return answer({state = 'clock'}) end
local counter = load(claim[1]) or new(claim)
heed(counter, claim)
if claim[9] then counter.used = int(claim[9]) end
counter.topup = plus(counter.topup, int(A.add))
local cap = int('4000000000000000000')
if less(cap, counter.topup) then counter.topup = cap end
counter.touched = NOW
save(counter)
local seen = {{text(counter.used), text(counter.topup), whole(counter.alerted)}}
return answer({state = 'open', told = told(counter), seen = seen})
