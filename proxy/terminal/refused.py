"""What Looptap did to a request, in one line: refused it, cut its reply, said something to its model.

The words of a tree, made from the facts that an attempt holds; not the words that clients are told
(those are the policies'). The one invariant: everything in them is inert.
"""

from collections.abc import Mapping
from typing import Any

from proxy.terminal.wording import inert, money

Json = Mapping[str, Any]

_ACTIONS = {"cut": "cut", "message": "answered in its place", "hold": "left while it waited for an operator"}
_UNITS = {"spend_usd": "", "tool_retries": "failed calls in a row", "wall_clock": "seconds"}
_OWN = frozenset({"action", "policy", "code", "cut", "how_to_go_on", "landed"})


def refusal_words(refused: Json, *, would: bool = False) -> str:
    """Who ended it and what was reached: ``refused by budget turn: 3 of 3 steps``.

    ``would``: who would have, had it been asked then.
    """
    verb = ("would be " if would else "") + _ACTIONS.get(str(refused.get("action")), "refused")
    code = str(refused.get("code") or "").removeprefix("looptap_").replace("_", " ")
    if refused.get("stopped"):
        return f"{verb}: an operator stopped {inert(str(refused['stopped']), 60)}"
    if refused.get("budget"):
        return f"{verb} by budget {inert(str(refused['budget']), 60)}: {_used(refused) or inert(code, 60)}"
    facts = ", ".join(f"{k} {v}" for k, v in refused.items() if k not in _OWN and isinstance(v, (str, int)))
    policy = inert(str(refused.get("policy") or ""), 40)
    by = f" by {policy}" if policy else ""
    said = inert(facts or code, 120)
    return f"{verb}{by}: {said}" if said else f"{verb}{by}"


def reached_words(refused: Json) -> str:
    """What was reached, and of whom: ``budget turn: 3 of 3 steps``."""
    return refusal_words(refused).removeprefix("refused").removeprefix(" by ")


def how_to_go_on(refused: Json) -> str:
    """The command that lets it go on, where there is one; its arguments are quoted for a shell."""
    return inert(str(refused.get("how_to_go_on") or ""), 300)


def nudge_words(nudge: Json, ellipsis: str) -> str:
    """What the model was told, where the record holds it."""
    text = inert(str(nudge["text"]), 160, ellipsis=ellipsis) if nudge.get("text") else ""
    what = f"nudge by {inert(str(nudge.get('policy')), 40)}"
    if isinstance(last := nudge.get("last"), Mapping):
        what = f"last step, {_of_last(last)}"
    return what + (f": {text}" if text else "")


def _of_last(last: Json) -> str:
    """Why it was the last that the turn was given: ``by budget turn (59 of 60 steps)``."""
    if not last.get("budget"):
        return f"by {inert(str(last.get('policy')), 40)}"
    used = _used({key: value for key, value in last.items() if key != "needed"})
    return f"by budget {inert(str(last['budget']), 60)}" + (f" ({used})" if used else "")


def repair_words(repair: Json) -> str:
    """What was put back into the request."""
    paths = repair.get("paths")
    places = ", ".join(inert(str(path), 80) for path in paths[:4]) if isinstance(paths, list) else ""
    return f"reasoning put back by {inert(str(repair.get('policy')), 40)}" + (f": {places}" if places else "")


def _used(refused: Json) -> str:
    used, limit = refused.get("used"), refused.get("limit")
    if used is None or limit is None:
        return ""
    dimension, stops = inert(str(refused.get("dimension") or ""), 40), refused.get("stops_at")
    if dimension == "spend_usd":
        words = f"{money(used)} of {money(limit)}"
        words += f", stops at {money(stops)}" if stops is not None else ""
    else:
        unit = _UNITS.get(dimension, dimension.replace("_", " "))
        words = f"{inert(str(used), 30)} of {inert(str(limit), 30)} {unit}"
        words += f", stops at {inert(str(stops), 30)}" if stops is not None else ""
    if refused.get("tool"):
        words += f" of {inert(str(refused['tool']), 60)}"
    if dimension == "spend_usd" and refused.get("needed") is not None:
        words += f", and it may take {money(refused['needed'])}"
    return words
