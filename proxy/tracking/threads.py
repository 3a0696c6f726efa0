"""What the tracker remembers: sessions, threads, turns, steps, and the index that finds them.

State and look-ups only; the rules stand in ``placing`` (whose is this request?) and ``turns``
(what does it do to the turn?). Everything is bounded: a thread keeps its newest steps and a
thinning row of old ones (a fork from long ago still finds its root), the index drops the threads
that rested longest. What left memory is still in the record.

The invariant: no look-up crosses a ``Scope``, which is one key of one team.
"""

import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from hashlib import blake2b
from typing import Any

from proxy.model import (
    AttemptOutcome,
    Cause,
    CostQuality,
    DialectName,
    Hints,
    Item,
    Kept,
    MatchedBy,
    ModelRequest,
    Nudge,
    ThreadKind,
)
from proxy.structs import struct
from proxy.tracking.newest import Newest
from proxy.tracking.packing import Known, known_of, pack_known, pack_text, text_of
from proxy.tracking.waits import Waits

NEWEST_STEPS = 32
"""Steps of a thread that stay at hand one by one; older ones are thinned to powers of two."""
MILESTONES = frozenset({0, *(16**n for n in range(1, 7))})
"""Old steps that stay although their thread is at rest."""
CLIPPED = 16_000
"""Characters of a reply kept to recognise it when a client rewrites it."""
KEPT_ENDS = 4
WAITING_STEPS = 256
LONELY_SESSIONS = 64
EQUALS = 64
"""Steps kept under one name, the newest: a program that asks the same again and again would else make
every look-up longer than the last."""

_COUNTED_ID = re.compile(r"^[A-Za-z_.:\-]*\d{0,3}$")
"""Ids such as ``call_0``, ``functions.add:0``, ``1``: numbered anew in every reply, they join nothing."""


@struct(slots=True, eq=False)
class Session:
    """The threads that belong to one run of one client."""

    id: str
    by: str
    key: tuple[str, str] | None
    client: str
    last_ns: int
    began_ns: int = 0
    """When its first request came."""
    main: "Thread | None" = None
    threads: int = 0
    """Those at hand."""
    foreign: bool = False
    """Begun at another instance, and not told here yet."""
    lonely: tuple[str, ...] = ()
    """What a side call said that nothing tied to a session: the main thread that says the same moves in."""
    unjoined: "list[Thread]" = field(default_factory=list)
    """Side calls that came while no turn was open."""
    waits: Waits | None = None


@struct(slots=True)
class Call:
    """One tool call that the client owes an answer."""

    name: str
    call_id: str | None
    item_id: str | None
    arguments: str = ""
    digest: bytes = b""
    answered: bool = False

    @property
    def id(self) -> str | None:
        """The provider's id, where it gave one."""
        return self.call_id or self.item_id


@struct(slots=True)
class Bill:
    """Running sums over attempts."""

    tokens: dict[str, int] = field(default_factory=dict)
    usd: Decimal = Decimal(0)
    quality: CostQuality = "measured"

    def add(self, tokens: Mapping[str, int], usd: Decimal | None, quality: CostQuality) -> None:
        """Add one attempt."""
        for name, value in tokens.items():
            self.tokens[name] = self.tokens.get(name, 0) + value
        if usd is not None:
            self.usd += usd
        if _QUALITIES.index(quality) > _QUALITIES.index(self.quality):
            self.quality = quality

    @property
    def cost_usd(self) -> str | None:
        """The sum as text; None where a part of it is not known."""
        return None if self.quality == "unpriced" else format(self.usd, "f")


_QUALITIES: tuple[CostQuality, ...] = ("measured", "estimated", "assumed", "unpriced")


@struct(slots=True, eq=False)
class Turn:
    """From user input until the agent owes nothing more."""

    id: str
    index: int
    thread: "Thread"
    open: bool = True
    cause: Cause | None = None
    by: str | None = None
    steps: int = 0
    bill: Bill = field(default_factory=Bill)
    began_ns: int = 0
    """When its first request came."""
    last_ns: int = 0
    refused_ns: int | None = None
    """When we last refused one of its requests."""
    charged_to: "Turn | None" = None
    """Another thread's turn that this one only branches off from: one budget holds for both."""
    foreign: bool = False
    """Begun at another instance, and not told here yet."""
    overtaken: bool = False
    """The next turn began while its last reply was on the way: it ends with that reply."""
    waits: Waits | None = None

    @property
    def last_step(self) -> "Step | None":
        """Its newest step, as far as its thread is still at hand."""
        return next((step for step in reversed(self.thread.steps) if step.turn is self), None)


@struct(slots=True, eq=False)
class Step:
    """One model request with its attempts, and the calls of its reply."""

    id: str
    index: int
    thread: "Thread"
    turn: Turn
    epoch: int
    ask: bytes
    """Name of the history that was sent."""
    matched_by: MatchedBy
    dialect: DialectName
    named: bytes = b""
    """Name of the call ids in it, which the history's name leaves out; empty where it has none."""
    place: int = 0
    """Its number in the turn, once it has gone out."""
    asks: tuple[bytes, ...] = ()
    """The same for every attempt; they may differ in what does not count."""
    exchange: str = ""
    number: int = 0
    arrived_ns: int = 0
    started: bool = False
    attempts: int = 0
    running: int = 0
    """Attempts whose answer is not complete yet."""
    outcome: AttemptOutcome | None = None
    whole: bool = False
    """A whole good reply has come."""
    reply: bytes | None = None
    """Name of the history with the reply."""
    said: bytes = b""
    """Name of the reply's content alone."""
    summaries: tuple[bytes, ...] = ()
    """Names of the provider's summary blocks in the reply, each found by itself."""
    item_ids: tuple[str, ...] = ()
    """The provider's ids of what its reply said, by which a client may refer to it."""
    words: str | bytes = ""
    """What its reply said (``text``); packed once its thread rests."""
    calls: Sequence[Call] = ()
    brought: tuple[tuple[str, bool], ...] = ()
    """Results that its request brings (tool, whether an error), until it goes out."""
    early: Sequence[Item] = ()
    """Results that came before their call had been read to its end."""
    response_id: str | None = None
    stop_reason: str | None = None
    model: str | None = None
    ended_ns: int = 0
    bill: Bill = field(default_factory=Bill)
    closed: bool = False
    """Its end has been told."""
    allowed: bool = False
    """An operator has said yes to it."""
    waits: Waits | None = None
    forgotten: bool = False
    foreign: bool = False
    """Begun at another instance, which tells of it."""

    @property
    def text(self) -> str:
        """The visible text of its reply, clipped."""
        known = self.words
        if isinstance(known, bytes):
            known = self.words = text_of(known)
        return known

    @text.setter
    def text(self, known: str) -> None:
        self.words = known

    def glance(self) -> str:
        """The same, for one look: what is packed stays so."""
        return text_of(self.words) if isinstance(self.words, bytes) else self.words

    @property
    def under_way(self) -> bool:
        """An answer to it is still coming, here or (then nothing else is known) at another instance."""
        return self.running > 0 or (self.foreign and self.outcome is None)

    @property
    def in_vain(self) -> bool:
        """Nothing came of it: what it asked may be asked again."""
        return not self.whole and self.running == 0 and self.outcome not in (None, "complete")

    @property
    def deferred(self) -> bool:
        """Its reply is made in the background, and nobody has fetched it yet."""
        return self.outcome == "complete" and not self.whole

    @property
    def pending(self) -> list[Call]:
        """Calls that nobody answered yet."""
        return [call for call in self.calls if not call.answered]


@struct(frozen=True, slots=True)
class Agreed:
    """The counters of the head in which this instance and the shared index last agreed: what was added
    here since then is the difference."""

    rev: int = 0
    turn: str | None = None
    turn_steps: int = 0
    tokens: Mapping[str, int] = field(default_factory=dict)
    usd: Decimal = Decimal(0)
    step_count: int = 0
    memories: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@struct(slots=True, eq=False)
class Thread:
    """One append-only history."""

    id: str
    scope: "Scope"
    session: Session
    kind: ThreadKind
    dialect: DialectName
    parent: "str | None" = None
    parent_turn: "Turn | None" = None
    client_session: str | None = None
    """The client's own id of the session."""
    agent: str | None = None
    """The client's own id of the agent."""
    system: bytes = b""
    """What the instructions were when it was born."""
    tools: frozenset[str] = frozenset()
    partial: bool = False
    epoch: int = 0
    turns: int = 0
    steps: list[Step] = field(default_factory=list)
    step_count: int = 0
    turn: Turn | None = None
    hint_turn: str | None = None
    summed_up: bool = False
    """The client has just asked for a summary: its next history may be another."""
    conversation: str | None = None
    """The provider's name of a history that it holds for this thread."""
    began_ns: int = 0
    """When its first request came."""
    last_ns: int = 0
    remembered: Known | bytes = field(default_factory=dict)
    """What policies remember of it (``memories``); packed once it rests."""
    nudges: list[Nudge] = field(default_factory=list)
    """Text of ours that its model has read, oldest first; requests of the client lack it."""
    nudging: bool = True
    """Whether it may get more of them: not after the provider refused a request that had some."""
    unsaved: bool = False
    """The newest of them is not safe in the thread store yet."""
    kept: list[Kept] = field(default_factory=list)
    """Reasoning of its replies as it goes back, oldest first: only where a client's losses are repaired."""
    mending: bool = True
    """Whether more of it may be put back: not after the provider refused a request that had some."""
    request: ModelRequest | None = None
    """Its newest request, as long as the memory for such lasts."""
    answered: ModelRequest | None = None
    """Its newest request that got a whole reply, as long."""
    around: frozenset[bytes] = frozenset()
    """What names its newest instructions and tools, where exporters are told of them."""
    ends: dict[str, tuple[Cause, str | None]] = field(default_factory=dict)
    """Why its newest turns ended, by id."""
    foreign: bool = False
    """Begun at another instance, and not told here yet."""
    agreed: Agreed = field(default_factory=Agreed)
    waits: Waits | None = None
    weight: int = 0
    """Rough bytes that it holds."""

    @property
    def memories(self) -> Known:
        """What policies want to know at its next request, by their names."""
        known = self.remembered
        if isinstance(known, bytes):
            known = self.remembered = known_of(known)
        return known

    @memories.setter
    def memories(self, known: Known) -> None:
        self.remembered = known

    def rest(self) -> None:
        """Take less room until it is in use again."""
        for step in self.steps:
            if isinstance(step.words, str):
                step.words = pack_text(step.words)
        shared = self.agreed.rev or self.agreed.memories  # by its objects ``merging`` knows what is new here
        if not isinstance(self.remembered, bytes) and not shared:
            self.remembered = pack_known(self.remembered)

    def note_end(self, turn: Turn) -> None:
        """Remember why a turn ended, for instances that saw it begin."""
        if turn.cause is not None:
            self.ends.pop(turn.id, None)
            self.ends[turn.id] = (turn.cause, turn.by)
            while len(self.ends) > KEPT_ENDS:
                del self.ends[next(iter(self.ends))]

    @property
    def last(self) -> Step | None:
        """Its newest step."""
        return self.steps[-1] if self.steps else None

    def newest(self, step: Step) -> bool:
        """Whether nothing came of whatever followed this step here."""
        for later in reversed(self.steps):
            if later is step:
                return True
            if not later.in_vain:
                return False
        return False

    def pending(self) -> list[tuple[Step, Call]]:
        """Unanswered calls of the running turn, oldest first."""
        running = (step for step in self.steps if step.turn is self.turn and step.whole)
        return [(step, call) for step in running for call in step.pending]

    def root_turn(self) -> Turn | None:
        """The turn that a sub-agent's or side call's spend belongs to."""
        turn = self.parent_turn
        for _ in range(32):
            if turn is None or turn.thread.parent_turn is None:
                break
            turn = turn.thread.parent_turn
        turn = turn if turn is not None else self.turn
        return turn.charged_to or turn if turn is not None else None


class Scope:
    """Everything known of one tenant, with the ways to find it again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.threads: OrderedDict[str, Thread] = OrderedDict()
        self.sessions: dict[tuple[str, str], Session] = {}
        self.agents: dict[tuple[str, str | None], Thread] = {}
        """The thread last used of each agent that a client names, by session and agent."""
        self.asks: dict[bytes, list[Step]] = {}
        self.replies: dict[bytes, list[Step]] = {}
        self.sayings: dict[bytes, list[Step]] = {}
        self.calls: dict[str, list[Step]] = {}
        self.held: dict[str, Step] = {}
        self.recent: Newest[Step] = Newest()
        """Newest replies, to find the one that a summary or a side call quotes."""
        self.lonely: deque[Session] = deque(maxlen=LONELY_SESSIONS)
        """Newest sessions that a side call began, to find the one whose main thread comes now."""
        self.waiting: OrderedDict[str, Step] = OrderedDict()
        """Steps with unanswered calls, to find the one that a sub-agent works for."""

    def add_thread(self, thread: Thread) -> None:
        """Take in a new thread."""
        self.threads[thread.id] = thread
        thread.session.threads += 1

    def touch(self, thread: Thread) -> None:
        """Note that a thread is in use."""
        if thread.id in self.threads:
            self.threads.move_to_end(thread.id)

    def add_step(self, step: Step) -> None:
        """Index what was asked. Thins the thread's old steps."""
        thread = step.thread
        thread.steps.append(step)
        thread.step_count += 1
        self.add_ask(step, step.ask)
        if len(thread.steps) > NEWEST_STEPS:
            old = thread.steps[len(thread.steps) - NEWEST_STEPS - 1]
            if old.index & (old.index - 1):  # 0, 1, 2, 4, 8 … stay
                self.forget_step(old)
                thread.steps.remove(old)

    def thin(self, thread: Thread, newest: int) -> None:
        """Keep of a thread at rest its newest whole steps, what came behind them, and a few old ones."""
        whole = [step.index for step in thread.steps if step.whole][-newest:]
        for old in thread.steps if whole else ():
            if old.index < whole[0] and old.index not in MILESTONES and not old.running:
                self.forget_step(old)
        thread.steps = [step for step in thread.steps if not step.forgotten]

    def add_ask(self, step: Step, ask: bytes) -> None:
        """Index what an attempt asked."""
        step.ask = ask
        if ask not in step.asks:
            step.asks = (*step.asks, ask)
            _insert(self.asks, ask, step)

    def add_reply(self, step: Step) -> None:
        """Index what was answered. ``drop_reply`` comes first where there was an answer before."""
        if step.reply is not None:
            _insert(self.replies, step.reply, step)
        for name in (step.said, *step.summaries):
            if name:
                _insert(self.sayings, name, step)
        for id in _joining_ids(step):
            _insert(self.calls, id, step)
        if step.response_id:
            self.held[step.response_id] = step
        if step.text:
            self.recent.add(step, step.text)
        if step.pending:
            self.waiting[step.id] = step
            if len(self.waiting) > WAITING_STEPS:
                self.waiting.popitem(last=False)

    def answered(self, step: Step) -> None:
        """All calls of a step have their results."""
        self.waiting.pop(step.id, None)

    def forget_step(self, step: Step) -> None:
        """Take a step out of every look-up."""
        step.forgotten = True
        for ask in step.asks:
            _remove(self.asks, ask, step)
        self.drop_reply(step)

    def drop_reply(self, step: Step) -> None:
        """Take a step's answer out of every look-up."""
        if step.reply is not None:
            _remove(self.replies, step.reply, step)
        for name in (step.said, *step.summaries):
            if name:
                _remove(self.sayings, name, step)
        for id in _joining_ids(step):
            _remove(self.calls, id, step)
        if step.response_id and self.held.get(step.response_id) is step:
            del self.held[step.response_id]
        self.waiting.pop(step.id, None)

    def forget_thread(self, thread: Thread) -> None:
        """Drop a whole thread from memory."""
        for step in thread.steps:
            self.forget_step(step)
        self.threads.pop(thread.id, None)
        session = thread.session
        if session.main is thread:
            session.main = None
        if thread.client_session is not None:
            name = (thread.client_session, thread.agent)
            if self.agents.get(name) is thread:
                del self.agents[name]
        session.threads -= 1
        if session.key is not None and not session.threads:
            self.sessions.pop(session.key, None)
        if thread.conversation is not None:
            self.held.pop(thread.conversation, None)
        if not any(step.running for step in thread.steps):
            thread.steps, thread.turn = [], None  # no circle is left: its memory is free at once

    def by_sayings(self, said: bytes) -> Iterator[Step]:
        """Steps whose reply had this content, newest first."""
        yield from reversed(self.sayings.get(said, ()))

    def by_call(self, name: str | None) -> Iterator[Step]:
        """Steps that made a call of this id, newest first. Ids that count from 0 name nothing."""
        if joins(name):
            yield from reversed(self.calls.get(name or "", ()))


def joins(name: str | None) -> bool:
    """Whether an id is random enough to name one call of one conversation."""
    return name is not None and len(name) >= 8 and _COUNTED_ID.match(name) is None


def said(items: Iterable[Item]) -> bytes:
    """Name of a reply's content, wherever it stands; empty for a reply that says nothing."""
    digests = [item.digest for item in items if item.digest and item.role == "assistant"]
    return blake2b(b"".join(digests), digest_size=16).digest() if digests else b""


def instructions(request: ModelRequest) -> bytes:
    """Name of the system text that a request begins with, in or outside its list."""
    texts = [item.text for item in request.system]
    for message in request.messages:
        if message.role != "system":
            break
        texts.extend(item.text for item in message.items)
    if not texts:
        return b""
    return blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=16).digest()


def same_client(thread: Thread, hints: Hints) -> bool | None:
    """Whether the client says that it is this thread: True, False, or None where it says nothing."""
    if hints.session is None or thread.client_session is None:
        return None
    return thread.client_session == hints.session and thread.agent == hints.agent


def _joining_ids(step: Step) -> set[str]:
    names = {name for call in step.calls for name in (call.call_id, call.item_id)}
    return {name for name in names if name is not None and joins(name)}


def _insert(index: dict[Any, list[Step]], key: Any, step: Step) -> None:
    steps = index.get(key)
    if steps is None:
        index[key] = [step]  # nearly all stay alone: no room for more
        return
    steps.append(step)
    if len(steps) > EQUALS:
        del steps[0]


def _remove(index: dict[Any, list[Step]], key: Any, step: Step) -> None:
    left = [one for one in index.pop(key, ()) if one is not step]
    if left:
        index[key] = left
