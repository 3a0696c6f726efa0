"""How sessions and threads come to be: whose run a new history belongs to, and under whom it began.

A session is told by our own label first, then by the client's id, then by what the thread belongs
to (its parent, the router call that went ahead of it); a thread that nothing ties to anything
opens a session of its own.
"""

from collections.abc import Callable

from proxy.model import Exchange, MatchedBy, ModelRequest, Record, ThreadKind
from proxy.structs import struct
from proxy.tracking import telling
from proxy.tracking.likeness import opening, repeats
from proxy.tracking.placing import Match
from proxy.tracking.shelf import Shelf
from proxy.tracking.threads import Scope, Session, Step, Thread, Turn, instructions

JOIN_NS = 10_000_000_000
"""How long a side call and the turn it serves may lie apart."""


@struct(frozen=True, slots=True)
class Arrival:
    """A request that is being placed."""

    scope: Scope
    exchange: Exchange
    request: ModelRequest
    ask: bytes
    """Name of the history that it sends."""
    now_ns: int


class Births:
    """Opens sessions and threads, and tells of it."""

    def __init__(
        self, emit: Callable[[Record], None], new_id: Callable[[str, str], str], shelf: Shelf
    ) -> None:
        self._emit = emit
        self._new_id = new_id
        self._shelf = shelf

    def session(self, arrival: Arrival, near: Thread | None) -> Session:
        """The session of a new thread: by label, by the client's id, by what it belongs to, or new."""
        scope, exchange, request = arrival.scope, arrival.exchange, arrival.request
        label = exchange.identity.labels.get("session")
        hint = request.hints.session
        key = ("label", label) if label else ("hint", hint) if hint else None
        if key is not None and key in scope.sessions:
            return self._known(scope.sessions[key], arrival)
        if key is None and near is not None:
            return self._known(near.session, arrival)
        if key is None and request.tools:
            session = _lonely(scope, request, arrival.now_ns)
            if session is not None:
                return session
        session = Session(
            id=self._new_id("ses_", exchange.id),
            by="hint" if key is not None else "content",
            key=key,
            client=request.hints.client,
            last_ns=arrival.now_ns,
            began_ns=arrival.now_ns,
        )
        if key is not None:
            scope.sessions[key] = session
        self._emit(telling.session_start(session, exchange, arrival.now_ns))
        return session

    def _known(self, session: Session, arrival: Arrival) -> Session:
        """A session that goes on; one that began at another instance is told of here, once."""
        if session.foreign:
            session.foreign = False
            started = telling.session_start(session, arrival.exchange, arrival.now_ns)
            self._emit(telling.elsewhere(started))
        return session

    def thread(
        self,
        arrival: Arrival,
        session: Session,
        kind: ThreadKind,
        parent: Thread | None,
        parent_turn: Turn | None,
        by: MatchedBy,
    ) -> Thread:
        """A new history."""
        exchange, request = arrival.exchange, arrival.request
        thread = Thread(
            id=self._new_id("thr_", exchange.id),
            scope=arrival.scope,
            session=session,
            kind=kind,
            dialect=request.dialect,
            parent=parent.id if parent is not None else None,
            parent_turn=parent_turn,
            client_session=request.hints.session,
            agent=request.hints.agent if kind != "side" else None,
            system=instructions(request),
            tools=frozenset(tool.name for tool in request.tools),
            partial=parent is None and _has_past(request),
            last_ns=arrival.now_ns,
            began_ns=arrival.now_ns,
        )
        self._shelf.add(thread)
        self._emit(telling.thread_start(thread, exchange, by, arrival.now_ns))
        return thread


def origin_of(match: Match, request: ModelRequest) -> Step | None:
    """The step whose state a new thread shares, where it shares a model reply."""
    step = match.step
    if step is None or match.relation == "new":
        return None
    if match.relation == "sibling" and step.index == 0 and not _begun_with_past(step.thread, request):
        return None
    return step


def _begun_with_past(thread: Thread, request: ModelRequest) -> bool:
    """Whether a thread's first request had a past: it was seen in its middle, or is a branch of another."""
    branch = thread.parent is not None and any(one.role == "assistant" for one in request.messages)
    return thread.partial or branch


def spawner(arrival: Arrival, session: Session, tasked: Thread | None) -> Thread | None:
    """The thread that a sub-agent works for: named by the client, else the one whose call it answers."""
    scope, hints = arrival.scope, arrival.request.hints
    if hints.session is not None:
        parent = scope.agents.get((hints.session, hints.parent_agent))
        if parent is not None and (hints.parent_agent is not None or tasked is None):
            return parent
    if tasked is not None and tasked.session is session:
        return tasked
    return session.main


def _lonely(scope: Scope, request: ModelRequest, now_ns: int) -> Session | None:
    """The session of a side call that went ahead of its main thread (a router), by the same words."""
    texts = opening(request)
    for session in reversed(scope.lonely):
        if now_ns - session.last_ns > JOIN_NS or session.main is not None or not session.threads:
            continue
        if session.client == request.hints.client and any(repeats(texts, said) for said in session.lonely):
            return session
    return None


def _has_past(request: ModelRequest) -> bool:
    """Whether a thread that we never saw begins in its middle: calls, results or thinking stand in it."""
    if request.held is not None:
        return True
    return any(
        item.kind in ("tool_call", "tool_result") or item.signature is not None
        for message in request.messages
        for item in message.items
    )
