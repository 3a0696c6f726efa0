"""What a request does to its turn, and what a reply does to it.

========================  =============================  ====================================
in the delta              calls pending                  the turn
========================  =============================  ====================================
results of pending calls  yes                            goes on, also with text beside them, or as text
                                                         behind calls that came back as text
only cancellations        yes, and user input follows    ends ``interrupted``; a new one opens
user input                yes, but another agent asks    goes on
user input                yes, none answered             ends ``superseded``; a new one opens
user input                no                             a new one opens
user input                no, but we refused 10 s ago    the refused turn goes on
nothing of these          either                         goes on (pause, prefill, continuation)
========================  =============================  ====================================

A whole reply ends the turn when it leaves the client no call and is no pause. Failures end nothing:
whether the client gives up shows only at its next input or when time passes.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import Literal

from proxy.model import Cause, Item, ModelRequest, Outcome
from proxy.structs import replace, struct
from proxy.tracking.likeness import reply_text, tells
from proxy.tracking.placing import Match
from proxy.tracking.threads import Call, Step, Thread, instructions

JOINS_REFUSED_NS = 10_000_000_000

_CAUSES: dict[str, Cause] = {
    "max_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "length": "max_tokens",
    "model_length": "max_tokens",
    "refusal": "refusal",
    "sensitive": "content_filter",
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "spii": "content_filter",
    "image_safety": "content_filter",
    "image_prohibited_content": "content_filter",
    "model_armor": "content_filter",
    "language": "content_filter",
    "model_context_window_exceeded": "context_window",
    "context_length_exceeded": "context_window",
}
"""Stop reasons of all dialects, in lower case; what is not here completes."""

_PAUSES = frozenset({"pause_turn", "compaction", "requires_continuation", "queued", "in_progress"})
_GIVEN_UP = re.compile(
    r"(request interrupted by user|user doesn't want to (proceed|take this action)"
    r"|tool use was rejected"
    r"|(tool|operation|command|request) (call )?(was )?(cancell?ed|aborted|declined|rejected) by (the )?user"
    r"|user (cancell?ed|aborted|declined|rejected|interrupted)|^aborted( by user.*)?$"
    r"|interrupted by (the )?user"
    r"|^\W*(the )?(execution of (this|the) tool|tool (execution|call|use))\b[^.\n]{0,40}"
    r"\b(interrupted|aborted|cancell?ed))",
    re.IGNORECASE,
)
"""What clients write into the results of calls that they never ran to the end."""

_MOST_PREFIXES = 4
"""Prefixes that clients put before an id, at most."""

Move = Literal["goes_on", "new", "superseded", "interrupted", "joins"]


@struct(frozen=True, slots=True)
class Delta:
    """What a request newly brings."""

    items: tuple[Item, ...]
    answers: tuple[tuple[Item, Step, Call], ...]
    """Results with the calls that they answer."""

    @property
    def has_input(self) -> bool:
        """Whether a user (or the harness in the user's name) said something."""
        return any(item.kind in ("user", "media") and item.role == "user" for item in self.items)


def pair(
    items: Sequence[Item], pending: Sequence[tuple[Step, Call]], aliases: dict[str, Call], *, guess: bool
) -> Delta:
    """Pair the results in a delta with pending calls: by id, else by name and place.

    ``aliases`` maps ids that the client made up to calls. ``guess`` allows pairing
    by place, for providers that give no ids.
    """
    waiting = _Waiting(pending, aliases)
    answers: list[tuple[Item, Step, Call]] = []
    strangers: list[Item] = []
    for item in items:
        if item.kind != "tool_result" or item.server:
            continue
        found = waiting.of_id(item.call_id)
        if found is None:
            strangers.append(item)
        else:
            answers.append((item, *found))
    for item in strangers if guess else ():
        chosen = waiting.by_place(item)
        if chosen is not None:
            answers.append((item, *chosen))
    return Delta(tuple(items), tuple(answers))


class _Waiting:
    """Calls without a result, in their order. Each is found by its names, without asking all of them."""

    def __init__(self, pending: Sequence[tuple[Step, Call]], aliases: dict[str, Call]) -> None:
        self._open = dict(enumerate(pending))
        self._named: dict[str, deque[int]] = {}
        self._prefixed: dict[str, deque[int]] = {}
        self._tools: dict[str, deque[int]] = {}
        self._all = deque(self._open)
        self._nameless: deque[int] = deque()
        places: dict[int, int] = {}
        for at, (_, call) in self._open.items():
            places[id(call)] = at
            self._tools.setdefault(call.name, deque()).append(at)
            for name in {call.call_id, call.item_id} - {None}:
                self._named.setdefault(name or "", deque()).append(at)
            if call.call_id is None:
                self._nameless.append(at)
            else:
                self._prefixed.setdefault(call.call_id, deque()).append(at)
        self._ids = frozenset(self._named)
        for name, call in aliases.items():
            if id(call) in places:
                self._named.setdefault(name, deque()).append(places[id(call)])

    def of_id(self, name: str | None) -> tuple[Step, Call] | None:
        """The call of this id, which may stand behind a prefix (``server:id``)."""
        found = self._take(self._named.get(name)) if name is not None else None
        rest = name or ""
        for _ in range(_MOST_PREFIXES):
            _, colon, rest = rest.partition(":")
            if found is not None or not colon:
                break
            found = self._take(self._prefixed.get(rest))
        return found

    def by_place(self, result: Item) -> tuple[Step, Call] | None:
        """The first call of a result's tool; where it names none, the first that may have had another id."""
        if result.tool is not None:
            return self._take(self._tools.get(result.tool))
        known = bool(result.call_id) and result.call_id in self._ids
        return self._take(self._nameless if known else self._all)

    def _take(self, places: deque[int] | None) -> tuple[Step, Call] | None:
        while places:
            found = self._open.pop(places.popleft(), None)
            if found is not None:
                return found
        return None


def alias(came_back: Sequence[Item], calls: Sequence[Call]) -> dict[str, Call]:
    """Ids that the client gave to calls which had none (or others), by order and name."""
    aliases: dict[str, Call] = {}
    left: dict[str | None, deque[Call]] = {}
    for call in calls:
        left.setdefault(call.name, deque()).append(call)
    for item in came_back:
        if item.kind == "tool_call" and item.call_id is not None and left.get(item.tool):
            aliases[item.call_id] = left[item.tool].popleft()
    return aliases


def move(
    delta: Delta,
    *,
    pending: bool,
    turn_open: bool,
    since_refusal_ns: int | None,
    continues: bool,
) -> Move:
    """What a request does to the newest turn of its thread (the table above).

    ``continues``: the client itself says that its turn goes on.
    """
    given_up = [item for item, _, _ in delta.answers if _GIVEN_UP.search(item.text[:400])]
    if delta.answers and len(given_up) == len(delta.answers) and delta.has_input:
        return "interrupted"
    if delta.answers:
        return "goes_on"
    if not delta.has_input or continues:
        return "goes_on"
    if since_refusal_ns is not None and since_refusal_ns <= JOINS_REFUSED_NS:
        return "joins"
    return "superseded" if pending and turn_open else "new"


def ending(reply: Outcome) -> Cause | None:
    """Why a whole reply ends its turn; None: it does not."""
    reason = (reply.stop_reason or "").lower()
    detail = reply.extra.get("incomplete_reason") or reply.extra.get("incomplete_details")
    if isinstance(detail, dict):
        detail = detail.get("reason")
    if reply.tool_calls or reason in _PAUSES:
        return None
    if reason == "incomplete" and isinstance(detail, str):
        reason = detail.lower()
    return _CAUSES.get(reason, "completed")


def delta_of(
    request: ModelRequest, match: Match, pending: Sequence[tuple[Step, Call]], base: Step | None
) -> Delta:
    """What a request brings beyond the known history, with its results paired."""
    known = match.known if match.relation not in ("new", "sibling") else 0
    items = tuple(
        item for message in request.messages[known:] for item in message.items if item.role != "assistant"
    )
    came_back = [item for message in request.messages[max(0, known - 32) : known] for item in message.items]
    at = len(came_back)
    while at > 0 and came_back[at - 1].role == "assistant":
        at -= 1
    aliases = alias(came_back[at:], base.calls) if base is not None else {}
    delta = pair(items, pending, aliases, guess=match.relation != "epoch" or known > 0)
    return delta if delta.answers else _in_prose(delta, came_back[at:], pending)


def _in_prose(delta: Delta, came_back: Sequence[Item], pending: Sequence[tuple[Step, Call]]) -> Delta:
    """Results as user text, from a client that wrote the calls of the reply out as text, too."""
    at = next((n for n, item in enumerate(delta.items) if item.kind == "user" and item.text.strip()), None)
    if at is None or any(item.kind in ("tool_call", "tool_result") for item in (*came_back, *delta.items)):
        return delta
    text, told = reply_text(came_back), delta.items[at]
    answers = tuple(
        (replace(told, kind="tool_result", tool=call.name), step, call)
        for step, call in pending
        if tells(call, text)
    )
    if not answers:
        return delta
    return Delta((*delta.items[:at], *(item for item, _, _ in answers), *delta.items[at + 1 :]), answers)


def handed_over(thread: Thread, request: ModelRequest, pending: Sequence[tuple[Step, Call]]) -> bool:
    """Whether another agent, with other instructions and tools, takes up a thread that waits for results.

    Some frameworks drop the call that hands over from the history, and say in a user's name what it was.
    """
    if not pending or thread.request is None:
        return False
    before, after = ({tool.name for tool in one.tools} for one in (thread.request, request))
    return before != after and instructions(thread.request) != instructions(request)


def repeated(thread: Thread, base: Step, delta: Delta) -> Step | None:
    """The step in vain that this request asks again, with its results in another form and no new input."""
    last = thread.last
    if last is None or last is base or not last.in_vain or delta.has_input or delta.answers:
        return None
    brings = [item for item in delta.items if item.kind == "tool_result"]
    return last if brings and base.calls and not base.pending else None


def since_refusal(thread: Thread, now_ns: int) -> int | None:
    """How long ago we last refused a request of the thread's newest turn."""
    turn = thread.turn
    return now_ns - turn.refused_ns if turn is not None and turn.refused_ns is not None else None


def goes_on(thread: Thread, match: Match, hint_turn: str | None) -> bool:
    """Whether a rewritten history goes on with the running turn: the client says so, or it owes work."""
    turn = thread.turn
    if match.relation != "epoch" or turn is None:
        return False
    if hint_turn is not None and thread.hint_turn is not None:
        return hint_turn == thread.hint_turn
    last = thread.last
    return turn.open and match.by in ("hint", "prefix") and last is not None and bool(last.calls)


def left_open(last: Step | None) -> tuple[Cause, str | None]:
    """Why a turn that is still open, with this as its last step, has come to nothing."""
    if last is not None and last.in_vain:
        return ("interrupted", "user") if last.outcome == "client_gone" else ("error", None)
    return "superseded", None


_REACHED: frozenset[Cause] = frozenset(
    {"steps", "tokens", "spend", "wall_clock", "calls", "tool_retries", "interrupted"}
)


def refusal_cause(name: str) -> Cause:
    """The cause of a turn that a refusal ends: the budget that was reached, else a policy."""
    return next((cause for cause in _REACHED if cause == name), "policy")
