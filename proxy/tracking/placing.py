"""Whose is this request? The search for the thread that a request continues.

The order of evidence: history held by the provider (by id), the longest known history prefix,
a known reply among the assistant messages, a known call id, the client's own ids. What is found
is answered as a ``Match``:

============  ======================================================================
relation      meaning
============  ======================================================================
``attempt``   the same request again, after an earlier one came to nothing
``continue``  the thread's newest state goes on (perhaps with its reply rewritten)
``epoch``     the same thread with another history (summary, truncation, rewrite)
``fork``      another continuation of a state that has gone on already
``sibling``   the same request again though the earlier one succeeded
``new``       nothing known
============  ======================================================================

Pure: reads the index and changes nothing. Ids narrow the search; they never override content that
contradicts them. No search crosses a scope.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from proxy.model import Item, MatchedBy, Message, ModelRequest
from proxy.reading.library import SEED, fold
from proxy.structs import struct
from proxy.tracking.likeness import opening, quotes, refers, reply_text, resembles
from proxy.tracking.retelling import FRESH_NS, grown_from, task_of
from proxy.tracking.threads import Scope, Step, Thread, instructions, said, same_client
from proxy.tracking.twins import asked_otherwise, contradicts, naming, newest_ids, shared_ids, waits

Relation = Literal["attempt", "continue", "epoch", "fork", "sibling", "new"]

_RUNS = 16
"""Assistant runs looked up by content, from the end of the history."""
_AGAIN = 16
"""Equal requests looked at, newest first, that the client's ids do not rule out."""
_SAYS_ENOUGH = 16
"""Characters of a reply from which its return is evidence by itself."""
_AS_SENT = 6
"""Rank of a thread whose newest reply came back as it was sent."""

_AGENTS = frozenset(
    {"claude-code", "codex", "gemini-cli", "opencode", "kilo", "qwen-code", "cline", "pi", "aider", "crush"}
)
"""Clients that are finished agents: their model calls without any tool are side calls."""


@struct(frozen=True, slots=True)
class Match:
    """What the search found."""

    relation: Relation
    step: Step | None = None
    by: MatchedBy = "prefix"
    known: int = 0
    """Leading messages of the request that are known history (with the reply)."""
    rewritten: bool = False
    """The reply came back as other words."""

    @property
    def thread(self) -> Thread | None:
        """The thread that was found."""
        return self.step.thread if self.step is not None else None


NEW = Match("new")


def ask_of(scope: Scope, request: ModelRequest) -> bytes:
    """Name of the history that a request sends; one of system text alone is named by that text."""
    base = scope.held.get(request.held) if request.held is not None else None
    if base is not None:
        before = base.reply or base.ask
        return fold(before, [item for message in request.messages for item in message.items])
    last = request.chain[-1] if request.chain else SEED
    return last if last != SEED else b"system" + instructions(request)


def search(scope: Scope, request: ModelRequest, ask: bytes, now_ns: int) -> Match:
    """Find what a request continues."""
    if request.held is not None:
        return _held(scope, request, ask)
    found = _by_prefix(scope, request, ask)
    if found is None or found.relation in ("sibling", "fork", "epoch"):
        found = _summed_up(scope, request) or found
    if found is not None and found.relation == "fork":
        found = _rewritten(scope, request, found)
    return (
        found
        or _by_content(scope, request)
        or _by_calls(scope, request)
        or _by_summary(scope, request, now_ns)
        or _by_hints(scope, request)
        or _by_growth(scope, request, now_ns)
        or NEW
    )


def _rewritten(scope: Scope, request: ModelRequest, fork: Match) -> Match:
    """What looks like a fork from long ago may be a history rewritten in its middle (old results cleared):
    it is where the thread's newest reply or calls still follow."""
    found = fork
    for match in (_by_content(scope, request), _by_calls(scope, request)):
        if match is not None and match.thread is fork.thread and match.known > found.known:
            found = match
            break
    return (_retold(request, found) if found.relation == "fork" else None) or found


def _retold(request: ModelRequest, fork: Match) -> Match | None:
    """The thread's newest reply follows after all: in other words (an agent had the history handed on, and
    what it did came back as text), or in another place (a client that sorts its history)."""
    thread = fork.thread
    last = thread.last if thread is not None else None
    if thread is None or last is None or not last.whole or len(last.text) < _SAYS_ENOUGH:
        return None
    _, behind = next(_runs(request.messages), ([], 0))
    newest = request.messages[behind - 1].items if behind else ()
    others = [step for step in thread.steps if step is not last]
    told = len(reply_text(newest)) >= _SAYS_ENOUGH and resembles(last, newest)
    if told and not any(resembles(step, newest) for step in others):
        return Match("epoch", last, "content", behind)
    before = sum(step.said == last.said for step in others)
    there = sum(said(one.items) == last.said for one in request.messages if one.role == "assistant")
    return Match("epoch", last, "content", _news(request, thread, behind)) if there > before else None


def _news(request: ModelRequest, thread: Thread, behind: int) -> int:
    """Where the first user text stands that the thread has not heard; else ``behind``."""
    if thread.request is None:
        return behind
    known = {item.digest for message in thread.request.messages for item in message.items}
    for at, message in enumerate(request.messages):
        if any(item.kind == "user" and item.digest not in known for item in message.items):
            return at
    return behind


# -- history held by the provider


def _held(scope: Scope, request: ModelRequest, ask: bytes) -> Match:
    base, dialect = scope.held.get(request.held or ""), request.dialect
    if base is None:
        return NEW
    again = [s for s in scope.asks.get(ask, ()) if s.in_vain and _began_at(s, base) and s.dialect == dialect]
    if again:
        return Match("attempt", again[-1], known=len(request.messages))
    return Match("continue" if base.thread.newest(base) else "fork", base)


def _began_at(step: Step, base: Step) -> bool:
    """Whether a step went on from another by its id, in its thread or in a branch of it."""
    thread = step.thread
    return thread is base.thread or (step.index == 0 and thread.parent == base.thread.id)


# -- the longest known prefix


def _by_prefix(scope: Scope, request: ModelRequest, ask: bytes) -> Match | None:
    again = _again(scope, request, ask)
    options = _options(scope, request)
    if again is not None and again.relation == "attempt":
        return _twin(options, request, again) or again
    if not options:
        return again
    rank, best = _best(options, request)
    goes_on = rank >= _AS_SENT or best.relation == "continue"
    # a repeated request may go on with one of several equal threads: that which has not yet
    return best if again is None or goes_on else again


def _options(scope: Scope, request: ModelRequest) -> list[tuple[int, Match]]:
    """What the longest known prefix may be the history of."""
    chain = request.chain
    at = len(chain) - 1
    while at >= 0:
        name = chain[at]
        if name != SEED and (name in scope.replies or name in scope.asks):
            options = [*_after_reply(scope, request, name, at), *_after_ask(scope, request, name, at)]
            if options:
                return options
        while at >= 0 and chain[at] == name:
            at -= 1  # messages outside identity have the name of what precedes them
    return []


def _best(options: Sequence[tuple[int, Match]], request: ModelRequest) -> tuple[int, Match]:
    """Among equal histories decide: client's ids, call ids, dialect, who has not gone on yet, the latest."""
    if len(options) == 1:
        return options[0]
    start = max(0, min(match.known for _, match in options) - 8)
    ids = {item.call_id for message in request.messages[start:] for item in message.items if item.call_id}

    def order(option: tuple[int, Match]) -> tuple[bool, int, bool, int, int]:
        rank, match = option
        step = match.step
        assert step is not None
        client = same_client(step.thread, request.hints) is True
        same = step.dialect == request.dialect
        return client, shared_ids(step, ids), same, rank, step.ended_ns or step.arrived_ns

    return max(options, key=order)


def _twin(options: Sequence[tuple[int, Match]], request: ModelRequest, again: Match) -> Match | None:
    """What seems to be asked again may be asked by an equal run for the first time."""
    vain = again.step
    if request.hints.retry or vain is None:
        return None
    ids, named = newest_ids(request.messages), same_client(vain.thread, request.hints)
    waiting = []
    for rank, match in options:
        step = match.step
        if match.relation != "continue" or step is None or step.dialect != request.dialect:
            continue
        if named and not same_client(step.thread, request.hints):
            continue  # the client says which of the two it is
        if shared_ids(step, ids) >= 0 and waits(step, vain):
            waiting.append((rank, match))
    return _best(waiting, request)[1] if waiting else None


def _again(scope: Scope, request: ModelRequest, ask: bytes) -> Match | None:
    """The very same history was sent before."""
    hints, whole = request.hints, len(request.messages)
    named, tells = naming(request), hints.session is not None
    best: Match | None = None
    vain: Match | None = None
    seen = 0
    for step in reversed(scope.asks.get(ask, ())):
        thread = step.thread
        if (tells and same_client(thread, hints) is False) or asked_otherwise(step, request, named):
            continue
        seen += 1
        if seen > _AGAIN:
            break
        repeated = step.in_vain or bool(hints.retry)
        if repeated and thread.newest(step) and (step.index > 0 or _same_begin(thread, request)):
            if step.index > 0:
                return Match("attempt", step, known=whole)
            vain = vain or Match("attempt", step, known=whole)  # unless a thread with a past asked it, too
        best = best or Match("sibling", step, known=whole)
    return vain or best


def _same_begin(thread: Thread, request: ModelRequest) -> bool:
    """Instructions and tools break the tie of equal first messages; either may change in a retry."""
    if same_client(thread, request.hints):
        return True
    return thread.system == instructions(request)


def _after_reply(scope: Scope, request: ModelRequest, name: bytes, at: int) -> Iterator[tuple[int, Match]]:
    for step in scope.replies.get(name, ()):
        if step.reply == step.ask:
            continue  # an empty reply is told from its request below
        yield _went_on(step, request, at + 1, rewritten=False, rank=_AS_SENT)


def _went_on(
    step: Step, request: ModelRequest, known: int, *, rewritten: bool, rank: int
) -> tuple[int, Match]:
    """A state that is continued: by its own thread if nothing came of what followed, else by a fork."""
    if same_client(step.thread, request.hints) is not False and step.thread.newest(step):
        return rank, Match("continue", step, known=known, rewritten=rewritten)
    return 2, Match("fork", step, known=known, rewritten=rewritten)


def _after_ask(scope: Scope, request: ModelRequest, name: bytes, at: int) -> Iterator[tuple[int, Match]]:
    """What was sent is known, and something other than the reply as we read it follows."""
    start = at + 1
    while start > 1 and any(refers(item) for item in request.messages[start - 1].items):
        start -= 1  # has the name of what precedes it, and stands for the reply
    came_back, behind = _run(request.messages, start)
    after = request.messages[start:]
    follows = any(item.digest and item.kind != "system" for message in after for item in message.items)
    if not follows and not came_back:
        return  # the very same request
    silent = not came_back and request.messages[at].role == "assistant"  # only its thinking came back
    past = any(message.role == "assistant" for message in request.messages[: at + 1])
    for step in scope.asks.get(name, ()):
        thread = step.thread
        client = same_client(thread, request.hints)
        if step.in_vain and contradicts(step, naming(request, at + 1)):
            continue  # an equal run's
        if came_back:
            if step.whole and resembles(step, came_back):
                yield _went_on(step, request, behind, rewritten=True, rank=5)
            elif client is not False and thread.newest(step) and _replaced(step, came_back, past or client):
                yield 3 if step.whole else 4, Match("continue", step, known=behind, rewritten=True)
        elif step.reply == step.ask or (step.whole and not step.said):
            yield _went_on(step, request, at + 1, rewritten=False, rank=5)
        elif silent and client is not False and thread.newest(step) and _replaced(step, (), past or client):
            yield 3, Match("continue", step, known=at + 1, rewritten=True)
        elif client is not False and thread.newest(step) and (step.in_vain or (step.under_way and client)):
            yield 4, Match("continue", step, known=at + 1)
        elif client and thread.newest(step):
            yield 3, Match("epoch", step, known=at + 1)


def _replaced(step: Step, came_back: Sequence[Item], certain: bool | None) -> bool:
    """Whether other words than the reply's may stand in its place: nothing else explains the history.

    A first message may be that of many conversations; a history with a past is one conversation's.
    """
    if not step.whole or certain or step.index > 0:
        return True
    return bool(step.calls) == any(item.kind == "tool_call" for item in came_back)


def _run(messages: Sequence[Message], start: int) -> tuple[list[Item], int]:
    """The assistant items that stand at a place, and where what follows them begins."""
    items: list[Item] = []
    at = start
    while at < len(messages):
        message = messages[at]
        spoken = [item for item in message.items if item.role == "assistant"]
        if not spoken and any(item.digest and item.kind != "system" for item in message.items):
            break
        if not spoken and items and message.items:
            break
        items.extend(spoken)
        at += 1
    return items, at if items else start


# -- content, call ids


def _by_content(scope: Scope, request: ModelRequest) -> Match | None:
    """A reply that we know, or a summary block of one, stands among the assistant messages."""
    for items, behind in _runs(request.messages):
        names = [item.digest for item in items if item.kind == "compaction" and item.digest]
        if len(reply_text(items)) >= _SAYS_ENOUGH or any(item.kind == "tool_call" for item in items):
            names.append(said(items))
        for name in names:
            ids = {item.call_id for item in items if item.call_id}
            for step in sorted(scope.by_sayings(name), key=lambda step: -shared_ids(step, ids)):
                match = _found(scope, step, request, "content", behind)
                if match is not None:
                    return match
    return None


def _by_calls(scope: Scope, request: ModelRequest) -> Match | None:
    """A call or a result names a call that we know."""
    seen = 0
    for at in range(len(request.messages) - 1, -1, -1):
        for item in request.messages[at].items:
            if item.kind not in ("tool_call", "tool_result") or item.call_id is None:
                continue
            seen += 1
            for step in scope.by_call(item.call_id):
                _, behind = _run(request.messages, at)
                match = _found(scope, step, request, "call_ids", behind)
                if match is not None:
                    return match
        if seen > _RUNS:
            break
    return None


def _found(scope: Scope, step: Step, request: ModelRequest, by: MatchedBy, behind: int) -> Match | None:
    thread = step.thread
    if thread.kind == "side":  # its words stand in for the history that it summed up
        subject = _subject(scope, step)
        if subject is None or subject.last is None or same_client(subject, request.hints) is False:
            return None
        return Match("epoch", subject.last, by, behind)
    client = same_client(thread, request.hints)
    if client is False:
        return None
    if client or thread.newest(step):
        return Match("epoch", step, by, behind)
    return Match("fork", step, by, behind)


def _runs(messages: Sequence[Message]) -> Iterator[tuple[list[Item], int]]:
    """Assistant runs from the end of a history, each with the place behind it."""
    end = len(messages)
    for _ in range(_RUNS):
        while end > 0 and messages[end - 1].role != "assistant":
            end -= 1
        start = end
        while start > 0 and (messages[start - 1].role == "assistant" or not messages[start - 1].items):
            start -= 1
        if start == end:
            return
        yield [item for message in messages[start:end] for item in message.items], end
        end = start


# -- a new list in the place of an old one


def _summed_up(scope: Scope, request: ModelRequest) -> Match | None:
    """The client had its thread summed up just before, and now begins a list that is not its newest."""
    thread = _named(scope, request)
    if thread is None or not thread.summed_up or thread.last is None:
        return None
    return Match("epoch", thread.last, "hint", _known_begin(request))


def _by_summary(scope: Scope, request: ModelRequest, now_ns: int) -> Match | None:
    """The first texts of a fresh list carry a reply that summed up what was before."""
    if not request.tools or not scope.recent:
        return None
    texts = opening(request)
    names = frozenset(tool.name for tool in request.tools)
    for step in scope.recent.within(texts):
        if step.forgotten or now_ns - step.ended_ns > FRESH_NS:
            continue
        thread = _subject(scope, step)
        if thread is None or thread.last is None or same_client(thread, request.hints) is False:
            continue
        if _overlap(thread.tools, names) and len(step.text) > _SAYS_ENOUGH and quotes(texts, step.text):
            if step.thread is thread and thread.system != instructions(request):
                continue  # one agent's answer handed to another agent
            return Match("epoch", thread.last, "content", _known_begin(request))
    return None


def _subject(scope: Scope, step: Step) -> Thread | None:
    """The thread that a reply may be a summary of: a side call's parent, or its own."""
    thread = step.thread
    if thread.kind != "side":
        return thread if thread.step_count > 1 else None
    return scope.threads.get(thread.parent) if thread.parent is not None else None


def _by_hints(scope: Scope, request: ModelRequest) -> Match | None:
    """The client says which thread it is, and the request could be that agent's."""
    thread = _named(scope, request)
    if thread is None or thread.last is None:
        return None
    if not _overlap(thread.tools, frozenset(tool.name for tool in request.tools)):
        return None
    if task_of(scope, request) is not None:
        return None
    return Match("epoch", thread.last, "hint", _known_begin(request))


def _by_growth(scope: Scope, request: ModelRequest, now_ns: int) -> Match | None:
    """A loop that writes all it knows into one prompt: the last message is its history and news in one."""
    step = grown_from(scope, request, now_ns)
    return Match("epoch", step, "content", len(request.messages) - 1) if step is not None else None


def _named(scope: Scope, request: ModelRequest) -> Thread | None:
    """The thread that the client names, where the request is one of the loop and not beside it."""
    hints = request.hints
    if hints.session is None or hints.kind in ("side", "compaction", "prewarm") or not request.tools:
        return None
    return scope.agents.get((hints.session, hints.agent))


def _overlap(one: frozenset[str], other: frozenset[str]) -> bool:
    return 2 * len(one & other) >= max(len(one), len(other)) > 0


def _known_begin(request: ModelRequest) -> int:
    """A fresh list's kept assistant messages are history; what follows them is new."""
    _, behind = next(_runs(request.messages), ([], 0))
    return behind


# -- what kind of thread is born


def asks_to_compact(request: ModelRequest) -> bool:
    """Whether the request only wants the history summed up."""
    return request.hints.kind == "compaction" or request.operation == "compact"


def is_side_call(scope: Scope, request: ModelRequest) -> bool:
    """Whether a request is no conversation of its own: by what it says, or by what it looks like.

    A finished agent's call without tools is one when its reply is bound to a form, or when the
    session has a main thread that does have tools.
    """
    hints = request.hints
    if hints.kind in ("side", "compaction", "prewarm"):
        return True
    if hints.kind == "subagent" or request.tools or hints.client not in _AGENTS:
        return False
    main = scope.agents.get((hints.session, None)) if hints.session is not None else None
    return request.output_schema or (main is not None and bool(main.tools))
