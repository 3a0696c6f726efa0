-- Give everything back, once. Asks: id. Answers: applied, late, alerts.

if is_strange(meta()) then return answer({state = 'strange'}) end
local alerts = {}
expire(alerts)
local known = reservation(A.id)
if not known or known.state == 's' then return answer({state = 'open', applied = false, alerts = alerts}) end
give_back(known)
return answer({state = 'open', applied = true, late = known.state == 'e', alerts = alerts})
