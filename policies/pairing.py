"""Policy ``pairing``: every call answered once, where the provider wants the answer.

Looks at one request as it is: which calls of the model stand in its history, and which results
answer them. The rules differ by dialect and stand in ``_RULES``. Only what is new since the thread's
previous request is looked at, from the last reply before it on; a fault is told once.

============== ===========================================================================
``unanswered`` a call without a result
``orphan``     a result whose call is nowhere in the history
``stranger``   a result whose call stands further back than the reply that it follows
``duplicate``  a second result of one call
``misplaced``  results behind other content of their message, or behind another message
``order``      results in another order than the calls (lawful, for information)
============== ===========================================================================

Not applicable where the provider holds the history: the calls are there and not here.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from policies.base import NOTHING, Policy
from policies.transcript import answers_calls, assistant, common, place_of
from proxy.model import DialectName, Item, Message, ModelRequest
from proxy.ports import View
from proxy.verdict import Decision, Finding, Severity, Terminal

_REMEMBERED = 64
_MOST_FINDINGS = 20
_LATER = frozenset({"mcp_approval_request"})
"""Calls that need not be answered at once, or at all."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """What a dialect's provider demands."""

    adjacent: bool
    """Results stand directly behind the reply that asked for them."""
    first: bool
    """Within their message they stand before everything else."""
    by_id: bool
    """Calls have ids; else results are told by name and number."""


_RULES: Mapping[DialectName, _Rules] = {
    "anthropic": _Rules(adjacent=True, first=True, by_id=True),
    "openai_chat": _Rules(adjacent=True, first=False, by_id=True),
    "openai_responses": _Rules(adjacent=False, first=False, by_id=True),
    "gemini": _Rules(adjacent=True, first=False, by_id=False),
}


class _Place(NamedTuple):
    """An item and where it stands."""

    message: int
    item: Item


@dataclass(slots=True)
class _Fault:
    """One thing that is not as it should be."""

    kind: str
    place: _Place
    severity: Severity = "violation"
    names: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        item = self.place.item
        return f"{self.kind} {item.call_id or item.tool or ''} {self.place.message}"


class Pairing(Policy):
    """See the module."""

    name = "pairing"

    def step_start(self, view: View) -> Decision:
        request = view.request
        if request is None or request.operation != "chat" or request.held is not None:
            return NOTHING
        rules, known = _RULES[request.dialect], common(view.previous, request)
        sound = was_sound = view.memory.get("sound", 0)
        if rules.adjacent:
            faults = list(_adjacent(request, rules, _start(request, known)))
        else:
            faults, sound = _scattered(request, sound if sound <= known else 0)
        told = list(view.memory.get("told", ()))
        hard = next((fault for fault in faults if fault.severity == "violation"), None)
        fresh = [fault for fault in faults if fault.key not in told][:_MOST_FINDINGS]
        if not fresh and hard is None and sound == was_sound:
            return NOTHING
        memory: dict[str, object] = {"told": [*told, *(fault.key for fault in fresh)][-_REMEMBERED:]}
        if sound:
            memory["sound"] = sound
        return Decision(
            findings=tuple(self._finding(fault, request) for fault in fresh),
            terminal=_terminal(hard, request) if hard is not None else None,
            memory=memory if fresh or sound != was_sound else None,
        )

    def _finding(self, fault: _Fault, request: ModelRequest) -> Finding:
        item = fault.place.item
        evidence: dict[str, object] = {"message": fault.place.message}
        if item.call_id is not None:
            evidence["call"] = item.call_id
        if item.tool is not None:
            evidence["tool"] = item.tool
        if fault.names:
            evidence["results"] = fault.names
        hard = fault.severity == "violation"
        path = _path(fault, request)
        return Finding(self.name, fault.kind, fault.severity, evidence, "hard" if hard else None, path)


def _path(fault: _Fault, request: ModelRequest) -> str:
    return place_of(request, fault.place.message, fault.place.item.at)


def _start(request: ModelRequest, known: int) -> int:
    """The reply before the first new message: its results may be among what is new."""
    at = min(known, len(request.messages))
    while at > 0 and not assistant(request.messages[at - 1]):
        at -= 1
    while at > 0 and assistant(request.messages[at - 1]):
        at -= 1
    return at


# -- results directly behind the reply


def _adjacent(request: ModelRequest, rules: _Rules, start: int) -> Iterator[_Fault]:
    messages = request.messages
    at = start
    earlier: set[str] | None = None
    while at < len(messages):
        sound = _answered(messages, at, rules)
        if sound is not None:
            at = sound
            continue
        calls: list[_Place] = []
        while at < len(messages) and assistant(messages[at]):
            calls.extend(_Place(at, item) for item in messages[at].items if _owed(item))
            at += 1
        begin = at
        while at < len(messages) and not assistant(messages[at]):
            at += 1
        results = [
            _Place(index, item)
            for index in range(begin, at)
            for item in messages[index].items
            if item.kind == "tool_result" and not item.server
        ]
        if not calls and not results:
            continue
        left, strangers, pairs = _paired(calls, results, rules)
        yield from (_Fault("unanswered", call) for call in left if call.item.form not in _LATER)
        answered = {call.item.call_id for call, _ in pairs} if strangers else set()
        for stranger in strangers:
            if earlier is None:
                earlier = _calls_before(request, begin)
            yield _strange(stranger, answered, earlier)
        misplaced = _misplaced(request, begin, at, pairs, rules)
        if misplaced is not None:
            yield misplaced
        yield from _order(calls, pairs)


def _answered(messages: Sequence[Message], at: int, rules: _Rules) -> int | None:
    """Where the next reply begins, if the results behind this one answer its calls one by one, first of all.

    Nearly all do, and a history that is seen for the first time has a thousand of them; what this
    does not find sound is gone through with care.
    """
    owed: list[Item] = []
    while at < len(messages) and assistant(messages[at]):
        owed.extend(item for item in messages[at].items if _owed(item))
        at += 1
    number, other = 0, False
    while at < len(messages) and not assistant(messages[at]):
        for item in messages[at].items:
            if item.kind != "tool_result" or item.server:
                other = True
                continue
            if other or number == len(owed):
                return None
            call = owed[number]
            if not (rules.by_id and item.call_id == call.call_id) and not _answers(item, call, rules):
                return None
            number += 1
        at += 1
    return at if number == len(owed) else None


def _owed(item: Item) -> bool:
    return item.kind == "tool_call" and not item.server


def _paired(
    calls: Sequence[_Place], results: Sequence[_Place], rules: _Rules
) -> tuple[list[_Place], list[_Place], list[tuple[_Place, _Place]]]:
    """Calls without a result, results without a call, and the pairs, in the order of the results."""
    waiting = _Waiting(calls)
    strangers: list[_Place] = []
    pairs: list[tuple[_Place, _Place]] = []
    for result in results:
        call = waiting.take(result.item, rules)
        if call is None:
            strangers.append(result)
        else:
            pairs.append((call, result))
    return waiting.left, strangers, pairs


class _Waiting:
    """Calls without a result yet: the first that a result ``_answers`` is found without asking them all."""

    def __init__(self, calls: Sequence[_Place]) -> None:
        self._open = dict(enumerate(calls))
        self._queues: dict[tuple[str, str | None], deque[int]] = {}
        for at, (_, call) in self._open.items():
            kinds = [("any", None), ("id", call.call_id), ("tool", call.tool)]
            if call.call_id is None:
                kinds.append(("unnamed", call.tool))
            for kind in kinds:
                self._queues.setdefault(kind, deque()).append(at)

    @property
    def left(self) -> list[_Place]:
        """Those that are still open, in their order."""
        return list(self._open.values())

    def take(self, result: Item, rules: _Rules) -> _Place | None:
        """The call that a result answers; it is open no longer."""
        found = [at for kind in _may_answer(result, rules) if (at := self._first(kind)) is not None]
        return self._open.pop(min(found)) if found else None

    def _first(self, kind: tuple[str, str | None]) -> int | None:
        queue = self._queues.get(kind)
        while queue and queue[0] not in self._open:
            queue.popleft()
        return queue[0] if queue else None


def _may_answer(result: Item, rules: _Rules) -> tuple[tuple[str, str | None], ...]:
    """The kinds of calls that a result answers, in the words of ``_Waiting``."""
    name, tool = result.call_id, result.tool
    if rules.by_id:
        return (("any", None),) if name is None else (("id", name), ("id", None))
    if name is None:
        return (("any", None) if tool is None else ("tool", tool),)
    return ("id", name), ("id", None) if tool is None else ("unnamed", tool)


def _answers(result: Item, call: Item, rules: _Rules) -> bool:
    if rules.by_id:
        return result.call_id == call.call_id or result.call_id is None or call.call_id is None
    if result.call_id is not None and call.call_id is not None:
        return result.call_id == call.call_id
    return result.tool is None or result.tool == call.tool


def _strange(result: _Place, answered: Set[str | None], earlier: Set[str]) -> _Fault:
    name = result.item.call_id
    if name is not None and name in answered:
        return _Fault("duplicate", result)
    if name is not None and name in earlier:
        return _Fault("stranger", result)
    return _Fault("orphan", result)


def _calls_before(request: ModelRequest, end: int) -> set[str]:
    return {
        item.call_id
        for message in request.messages[:end]
        if assistant(message)
        for item in message.items
        if item.kind == "tool_call" and item.call_id is not None
    }


def _misplaced(
    request: ModelRequest, begin: int, end: int, pairs: Sequence[tuple[_Place, _Place]], rules: _Rules
) -> _Fault | None:
    """A result that something else stands before."""
    last = max((result.message for _, result in pairs), default=-1)
    for index in range(begin, min(end, last + 1)):
        other = False
        message = request.messages[index]
        if not answers_calls(message) and message.items and index < last:
            return _Fault("misplaced", _first_result(pairs, index))
        for item in message.items:
            if item.kind == "tool_result" and not item.server:
                if other and rules.first:
                    return _Fault("misplaced", _Place(index, item))
            else:
                other = other or bool(item.digest)
    return None


def _first_result(pairs: Sequence[tuple[_Place, _Place]], after: int) -> _Place:
    return next(result for _, result in pairs if result.message > after)


def _order(calls: Sequence[_Place], pairs: Sequence[tuple[_Place, _Place]]) -> Iterator[_Fault]:
    """Results in another order than the calls: agents answer as tools finish."""
    places = {id(call): number for number, call in enumerate(calls)}
    order = [places[id(call)] for call, _ in pairs]
    if order != sorted(order):
        names = [result.item.call_id or result.item.tool or "" for _, result in pairs]
        yield _Fault("order", pairs[0][1], "info", names[:20])


# -- results anywhere behind their call


def _scattered(request: ModelRequest, sound: int) -> tuple[list[_Fault], int]:
    """Responses: items in one list. The faults, and how many leading messages pair by themselves.

    ``sound``: how many are known to. A result that nothing behind them waits for may be one of theirs.
    """
    faults, found = _along(request, sound)
    if sound and any(fault.kind != "unanswered" for fault in faults):
        return _along(request, 0)
    return faults, found


def _along(request: ModelRequest, start: int) -> tuple[list[_Fault], int]:
    """The same from a message on. What a summary or a reference stands for cannot be seen."""
    hidden = False
    faults: list[_Fault] = []
    sound = start
    open_calls: dict[str, list[_Place]] = {}
    answered: set[str] = set()
    for index in range(start, len(request.messages)):
        for item in request.messages[index].items:
            hidden = hidden or item.kind == "compaction" or item.form == "item_reference"
            if item.call_id is None:
                continue
            if _owed(item) and item.form not in _LATER:
                open_calls.setdefault(item.call_id, []).append(_Place(index, item))
            elif item.kind == "tool_result" and not item.server and item.form != "mcp_approval_response":
                waiting = open_calls.get(item.call_id)
                if waiting:
                    waiting.pop(0)
                    answered.add(item.call_id)
                    if not waiting:
                        del open_calls[item.call_id]
                elif item.call_id in answered:
                    faults.append(_Fault("duplicate", _Place(index, item)))
                elif not hidden:
                    faults.append(_Fault("orphan", _Place(index, item)))
        if not open_calls and not faults:
            sound = index + 1
    faults += [_Fault("unanswered", call) for waiting in open_calls.values() for call in waiting]
    return faults, sound


def _terminal(fault: _Fault, request: ModelRequest) -> Terminal:
    path = _path(fault, request)
    return Terminal(
        "deny",
        Pairing.name,
        "looptap_policy_denied",
        f"Tool calls and results do not pair ({fault.kind} at {path}), and the provider would refuse this "
        "request. Answer every call once, directly after it.",
        fields={"kind": fault.kind, "path": path},
        any_form=True,
    )
