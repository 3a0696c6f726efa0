"""What policies want held: looked at before a ledger sees it, and named so that no two policies meet.

A counter of a policy is called ``POLICY/NAME``. Budgets of the configuration have no ``/`` in their names,
so that nobody draws on, tops up or reads what is another's.

The one invariant: what passes here is a claim that every ledger can keep and every refusal can word.
"""

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Any

from proxy.structs import replace
from proxy.verdict import Claim, Reached

MOST = 16
"""Claims of one policy for one request."""
MOST_TAKEN = 10**15
"""The largest amount of a claim: a million dollars."""
MOST_UNITS = 10**18
"""The largest limit."""
SCOPES = frozenset({"step", "turn", "thread", "session", "key", "team", "org", "model", "upstream"})
WINDOWS = frozenset({"life", "minute", "hour", "day", "week", "month", "total"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LABEL = re.compile(r"label:[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DIMENSION = re.compile(r"([a-z][a-z0-9_]{0,63})(?::(.+))?", re.DOTALL)
"""What is counted, and of what."""
_OF_TOOLS = frozenset({"calls", "tool_retries"})
_OF_NOTHING = frozenset(
    {
        "steps",
        "input_tokens",
        "output_tokens",
        "total_tokens",
        "spend_usd",
        "wall_clock",
        "requests_per_minute",
    }
)
_LEVELS = frozenset({"wall_clock", "tool_retries"})
"""Dimensions that are never summed up."""
_LONGEST = 200
"""Characters of a subject that a counter is called by; clients choose some of them."""


class BadClaim(ValueError):
    """A claim that no ledger could keep; the message says what is wrong with it."""


def owned(claims: Iterable[Claim], policy: str, on_exhausted: Reached) -> list[Claim]:
    """A policy's claims under its own name. Raises BadClaim for all of them where one is not sound."""
    found = list(islice(claims, MOST + 1))
    if len(found) > MOST:
        raise BadClaim(f"more than {MOST} claims for one request")
    return [_owned(claim, policy, on_exhausted) for claim in found]


def _owned(claim: Claim, policy: str, on_exhausted: Reached) -> Claim:
    if not isinstance(claim, Claim):
        raise BadClaim(f"{type(claim).__name__} is no Claim")
    for fault in _faults(claim):
        raise BadClaim(f"claim {claim.budget!r}: {fault}")
    return replace(
        claim,
        budget=f"{policy}/{claim.budget}",
        subject=_short(claim.subject),
        dimension=_short(claim.dimension),
        policy=policy,
        on_exhausted=on_exhausted,
        alert_at=tuple(claim.alert_at),
    )


def _faults(claim: Any) -> Iterator[str]:
    """What is wrong with it: nothing but its author says what stands in its fields."""
    if not _matched(_NAME, claim.budget):
        yield "its budget is no name: letters, digits, _ . and -, at most 64"
    if not isinstance(claim.subject, str):
        yield f"subject {claim.subject!r} is no text"
    if claim.scope not in SCOPES and not _matched(_LABEL, claim.scope):
        yield f"no scope is called {claim.scope!r}"
    if claim.window not in WINDOWS:
        yield f"no window is called {claim.window!r}"
    dimension = _matched(_DIMENSION, claim.dimension)
    if dimension is None:
        yield f"dimension {claim.dimension!r} is none: small letters, digits and _, and :OF behind it"
    else:
        yield from _misread(claim, dimension[1], dimension[2])
    if claim.minimum is not None:
        yield "a minimum is for budgets, which lower the request; answer an edit, clamp, for that"
    if claim.spare or claim.last is not None:
        yield "a last step is for budgets to give; with action: land a policy's terminal gives one"
    taken = {"amount": claim.amount, "level": 0 if claim.level is None else claim.level}
    limits = {"limit": claim.limit, "hard": claim.limit if claim.hard is None else claim.hard}
    limits |= {f"alert_at[{place}]": share for place, share in enumerate(claim.alert_at)}
    for numbers, most in ((taken, MOST_TAKEN), (limits, MOST_UNITS)):
        for name, value in numbers.items():
            if type(value) is not int or not 0 <= value <= most:
                yield f"{name} {value!r} is no whole number from 0 to {most}"


def _misread(claim: Claim, dimension: str, of: str | None) -> Iterator[str]:
    """Dimensions that mean something have to be meant so."""
    if dimension in _OF_TOOLS and of is None:
        yield f"{dimension} are of a tool: {dimension}:NAME"
    if dimension in _OF_NOTHING and of is not None:
        yield f"{dimension} has no parts: {claim.dimension!r}"
    if dimension in _LEVELS and claim.level is None:
        yield f"{dimension} is never summed up: say its level"
    if dimension == "requests_per_minute" and claim.window != "minute":
        yield f"{dimension} begin anew each minute: window='minute'"


def _short(name: str) -> str:
    """A name that any ledger can keep; a long one by its beginning and its digest."""
    plain = name.encode("utf-8", "replace").decode()
    if len(plain) <= _LONGEST:
        return plain
    return f"{plain[: _LONGEST - 33]}~{blake2b(plain.encode(), digest_size=16).hexdigest()}"


def _matched(pattern: re.Pattern[str], text: object) -> re.Match[str] | None:
    return pattern.fullmatch(text) if isinstance(text, str) else None
