"""Under which names a thread is found by other instances, and by which a request looks for its own.

A name is a digest of one fact: a history, a reply, a call id, the client's own ids, the task of a
pending call. Every name is bound to the scope, so that nobody finds another's thread.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from proxy.model import Exchange, Item, ModelRequest
from proxy.reading.library import SEED
from proxy.tracking.likeness import opening
from proxy.tracking.placing import ask_of
from proxy.tracking.threads import Scope, Step, Thread, joins, said
from proxy.tracking.twins import newest_ids, shared_ids

_HISTORIES = 48
"""Newest prefixes of a request that are looked up: a head names the newest steps of its thread."""
_RUNS = 3
_IDS = 24
_TASKS = 8
_TASK_CHARS = 24
"""A shorter text is no evidence that one agent works for another."""


def names_of_thread(thread: Thread, steps: Sequence[Step]) -> list[bytes]:
    """The names under which a thread is put away."""
    facts: set[tuple[str, bytes | str]] = {("thread", thread.id)}
    for step in steps:
        facts |= {("history", name) for name in (*step.asks, step.reply) if name}
        facts |= {("said", name) for name in (step.said, *step.summaries) if name}
        facts |= {
            ("call", id) for call in step.calls for id in (call.call_id, call.item_id) if id and joins(id)
        }
        facts |= {("task", text) for call in step.pending for text in _tasks(call.arguments)}
        if step.response_id:
            facts.add(("held", step.response_id))
    if thread.conversation is not None:
        facts.add(("held", thread.conversation))
    if thread.client_session is not None and thread.kind != "side":
        facts.add(("agent", _agent(thread.client_session, thread.agent)))
    session = thread.session
    if session.key is not None and (
        session.main is thread or (session.main is None and thread.kind == "side")
    ):
        facts.add(("session", "\0".join(session.key)))
    return [_name(thread.scope.name, kind, value) for kind, value in sorted(facts, key=repr)]


def name_of_thread(scope: str, id: str) -> bytes:
    """The name of a thread whose id is known."""
    return _name(scope, "thread", id)


def names_of_request(scope: Scope, exchange: Exchange, request: ModelRequest) -> list[bytes]:
    """The names by which the thread of a request is looked up, and what it may belong to."""
    hints = request.hints
    facts: list[tuple[str, bytes | str]] = [("history", ask_of(scope, request))]
    facts += [("history", name) for name in _histories(request.chain)]
    if request.held is not None:
        facts.append(("held", request.held))
    if hints.session is not None:
        agents = (hints.agent, hints.parent_agent, None)
        facts += [("agent", _agent(hints.session, agent)) for agent in agents]
        facts.append(("session", f"hint\0{hints.session}"))
    label = exchange.identity.labels.get("session")
    if label:
        facts.append(("session", f"label\0{label}"))
    facts += _said(request)
    if not any(message.role == "assistant" for message in request.messages):
        facts += [("task", text.strip()) for text in opening(request) if len(text.strip()) >= _TASK_CHARS]
    return list(dict.fromkeys(_name(scope.name, kind, value) for kind, value in facts))


def known_threads(scope: Scope, request: ModelRequest) -> Iterator[Thread]:
    """Threads at hand that the same names find: nobody need send what is here already."""
    for name in (ask_of(scope, request), *_histories(request.chain)):
        for step in (*scope.asks.get(name, ())[-4:], *scope.replies.get(name, ())[-4:]):
            yield step.thread
    if request.held is not None and request.held in scope.held:
        yield scope.held[request.held].thread
    hints = request.hints
    if hints.session is not None:
        for agent in (hints.agent, hints.parent_agent, None):
            thread = scope.agents.get((hints.session, agent))
            if thread is not None:
                yield thread


def lacks_reply(scope: Scope, request: ModelRequest) -> bool:
    """Whether a request goes on from a step whose reply another instance has not told yet."""
    if request.held is not None:
        return request.held not in scope.held
    whole, ids = ask_of(scope, request), newest_ids(request.messages)
    for name in _histories(request.chain):
        if any(shared_ids(step, ids) >= 0 for step in scope.replies.get(name, ())):
            return False
        if name != whole and name in scope.asks:
            return any(step.foreign and step.under_way for step in scope.asks[name])
    return False


def _histories(chain: Sequence[bytes]) -> list[bytes]:
    newest = dict.fromkeys(name for name in reversed(chain) if name != SEED)
    return list(newest)[:_HISTORIES]


def _said(request: ModelRequest) -> Iterable[tuple[str, bytes | str]]:
    """What stands among the newest messages: replies as they came back, call ids."""
    runs = ids = 0
    reply: list[Item] = []
    for message in reversed(request.messages):
        for item in message.items:
            if (
                item.kind in ("tool_call", "tool_result")
                and item.call_id
                and joins(item.call_id)
                and ids < _IDS
            ):
                ids += 1
                yield "call", item.call_id
            if item.kind == "compaction" and item.digest:
                yield "said", item.digest
        if message.role == "assistant":
            reply = [*message.items, *reply]
        elif message.items and reply:
            yield "said", said(reply)
            reply, runs = [], runs + 1
            if runs >= _RUNS:
                return
    if reply:
        yield "said", said(reply)


def _tasks(arguments: str) -> list[str]:
    if len(arguments) < _TASK_CHARS:
        return []
    try:
        told = json.loads(arguments)
    except (ValueError, RecursionError):
        return []
    texts = told.values() if isinstance(told, dict) else ()
    return [text.strip() for text in texts if isinstance(text, str) and len(text.strip()) >= _TASK_CHARS][
        :_TASKS
    ]


def _agent(session: str, agent: str | None) -> str:
    return f"{session}\0{agent or ''}"


def _name(scope: str, kind: str, value: bytes | str) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    return blake2b(f"{scope}\0{kind}\0".encode() + raw, digest_size=16).digest()
