"""The sockets in the wall: everything that can be swapped plugs in here.

Dialects, policies, stores, ledgers and exporters implement these protocols and never see each
other. Pure ports are plain functions on values; only ports that wait are ``async``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from proxy.model import (
    Attempt,
    CaptureEnd,
    CaptureStart,
    Carrier,
    Cause,
    Cost,
    EndKind,
    Event,
    Head,
    Insertion,
    Item,
    Message,
    ModelRequest,
    Outcome,
    Record,
    ThreadKind,
    Upstream,
    Usage,
)
from proxy.structs import replace, struct
from proxy.verdict import (
    Alert,
    Balance,
    Claim,
    Decision,
    Demand,
    Edit,
    Grant,
    Receipt,
    Reply,
    Spend,
    Terminal,
    VirtualKey,
)


class Unreadable(Exception):
    """The body is not what its route says. The exchange is relayed and counted as unmodelled."""


class ResponseDecoder(Protocol):
    """Reads one reply, streamed or whole. Any split of the bytes gives the same events and outcome."""

    def feed(self, data: bytes) -> Sequence[Event]:
        """Take decoded body bytes (content encoding undone). Never raises on odd content."""
        ...

    def repeats(self, data: bytes) -> bool:
        """Take these bytes if they are nothing but what the stream repeats, and complete no item.

        Several chunks can come at once; False: nothing was taken, ``feed`` them one by one.
        """
        ...

    @property
    def whole(self) -> bool:
        """What was fed so far is all of the reply, whatever may still be sent behind it."""
        ...

    def finish(self) -> Outcome:
        """The reply as far as it came; safe to call once, at any moment."""
        ...


class Dialect(Protocol):
    """One wire format. Knows bytes and JSON, knows no sockets, threads or budgets."""

    name: str
    list_key: str
    """Key of the message list in the body: ``messages``, ``input`` or ``contents``."""

    def read_message(self, raw: Any) -> Message:
        """Read one parsed element of the message list. Unknown content becomes ``other`` items."""
        ...

    def read_request(
        self, head: Head, path: str, fields: Mapping[str, Any], messages: tuple[Message, ...]
    ) -> ModelRequest:
        """Put a request together from its other parsed fields and its messages, already read.

        Raises Unreadable when this is no model call of this dialect.
        """
        ...

    def decoder(self, request: ModelRequest, status: int, content_type: str) -> ResponseDecoder:
        """A decoder for the reply to this request."""
        ...

    def edit_request(self, body: bytes, request: ModelRequest, edits: Sequence[Edit]) -> bytes:
        """The body with the edits applied; every byte that an edit does not concern stays."""
        ...

    def nudge(self, request: ModelRequest, text: str) -> Carrier | None:
        """How the model may read a text behind all that this request says; None where it may not."""
        ...

    def insertions(
        self, message: bytes, carrier: Carrier, request: ModelRequest, index: int
    ) -> Sequence[Insertion] | None:
        """What to insert into the message of this index, or behind it, by offsets in its bytes.

        None: it may not stand there (any more).
        """
        ...

    def thought(self, item: Item, request: ModelRequest) -> Carrier | None:
        """How reasoning of the reply to a request goes back, byte for byte; None where it does not, or not
        all of it is known."""
        ...

    def refusal(self, request: ModelRequest | None, why: Terminal, request_id: str) -> Reply:
        """``deny`` (an error) or ``message`` (a final reply, streamed if the client streams)."""
        ...

    def closing_frames(self, request: ModelRequest, why: Terminal) -> bytes:
        """Frames that end a running stream in a form the client parses."""
        ...


@struct(frozen=True, slots=True)
class Answer:
    """A tool result that a request brings, and the pending call that it answers."""

    result: Item
    tool: str
    call_id: str | None
    """The provider's id of the call, where the result may bear the client's."""
    arguments: str
    digest: bytes
    """Identity of the call: tool and canonical arguments."""


@struct(frozen=True, slots=True)
class View:
    """What a policy sees: frozen facts of one moment, and its own memory."""

    now_ns: int
    mode: str
    session: str
    thread: str
    turn: str
    step: str
    step_index: int
    """Number of the step in its turn, from 0."""
    number: int = 0
    """Number of the exchange."""
    kind: ThreadKind = "main"
    relation: str = "new"
    """How the request belongs to its thread: attempt, continue, epoch, fork, sibling, new."""
    attempt_index: int = 0
    """0 for a step's first attempt."""
    new_turn: bool = False
    upstream: Upstream | None = None
    request: ModelRequest | None = None
    previous: ModelRequest | None = None
    """The thread's request before this one, as far as it is still at hand."""
    answered: ModelRequest | None = None
    """The newest request of the thread, before this one, that got a whole reply; may be gone, too."""
    delta: tuple[Item, ...] = ()
    """Items that the request newly brings."""
    answers: tuple[Answer, ...] = ()
    """Results among them, with the calls that they answer."""
    results: tuple[Item, ...] = ()
    """The same results alone."""
    outcome: Outcome | None = None
    """The reply (``step_end``)."""
    attempt: Attempt | None = None
    """How the attempt ended: outcome, usage, cost (``step_end``)."""
    price: Callable[[Usage], Cost] | None = None
    """What other numbers of tokens would have cost at this request's model (``step_end``)."""
    balances: Mapping[str, Balance] = field(default_factory=dict)
    """Where the budgets of this request stand by what passed here, by ``budget/dimension``: steps, tokens
    and money, less what is still under way; top-ups and other instances are not known."""
    demand: Demand | None = None
    """Whose the request is, and what it may take at the most (``claims``)."""
    repaired: frozenset[str] = frozenset()
    """Steps of whose replies reasoning was put back into the request that went out (``step_end``)."""
    cause: Cause | None = None
    """Why the turn is over (``turn_end``)."""
    memory: Mapping[str, Any] = field(default_factory=dict)

    def remembering(self, memory: Mapping[str, Any]) -> "View":
        """The same with a policy's own memory."""
        return replace(self, memory=memory)


class Policy(Protocol):
    """A pure rule: same view, same decision. A base class answers "nothing" to every hook."""

    name: str
    wants_deltas: bool

    def turn_start(self, view: View) -> Decision: ...
    def claims(self, view: View) -> Sequence[Claim]:
        """What must be held before the request goes out, all of it together with what budgets claim.

        Asked live and only of what no policy refused; ``view.demand`` is what the request may take. The
        counters are the policy's own; ``policy`` and ``on_exhausted`` of a claim are the chain's to fill in.
        """
        ...

    def step_start(self, view: View) -> Decision: ...
    def delta(self, view: View, event: Event) -> Decision: ...
    def step_end(self, view: View) -> Decision: ...
    def turn_end(self, view: View) -> Decision: ...


class LedgerAway(Exception):
    """Nothing can be held at the moment; the caller decides whether requests pass meanwhile."""


class Ledger(Protocol):
    """Counters that hold: reserve before, settle after. Amounts are whole numbers, exact.

    A grant is a lease: when its holder has not settled or renewed it in time, what it held is
    charged as held. Windows and leases go by the ledger's clock: ``now_ns`` where it is embedded,
    the server's where it is shared. Raises LedgerAway from everything but ``settle``.
    """

    async def reserve(
        self, claims: Sequence[Claim], *, ttl_s: int, now_ns: int, names: Sequence[str] = ()
    ) -> Grant:
        """Hold all claims or none; a refusal names the first that did not fit.

        ``names`` are the ids (turn, thread, session, key …) that an operator may have stopped.
        """
        ...

    def unheld(self, claims: Sequence[Claim], *, now_ns: int) -> Grant:
        """A grant that holds nothing, for a request let through while the ledger was away."""
        ...

    async def settle(self, grant: Grant, actual: Spend, *, now_ns: int) -> Receipt:
        """Charge what it really cost, once, however often it is told; late corrects the assumption.

        Never raises LedgerAway: what cannot be told now is kept and told in order later.
        """
        ...

    async def release(self, grant: Grant, *, now_ns: int) -> Receipt:
        """Give everything back: nothing was spent."""
        ...

    async def renew(self, grants: Sequence[Grant], *, ttl_s: int, now_ns: int) -> None:
        """Keep what is still running from expiring. What has expired stays so."""
        ...

    async def topup(self, claim: Claim, add: int, *, now_ns: int) -> Balance:
        """Raise the limit of the claim's counter in its current window; its amount does not matter."""
        ...

    async def stop(self, name: str, *, now_ns: int) -> None:
        """Refuse every later reserve that names this turn, thread, session or key."""
        ...

    async def resume(self, name: str, *, now_ns: int) -> bool:
        """Lift a stop; False when there was none."""
        ...

    async def stops(self) -> Mapping[str, int]:
        """What is stopped, and since when."""
        ...

    async def balances(self, *, now_ns: int, lasting: bool = False) -> Sequence[Balance]:
        """Every live counter, ordered by name, scope, subject, window and dimension.

        ``lasting``: without the many of steps, turns, threads and sessions, which makes it cheap.
        """
        ...

    async def sweep(self, *, now_ns: int) -> Sequence[Alert]:
        """End what has expired and forget what nobody can ask for any more. Call it now and then."""
        ...

    async def create_key(self, key: VirtualKey) -> bool:
        """Keep a key's hash; False when the name or the hash is taken."""
        ...

    async def keys(self) -> Sequence[VirtualKey]:
        """All keys by name, revoked ones too."""
        ...

    async def revoke_key(self, name: str, *, now_ns: int) -> bool:
        """End a key; False when there is none of this name still valid."""
        ...

    async def close(self) -> None:
        """Tell what is still to be told, as far as possible, and let go."""
        ...


class Tab(Protocol):
    """What was reserved for one exchange. Plain calls; the first one counts."""

    def settle(self, attempt: Attempt, now_ns: int) -> None:
        """The attempt is over, and this is what it took."""
        ...

    def end(self, end: EndKind, status: int | None, now_ns: int) -> None:
        """The exchange is over; what it took is not known, unless ``settle`` came before."""
        ...


class ThreadsAway(Exception):
    """The shared thread store cannot be asked at the moment; what this process knows has to do."""


class ThreadStore(Protocol):
    """Where thread heads outlive the process and are shared between instances.

    A head is an opaque JSON-ready snapshot made by the tracker, keyed by thread id (``id``), with the
    look-up ``keys`` under which later requests will search for it, and the revision ``rev`` that it was
    made from (0: new). Stores of several writers give a stored head the next revision, refuse one that was
    made from an older one than stands there, and raise ThreadsAway; a store of one writer keeps what it gets.
    """

    async def pull(
        self, keys: Sequence[bytes], known: Mapping[str, int] | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Heads that any of the keys name, newest first (empty keys: the newest heads, for a start).

        Those that the caller has in this or a later revision (``known``, by thread) are left out. A head
        says ``alive`` where exchanges of its thread are under way at an instance that lives.
        """
        ...

    async def push(self, heads: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Store heads; each replaces the older one of its thread.

        Answers the heads in whose place a newer one stands; nothing was stored for those.
        """
        ...


class Exporter(Protocol):
    """Takes records off to somewhere. May raise; the outbox counts it and goes on."""

    name: str

    async def export(self, records: Sequence[Record]) -> None: ...
    async def close(self) -> None: ...


@struct(frozen=True, slots=True)
class Reading:
    """One metric of the running process as it stands: a counter where the name ends in ``_total``.

    Names come without the product's prefix; the values of ``labels`` are bounded by whoever reads.
    """

    name: str
    text: str
    rows: Sequence[tuple[tuple[str, ...], float]]
    """The values of the labels, and the number."""
    labels: tuple[str, ...] = ()


@struct(frozen=True, slots=True)
class Spread:
    """How measured values are spread over buckets."""

    name: str
    text: str
    bounds: Sequence[float]
    rows: Sequence[tuple[tuple[str, ...], Sequence[int], float]]
    """The values of the labels, the count of each bucket (the last: beyond all bounds), the sum of all."""
    labels: tuple[str, ...] = ()


class Sink(Protocol):
    """Where the core drops what it observed. Never waits, never raises, may lose bodies under load."""

    def put(self, record: Record) -> None: ...
    def capture(self, capture: CaptureStart | CaptureEnd) -> None: ...
