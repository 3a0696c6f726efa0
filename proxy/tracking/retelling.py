"""What a request tells of a thread in prose: whose work it is, though no history of that stands in it.

A sub-agent's first words are what a pending call hands on, bare or inside a template. An agent to
whom a conversation is handed reads what the other one did as prose. A side call (title, commit
message, summary) quotes the thread that it serves. A prompt that grows holds the last one, its
reply and what came of it as one text. ``likeness`` compares texts; here stands which texts to compare.

Pure: reads the index and changes nothing. A quotation must be long enough to be no accident, and fresh.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from proxy.model import ModelRequest
from proxy.tracking.likeness import (
    ENOUGH,
    SENTENCE,
    Quoting,
    as_argument,
    carries,
    opening,
    repeats,
    tasked,
    tells,
    unheard,
)
from proxy.tracking.threads import CLIPPED, Call, Scope, Step, Thread, instructions, joins, same_client

_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_HANDS_OVER = re.compile(r"transfer|hand_?(off|over)", re.IGNORECASE)
FRESH_NS = 900_000_000_000
_BESIDE_NS = 10_000_000_000
_LOOKED_AT = 64
"""Threads that a side call may serve, and steps that an agent may work for: those in use last."""
_LONGEST_QUOTE = 200_000
"""Characters of a prompt in which the lines of any reply are looked for: what is longer is about more."""
_QUOTED_STEPS = 8
_RETOLD = 64
"""User texts of a conversation that was handed on."""
_MOST_OF_IT = 0.9
"""Share of a prompt that stays where it grows."""


def task_of(scope: Scope, request: ModelRequest) -> tuple[Step, Call] | None:
    """The pending call that this new history was begun for (a sub-agent's task)."""
    if not scope.waiting:
        return None
    texts = [*opening(request), *_behind_examples(request)]
    written = [as_argument(text) for text in texts if len(text) < CLIPPED]
    for step in reversed(scope.waiting.values()):
        for call in step.pending:
            if tasked(written, call):
                return step, call
    told, system = opening(request, _RETOLD) if request.tools else [], instructions(request)
    for step in islice(reversed(scope.waiting.values()), _LOOKED_AT):
        if same_client(step.thread, request.hints) is False:
            continue
        for call in step.pending:
            if carries(texts, call):
                return step, call
        if told and step.pending and step.thread.system != system and _retells(step, told):
            return step, step.pending[0]
    return None


def _behind_examples(request: ModelRequest) -> list[str]:
    """The user texts behind the last assistant message: clients make up some before the first task."""
    texts: list[str] = []
    for message in reversed(request.messages):
        if message.role == "assistant":
            return texts
        texts += [item.text for item in message.items if item.kind == "user" and item.text.strip()]
    return []


def _retells(step: Step, texts: Sequence[str]) -> bool:
    """Whether another agent is told, behind the same first words, of the calls that this step waits for."""
    before = step.thread.request
    mine = opening(before, _RETOLD) if before is not None else []
    if not mine or mine[:1] != texts[:1]:
        return False
    if len(texts[0]) >= ENOUGH and all(_HANDS_OVER.search(call.name) for call in step.pending):
        return True  # to whoever is asked the same now
    if len(texts) <= len(mine):
        return False
    news = [text for text in texts[1:] if text not in mine]
    return all(any(_names(call, text) for text in news) for call in step.pending)


def _names(call: Call, text: str) -> bool:
    """Whether a text tells of a call by its name, or by the words of its name (``Transferred to Writer``)."""
    words = _NAME_WORD.findall(call.name)
    return call.name in text or (len(words) > 1 and all(word.lower() in text.lower() for word in words))


def handed_on(origin: Step | None, request: ModelRequest) -> bool:
    """Whether a branch of a history may be another agent's, who was told it along with its task."""
    return origin is not None and origin.thread.system != instructions(request)


def kin_of(scope: Scope, request: ModelRequest, now_ns: int) -> Thread | None:
    """A thread of the same run: the first words of a new history carry the whole of one of its replies.

    Agents that talk to each other, or work one after the other, read each other's replies as user text.
    """
    texts = [text for text in _told(request) if ENOUGH <= len(text) <= _LONGEST_QUOTE] if scope.recent else []
    for step in scope.recent.within(texts) if texts else ():
        if now_ns - step.ended_ns > FRESH_NS:
            return None
        if step.forgotten or same_client(step.thread, request.hints) is False:
            continue
        words, before = step.glance().strip(), step.thread.request
        if words.count(" ") < SENTENCE or not repeats(texts, words):
            continue
        if before is None or not repeats(opening(before, _RETOLD) or _instructed(before), words):
            return step.thread  # and it had not been asked to say just that
    return None


def _told(request: ModelRequest) -> list[str]:
    """What a history begins with, whoever says it; where nothing is, its instructions."""
    items = (item for message in request.messages[:_RETOLD] for item in message.items)
    said = [item.text for item in items if item.kind in ("user", "text") and item.text.strip()]
    return said or _instructed(request)


def served_by(scope: Scope, request: ModelRequest, now_ns: int) -> Thread | None:
    """The running thread that a call without tools quotes; where the client names a session, of that one.

    One of another model quotes lines of its reply (a commit message), or its task: inside a template, or
    for an answer bound to a form (a title). One of any model quotes its task and what became of it, or
    names its calls, or several of its replies in one text (a summary).
    """
    if request.tools or request.hints.kind == "subagent":
        return None
    if request.hints.session is not None:
        return _transcribed(_at_work(scope, now_ns), request)
    texts, model, since_ns = opening(request), request.model, now_ns - _BESIDE_NS
    quoting = Quoting([text for text in texts if len(text) <= _LONGEST_QUOTE])
    for step in [step for step in scope.recent if step.model != model]:
        if step.ended_ns < since_ns:
            break
        if step.forgotten or step.thread.kind == "side":
            continue
        if quoting.shares_lines(step.text):
            return step.thread
    for step in reversed(scope.waiting.values()) if request.output_schema else ():
        if now_ns - step.ended_ns > _BESIDE_NS:
            break
        if step.model != request.model and _has_task(step.thread, texts):
            return step.thread
    at_work = list(_at_work(scope, now_ns))
    titled = next((thread for thread in at_work if _is_titled(thread, request, texts)), None)
    return titled or _transcribed(at_work, request)


def _transcribed(threads: Iterable[Thread], request: ModelRequest) -> Thread | None:
    """The thread of these, which are at work, of which a request holds a transcript."""
    texts, session = opening(request), request.hints.session
    at_work = [thread for thread in threads if not _talks_along(thread, texts)]
    if session is not None:
        at_work = [thread for thread in at_work if thread.client_session == session]
    if at_work:
        texts += _instructed(request)
    return next((thread for thread in at_work if _sums_up(thread, texts)), None)


def _instructed(request: ModelRequest) -> list[str]:
    """The texts of a request's instructions, in or outside its list."""
    inside = (item for message in request.messages if message.role == "system" for item in message.items)
    return [item.text for item in (*request.system, *inside) if item.text.strip()]


def _at_work(scope: Scope, now_ns: int) -> Iterator[Thread]:
    """Agents whose turn goes on, or has just ended; those in use last come first."""
    newest = islice(reversed(scope.threads.values()), _LOOKED_AT)
    for thread in [thread for thread in newest if thread.tools]:
        if thread.kind == "side":
            continue
        turn, rested_ns = thread.turn, now_ns - thread.last_ns
        if rested_ns > FRESH_NS:
            return
        if turn is not None and (turn.open or rested_ns <= _BESIDE_NS):
            yield thread


def _sums_up(thread: Thread, texts: Sequence[str]) -> bool:
    """Whether texts are a transcript of a thread: its task, and what its steps called or said; without the
    task, several replies in one text, or ids of calls, which nobody else has.

    (The words of one step alone, once the thread rests, are a result that the next agent works with.)
    """
    newest = [step for step in thread.steps[-_QUOTED_STEPS:] if step.whole]
    if not _has_task(thread, texts):
        ids = [call.call_id for step in newest for call in step.calls if joins(call.call_id)]
        if any(id is not None and id in text for id in ids for text in texts):
            return True
        words = {step.glance().strip() for step in newest}
        return any(sum(len(one) >= ENOUGH and one in text for one in words) > 1 for text in texts)
    if any(tells(call, text) for step in newest for call in step.calls for text in texts):
        return True
    quoting = Quoting(texts)
    quoted = sum(quoting.shares_lines(step.text) for step in newest)
    return quoted >= (1 if thread.turn is not None and thread.turn.open else 2)


def _is_titled(thread: Thread, request: ModelRequest, texts: Sequence[str]) -> bool:
    """Whether another model is given what an agent was just asked, inside a template."""
    before = thread.request
    if before is None or before.model == request.model or not _has_task(thread, texts):
        return False
    asked = [text.strip() for text in opening(before)]
    return not any(text.strip() in asked for text in texts)


def _talks_along(thread: Thread, texts: Sequence[str]) -> bool:
    """Whether user texts are a conversation that begins with a thread's first words and has gone on."""
    before = opening(thread.request, 1) if thread.request is not None else []
    return len(texts) > 1 and before == [texts[0]]


def _has_task(thread: Thread, texts: Sequence[str]) -> bool:
    """Whether texts carry what an agent was asked."""
    if thread.request is None or not thread.tools or thread.kind == "side":
        return False
    return any(repeats(texts, asked.strip()) for asked in opening(thread.request))


def grown_from(scope: Scope, request: ModelRequest, now_ns: int) -> Step | None:
    """The newest step whose prompt this one holds, with its reply and what came of it, as one longer text."""
    if any(message.role == "assistant" for message in request.messages):
        return None
    texts, size = opening(request), len(request.messages)
    for step in scope.recent:
        thread = step.thread
        if now_ns - step.ended_ns > FRESH_NS:
            return None
        before = thread.request
        if step.calls or before is None or step.model != request.model or len(before.messages) != size:
            continue
        if _last_size(before) + ENOUGH > _last_size(request) or not thread.newest(step):
            continue
        if same_client(thread, request.hints) is False or not _grown(opening(before), texts, step.text):
            continue
        if instructions(before) == instructions(request):
            return step
    return None


def _last_size(request: ModelRequest) -> int:
    """Characters of what a prompt ends with: only a prompt whose last text got longer has grown."""
    items = request.messages[-1].items if request.messages else ()
    return len(items[-1].text) if items else 0


def _grown(before: Sequence[str], after: Sequence[str], reply: str) -> bool:
    """Whether the last text is the one before with a piece put in that quotes the reply."""
    if not before or len(before) != len(after) or before[:-1] != after[:-1]:
        return False
    old, new = before[-1], after[-1]
    if len(new) < len(old) + ENOUGH:
        return False
    half = int(_MOST_OF_IT * len(old) / 2)  # at one end this much must stand: soon seen, with most prompts
    if not new.startswith(old[:half]) and not new.endswith(old[len(old) - half :]):
        return False
    head = _alike(old, new)
    tail = min(_alike(old[::-1], new[::-1]), len(old) - head)
    if head + tail < _MOST_OF_IT * len(old):
        return False
    return Quoting([new[head : len(new) - tail]]).shares_lines(unheard(reply, old))


def _alike(one: str, other: str) -> int:
    """How many leading characters are the same: by halves, as long stretches compare at memory's speed."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
